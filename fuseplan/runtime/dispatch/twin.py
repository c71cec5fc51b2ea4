"""The dispatcher in Python, on ctypes: the same behaviour as the native one where that cannot be compiled."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from fuseplan.errors import DeviceError
from fuseplan.runtime import cuda, team
from fuseplan.runtime.dispatch.binding import Binder
from fuseplan.runtime.dispatch.failures import fail_host
from fuseplan.runtime.dispatch.layout import THREAD_ALIGN, Frame, Step
from fuseplan.runtime.dispatch.maps import encode
from fuseplan.runtime.launch import LaunchKind, PatchKind

_ALIGN = 64


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
    """Checked addresses of one call and its own copy of the parameter blocks."""

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
        self.workspace, keep = binder.resolve_workspace(workspace)
        self.keep.append(keep)
        if binder.writes is not None:
            binder.writes.check(self.addresses, self.workspace, binder.program.workspace_bytes)
            outputs = [b for b, slot in zip(collected, binder.slots, strict=True) if slot.is_output]
            binder.writes.tell_autograd(outputs, is_bound)
        self.maps = dispatcher.encode_maps(self)


def _new_frame(image: bytes) -> tuple[Any, int]:
    memory = ctypes.create_string_buffer(len(image) + _ALIGN)
    base = ctypes.addressof(memory) + -ctypes.addressof(memory) % _ALIGN
    ctypes.memmove(base, image, len(image))
    return memory, base


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
        self.functions = {s.function: of_kind[s.kind](s.function) for s in frame.steps if s.kind in of_kind}
        self.num_encodes = 0
        self._encoded: list[tuple[int, int, bytes] | None] = [None] * len(frame.maps)

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
        for number, form in enumerate(self.frame.maps):
            address, other = _address(*form.first, call), 0
            if form.second[0] != -2:
                other = _address(*form.second, call)
            last = self._encoded[number]
            if last is None or last[:2] != (address, other):
                with cuda.current(self.binder.program.device_index):  # a new thread has none
                    last = self._encoded[number] = (address, other, encode(form, address, other))
                self.num_encodes += 1
            made.append((last[2], int(other < address)))
        return made

    def run(self, call: _Call, stream: int) -> None:
        """Patch a copy of the blocks and run all steps."""
        memory, base = _new_frame(self.frame.image)
        for step in self.frame.steps:
            if step.kind in (LaunchKind.HOST, LaunchKind.CUDA, LaunchKind.LIBRARY):
                self._patch(step, call, base)
        around: Any = contextlib.nullcontext()
        if self.frame.uses_driver:
            around = cuda.current(self.binder.program.device_index)
        with around:
            for step in self.frame.steps:
                self._run_step(step, call, base, stream)
        del memory

    def _patch(self, step: Step, call: _Call, base: int) -> None:
        for kind, offset, slot, addend, size, number in step.patches:
            if kind == PatchKind.SCALAR:
                ctypes.memmove(base + offset, call.addresses[slot] + addend, size)
            elif kind == PatchKind.TENSOR_MAP:
                data, is_swapped = call.maps[number]
                ctypes.memmove(base + offset, data, len(data))
                swap_offset = self.frame.maps[number].swap_offset
                if swap_offset >= 0:
                    ctypes.c_int32.from_address(base + swap_offset).value = is_swapped
            else:
                ctypes.c_uint64.from_address(base + offset).value = _address(slot, addend, call)

    def _run_host(self, step: Step, call: _Call, base: int) -> None:
        kernel, follows = self.functions[step.function], self.frame.follows_torch
        status = _run_kernel(kernel, base + step.block, step, call.workspace, follows_torch=follows)
        if status:
            fail_host(status, step.label, None)

    def _run_step(self, step: Step, call: _Call, base: int, stream: int) -> None:
        if step.kind == LaunchKind.HOST:
            self._run_host(step, call, base)
            return
        made: Any = step.call
        if step.kind == LaunchKind.LIBRARY:
            status = self.functions[step.function](base + step.block, stream)
            if status:
                fail_host(status, step.label, made)
            return
        targets = tuple(_address(slot, addend, call) for _, _, slot, addend, _, _ in step.patches)
        if step.kind == LaunchKind.PYTHON:
            made(targets, stream, call.workspace)
            return
        value, words = step.memset
        if step.kind == LaunchKind.MEMSET and not self.on_gpu:
            ctypes.memmove(targets[0], value.to_bytes(4, "little") * words, 4 * words)
            return
        try:
            if step.kind == LaunchKind.MEMSET:
                cuda.memset32(targets[0], value, words, stream)
            else:
                c = step.config
                params = [base + offset for offset in step.params]
                cuda.launch(step.function, c[:3], c[3:6], c[6], stream, params, step.attributes)
        except DeviceError as problem:
            head, _, rest = problem.wrong.partition(" failed with ")
            raise DeviceError(f"launch '{step.label}' failed with {rest or head}", fix=problem.fix) from problem


def _run_kernel(kernel: Any, block: int, step: Step, workspace: int, *, follows_torch: bool) -> int:
    """All tasks of a host function, on the team if there is one; its status."""
    count, num_threads, scratch_at, stride, _ = step.team
    start = workspace + scratch_at
    scratch = start + -start % THREAD_ALIGN if stride else None
    threads = team.library() if num_threads > 1 else None
    if threads is None:
        return int(kernel(block, _Task(count, 0, 1, scratch, ctypes.pointer(_Counters()))))
    launch = team.Launch(step.function, block, count, scratch, stride, num_threads, follows_torch)
    return int(threads.fp_team_run(launch))


def _address(slot: int, addend: int, call: _Call) -> int:
    return (call.workspace if slot < 0 else call.addresses[slot]) + addend


class Bound:
    """A program with its buffers; calling it checks nothing."""

    def __init__(self, dispatcher: Dispatcher, call: _Call, stream: int) -> None:
        self._dispatcher, self._call, self._stream = dispatcher, call, stream

    def __call__(self) -> None:
        self._dispatcher.run(self._call, self._stream)

    def set_stream(self, stream: int, /) -> None:
        """Launch on this stream from now on."""
        self._stream = _stream_number(stream)
