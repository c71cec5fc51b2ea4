"""A program as one frame of bytes and steps over it: the form that both dispatchers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fuseplan.errors import ArgumentError
from fuseplan.runtime import artifacts, cuda, team
from fuseplan.runtime.dispatch.maps import MapForm, check_map, form_of
from fuseplan.runtime.launch import (
    Attribute,
    Launch,
    LaunchKind,
    Patch,
    PatchKind,
    Program,
    PythonCall,
    StatusText,
    Tasks,
)

_ALIGN = 64  # of each block: tensor maps ask for it
_LONGEST_US = 1e15  # of a launch
QUICK_US = 5.0  # a launch with less work would spend a good part of its time on giving the lock away
THREAD_ALIGN = 64  # of each thread's memory, wherever the workspace begins


class Step(NamedTuple):
    """One launch, with offsets into the frame; the native dispatcher reads it in this order (module.c).

    Args:
        kind, label: as in the launch
        block: offset of the parameter block
        patches: (kind, offset in the frame, slot, addend, size, index of the tensor map or -1) of each
        function: address of the host function or handle of the kernel
        params: offset in the frame of each kernel parameter
        config: grid, block and shared bytes of a kernel
        memset: value and number of words
        call: function of a PYTHON launch, text of the status of a LIBRARY launch
        team: number of tasks and of threads, where their memory begins in the workspace, bytes of each thread,
            whether there is so little work that the interpreter's lock is kept
        attributes: number of each and its three values
    """

    kind: LaunchKind
    label: str
    block: int
    patches: tuple[tuple[int, int, int, int, int, int], ...]
    function: int = 0
    params: tuple[int, ...] = ()
    config: tuple[int, int, int, int, int, int, int] = (1, 1, 1, 1, 1, 1, 0)
    memset: tuple[int, int] = (0, 0)
    call: PythonCall | StatusText | None = None
    team: tuple[int, int, int, int, bool] = (1, 1, 0, 0, False)
    attributes: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """All parameter blocks of a program before patching, and its steps.

    Args:
        maps: the tensor maps of all patches
        uses_driver: whether a step goes through the CUDA driver
        uses_team: whether a step may run on several threads
        follows_torch: see `team.follows_torch`
        rereads: slots whose memory is copied into a block, to be read again at each call
    """

    image: bytes
    steps: tuple[Step, ...]
    maps: tuple[MapForm, ...]
    uses_driver: bool
    rereads: frozenset[int]
    uses_team: bool = False
    follows_torch: bool = False


def make_frame(program: Program) -> Frame:
    """Lay out the blocks and load every compiled function.

    Raises:
        ArgumentError: a patch does not fit its block or its slot (a fault of the engine)
        ToolchainError, DeviceError, cudnnGraphNotSupportedError: a compiled file cannot be loaded
    """
    image, steps, maps = bytearray(), list[Step](), list[MapForm]()
    on_gpu = program.device_kind == "cuda"
    for launch in program.launches:
        image.extend(bytes(-len(image) % _ALIGN))
        check_launch(program, launch)
        steps.append(_make_step(program, launch, len(image), len(maps)))
        label, at = steps[-1].label, len(image)
        maps += [form_of(p.map, p, label, at) for p in launch.patches if p.map is not None]
        image.extend(launch.template)
    through_driver = (LaunchKind.CUDA, LaunchKind.MEMSET, LaunchKind.LIBRARY) if on_gpu else (LaunchKind.CUDA,)
    uses_driver = any(s.kind in through_driver for s in steps)
    rereads = {
        patch.slot
        for launch in program.launches
        for patch in launch.patches
        if patch.kind == PatchKind.SCALAR and program.slots[patch.slot].value is None
    }
    uses_team = any(s.team[1] > 1 for s in steps)
    follows = team.follows_torch(program.num_threads)
    return Frame(bytes(image), tuple(steps), tuple(maps), uses_driver, frozenset(rereads), uses_team, follows)


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


def _make_step(program: Program, launch: Launch, at: int, num_maps: int) -> Step:
    map_of = {p: num_maps + k for k, p in enumerate(p for p in launch.patches if p.map is not None)}

    def placed(p: Patch) -> tuple[int, int, int, int, int, int]:
        slot = -1 if p.kind == PatchKind.SCRATCH else p.slot
        return int(p.kind), at + p.offset, slot, p.addend, p.size, map_of.get(p, -1)

    return Step(
        kind=launch.kind,
        label=launch.label or launch.symbol or launch.kind.name,
        block=at,
        patches=tuple(map(placed, launch.patches)),
        function=_function(program, launch),
        params=tuple(at + offset for offset in launch.param_offsets),
        config=(*launch.grid, *launch.block, launch.shared_bytes),
        memset=(launch.memset_value & 0xFFFFFFFF, launch.memset_words),
        call=launch.status_text if launch.kind == LaunchKind.LIBRARY else launch.call,
        team=_team(program, launch.tasks),
        attributes=tuple(_attribute(*pair) for pair in launch.attributes),
    )


def _attribute(attribute: Attribute, values: tuple[int, ...]) -> tuple[int, int, int, int]:
    first, second, third = (*values, 0, 0)[:3]
    return int(attribute), first, second, third


def _team(program: Program, tasks: Tasks) -> tuple[int, int, int, int, bool]:
    """See `Step.team`."""
    threads = 1
    if tasks.count > 1:
        limit = team.number(program.num_threads)
        threads = team.size_of(limit, tasks.count, tasks.work_us, tasks.max_threads)
    return tasks.count, threads, tasks.scratch_at, thread_stride(tasks), 0 < tasks.work_us < QUICK_US


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
    if patch.kind == PatchKind.TENSOR_MAP:
        check_map(program, launch, patch)
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
