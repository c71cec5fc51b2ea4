"""Makes a failing graph small: drops outputs and nodes for as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuseplan.ir.graph import Graph


def shrink(graph: Graph, fails: Callable[[Graph], bool], max_tries: int = 400) -> Graph:
    """The smallest graph found for which `fails` is still true.

    Args:
        fails: must be true for `graph`; an exception counts as another failure and is not kept
        max_tries: calls of `fails` at most
    """
    tries = 0
    progress = True
    while progress and tries < max_tries:
        progress = False
        for smaller in _smaller(graph):
            tries += 1
            if tries > max_tries:
                break
            try:
                still = fails(smaller)
            except Exception:  # a different failure is not the one being shrunk
                continue
            if still:
                graph, progress = smaller, True
                break
    return graph


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Graphs with one output or one node less, the largest cuts first."""
    outputs = graph.output_uids
    if len(outputs) > 1:
        for uid in outputs:
            yield _keep_live(graph, {uid})
    for node in reversed(graph.nodes):
        rest = [n.index for n in graph.nodes if n.index != node.index]
        if rest:
            cut = graph.slice(rest, [])
            if cut.output_uids:
                yield _keep_live(cut, set(cut.output_uids))


def _keep_live(graph: Graph, outputs: set[int]) -> Graph:
    """Only the nodes that these outputs need; the other outputs become virtual."""
    needed = set(outputs)
    kept: list[int] = []
    for node in reversed(graph.nodes):
        if any(uid in needed for _, uid in node.outputs):
            kept.append(node.index)
            needed.update(uid for _, uid in node.inputs)
    made = graph.slice(sorted(kept), [])
    inputs = set(made.input_uids)
    tensors = {uid: replace(t, is_virtual=uid not in outputs and uid not in inputs) for uid, t in made.tensors.items()}
    return Graph(graph.name, tensors, made.nodes, graph.is_dynamic)
