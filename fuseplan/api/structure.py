"""A graph's structure as JSON: what the user declared, enough to declare it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fuseplan import dtypes
from fuseplan.api.node import Node
from fuseplan.api.tensor import Tensor
from fuseplan.errors import PlanFileError

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
    except ValueError as error:
        raise PlanFileError(f"the text is not JSON: {error}", fix="pass what repr(graph) gives") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise PlanFileError(
            f"the text is not the structure of a graph in format version {VERSION}", fix="pass what repr(graph) gives"
        )
    try:
        types = {name: _type_of(data["context"][name]) for name in _TYPES}
        tensors = [_tensor_from_json(t, graph) for t in data["tensors"]]
        by_uid = {t._uid: t for t in tensors}
        for tensor, entry in zip(tensors, data["tensors"], strict=True):
            if entry["ragged_offset"] is not None:
                tensor._ragged_offset = by_uid[entry["ragged_offset"]]
        nodes = [_node_from_json(n, by_uid) for n in data["nodes"]]
        name = str(data["name"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
    made = Tensor(graph, int(data["uid"]), str(data["name"]), is_result=bool(data["is_result"]))
    made._is_user_uid = bool(data["is_user_uid"])
    made._dim = tuple(map(int, data["dim"])) if data["dim"] else None
    made._stride = tuple(map(int, data["stride"])) if data["stride"] else None
    made._dtype = _type_of(data["data_type"])
    made._is_virtual, made._is_pass_by_value = bool(data["is_virtual"]), bool(data["is_pass_by_value"])
    made._value, made._is_constant = data["value"], bool(data["is_constant"])
    made._ragged_multiplier, made._reordering = int(data["ragged_offset_multiplier"]), data["reordering_type"]
    made._alignment_value, made._alignment = int(data["alignment_value"]), int(data["alignment"])
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
    made = Node(str(data["name"]), None, _type_of(data["compute_data_type"]), op=str(data["op"]))
    made.inputs = {str(port): by_uid[uid] for port, uid in data["inputs"].items()}
    made.outputs = {str(port): by_uid[uid] for port, uid in data["outputs"].items()}
    made.params = {str(k): _frozen(v) for k, v in data["params"].items()}
    return made


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
