"""A graph's structure as JSON: what the user declared, enough to declare it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fuseplan import dtypes
from fuseplan.api import enums
from fuseplan.api.binding import call_form
from fuseplan.api.datatypes import to_enum
from fuseplan.api.node import Node
from fuseplan.api.tensor import Tensor, to_ints
from fuseplan.errors import PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.serialize import typed
from fuseplan.ops.schema import schema_of

if TYPE_CHECKING:
    from fuseplan.api.construct import Construction

FORMAT, VERSION = "fuseplan-structure", 1
_TYPES = ("io_dtype", "intermediate_dtype", "compute_dtype")


def to_json(graph: Construction) -> str:
    """The structure as JSON text."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "context": {name: _type_name(getattr(graph, name)) for name in _TYPES},
        "tensors": [_tensor_to_json(t) for t in graph.tensor_list],
        "nodes": [_node_to_json(n) for n in graph.node_list],
    }
    return json.dumps(data)


def from_json(text: str, graph: Construction) -> None:
    """Declare the structure in an empty graph. Raises PlanFileError and leaves the graph empty."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"the text is not JSON: {error}", fix="pass what repr(graph) gives") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise PlanFileError(
            f"the text is not the structure of a graph in format version {VERSION}", fix="pass what repr(graph) gives"
        )
    try:
        types = {name: _type_of(data["context"][name]) for name in _TYPES}
        tensors = [_tensor_from_json(t, graph) for t in data["tensors"]]
        by_uid = {t._uid: t for t in tensors}
        if len(by_uid) != len(tensors):
            raise ValueError("two tensors have the same uid")
        for tensor, entry in zip(tensors, data["tensors"], strict=True):
            if entry["ragged_offset"] is not None:
                tensor._ragged_offset = by_uid[entry["ragged_offset"]]
        nodes = [_node_from_json(n, by_uid) for n in data["nodes"]]
        name = typed(data["name"], str)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise PlanFileError(f"the structure is damaged: {error!r}", fix="write it again with repr(graph)") from error
    graph.name, graph.node_list, graph.tensor_list = name, nodes, tensors
    for field, dtype in types.items():
        setattr(graph, field, dtype)
    for tensor in tensors:
        graph.uids.holders[tensor._uid] = tensor


def _type_name(dtype: dtypes.DType | None) -> str | None:
    return None if dtype is None else dtype.name


def _type_of(name: str | None) -> dtypes.DType | None:
    return None if name is None else dtypes.dtype_of(name)


def _tensor_to_json(t: Tensor) -> dict[str, Any]:
    return {
        "uid": t._uid,
        "is_user_uid": t._is_user_uid,
        "name": t._name,
        "dim": t._dim,
        "stride": t._stride,
        "data_type": _type_name(t._dtype),
        "is_virtual": t._is_virtual,
        "is_result": t._is_result,
        "is_pass_by_value": t._is_pass_by_value,
        "value": t._value,
        "is_constant": t._is_constant,
        "ragged_offset": None if t._ragged_offset is None else t._ragged_offset._uid,
        "ragged_offset_multiplier": t._ragged_multiplier,
        "reordering_type": t._reordering,
        "alignment_value": t._alignment_value,
        "alignment": t._alignment,
    }


def _tensor_from_json(data: dict[str, Any], graph: Construction) -> Tensor:
    def flag(key: str) -> bool:
        return typed(data[key], bool)

    made = Tensor(graph, typed(data["uid"], int), typed(data["name"], str), is_result=flag("is_result"))
    made._is_user_uid, made._is_virtual = flag("is_user_uid"), flag("is_virtual")
    made._dim = to_ints(data["dim"], "dim") if data["dim"] else None
    made._stride = to_ints(data["stride"], "stride") if data["stride"] else None
    made._dtype = _type_of(data["data_type"])
    made._is_pass_by_value, made._is_constant = flag("is_pass_by_value"), flag("is_constant")
    made._value = data["value"]
    if not isinstance(made._value, bool | int | float | None):
        raise TypeError(f"tensor {made._name!r} has the value {made._value!r}")
    if made._is_constant and made._value is None:
        raise ValueError(f"tensor {made._name!r} is a constant without a value")
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
        "inputs": {port: t._uid for port, t in n.inputs.items()},
        "outputs": {port: t._uid for port, t in n.outputs.items()},
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
