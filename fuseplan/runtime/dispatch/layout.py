"""A program as one frame of bytes and steps over it: the form that both dispatchers run."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from fuseplan.errors import ArgumentError
from fuseplan.runtime import artifacts, cuda, team
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind, Program, Tasks, TensorMap

_ALIGN = 64  # of each block: tensor maps ask for it
_LONGEST_US = 1e15  # of a launch
QUICK_US = 5.0  # a launch with less work would spend a good part of its time on giving the lock away
THREAD_ALIGN = 64  # of each thread's memory, wherever the workspace begins
_MAP_BYTES, _MOST_NUMBER = 128, 1 << 32  # of a tensor map
_MAP_TYPES = {"FLOAT": 7, "HALF": 6, "BFLOAT16": 9, "DOUBLE": 8, "INT32": 3, "INT64": 5}  # CUtensorMapDataType
_MAP_TYPE_OF_8_BITS = 0


class Step(NamedTuple):
    """A launch in the frame.

    Args:
        block: offset of its parameter block
        function: address of the host function or handle of the kernel
        num_threads: how many may share it
        is_quick: whether there is so little work that the interpreter's lock is kept
    """

    launch: Launch
    label: str
    block: int
    function: int
    num_threads: int
    is_quick: bool

    @property
    def call(self) -> object:
        """The function of a PYTHON launch, the text of the status of a LIBRARY launch."""
        return self.launch.status_text if self.launch.kind == LaunchKind.LIBRARY else self.launch.call


@dataclass(frozen=True, slots=True)
class Frame:
    """All parameter blocks of a program before patching, and its steps.

    Args:
        uses_driver: whether a step goes through the CUDA driver
        rereads: whether the memory of a slot is copied into a block, to be read again at each call
        follows_torch: see `team.follows_torch`
        tables: memory of the device whose addresses stand in the blocks
    """

    image: bytes
    steps: tuple[Step, ...]
    uses_driver: bool
    rereads: bool
    follows_torch: bool
    tables: tuple[cuda.Table, ...] = ()


def make_frame(program: Program) -> Frame:
    """Lay out the blocks and load every compiled function.

    Raises:
        ArgumentError: a patch does not fit its block or its slot (a fault of the engine)
        ToolchainError, DeviceError, cudnnGraphNotSupportedError: a compiled file cannot be loaded
    """
    image, steps, tables = bytearray(), list[Step](), list[cuda.Table]()
    for launch in program.launches:
        image.extend(bytes(-len(image) % _ALIGN))
        check_launch(program, launch)
        steps.append(_make_step(program, launch, len(image)))
        image.extend(launch.template)
        for offset, data in launch.tables:
            tables.append(cuda.Table(data, program.device_index))
            struct.pack_into("<Q", image, steps[-1].block + offset, tables[-1].address)
    image.extend(bytes(-len(image) % 8))
    on_gpu = program.device_kind == "cuda"
    through_driver = (LaunchKind.CUDA, LaunchKind.MEMSET, LaunchKind.LIBRARY) if on_gpu else (LaunchKind.CUDA,)
    uses_driver = any(launch.kind in through_driver for launch in program.launches)
    copied = {p.slot for launch in program.launches for p in launch.patches if p.kind == PatchKind.SCALAR}
    rereads = any(program.slots[slot].value is None for slot in copied)
    follows_torch = team.follows_torch(program.num_threads)
    return Frame(bytes(image), tuple(steps), uses_driver, rereads, follows_torch, tuple(tables))


def _function(program: Program, launch: Launch) -> int:
    """Address or handle of what a launch calls; 0 where it calls nothing of the kind."""
    if launch.kind == LaunchKind.PYTHON and launch.call is None:
        raise ArgumentError(f"launch '{launch.label}' has no function to call")
    if launch.kind in (LaunchKind.PYTHON, LaunchKind.MEMSET) or launch.function:
        return launch.function
    a = launch.artifact
    if a is None or not launch.symbol:
        raise ArgumentError(f"launch '{launch.label}' has no artifact or no symbol")
    if launch.kind == LaunchKind.CUDA:
        return cuda.load_cubin(a.data, launch.symbol, launch.shared_bytes, program.device_index, a.key)
    return artifacts.symbol_address(a, launch.symbol)


def _make_step(program: Program, launch: Launch, at: int) -> Step:
    tasks, threads = launch.tasks, 1
    if tasks.count > 1:
        limit = team.number(program.num_threads)
        threads = team.size_of(limit, tasks.count, tasks.work_us, tasks.max_threads)
    label = launch.label or launch.symbol or launch.kind.name
    return Step(launch, label, at, _function(program, launch), threads, 0 < tasks.work_us < QUICK_US)


def thread_stride(tasks: Tasks) -> int:
    """Bytes from the memory of one thread to that of the next."""
    return -(-tasks.thread_bytes // THREAD_ALIGN) * THREAD_ALIGN


def threads_bytes(tasks: Tasks, num_threads: int) -> int:
    """Bytes of the workspace that `num_threads` threads of a launch need."""
    return num_threads * thread_stride(tasks) + THREAD_ALIGN if tasks.thread_bytes else 0


def check_launch(program: Program, launch: Launch) -> None:
    """Whether a launch keeps to its block, to the slots and to the workspace.

    Raises:
        ArgumentError: it does not (a fault of the engine, or of the file that it came from)
    """
    for patch in launch.patches:
        _check_patch(program, launch, patch)
    what, block = f"launch '{launch.label}'", len(launch.template)
    if launch.kind == LaunchKind.MEMSET:
        if not launch.patches:
            raise ArgumentError(f"{what}: a memset needs a patch for its address")
        room = _room(program, launch.patches[0])
        if not 0 <= 4 * launch.memset_words <= room:
            raise ArgumentError(f"{what}: {launch.memset_words} words do not fit {room} bytes")
    if any(launch.kind is not LaunchKind.CUDA or not 0 <= at <= block - 8 or not data for at, data in launch.tables):
        raise ArgumentError(f"{what}: a table that is empty, or outside of the block of {block} bytes")
    if any(not 0 <= offset < max(1, block) for offset in launch.param_offsets):
        raise ArgumentError(f"{what}: a parameter lies outside of the block of {block} bytes")
    _check_tasks(program, launch.tasks, what)
    config = (*launch.grid, *launch.block)
    if len(config) != 6 or not 1 <= min(config) <= max(config) < 1 << 31 or not 0 <= launch.shared_bytes < 1 << 31:
        raise ArgumentError(f"{what}: grid {launch.grid} and block {launch.block}")
    if launch.function and launch.kind is not LaunchKind.LIBRARY:
        raise ArgumentError(f"{what}: only a call of a library has an address")
    for attribute, values in launch.attributes:
        if launch.kind is not LaunchKind.CUDA or not 1 <= len(values) <= 3 or min(values) < 0:
            raise ArgumentError(f"{what}: attribute {attribute.name} of {values}")


def _check_tasks(program: Program, tasks: Tasks, what: str) -> None:
    if not (1 <= tasks.count < 1 << 62 and 0 <= tasks.work_us < _LONGEST_US):
        raise ArgumentError(f"{what}: {tasks.count} tasks of {tasks.work_us} us")
    past, room = tasks.scratch_at + threads_bytes(tasks, max(1, tasks.max_threads)), program.workspace_bytes
    room -= program.workspace_slack
    if tasks.thread_bytes and not (tasks.max_threads > 0 and 0 <= tasks.scratch_at < past <= room):
        raise ArgumentError(
            f"{what}: {tasks.max_threads} threads with {tasks.thread_bytes} bytes each do not fit the workspace of "
            f"{program.workspace_bytes} bytes"
        )


def _room(program: Program, patch: Patch) -> int:
    """Bytes from where a patch points to the end of its buffer."""
    if patch.kind == PatchKind.SCRATCH:
        return program.workspace_bytes - patch.addend
    return program.slots[patch.slot].span_bytes - patch.addend


def _check_patch(program: Program, launch: Launch, patch: Patch) -> None:
    what = f"launch '{launch.label}', patch at {patch.offset}"
    if patch.kind == PatchKind.TENSOR_MAP or patch.map is not None:
        _check_map(program, launch, patch)
        return
    writes = launch.kind not in (LaunchKind.MEMSET, LaunchKind.PYTHON)  # these only read the address
    size = patch.size if patch.kind == PatchKind.SCALAR else 8
    if writes and not 0 <= patch.offset <= len(launch.template) - size:
        raise ArgumentError(f"{what}: outside of the block of {len(launch.template)} bytes")
    if patch.kind == PatchKind.SCRATCH:
        if not 0 <= patch.addend < program.workspace_bytes:
            raise ArgumentError(f"{what}: outside of the workspace of {program.workspace_bytes} bytes")
        return
    if not 0 <= patch.slot < len(program.slots):
        raise ArgumentError(f"{what}: there is no slot {patch.slot}")
    slot = program.slots[patch.slot]
    on_host = slot.value is not None or slot.place in ("host", "cpu")
    if patch.kind == PatchKind.SCALAR:
        held = slot.span_bytes if slot.value is None else len(slot.value)
        if not on_host or patch.addend < 0 or patch.size < 0 or patch.addend + patch.size > held:
            raise ArgumentError(f"{what}: cannot copy {patch.size} bytes from tensor '{slot.name}'")
    elif not 0 <= patch.addend <= slot.span_bytes:
        raise ArgumentError(f"{what}: {patch.addend} bytes into tensor '{slot.name}' of {slot.span_bytes} bytes")
    elif on_host and launch.kind == LaunchKind.CUDA:
        raise ArgumentError(f"{what}: tensor '{slot.name}' is on the host, a kernel cannot have its address")


def map_numbers(m: TensorMap) -> tuple[int, int, int, int, int]:
    """The driver's numbers of type, interleave, swizzle, promotion and fill."""
    return _MAP_TYPES.get(m.dtype.name, _MAP_TYPE_OF_8_BITS), m.interleave, m.swizzle, m.promotion, m.fill


def _check_map(program: Program, launch: Launch, patch: Patch) -> None:
    what, m = f"launch '{launch.label}', tensor map at {patch.offset}", patch.map
    if m is None or (launch.kind, patch.kind) != (LaunchKind.CUDA, PatchKind.TENSOR_MAP):
        raise ArgumentError(f"{what}: only a patch with a map, of a CUDA launch, can be one")
    if patch.offset % _ALIGN or not 0 <= patch.offset <= len(launch.template) - _MAP_BYTES:
        raise ArgumentError(f"{what}: not at a multiple of {_ALIGN}, or outside of the block")
    if m.swap_offset != -1 and not 0 <= m.swap_offset <= len(launch.template) - 4:
        raise ArgumentError(f"{what}: swap_offset lies outside of the block")
    rank = len(m.dims)
    given = (rank - 1 - (m.second is not None), rank, rank)
    if not 1 <= rank <= 5 or (len(m.strides), len(m.box), len(m.steps or m.box)) != given:
        raise ArgumentError(f"{what}: {rank} dims, {len(m.strides)} strides, a box of {len(m.box)}")
    numbers = (*m.dims, *m.box, *m.steps, 1)
    if m.dtype.bits < 8 or not 1 <= min(*numbers, *m.strides) <= max(*numbers, *map_numbers(m)) < _MOST_NUMBER:
        raise ArgumentError(f"{what}: type {m.dtype.name}, dims {m.dims}, strides {m.strides}, box {m.box}")
    if m.second is not None and m.dims[-1] != 2:
        raise ArgumentError(f"{what}: {m.dims[-1]} entries along the axis of its two buffers")
    inner = m.dims if m.second is None else m.dims[:-1]
    span = m.dtype.itemsize * m.dims[0] + sum((d - 1) * s for d, s in zip(inner[1:], m.strides, strict=True))
    for slot, addend in ((patch.slot, patch.addend), *([] if m.second is None else [m.second])):
        if not -1 <= slot < len(program.slots) or (slot >= 0 and program.slots[slot].place != "cuda"):
            raise ArgumentError(f"{what}: there is no slot {slot} in the device's memory")
        room = program.workspace_bytes if slot < 0 else program.slots[slot].span_bytes
        if addend < 0 or addend + span > room:
            raise ArgumentError(f"{what}: {span} bytes from {addend} on do not fit a buffer of {room}")
