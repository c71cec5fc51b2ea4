"""The legal forms of graphs and regions; tests run these checks after every pass."""

from __future__ import annotations

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import ANCHORS, BINARY, UNARY, Region, Role

_NUM_ARGS = {
    "load": 0, "const": 0, "index": 0, "count": 1, "cast": 1, "select": 3, "reduce": 1, "matmul": 2, "conv_fprop": 2,
}  # fmt: skip


def verify_graph(graph: Graph) -> None:
    """Raises InvalidGraphError naming the first node or tensor that breaks a rule of the IR."""
    made: set[int] = set()
    for position, node in enumerate(graph.nodes):
        if node.index != position:
            raise InvalidGraphError(f"node {node.name!r} has index {node.index} at position {position}")
        for port, uid in node.inputs:
            if uid not in graph.tensors:
                raise InvalidGraphError(f"node {node.name!r}: input {port!r} names uid {uid}, which does not exist")
            if graph.producers.get(uid, -1) >= position:
                name = graph.tensors[uid].name
                raise InvalidGraphError(f"node {node.name!r}: input {name!r} is made by a later node")
        for _, uid in node.outputs:
            if uid in made:
                raise InvalidGraphError(f"tensor {graph.tensors[uid].name!r} is made by two nodes")
            made.add(uid)
    for spec in graph.tensors.values():
        if len(spec.dim) != len(spec.stride) or any(d < 1 for d in spec.dim):
            raise InvalidGraphError(f"tensor {spec.name!r} has dims {spec.dim} and strides {spec.stride}")


def verify_region(region: Region) -> None:
    """Raises InvalidGraphError naming the first value or operand that breaks a rule of the IR."""
    rank = len(region.domain)
    loads = region.operand_of
    for i, v in enumerate(region.values):
        if v.op not in _NUM_ARGS.keys() | UNARY | BINARY | ANCHORS:
            raise InvalidGraphError(f"value v{i}: unknown op {v.op!r}")
        expected = 1 if v.op in UNARY else 2 if v.op in BINARY else _NUM_ARGS.get(v.op, len(v.args))
        if len(v.args) != expected or any(not 0 <= a < i for a in v.args):
            raise InvalidGraphError(f"value v{i} ({v.op}): arguments {v.args}")
        if len(v.dim) != rank:
            raise InvalidGraphError(f"value v{i} ({v.op}): dims {v.dim} in a region of rank {rank}")
        if (v.op == "load") != (i in loads):
            raise InvalidGraphError(f"value v{i} ({v.op}): a load names exactly one operand")
        axes = v.axes if v.op in ("reduce", "count") else (v.axis,) if v.op == "index" else ()
        if any(not 0 <= a < rank for a in axes):
            raise InvalidGraphError(f"value v{i} ({v.op}): axes {axes} in a region of rank {rank}")
    for i, k in (*region.loads, *region.stores):
        v, o = region.values[i], region.operands[k]
        if o.dim != v.dim or o.dtype is not v.dtype:
            raise InvalidGraphError(f"operand {k} is {o.dtype}{o.dim}, value v{i} is {v.dtype}{v.dim}")
    stored = [k for _, k in region.stores]
    outs = [k for k, o in enumerate(region.operands) if o.role is Role.OUT]
    if sorted(stored) != outs or not stored:
        raise InvalidGraphError(f"stores go to operands {stored}, outputs are {outs}")
