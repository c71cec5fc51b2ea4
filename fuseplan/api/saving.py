"""Saving: a structure as JSON, enough to declare it again; plan files; the call forms of `deserialize`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from fuseplan import dtypes
from fuseplan.api import enums
from fuseplan.api.binding import call_form
from fuseplan.api.datatypes import to_enum, to_ints
from fuseplan.api.draft import GraphDraft
from fuseplan.api.handles import Handle, check_handle
from fuseplan.api.kernel_cache import read_json
from fuseplan.api.node import Node
from fuseplan.api.planning import PlanSet
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError, GraphStateError, PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import DraftTensor
from fuseplan.ops.schema import schema_of
from fuseplan.plan import plan_file
from fuseplan.plan.graph_json import typed
from fuseplan.plan.planner import LoadedPlans

FORMAT = "fuseplan-structure"
_FIELDS = ("uid", "name", "dim", "stride", "is_virtual", "is_pass_by_value", "value", "is_constant")
_TYPES = ("io_dtype", "intermediate_dtype", "compute_dtype")


def structure_of(graph: GraphDraft) -> str:
    """The structure as JSON text."""
    data = {
        "format": FORMAT,
        "version": 1,
        "name": graph.name,
        "context": {name: _type_name(getattr(graph, name)) for name in _TYPES},
        "tensors": [_tensor_to_json(t) for t in graph.tensors],
        "nodes": [_node_to_json(n) for n in graph.nodes],
    }
    return json.dumps(data)


def declare(text: str, graph: GraphDraft) -> None:
    """Declare the structure in an empty graph. Raises PlanFileError and leaves the graph empty."""
    data = read_json(text, FORMAT, "the structure of a graph", "pass what repr(graph) gives")
    try:
        types = {name: _type_of(data["context"][name]) for name in _TYPES}
        tensors = [_tensor_from_json(t, graph) for t in data["tensors"]]
        by_uid = {t.get_uid(): t for t in tensors}
        if len(by_uid) != len(tensors):
            raise ValueError("two tensors have the same uid")
        for tensor, entry in zip(tensors, data["tensors"], strict=True):
            if entry["ragged_offset"] is not None:
                tensor._ragged_offset = by_uid[entry["ragged_offset"]]
        nodes = [_node_from_json(n, by_uid) for n in data["nodes"]]
        name = typed(data["name"], str)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise PlanFileError(f"the structure is damaged: {error!r}", fix="write it again with repr(graph)") from error
    graph.name, graph.nodes, graph.tensors = name, nodes, tensors
    graph.io_dtype, graph.intermediate_dtype, graph.compute_dtype = types.values()
    for tensor in tensors:
        graph.uids.add(tensor)


def _type_name(dtype: dtypes.DType | None) -> str | None:
    return None if dtype is None else dtype.name


def _type_of(name: str | None) -> dtypes.DType | None:
    return None if name is None else dtypes.dtype_of(name)


def _tensor_to_json(t: Tensor) -> dict[str, Any]:
    return {
        **{field: getattr(t._draft, field) for field in _FIELDS},
        "data_type": _type_name(t._draft.dtype),
        "is_user_uid": t._is_user_uid,
        "is_result": t._is_result,
        "ragged_offset": None if t._ragged_offset is None else t._ragged_offset.get_uid(),
        "ragged_offset_multiplier": t._ragged_multiplier,
        "reordering_type": t._reordering,
        "alignment_value": t._alignment_value,
        "alignment": t._alignment,
    }


def _tensor_from_json(data: dict[str, Any], graph: GraphDraft) -> Tensor:
    def flag(key: str) -> bool:
        return typed(data[key], bool)

    name, value = typed(data["name"], str), data["value"]
    if not isinstance(value, bool | int | float | None):
        raise TypeError(f"tensor {name!r} has the value {value!r}")
    if value is None and flag("is_constant"):
        raise ValueError(f"tensor {name!r} is a constant without a value")
    dim, stride = (to_ints(data[key], key) if data[key] else None for key in ("dim", "stride"))
    draft = DraftTensor(
        typed(data["uid"], int), name, dim, stride, _type_of(data["data_type"]), flag("is_virtual"),
        flag("is_pass_by_value"), value, flag("is_constant"),
    )  # fmt: skip
    made = Tensor(graph, draft, is_result=flag("is_result"))
    made._is_user_uid = flag("is_user_uid")
    made._reordering = to_enum(data["reordering_type"], enums.tensor_reordering, "reordering_type")
    made.set_ragged_offset_multiplier(data["ragged_offset_multiplier"])
    made.set_alignment_value(data["alignment_value"]).set_alignment(data["alignment"])
    return made


def _node_to_json(n: Node) -> dict[str, Any]:
    return {
        "op": n.op,
        "name": n.name,
        "kind": n.node_type.name,
        "compute_data_type": _type_name(n.compute),
        "inputs": {port: t.get_uid() for port, t in n.inputs.items()},
        "outputs": {port: t.get_uid() for port, t in n.outputs.items()},
        "params": n.params,
    }


def _node_from_json(data: dict[str, Any], by_uid: dict[int, Tensor]) -> Node:
    made = Node(typed(data["name"], str), None, _type_of(data["compute_data_type"]), op=typed(data["op"], str))
    made.inputs = {port: by_uid[uid] for port, uid in data["inputs"].items()}
    made.outputs = {port: by_uid[uid] for port, uid in data["outputs"].items()}
    try:
        form = call_form(schema_of(made.op))
    except KeyError as error:
        raise cudnnGraphNotSupportedError(
            f"node {made.name!r} of the structure is of op {made.op!r}, which fuseplan does not have",
            fix="use the release that wrote it, or build the graph of other operations",
        ) from error
    results = {*form.given_results, *(port for port, _ in form.results)}
    unknown = (made.inputs.keys() - set(form.ports)) | (made.outputs.keys() - results)
    missing = results - form.optional_results - made.outputs.keys()
    if unknown or missing:
        raise ValueError(f"node {made.name!r} has ports {sorted(unknown)} too many and lacks {sorted(missing)}")
    for key, value in data["params"].items():  # a parameter that the op does not have is a KeyError
        made.params[key] = None if value is None else form.converts[key](value)
    return made


def load(data: Any, draft: GraphDraft, plans: PlanSet, handle: Handle | None, precompiled: bool) -> bytes:
    """Load a plan (bytes or list of ints) or a structure (JSON text) into an empty graph; the bytes of a plan.

    Args:
        precompiled: refuse what would have to be compiled
    """
    if draft.nodes or draft.tensors or plans.ranked is not None:
        raise GraphStateError(f"graph {draft.name!r} is not empty", fix="deserialise into a new pygraph()")
    file = b""
    if not isinstance(data, str):
        device, file = handle.target if handle is not None else draft.device, _to_bytes(data)
        loaded = plan_file.load(file, device, enforce_precompiled=precompiled)
        draft.adopt(loaded.graph, device)
        plans.adopt_loaded(LoadedPlans(loaded), loaded)
    elif precompiled:
        raise cudnnGraphNotSupportedError(
            "a structure holds no compiled kernels", fix="load a plan made by serialize(), or allow compiling"
        )
    else:
        declare(data, draft)
    if handle is not None:
        draft.handle = handle
    return file


def deserialize_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Handle | None, Any, bool]:
    """Handle, data and enforce_precompiled of either call form."""
    names = ["handle_", "pyobj", "enforce_precompiled"]
    if "handle_" in kwargs or not args or not (args[0] is None or isinstance(args[0], Handle)):
        names.remove("handle_")
    if len(args) > len(names):
        raise ArgumentError("deserialize() got too many arguments", fix=f"pass {', '.join(names)}")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in ("handle_", *names) or name in bound:
            raise ArgumentError(f"deserialize() cannot take {name!r} here", fix=f"pass {', '.join(names)}")
        bound[name] = value
    if bound.get("pyobj") is None:
        raise ArgumentError("deserialize() needs data", fix="pass what serialize() or repr(graph) gave")
    handle = check_handle(bound.get("handle_"), is_optional=True)
    return handle, bound["pyobj"], bool(bound.get("enforce_precompiled", False))


def _to_bytes(data: Any) -> bytes:
    if isinstance(data, (bytes, bytearray, memoryview, list, tuple)):
        with suppress(TypeError, ValueError):
            return bytes(data)
    raise ArgumentError(
        f"a serialised plan is bytes or a list of ints 0..255, not {type(data).__name__}",
        fix="pass serialize()'s result",
    )
