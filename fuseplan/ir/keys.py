"""The keys that equal graphs share."""

from __future__ import annotations

from hashlib import sha256

from fuseplan.ir.graph import Graph, TensorSpec


def canonical_key(graph: Graph) -> str:
    """Hex digest that graphs share when they differ in uids and names only."""
    return sha256(repr(_structure(graph, {}, has_extents=True)).encode()).hexdigest()


def structure_key(graph: Graph, *, is_canonical: bool = False) -> str:
    """Hex digest of the graph without dims and strides; ranks and the order of strides stay.

    Args:
        is_canonical: leave names and uids out as well
    """
    names = (graph.name, *(n.name for n in graph.nodes), *((t.uid, t.name) for t in graph.tensors.values()))
    structure = _structure(graph, {}, has_extents=False)
    return sha256(repr((structure, () if is_canonical else names)).encode()).hexdigest()


def _structure(graph: Graph, number: dict[int, int], *, has_extents: bool) -> tuple[object, ...]:
    """What a graph computes, tensors by number in order of first use; numbers of the graph around it are kept."""
    for n in graph.nodes:
        for uid in (*graph.reads(n), *[u for _, u in n.outputs]):
            number.setdefault(uid, len(number))
    tensors = [(number[t.uid], *_facts(t, number, has_extents)) for t in graph.tensors.values() if t.uid in number]
    nodes = []
    for n in graph.nodes:
        inputs, outputs = ([(p, number[u]) for p, u in ports] for ports in (n.inputs, n.outputs))
        body = n.body and _structure(n.body, dict(number), has_extents=has_extents)
        nodes.append((n.op, n.compute.name, n.attrs, inputs, outputs, body))
    return (sorted(tensors), nodes, graph.is_dynamic)


def _facts(t: TensorSpec, number: dict[int, int], has_extents: bool) -> tuple[object, ...]:
    value = repr(t.value) if t.is_constant else ""
    ragged = None if t.ragged is None else (number[t.ragged.offsets], t.ragged.multiplier)
    layout = (t.dim, t.stride) if has_extents else sorted(range(len(t.dim)), key=lambda i: (t.stride[i], -i))
    return (layout, t.dtype.name, t.is_virtual, t.is_pass_by_value, t.value is not None, value, ragged)
