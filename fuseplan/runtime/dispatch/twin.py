"""The dispatcher in Python, on ctypes: the same behaviour as the native one where that cannot be compiled."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from fuseplan.errors import DeviceError, MisalignedError
from fuseplan.runtime import cuda, team
from fuseplan.runtime.dispatch.binding import Binder
from fuseplan.runtime.dispatch.layout import THREAD_ALIGN, Frame, Step, map_numbers, thread_stride
from fuseplan.runtime.launch import LaunchKind, Patch, PatchKind, StatusText, TensorMap

_ALIGN = 64
_MOST_STRIDE = 1 << 40  # of a tensor map


def fail(code: int, label: str) -> None:
    """Raise the driver's error of a launch."""
    raise cuda.driver().error(code, f"launch '{label}'")


def fail_host(status: int, label: str, text: StatusText | None) -> None:
    """Raise the error of a host kernel or library that gave back a status."""
    said = f": {text(status)}" if text is not None else ""
    raise DeviceError(f"launch '{label}' failed with status {status}{said}")


def fail_map(code: int, label: str, distance: int) -> None:
    """Raise what keeps a map from being made: the driver, with a code, or two buffers that are not a stride apart.

    The latter is a MisalignedError, so that the program without alignments is taken.
    """
    if code:
        error = cuda.driver().error(code, f"launch '{label}'")
        raise DeviceError(f"{error.wrong} (a tensor map)", fix=error.fix)
    raise MisalignedError(f"launch '{label}': two buffers {distance} bytes apart are no axis of a tensor map")


class _Counters(ctypes.Structure):
    """``struct fp_counters`` of task.h."""

    _fields_ = [("numbers", ctypes.c_int64 * 9)]


class _Task(ctypes.Structure):
    """``struct fp_task`` of task.h."""

    _fields_ = [
        ("num_tasks", ctypes.c_int64), ("thread", ctypes.c_int32), ("num_threads", ctypes.c_int32),
        ("scratch", ctypes.c_void_p), ("counters", ctypes.POINTER(_Counters)),
    ]  # fmt: skip


_HostFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Task))
_LibraryCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Call:
    """Checked addresses of one call, the workspace's last, and its tensor maps."""

    def __init__(self, dispatcher: Dispatcher, pack: object, workspace: object, *, is_bound: bool) -> None:
        binder = dispatcher.binder
        collected = binder.collect(pack)
        self.keep: list[object] = []
        self.addresses: list[int] = []
        for index, buffer in enumerate(collected):
            value = binder.slots[index].value
            where, keep = (value, None) if value is not None else binder.resolve(index, buffer)
            if isinstance(where, bytes):
                keep = ctypes.create_string_buffer(where, len(where))
                where = ctypes.addressof(keep)
            self.addresses.append(where)
            self.keep.append(keep)
        workspace, keep = binder.resolve_workspace(workspace)
        self.keep.append(keep)
        if binder.writes is not None:
            binder.writes.check(self.addresses, workspace, binder.program.workspace_bytes)
            outputs = [b for b, slot in zip(collected, binder.slots, strict=True) if slot.is_output]
            binder.writes.tell_autograd(outputs, is_bound)
        self.addresses.append(workspace)
        self.maps = dispatcher.encode_maps(self)

    def target(self, patch: Patch) -> int:
        """The address that a patch stands for."""
        return self.addresses[-1 if patch.kind == PatchKind.SCRATCH else patch.slot] + patch.addend


def _stream_number(stream: object) -> int:
    if not isinstance(stream, int):
        raise TypeError(f"a stream is an integer address, not a {type(stream).__name__}")
    return int(stream)


class Dispatcher:
    """Runs one program; safe to call from several threads at once."""

    def __init__(self, binder: Binder, frame: Frame) -> None:
        self.binder, self.frame = binder, frame
        self.on_gpu = binder.program.device_kind == "cuda"
        of_kind: dict[LaunchKind, Any] = {LaunchKind.HOST: _HostFunction, LaunchKind.LIBRARY: _LibraryCall}
        self.functions = {s.function: of_kind[k](s.function) for s in frame.steps if (k := s.launch.kind) in of_kind}
        #: tensor maps encoded so far: one for each that is used, and one more whenever its address changes
        self.num_encodes = 0
        self._mapped = [(p, p.map, s.label) for s in frame.steps for p in s.launch.patches if p.map is not None]
        self._encoded: list[tuple[int, int, bytes] | None] = [None] * len(self._mapped)

    def execute(self, pack: object, workspace: object, stream: int, /) -> None:
        """Check all buffers, then run."""
        number = _stream_number(stream)
        self.run(_Call(self, pack, workspace, is_bound=False), number)

    def bind(self, pack: object, workspace: object, stream: int, /) -> Bound:
        """Check once, for calls that check nothing."""
        number = _stream_number(stream)
        return Bound(self, _Call(self, pack, workspace, is_bound=True), number)

    def encode_maps(self, call: _Call) -> list[tuple[bytes, int]]:
        """Each tensor map, and whether its buffers are swapped; encoded again for another address only."""
        made = []
        for number, (patch, m, label) in enumerate(self._mapped):
            address, other = call.target(patch), call.addresses[m.second[0]] + m.second[1] if m.second else 0
            last = self._encoded[number]
            if last is None or last[:2] != (address, other):
                with cuda.current(self.binder.program.device_index):  # a new thread has none
                    last = self._encoded[number] = (address, other, _encode(m, label, address, other))
                self.num_encodes += 1
            made.append((last[2], int(other < address)))
        return made

    def run(self, call: _Call, stream: int) -> None:
        """Patch a copy of the blocks and run all steps."""
        image = self.frame.image
        memory = ctypes.create_string_buffer(len(image) + _ALIGN)
        base = ctypes.addressof(memory) + -ctypes.addressof(memory) % _ALIGN
        ctypes.memmove(base, image, len(image))
        maps = iter(call.maps)
        for step in self.frame.steps:
            if step.launch.kind in (LaunchKind.HOST, LaunchKind.CUDA, LaunchKind.LIBRARY):
                for patch in step.launch.patches:
                    _write(patch, call, base + step.block, maps)
        around: Any = contextlib.nullcontext()
        if self.frame.uses_driver:
            around = cuda.current(self.binder.program.device_index)
        with around:
            for step in self.frame.steps:
                self._run_step(step, call, base, stream)
        del memory

    def _run_step(self, step: Step, call: _Call, base: int, stream: int) -> None:
        launch, block = step.launch, base + step.block
        made: Any = step.call
        if launch.kind in (LaunchKind.HOST, LaunchKind.LIBRARY):
            if launch.kind == LaunchKind.LIBRARY:
                status = self.functions[step.function](block, stream)
            else:
                status = self._run_kernel(step, block, call.addresses[-1])
            if status:
                fail_host(status, step.label, made)
            return
        targets = tuple(map(call.target, launch.patches))
        value, words = launch.memset_value & 0xFFFFFFFF, launch.memset_words
        if launch.kind == LaunchKind.PYTHON:
            made(targets, stream, call.addresses[-1])
            return
        if launch.kind == LaunchKind.MEMSET and not self.on_gpu:
            ctypes.memmove(targets[0], value.to_bytes(4, "little") * words, 4 * words)
            return
        try:
            if launch.kind == LaunchKind.MEMSET:
                cuda.memset32(targets[0], value, words, stream)
            else:
                params = [block + offset for offset in launch.param_offsets]
                attributes = [(int(number), *values) for number, values in launch.attributes]
                cuda.launch(step.function, launch.grid, launch.block, launch.shared_bytes, stream, params, attributes)
        except DeviceError as problem:
            head, _, rest = problem.wrong.partition(" failed with ")
            raise DeviceError(f"launch '{step.label}' failed with {rest or head}", fix=problem.fix) from problem

    def _run_kernel(self, step: Step, block: int, workspace: int) -> int:
        """All tasks of a host function, on the team if there is one; its status."""
        tasks, stride = step.launch.tasks, thread_stride(step.launch.tasks)
        start = workspace + tasks.scratch_at
        scratch = start + -start % THREAD_ALIGN if stride else None
        threads = team.library() if step.num_threads > 1 else None
        if threads is None:
            task = _Task(tasks.count, 0, 1, scratch, ctypes.pointer(_Counters()))
            return int(self.functions[step.function](block, task))
        follows_torch = self.frame.follows_torch
        launch = team.Launch(step.function, block, tasks.count, scratch, stride, step.num_threads, follows_torch)
        return int(threads.fp_team_run(launch))


def _write(patch: Patch, call: _Call, block: int, maps: Iterator[tuple[bytes, int]]) -> None:
    if patch.kind == PatchKind.SCALAR:
        ctypes.memmove(block + patch.offset, call.target(patch), patch.size)
    elif patch.map is not None:
        data, is_swapped = next(maps)
        ctypes.memmove(block + patch.offset, data, len(data))
        if patch.map.swap_offset >= 0:
            ctypes.c_int32.from_address(block + patch.map.swap_offset).value = is_swapped
    else:
        ctypes.c_uint64.from_address(block + patch.offset).value = call.target(patch)


def _encode(m: TensorMap, label: str, address: int, other: int) -> bytes:
    """The bytes of a map for its buffers, asked of the driver. Raises what `fail_map` does."""
    strides = m.strides
    if m.second is not None:
        distance = abs(address - other)
        if not 0 < distance < _MOST_STRIDE or distance % 16:
            fail_map(0, label, distance)
        address, strides = min(address, other), (*strides, distance)
    steps = m.steps or (1,) * len(m.dims)
    code, data = cuda.encode_tensor_map(map_numbers(m), address, m.dims, strides, m.box, steps)
    if code:
        fail_map(code, label, 0)
    return data


class Bound:
    """A program with its buffers; calling it checks nothing."""

    def __init__(self, dispatcher: Dispatcher, call: _Call, stream: int) -> None:
        self._dispatcher, self._call, self._stream = dispatcher, call, stream

    def __call__(self) -> None:
        self._dispatcher.run(self._call, self._stream)

    def set_stream(self, stream: int, /) -> None:
        """Launch on this stream from now on."""
        self._stream = _stream_number(stream)
