"""Graphs as versioned JSON that round-trips."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from fuseplan.dtypes import dtype_of
from fuseplan.errors import PlanFileError
from fuseplan.ir.graph import Graph, Node, Ragged, TensorSpec

FORMAT = "fuseplan-graph"
VERSION = 2
T = TypeVar("T")


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The graph as JSON data; floats that JSON lacks (NaN, infinities) are written as strings."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "is_dynamic": graph.is_dynamic,
        "tensors": [_tensor_to_json(t) for t in graph.tensors.values()],
        "nodes": [_node_to_json(n) for n in graph.nodes],
    }


def graph_from_json(data: Any) -> Graph:
    """The graph of JSON data.

    Raises:
        PlanFileError: another format or version, or a part is missing or of the wrong kind; says which
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanFileError("this is not a fuseplan graph", fix="pass JSON made by graph_to_json")
    if data.get("version") != VERSION:
        raise PlanFileError(
            f"graph format version {data.get('version')!r} is not {VERSION}",
            fix="write the graph again with this release",
        )
    try:
        specs = [_tensor_from_json(t) for t in data["tensors"]]
        tensors = {t.uid: t for t in specs}
        if len(tensors) != len(specs):
            raise ValueError("two tensors have the same uid")
        for t in specs:
            if t.ragged is not None and t.ragged.offsets not in tensors:
                raise ValueError(f"sequences of tensor {t.name!r} start at uid {t.ragged.offsets}, which has no tensor")
        nodes = tuple(_node_from_json(i, n, tensors) for i, n in enumerate(data["nodes"]))
        return Graph(typed(data["name"], str), tensors, nodes, bool(data.get("is_dynamic", False)))
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise PlanFileError(f"the graph JSON is damaged: {type(e).__name__} {e}", fix="write the graph again") from e


def dumps(graph: Graph) -> str:
    """The graph as a JSON string."""
    return json.dumps(graph_to_json(graph), separators=(",", ":"))


def loads(text: str) -> Graph:
    """The graph of a JSON string. Raises PlanFileError."""
    try:
        return graph_from_json(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as e:
        raise PlanFileError(f"the graph is not JSON: {e}", fix="pass the text made by dumps") from e


def _node_to_json(n: Node) -> dict[str, Any]:
    made: dict[str, Any] = {
        "op": n.op, "name": n.name, "compute": n.compute.name, "inputs": _by_port(n.inputs),
        "outputs": _by_port(n.outputs), "attrs": {k: _plain(v) for k, v in n.attrs},
    }  # fmt: skip
    if n.body is not None:
        made["body"] = graph_to_json(n.body)
    return made


def _by_port(ports: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """port -> uid, or the list of uids of a port that stands there several times."""
    made: dict[str, Any] = {}
    for port, uid in ports:
        if port not in made:
            made[port] = uid
        else:
            made[port] = [*(made[port] if isinstance(made[port], list) else [made[port]]), uid]
    return made


def _node_from_json(index: int, n: dict[str, Any], tensors: dict[int, TensorSpec]) -> Node:
    return Node(
        index, typed(n["op"], str), typed(n["name"], str), _ports(n["inputs"], tensors), _ports(n["outputs"], tensors),
        tuple(sorted((k, _frozen(v)) for k, v in n["attrs"].items())), dtype_of(n["compute"]),
        graph_from_json(n["body"]) if "body" in n else None,
    )  # fmt: skip


def _tensor_to_json(t: TensorSpec) -> dict[str, Any]:
    made: dict[str, Any] = {
        "uid": t.uid, "name": t.name, "dim": list(t.dim), "stride": list(t.stride), "dtype": t.dtype.name,
        "is_virtual": t.is_virtual, "is_pass_by_value": t.is_pass_by_value,
    }  # fmt: skip
    if t.value is not None:
        made["value"], made["is_constant"] = _plain(t.value), t.is_constant
    if t.ragged is not None:
        made["ragged"] = [t.ragged.offsets, t.ragged.multiplier]
    return made


def _tensor_from_json(t: dict[str, Any]) -> TensorSpec:
    dim, stride = (tuple(typed(e, int) for e in typed(t[key], list)) for key in ("dim", "stride"))
    if len(dim) != len(stride) or any(d < 1 for d in dim) or any(s < 0 for s in stride):
        raise ValueError(f"tensor {t['name']!r} has dims {list(dim)} and strides {list(stride)}")
    value = _frozen(t["value"]) if "value" in t else None
    if not isinstance(value, bool | int | float | None):
        raise TypeError(f"tensor {t['name']!r} has the value {value!r}")
    if value is None and t.get("is_constant"):
        raise ValueError(f"tensor {t['name']!r} is a constant without a value")
    return TensorSpec(
        typed(t["uid"], int), typed(t["name"], str), dim, stride, dtype_of(t["dtype"]),
        typed(t["is_virtual"], bool), typed(t["is_pass_by_value"], bool), value,
        typed(t.get("is_constant", False), bool), _ragged(t),
    )  # fmt: skip


def _ragged(t: dict[str, Any]) -> Ragged | None:
    if "ragged" not in t:
        return None
    offsets, multiplier = (typed(e, int) for e in typed(t["ragged"], list))
    if multiplier < 1:
        raise ValueError(f"tensor {t['name']!r} has the ragged multiplier {multiplier}")
    return Ragged(offsets, multiplier)


def _ports(data: dict[str, Any], tensors: dict[int, TensorSpec]) -> tuple[tuple[str, int], ...]:
    lists = ((p, u if isinstance(u, list) else [u]) for p, u in data.items())
    ports = tuple((p, typed(uid, int)) for p, uids in lists for uid in uids)
    for _, uid in ports:
        if uid not in tensors:
            raise ValueError(f"uid {uid} has no tensor")
    return ports


def typed(value: Any, kind: type[T]) -> T:
    """The value, which must have exactly this type. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _plain(value: object) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": repr(value)}
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return float(value["float"])
    return value


__all__ = ["dumps", "graph_from_json", "graph_to_json", "loads", "typed"]
