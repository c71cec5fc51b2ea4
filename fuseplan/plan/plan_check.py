"""Whether the parts of a plan file fit together: a file that was edited or made by a faulty writer must not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuseplan.errors import ArgumentError, InvalidGraphError, PlanFileError, ToolchainError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import DraftNode, DraftTensor, Graph, GraphBuilder, TensorSpec
from fuseplan.ir.verify import verify_graph
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import schema_of
from fuseplan.plan.compose import program_slots
from fuseplan.runtime import artifacts
from fuseplan.runtime.device import Device
from fuseplan.runtime.dispatch.layout import check_launch
from fuseplan.runtime.launch import Launch, LaunchKind, PatchKind, Program, Slot

FIX = "write the file again with graph.serialize()"


def check_graph(graph: Graph) -> None:
    """Every node is an op that is known here and keeps the op's rules.

    Raises:
        cudnnGraphNotSupportedError: an op that is not known here
        PlanFileError: the graph contradicts itself
    """
    for node in graph.nodes:
        try:
            known = schema_of(node.op)
        except KeyError as e:
            raise cudnnGraphNotSupportedError(
                f"node {node.name!r} of the plan file is of op {node.op!r}, which is not known here",
                fix="load the file with the release that wrote it",
            ) from e
        ports = {p.name for p in (*known.inputs, *known.outputs)}
        unknown = [p for p, _ in (*node.inputs, *node.outputs) if p not in ports]
        if unknown or {k for k, _ in node.attrs} - {a.name for a in known.attrs}:
            raise PlanFileError(
                f"node {node.name!r} ({node.op}) of the plan file has parts that the op does not have", fix=FIX
            )
    try:
        verify_graph(graph)
        complete(_drafts(graph))
    except InvalidGraphError as e:
        raise PlanFileError(f"the graph in the plan file contradicts itself: {e.wrong}", fix=FIX) from e


def check_part(part: Graph, graph: Graph) -> None:
    """The graph of a launch is a slice of the whole graph. Raises PlanFileError."""
    whole = {n.outputs: n for n in graph.nodes}
    for node in part.nodes:
        known = whole.get(node.outputs)
        if known is None or replace(known, index=node.index) != node:
            raise PlanFileError(f"node {node.name!r} of a launch is not a node of the plan file's graph", fix=FIX)
        for _, uid in (*node.inputs, *node.outputs):
            if replace(part.tensors[uid], is_virtual=False) != replace(graph.tensors[uid], is_virtual=False):
                raise PlanFileError(
                    f"tensor {graph.tensors[uid].name!r} of a launch is another one in the plan file's graph", fix=FIX
                )
    check_graph(part)


def _drafts(graph: Graph) -> GraphBuilder:
    drafts = {uid: _draft(spec) for uid, spec in graph.tensors.items()}
    made = GraphBuilder(graph.name)
    for n in graph.nodes:
        inputs, outputs = ({port: drafts[uid] for port, uid in ports} for ports in (n.inputs, n.outputs))
        made.nodes.append(DraftNode(n.op, n.name, inputs, outputs, dict(n.attrs), n.compute))
    return made


def _draft(t: TensorSpec) -> DraftTensor:
    return DraftTensor(
        t.uid, t.name, t.dim, t.stride, t.dtype, t.is_virtual, t.is_pass_by_value, t.value, t.is_constant
    )  # fmt: skip


def check_program(graph: Graph, program: Program, device: Device) -> None:
    """Slots are those of the graph, launches keep to their blocks and buffers, compiled functions are there.

    Raises:
        PlanFileError: saying which part does not fit
    """
    wanted = program_slots(graph, device, {s.uid: s.alignment for s in program.slots})
    for slot, expected in zip(program.slots, wanted, strict=False):
        if replace(slot, alignment=1) != replace(expected, alignment=1):
            raise PlanFileError(f"the slot of tensor {expected.name!r} does not fit the graph of the file", fix=FIX)
    if len(program.slots) != len(wanted):
        raise PlanFileError(f"the plan file has {len(program.slots)} slots, its graph {len(wanted)}", fix=FIX)
    for alignment in (program.workspace_alignment, *(s.alignment for s in program.slots)):
        if alignment < 1 or alignment & (alignment - 1):
            raise PlanFileError(f"the plan file asks for an alignment of {alignment} bytes", fix=FIX)
    if program.workspace_bytes < 0:
        raise PlanFileError(f"the plan file asks for a workspace of {program.workspace_bytes} bytes", fix=FIX)
    written = {p.slot for x in program.launches for p in x.patches if p.kind is PatchKind.POINTER}
    for k, slot in enumerate(program.slots):
        if slot.is_output and k not in written:
            raise PlanFileError(f"no launch of the plan file writes tensor {slot.name!r}", fix=FIX)
    try:
        for launch in program.launches:
            check_launch(program, launch)
            _check_function(launch, device)
    except (ArgumentError, ToolchainError) as e:
        raise PlanFileError(f"the plan file is damaged: {e.wrong}", fix=FIX) from e


def _check_function(launch: Launch, device: Device) -> None:
    """The kind of launch is one of the device, and a host function can be found."""
    if launch.kind in (LaunchKind.HOST, LaunchKind.CUDA) and (launch.artifact is None or not launch.symbol):
        raise ArgumentError(f"launch {launch.label!r} has no compiled function")
    if launch.kind is LaunchKind.CUDA and device.kind != "cuda":
        raise ArgumentError(f"launch {launch.label!r} is a CUDA kernel, the plan is for {device.kind}")
    if launch.kind is LaunchKind.HOST and launch.artifact is not None:
        artifacts.symbol_address(launch.artifact, launch.symbol)


def check_operands(specs: Sequence[TensorSpec], launch: Launch, slots: Sequence[Slot], workspace_bytes: int) -> None:
    """The operands of a Python launch fit the buffers that its patches name. Raises PlanFileError."""
    if len(specs) != len(launch.patches):
        raise PlanFileError(f"launch {launch.label!r} of the plan file has {len(launch.patches)} patches", fix=FIX)
    for spec, patch in zip(specs, launch.patches, strict=True):
        if patch.kind is PatchKind.SCRATCH:
            room: Any = workspace_bytes - patch.addend
        else:
            if not 0 <= patch.slot < len(slots) or slots[patch.slot].dtype is not spec.dtype:
                raise PlanFileError(f"tensor {spec.name!r} of the plan file has no slot of its type", fix=FIX)
            room = slots[patch.slot].span_bytes - patch.addend
        if patch.addend < 0 or spec.span_bytes > room:
            raise PlanFileError(f"tensor {spec.name!r} of the plan file does not fit its buffer", fix=FIX)
