"""Puts built regions together: one flat program with slots, launches and one workspace layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.engines.base import Executable
from fuseplan.ir.graph import Graph, TensorSpec
from fuseplan.ir.region import Operand, Region
from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.evaluate import scalar_array
from fuseplan.runtime import team
from fuseplan.runtime.device import Device
from fuseplan.runtime.dispatch.layout import threads_bytes
from fuseplan.runtime.launch import Launch, Patch, PatchKind, Program, Slot, Tasks

ALIGNMENT = 256
USUAL_ALIGNMENT = 16  # what every allocator gives; for more, the workspace has bytes to skip at its start


def compose(graph: Graph, device: Device, parts: Sequence[tuple[Region, Executable]]) -> Program:
    """The program of a graph from its regions in launch order."""
    needs = _alignments(parts)
    slots = _slots(graph, device, parts, needs)
    slot_of = {s.uid: k for k, s in enumerate(slots)}
    scratch_alignment = max((e.scratch_alignment for _, e in parts if e.scratch_bytes), default=1)
    layout = lay_out(graph, [region for region, _ in parts], scratch_alignment)
    num_threads = team.number(device.num_threads) if device.kind == "cpu" else 1
    private = 0
    launches: list[Launch] = []
    for region, executable in parts:
        own_end = layout.num_bytes + executable.scratch_bytes
        private = max(private, executable.scratch_bytes)
        for launch in executable.launches:
            patches = tuple([_place(p, region, slot_of, layout) for p in launch.patches])
            tasks = _with_memory(launch.tasks, own_end, num_threads)
            private = max(private, executable.scratch_bytes + threads_bytes(tasks, tasks.max_threads))
            launches.append(replace(launch, patches=patches, tasks=tasks))
    aligned = max([scratch_alignment, *(a for uid, a in needs.items() if uid not in slot_of)])
    slack = max(0, aligned - USUAL_ALIGNMENT)
    total = layout.num_bytes + private + slack
    return Program(slots, tuple(launches), total, device.kind, device.index, aligned, device.num_threads, slack)


def _with_memory(tasks: Tasks, at: int, num_threads: int) -> Tasks:
    """Tasks whose threads have their memory from `at` on in the workspace; as few as may ever run at once."""
    if not tasks.thread_bytes:
        return tasks
    most = team.size_of(num_threads, tasks.count, tasks.work_us, num_threads)
    return replace(tasks, scratch_at=at, max_threads=most)


def _slots(
    graph: Graph, device: Device, parts: Sequence[tuple[Region, Executable]], alignments: Mapping[int, int]
) -> tuple[Slot, ...]:
    """The buffers that a program of this graph binds: inputs, without constants, and outputs."""
    inputs = (u for u in graph.input_uids if not graph.tensors[u].is_constant)
    uids = dict.fromkeys((*inputs, *graph.output_uids))
    written = {o.uid for region, _ in parts for o in region.operands if o.role.is_written}
    outputs = written.union(graph.output_uids)
    return tuple(_slot(graph.tensors[u], device, u in outputs, alignments.get(u, 1)) for u in uids)


def start_of(operand: Operand) -> int:
    """Bytes from the start of a tensor's buffer to where an operand begins."""
    return operand.offset * operand.dtype.bits // 8


def keeps_alignments(region: Region, executable: Executable) -> bool:
    """Whether operands that begin inside of their buffers can have the alignments that an executable relies on."""
    pairs = zip(region.operands, executable.alignments, strict=False)
    return all(start_of(operand) % alignment == 0 for operand, alignment in pairs)


def _alignments(parts: Sequence[tuple[Region, Executable]]) -> dict[int, int]:
    needs: dict[int, int] = {}
    for region, executable in parts:
        for operand, alignment in zip(region.operands, executable.alignments, strict=False):
            needs[operand.uid] = max(alignment, needs.get(operand.uid, 1))
    return needs


@dataclass(frozen=True, slots=True)
class Layout:
    """Where intermediates live in the workspace; private scratch of a region starts at `num_bytes`."""

    offset: dict[int, int]
    num_bytes: int


def lay_out(graph: Graph, regions: Sequence[Region], scratch_alignment: int = 1) -> Layout:
    """Offsets of tensors that pass between regions; a block is used again once its last reader is done."""
    last: dict[int, int] = {}
    for k, region in enumerate(regions):
        for operand in region.operands:
            if graph.tensors[operand.uid].is_virtual:
                last[operand.uid] = k
    free: dict[int, list[int]] = {}
    ending: dict[int, list[tuple[int, int]]] = {}
    offset: dict[int, int] = {}
    top = 0
    for k, region in enumerate(regions):
        for operand in region.operands:
            if operand.role.is_written and operand.uid in last and operand.uid not in offset:
                size = _round_up(graph.tensors[operand.uid].span_bytes, ALIGNMENT)
                blocks = free.get(size)
                if blocks:
                    at = blocks.pop()
                else:
                    at, top = top, top + size
                offset[operand.uid] = at
                ending.setdefault(last[operand.uid], []).append((size, at))
        for size, at in ending.pop(k, ()):
            free.setdefault(size, []).append(at)
    return Layout(offset, _round_up(top, scratch_alignment))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _place(patch: Patch, region: Region, slot_of: Mapping[int, int], layout: Layout) -> Patch:
    """A patch of an executable (of one of its operands, or of its own scratch) as a patch of the program."""
    slot, start = _find(patch.slot, region, slot_of, layout)
    tensor_map = patch.map
    if tensor_map is not None and tensor_map.second is not None:
        number, addend = tensor_map.second
        other, begin = _find(number, region, slot_of, layout)
        tensor_map = replace(tensor_map, second=(other, addend + begin))
    kind = PatchKind.SCRATCH if slot < 0 and patch.kind is PatchKind.POINTER else patch.kind
    return replace(patch, kind=kind, slot=slot, addend=patch.addend + start, map=tensor_map)


def _find(number: int, region: Region, slot_of: Mapping[int, int], layout: Layout) -> tuple[int, int]:
    """Slot of an operand's buffer, -1 for the workspace, and where the operand begins in it; number -1 is scratch."""
    if number < 0:
        return -1, layout.num_bytes
    operand = region.operands[number]
    slot, start = slot_of.get(operand.uid), start_of(operand)
    return (-1, layout.offset[operand.uid] + start) if slot is None else (slot, start)


def _slot(spec: TensorSpec, device: Device, is_output: bool, alignment: int) -> Slot:
    value = None
    if spec.value is not None:
        value = scalar_array(numpy_namespace(), spec, {}).tobytes()
    place = "host" if spec.is_host_scalar else device.kind
    return Slot(
        spec.uid, spec.name, spec.dtype, spec.span_bytes, place, device.index, is_output, value,
        1 if spec.is_host_scalar else alignment,
    )  # fmt: skip
