"""Cuts a graph into groups of nodes that one engine can fuse, and says why at each boundary.

Nodes start alone, in order. Each joins the groups of its producers, and an anchor or a pointwise node that reads
graph inputs only a group that reads the same tensor, as long as the limits allow it and no cycle of groups comes of
it. Every group has a level, and an edge between groups goes to a higher level, so a search for a cycle stops soon.
Knows no engine: what may fuse arrives as `FusionLimits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fuseplan.ir.graph import Graph, Node
from fuseplan.ir.limits import FusionLimits
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fusion import Fusion, Rules


@dataclass(slots=True, eq=False)
class Group:
    """Nodes of one region; `reason` says why its first node joined no earlier group."""

    nodes: list[int]
    reason: str = ""
    fusion: Fusion = field(default_factory=Fusion)
    level: int = 0
    before: set[Group] = field(default_factory=set)
    after: set[Group] = field(default_factory=set)
    merged_into: Group | None = None


def partition(
    graph: Graph,
    limits: FusionLimits,
    cache: FragmentCache | None = None,
    nodes: Iterable[int] | None = None,
) -> list[Group]:
    """Groups of node indices in an order that runs producers first.

    Args:
        nodes: the nodes to group; if left out, all whose results somebody needs
    """
    cache = cache or FragmentCache(graph)
    chosen = [
        k
        for k in (range(len(graph.nodes)) if nodes is None else sorted(nodes))
        if graph.live[k]
    ]
    if limits.by_graph:
        return [Group(chosen)] if chosen else []
    merger = _Merger(graph, limits, cache)
    chosen = [k for k in chosen if not merger.is_window(k)]
    for k in chosen:
        merger.place(graph.nodes[k])
    return merger.in_order()


class _Merger:
    """State of one pass."""

    def __init__(
        self, graph: Graph, limits: FusionLimits, cache: FragmentCache
    ) -> None:
        self.graph, self.limits, self.cache = graph, limits, cache
        self.rules = Rules(graph, limits, cache, cache.windows)
        self.groups: dict[Group, None] = {}  # in order of their first nodes
        self.group_of: dict[int, Group] = {}  # node -> group
        self.reader: dict[
            tuple[str, int], Group
        ] = {}  # (anchor or "", tensor) -> last group that reads it so

    def is_window(self, k: int) -> bool:
        """Whether a node is a load of those that read it."""
        return (
            bool(self.cache.windows)
            and self.graph.nodes[k].outputs[0][1] in self.cache.windows
        )

    def place(self, node: Node) -> None:
        """Give a node to the group of a producer or of a sibling, and merge what it joins; else it stays alone."""
        sources = self._sources(node)
        ranked = sorted(sources, key=lambda g: -g.level)
        group, reason = self._first_home(node, ranked)
        if group is None:
            group = Group([], reason)
            self.groups[group] = None
            self._take(group, node, sources)
        for other in ranked:
            if (
                other is not group
                and other in self.groups
                and len(group.nodes) < self.limits.max_nodes
            ):
                self._merge(group, other)
        self._remember(node, group)

    def _sources(self, node: Node) -> dict[Group, None]:
        """Groups that make what a node reads."""
        found: dict[Group, None] = {}
        producers, base = self.graph.producers, self.rules.base
        for uid in self.graph.reads(node):
            group = self.group_of.get(producers.get(base(uid), -1))
            if group is not None:
                found[group] = None
        return found

    def _first_home(
        self, node: Node, ranked: Sequence[Group]
    ) -> tuple[Group | None, str]:
        """The group that a node joins, or why there is none."""
        anchor = self.cache.traits(node).anchor
        siblings = self._siblings(node, anchor) if anchor or not ranked else []
        candidates = [*siblings, *ranked] if anchor else [*ranked, *siblings]
        reason = ""
        for group in candidates:
            refused = self._join(group, node, ranked)
            if not refused:
                return group, ""
            reason = reason or refused
        if not reason and not candidates and self.cache.is_pointwise(node):
            reason = "reads only graph inputs"
        return None, reason

    def _siblings(self, node: Node, anchor: str) -> list[Group]:
        if anchor and self.limits.anchors < 2:
            return []
        if not anchor and not self.cache.is_pointwise(node):
            return []
        found: dict[Group, None] = {}
        for _, uid in node.inputs:
            group = self.reader.get((anchor, self.rules.base(uid)))
            while group is not None and group.merged_into is not None:
                group = group.merged_into
            if group is not None and (anchor or not group.fusion.anchors):
                found[group] = None
        return list(found)

    def _remember(self, node: Node, group: Group) -> None:
        anchor = self.cache.traits(node).anchor
        if not anchor and (group.fusion.anchors or not self.cache.is_pointwise(node)):
            return
        for _, uid in node.inputs:
            base = self.rules.base(uid)
            if anchor or base not in self.graph.producers:
                self.reader[anchor, base] = group

    def _join(self, group: Group, node: Node, sources: Sequence[Group]) -> str:
        """Take a node into a group; why that cannot be, or ""."""
        traits = self.cache.traits(node)
        reads_front = bool(group.fusion.front) and any(
            uid in group.fusion.front for _, uid in node.inputs
        )
        fused: Fusion | str = group.fusion
        if traits.anchor and (
            reason := self.rules.count_refusal(group.fusion, node, traits)
        ):
            return reason
        if reads_front or traits.anchor or "concat" in traits.ops:
            fused = self.rules.fold([*group.nodes, node.index])
        elif reason := self.rules.refusal(group.fusion, node):
            fused = reason
        if isinstance(fused, str):
            return fused
        if group.after and self._reaches(group, [s for s in sources if s is not group]):
            return "joining would make a cycle between regions"
        if fused is group.fusion:
            self._take(group, node, sources)
        else:
            group.fusion = fused
            self._link(group, node, sources)
        return ""

    def _take(self, group: Group, node: Node, sources: Iterable[Group]) -> None:
        self.rules.include(group.fusion, node)
        self._link(group, node, sources)

    def _link(self, group: Group, node: Node, sources: Iterable[Group]) -> None:
        group.nodes.append(node.index)
        self.group_of[node.index] = group
        for source in sources:
            if source is not group:
                source.after.add(group)
                group.before.add(source)
                self._raise_level(group, source.level + 1)

    def _merge(self, group: Group, other: Group) -> None:
        """Make one group of two if they fit; the first one stays."""
        if len(group.nodes) + len(other.nodes) > self.limits.max_nodes:
            return
        if self._reaches(group, [other], besides=other) or self._reaches(
            other, [group], besides=group
        ):
            return
        nodes = sorted([*group.nodes, *other.nodes])
        fused = self.rules.fold(nodes)
        if isinstance(fused, str):
            return
        first = min(group, other, key=lambda g: g.nodes[0])
        group.nodes, group.fusion, group.reason = nodes, fused, first.reason
        for k in other.nodes:
            self.group_of[k] = group
        del self.groups[other]
        other.merged_into = group
        group.before = (group.before | other.before) - {group, other}
        group.after = (group.after | other.after) - {group, other}
        for g in group.before:
            g.after.discard(other)
            g.after.add(group)
        for g in group.after:
            g.before.discard(other)
            g.before.add(group)
        level = max([group.level, other.level, *(g.level + 1 for g in group.before)])
        group.level = -1
        self._raise_level(group, level)

    def _raise_level(self, group: Group, level: int) -> None:
        """Give a group at least this level, and what follows it higher ones."""
        pending = [(group, level)]
        while pending:
            g, least = pending.pop()
            if g.level < least:
                g.level = least
                pending += [(n, least + 1) for n in g.after]

    def _reaches(
        self, start: Group, targets: Sequence[Group], besides: Group | None = None
    ) -> bool:
        """Whether a path leads from a group to one of the targets, other than the edge to `besides`."""
        if not targets:
            return False
        top = max(t.level for t in targets)
        pending = [g for g in start.after if g is not besides]
        seen: set[Group] = set()
        while pending:
            g = pending.pop()
            if g in targets:
                return True
            if g not in seen and g.level < top:
                seen.add(g)
                pending.extend(g.after)
        return False

    def in_order(self) -> list[Group]:
        """The groups, producers first, with the nodes that their windows stand for."""
        found = list(self.groups)
        for group in found[:]:
            if group.fusion.front:
                found += self._eject(group)
        for group in found:
            group.nodes = self._with_windows(group.nodes)
        return ordered(self.graph, found)

    def _eject(self, group: Group) -> list[Group]:
        """Nodes in front of an anchor that others need after all become groups of their own."""
        out = self.rules.front.exposed(group.nodes, group.fusion.front)
        if not out:
            return []
        gone = set(out)
        group.nodes = [k for k in group.nodes if k not in gone]
        shown = ", ".join(repr(self.graph.nodes[k].name) for k in out[-1:])
        reason = f"{shown} is needed by others too, so it is not computed in front of an anchor"
        made = [Group([k], reason) for k in out]
        whole = self.rules.fold(out)
        if not isinstance(whole, str):
            made = [Group(out, made[0].reason)]
        made[0].reason, group.reason = group.reason, made[0].reason
        for g in made:
            self.group_of.update(dict.fromkeys(g.nodes, g))
        return made

    def _with_windows(self, nodes: Sequence[int]) -> list[int]:
        if not self.cache.windows:
            return list(nodes)
        inputs = (uid for k in nodes for _, uid in self.graph.nodes[k].inputs)
        via = {
            v
            for uid in inputs
            if uid in self.cache.windows
            for v in self.cache.windows[uid].via
        }
        return sorted({*nodes, *via})


def ordered(graph: Graph, groups: Sequence[Group]) -> list[Group]:
    """Groups in an order that runs producers first, earlier nodes first where that is open.

    A node that stands in several groups is a window, which nobody waits for.
    """
    count: dict[int, int] = {}
    for g in groups:
        for k in g.nodes:
            count[k] = count.get(k, 0) + 1
    home = {k: i for i, g in enumerate(groups) for k in g.nodes if count[k] == 1}
    waits: list[set[int]] = []
    for i, g in enumerate(groups):
        made_by = (
            graph.producers.get(uid, -1)
            for k in g.nodes
            for uid in graph.reads(graph.nodes[k])
        )
        waits.append({home[p] for p in made_by if home.get(p, i) != i})
    followers: dict[int, list[int]] = {}
    for i, before in enumerate(waits):
        for b in before:
            followers.setdefault(b, []).append(i)
    ready = [(g.nodes[0], i) for i, g in enumerate(groups) if not waits[i]]
    heapify(ready)
    found = []
    while ready:
        _, i = heappop(ready)
        found.append(groups[i])
        for n in followers.get(i, ()):
            waits[n].discard(i)
            if not waits[n]:
                heappush(ready, (groups[n].nodes[0], n))
    assert len(found) == len(groups), "groups form a cycle"
    return found
