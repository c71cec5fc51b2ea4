"""The legal forms of graphs (of regions: `lowering.verify`)."""

from __future__ import annotations

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import Graph


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
        for uid in graph.offsets_of(node):
            if uid not in graph.tensors:
                raise InvalidGraphError(f"node {node.name!r}: sequences start at uid {uid}, which does not exist")
        if node.body is not None:
            _verify_body(node.name, node.body, {uid for _, uid in node.inputs})
        for _, uid in node.outputs:
            if uid in made:
                raise InvalidGraphError(f"tensor {graph.tensors[uid].name!r} is made by two nodes")
            made.add(uid)
    for spec in graph.tensors.values():
        if spec.ragged is not None and spec.ragged.multiplier < 1:
            raise InvalidGraphError(f"tensor {spec.name!r} has the ragged multiplier {spec.ragged.multiplier}")
        if len(spec.dim) != len(spec.stride) or any(d < 1 for d in spec.dim):
            raise InvalidGraphError(f"tensor {spec.name!r} has dims {spec.dim} and strides {spec.stride}")


def _verify_body(name: str, body: Graph, given: set[int]) -> None:
    verify_graph(body)
    if not set(body.input_uids) - given:
        raise InvalidGraphError(f"node {name!r}: its body reads nothing that the op hands to it")
    if not body.output_uids:
        raise InvalidGraphError(f"node {name!r}: its body gives nothing back")
