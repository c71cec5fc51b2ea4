"""Cuts a graph into groups of nodes that one engine can fuse, and says why at each boundary.

One pass over the nodes in order; a node joins the group of a producer or starts its own. Every group
has a level, and an edge between groups always goes to a higher level, so groups never form a cycle.
Knows no engine: what may fuse arrives as `FusionLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuseplan.ir.graph import Graph, Node
from fuseplan.ir.limits import FusionLimits
from fuseplan.lowering.fragment import Facts, FragmentCache, pad_dim, strip

_ANCHOR_FAMILIES = frozenset({"matmul", "conv", "attention"})


@dataclass(slots=True)
class Group:
    """Nodes of one region; `reason` says why its first node did not join an earlier group."""

    level: int
    nodes: list[int] = field(default_factory=list)
    domain: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    families: set[str] = field(default_factory=set)
    reduced: set[int] = field(default_factory=set)  # uids that depend on a reduction
    operands: set[int] = field(default_factory=set)
    has_dependents: bool = False
    reason: str = ""

    @property
    def anchor(self) -> str:
        return next(iter(self.families & _ANCHOR_FAMILIES), "")


def partition(graph: Graph, limits: FusionLimits, cache: FragmentCache | None = None) -> list[Group]:
    """Groups of node indices in an order that runs producers first; nodes whose results nobody needs are left out."""
    cache = cache or FragmentCache(graph)
    alive = live_nodes(graph)
    if limits.whole_graph:
        return [Group(0, [n.index for n in graph.nodes if alive[n.index]])]
    cutter = _Cutter(graph, limits, cache)
    for node in graph.nodes:
        if alive[node.index]:
            cutter.place(node)
    return sorted(cutter.groups, key=lambda g: (g.level, g.nodes[0]))


def live_nodes(graph: Graph) -> list[bool]:
    """For each node, whether a non-virtual tensor depends on it."""
    alive = [False] * len(graph.nodes)
    needed: set[int] = set()
    for node in reversed(graph.nodes):
        if any(uid in needed or not graph.tensors[uid].is_virtual for _, uid in node.outputs):
            alive[node.index] = True
            needed.update(uid for _, uid in node.inputs)
    return alive


class _Cutter:
    """State of one pass."""

    def __init__(self, graph: Graph, limits: FusionLimits, cache: FragmentCache) -> None:
        self.graph, self.limits, self.cache = graph, limits, cache
        self.groups: list[Group] = []
        self.group_of: dict[int, Group] = {}  # uid -> group that makes it
        self.sibling: dict[int, Group] = {}  # graph input -> last pointwise group that reads it

    def place(self, node: Node) -> None:
        facts = self.cache.facts(node)
        sources = {id(g): g for _, uid in node.inputs if (g := self.group_of.get(uid)) is not None}
        ranked = sorted(sources.values(), key=lambda g: -g.level)
        reason = ""
        group: Group | None = None
        if ranked:
            group = ranked[0]
            reason = self._refusal(group, ranked[1:], node, facts)
        elif facts.family == "pointwise":
            group = next((g for _, uid in node.inputs if (g := self.sibling.get(uid)) is not None), None)
            reason = "reads only graph inputs" if group is None else self._refusal(group, [], node, facts)
        if group is None or reason:
            group = Group(0, reason=reason)
            self.groups.append(group)
        for other in ranked:
            if other is not group:
                other.has_dependents = True
                group.level = max(group.level, other.level + 1)  # only where nobody depends on the group yet
        self._add(group, node, facts)

    def _add(self, group: Group, node: Node, facts: Facts) -> None:
        if not group.nodes:
            group.domain = facts.domain
        group.nodes.append(node.index)
        group.families.add(facts.family)
        group.axes = group.axes or facts.axes
        depends = bool(facts.axes) or any(uid in group.reduced for _, uid in node.inputs)
        for _, uid in node.inputs:
            if self.group_of.get(uid) is not group:
                group.operands.add(uid)
                if facts.family == "pointwise" and uid not in self.group_of and not group.anchor:
                    self.sibling[uid] = group
        for _, uid in node.outputs:
            self.group_of[uid] = group
            if depends:
                group.reduced.add(uid)
            if not self.graph.tensors[uid].is_virtual:
                group.operands.add(uid)

    def _refusal(self, group: Group, others: list[Group], node: Node, facts: Facts) -> str:
        """Why the node cannot join the group; empty if it can."""
        lim = self.limits
        if facts.family not in lim.families:
            return f"family {facts.family!r} is not fused by this engine"
        if not group.families <= lim.families:
            return f"the producer's family {sorted(group.families - lim.families)[0]!r} is not fused by this engine"
        if others and others[0].level >= group.level and group.has_dependents:
            return "joining would make a cycle between regions"
        if len(group.nodes) >= lim.max_nodes:
            return f"the region is full ({lim.max_nodes} nodes)"
        new = {uid for _, uid in node.inputs if self.group_of.get(uid) is not group}
        if len(group.operands | new) + len(node.outputs) > lim.max_operands:
            return f"the region would have more than {lim.max_operands} operands"
        if facts.family in _ANCHOR_FAMILIES:
            return self._anchor_refusal(group, facts)
        if facts.axes:
            return self._reduction_refusal(group, node, facts)
        return self._pointwise_refusal(group, node, facts)

    def _anchor_refusal(self, group: Group, facts: Facts) -> str:
        if group.anchor:
            return f"a region holds one anchor, and the producer's region has a {group.anchor}"
        if not self.limits.pointwise_before_anchor:
            return f"{facts.family} reads its operands from memory: nothing is fused in front of it"
        return "" if group.families == {"pointwise"} else f"a reduction is not fused in front of {facts.family}"

    def _reduction_refusal(self, group: Group, node: Node, facts: Facts) -> str:
        lim = self.limits
        source = strip(self.graph.tensors[node.inputs[0][1]].dim)
        if source != group.domain:
            return f"it reduces dims {list(source)}, the region iterates over {list(group.domain)}"
        reads_reduced = any(uid in group.reduced for _, uid in node.inputs)
        if group.anchor:
            if reads_reduced:
                return f"a reduction's result is used again after the {group.anchor}"
            if facts.reuses or not facts.modes <= lim.reduce_after_anchor:
                return f"this reduction cannot close a region with a {group.anchor}"
            return ""
        if group.axes and group.axes != facts.axes and not lim.mixed_reductions:
            return f"it reduces axes {list(facts.axes)}, the region already reduces {list(group.axes)}"
        if (reads_reduced or facts.reuses) and not lim.reuse_reduction:
            return "a reduction's result is used again over the reduced axes"
        return ""

    def _pointwise_refusal(self, group: Group, node: Node, facts: Facts) -> str:
        domain = facts.domain
        reads_reduced = any(uid in group.reduced for _, uid in node.inputs)
        if domain == group.domain:
            if reads_reduced and (group.anchor or not self.limits.reuse_reduction):
                after = f" after the {group.anchor}" if group.anchor else ""
                return f"a reduction's result is used again over the reduced axes{after}"
            return ""
        if group.axes and domain == reduced_dim(group.domain, group.axes):
            return ""
        return f"it has dims {list(domain)}, the region iterates over {list(group.domain)}"


def reduced_dim(domain: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The domain with `axes` (counted from the right) set to 1, leading ones stripped."""
    dim = list(pad_dim(domain, max(len(domain), max((-a for a in axes), default=0))))
    for a in axes:
        dim[a] = 1
    return strip(tuple(dim))


def split(group: Group) -> tuple[Group, Group]:
    """Two groups from one that an engine refused, in order; each may be offered again.

    Raises:
        ValueError: the group has one node only
    """
    if len(group.nodes) < 2:
        raise ValueError("a group of one node cannot be split")
    half = len(group.nodes) // 2
    first = Group(group.level, group.nodes[:half], reason=group.reason)
    second = Group(group.level, group.nodes[half:], reason="the engine refused the larger region, so it was split")
    return first, second
