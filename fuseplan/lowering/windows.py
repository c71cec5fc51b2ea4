"""Nodes that only look at memory in another way: slices, transposes and the like become loads of their own."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.ir.graph import Graph, Node
from fuseplan.ops.schema import NodeView, Window, schema_of


@dataclass(frozen=True, slots=True)
class Source:
    """Where the elements of a node's virtual result lie: a window on the tensor `uid`, behind the nodes `via`."""

    uid: int
    window: Window
    via: tuple[int, ...]


def find_windows(graph: Graph) -> dict[int, Source]:
    """uid -> source, for each virtual result of a node that is nothing but a window on a tensor in memory."""
    found: dict[int, Source] = {}
    for node in graph.nodes:
        schema = schema_of(node.op)
        if schema.window is None:
            continue
        source = _source_of(graph, node, found)
        if source is not None:
            found[node.outputs[0][1]] = source
    return found


def _source_of(graph: Graph, node: Node, found: dict[int, Source]) -> Source | None:
    made, read = graph.tensors[node.outputs[0][1]], graph.tensors[node.inputs[0][1]]
    if (
        not made.is_virtual
        or made.dtype is not read.dtype
        or read.is_host_scalar
        or read.ragged is not None
    ):
        return None
    before = found.get(read.uid, Source(read.uid, Window(read.dim, read.stride), ()))
    schema = schema_of(node.op)
    assert schema.window is not None
    window = schema.window(NodeView(node, graph), before.window.stride)
    if window is None or window.dim != made.dim:
        return None
    moved = Window(window.dim, window.stride, window.offset + before.window.offset)
    return Source(before.uid, moved, (*before.via, node.index))
