"""Whether the parts of a plan file fit together: a file that was edited or made by a faulty writer must not run."""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from reprlib import repr as shorten
from typing import Any

from fuseplan.errors import ArgumentError, InvalidGraphError, PlanFileError, ToolchainError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import DraftNode, DraftTensor, Graph, GraphBuilder, TensorSpec
from fuseplan.ir.verify import verify_graph
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import schema_of
from fuseplan.runtime import artifacts
from fuseplan.runtime.dispatch.layout import check_launch
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, Program, Slot

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


def program_to_json(program: Program) -> dict[str, Any]:
    """What runs, to be read and to be compared with what a loaded plan is built to."""
    return {
        "workspace_bytes": program.workspace_bytes, "workspace_alignment": program.workspace_alignment,
        "slots": [_slot_to_json(s) for s in program.slots],
        "launches": [_launch_to_json(x) for x in program.launches],
    }  # fmt: skip


def _slot_to_json(s: Slot) -> dict[str, Any]:
    return {
        "uid": s.uid, "name": s.name, "dtype": s.dtype.name, "span_bytes": s.span_bytes, "place": s.place,
        "is_output": s.is_output, "value": None if s.value is None else s.value.hex(), "alignment": s.alignment,
    }  # fmt: skip


def _launch_to_json(x: Launch) -> dict[str, Any]:
    a = x.artifact
    has_addresses = x.kind is LaunchKind.LIBRARY  # of objects of this process
    return {
        "kind": x.kind.name, "label": x.label, "symbol": x.symbol,
        "template": "" if has_addresses else x.template.hex(),
        "patches": [_patch_to_json(p) for p in x.patches],
        "artifact": None if a is None else {"kind": a.kind, "key": a.key, "arch": a.arch},
        "grid": x.grid, "block": x.block, "shared_bytes": x.shared_bytes, "param_offsets": x.param_offsets,
        "attributes": [[a.name, *values] for a, values in x.attributes],
        "memset": [x.memset_value, x.memset_words], "tasks": astuple(x.tasks),
    }  # fmt: skip


def _patch_to_json(p: Patch) -> list[Any]:
    m = p.map
    return [
        p.kind.name, p.offset, p.slot, p.addend, p.size,
        *([] if m is None else [[m.dtype.name, *(getattr(m, f.name) for f in fields(m) if f.name != "dtype")]]),
    ]  # fmt: skip


def check_program(manifest: dict[str, Any], program: Program) -> None:
    """The program built from a plan file is the one that the file describes, and its host functions can be found.

    Raises:
        PlanFileError: saying which part differs
    """
    made = json.loads(json.dumps(program_to_json(program)))
    different = first_difference({part: manifest[part] for part in made}, made)
    if different:
        raise PlanFileError(f"the plan file says that {different}", fix=FIX)
    try:
        for launch in program.launches:
            check_launch(program, launch)
            if launch.kind is LaunchKind.HOST and launch.artifact is not None:
                artifacts.symbol_address(launch.artifact, launch.symbol)
    except (ArgumentError, ToolchainError) as e:
        raise PlanFileError(f"the plan file is damaged: {e.wrong}", fix=FIX) from e


def first_difference(said: Any, made: Any, where: str = "") -> str:
    """Where JSON data differs from what it should be, in words; empty where it does not."""
    if type(said) is not type(made) or (isinstance(made, list) and len(said) != len(made)):
        return f"{where} is {shorten(said)}, its graph gives {shorten(made)}"
    if isinstance(made, dict):
        if said.keys() != made.keys():
            return f"{where} has {sorted(said)}, its graph gives {sorted(made)}"
        dot = "." if where else ""
        return next(filter(None, (first_difference(said[k], made[k], f"{where}{dot}{k}") for k in made)), "")
    if isinstance(made, list):
        parts = zip(said, made, strict=True)
        return next(filter(None, (first_difference(a, b, f"{where}[{k}]") for k, (a, b) in enumerate(parts))), "")
    return "" if said == made else f"{where} is {shorten(said)}, its graph gives {shorten(made)}"
