"""Which nodes of a region stand in front of its anchors: what they make reaches memory only through one."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.ir.graph import Graph
from fuseplan.lowering.fragment import FragmentCache


class Front:
    """Looks at nodes that are to be one region.

    Args:
        max_anchors: how many anchors a region may hold
    """

    def __init__(self, graph: Graph, cache: FragmentCache, max_anchors: int) -> None:
        self.graph, self.cache, self.max_anchors = graph, cache, max_anchors

    def nodes(self, nodes: Sequence[int]) -> dict[int, frozenset[str]]:
        """Nodes of these that are in front, each with the anchor arguments that it reaches.

        An anchor that comes later and reads the same tensor is expected to join; `exposed` sees if it did not.
        """
        members = set(nodes)
        found: dict[int, frozenset[str]] = {}
        for k in reversed(nodes):
            reaches = self._reached(k, members, nodes[-1], found)
            if reaches:
                found[k] = reaches
        return found

    def _reached(
        self, k: int, members: set[int], last: int, found: dict[int, frozenset[str]]
    ) -> frozenset[str]:  # fmt: skip
        reached: frozenset[str] = frozenset()
        has_member = False
        for _, uid in self.graph.nodes[k].outputs:
            if not self.graph.tensors[uid].is_virtual:
                return frozenset()
            for c in self.graph.consumers.get(uid, ()):
                here = self._argument_reached(uid, c, found)
                if c in members:
                    has_member = True
                elif not self.graph.live[c]:
                    continue
                elif (
                    c < last
                    or not self.cache.traits(self.graph.nodes[c]).anchor
                    or self.max_anchors < 2
                ):
                    return frozenset()
                if not here:
                    return frozenset()
                reached |= here
        return reached if has_member else frozenset()

    def _argument_reached(
        self, uid: int, consumer: int, found: dict[int, frozenset[str]]
    ) -> frozenset[str]:
        """Anchor arguments through which alone a tensor matters to a consumer; empty if it matters otherwise."""
        node = self.graph.nodes[consumer]
        traits = self.cache.traits(node)
        reached: frozenset[str] = frozenset()
        for (_, read), feeds in zip(node.inputs, traits.feeds, strict=True):
            if read == uid:
                here = feeds | found.get(consumer, frozenset())
                if not here:
                    return frozenset()
                reached |= here
        return reached

    def exposed(self, nodes: Sequence[int], front: set[int]) -> list[int]:
        """Nodes that were gathered as front, but are needed outside after all, with all they depend on in here."""
        members = set(nodes)
        wanted = [
            k for k in nodes
            if any(uid in front and self._is_read_outside(uid, members) for _, uid in self.graph.nodes[k].outputs)
        ]  # fmt: skip
        found: set[int] = set()
        while wanted:
            k = wanted.pop()
            if k not in found:
                found.add(k)
                made_by = (
                    self.graph.producers.get(uid, -1)
                    for _, uid in self.graph.nodes[k].inputs
                )
                wanted += [p for p in made_by if p in members]
        return sorted(found)

    def _is_read_outside(self, uid: int, members: set[int]) -> bool:
        return any(
            c not in members and self.graph.live[c]
            for c in self.graph.consumers.get(uid, ())
        )
