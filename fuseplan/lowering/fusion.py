"""Whether nodes can be one region under an engine's limits, and what is known of them while they are gathered.

Nodes are in front (everything they make reaches memory only through an anchor of the region) or main: main
nodes share one iteration space, the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuseplan.ir.graph import Graph, Node
from fuseplan.ir.limits import FusionLimits
from fuseplan.lowering.fragment import FragmentCache, Traits, pad_dim, strip
from fuseplan.lowering.front import Front
from fuseplan.lowering.windows import Source


@dataclass(slots=True)
class Fusion:
    """What is known of the nodes of one region.

    Args:
        domain: iteration dims of the main nodes, leading ones stripped
        axes: axes that main nodes reduce, counted from the right
        anchors: nodes with an anchor
        depth: tensor made here -> anchors on the way to it
        reduced: tensors that depend on a reduction
        front: tensors that front nodes make
        made: tensors made here
        operands: tensors read from memory or written there
    """

    domain: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    anchors: list[int] = field(default_factory=list)
    depth: dict[int, int] = field(default_factory=dict)
    reduced: set[int] = field(default_factory=set)
    front: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)
    operands: set[int] = field(default_factory=set)
    num_nodes: int = 0
    num_main: int = 0
    is_joined: bool = False  # its main node joins tensors
    foreign: str = ""  # an op that the engine does not fuse; its node stays alone


class Rules:
    """The limits of one engine applied to the nodes of one graph."""

    def __init__(
        self,
        graph: Graph,
        limits: FusionLimits,
        cache: FragmentCache,
        windows: dict[int, Source],
    ) -> None:
        self.graph, self.limits, self.cache, self.windows = (
            graph,
            limits,
            cache,
            windows,
        )
        self.front = Front(graph, cache, limits.anchors)
        self.names = {t.uid: t.name for t in graph.tensors.values()}

    def base(self, uid: int) -> int:
        """The tensor in memory behind a uid."""
        source = self.windows.get(uid)
        return uid if source is None else source.uid

    def from_memory(self, node: Node) -> list[int]:
        """Tensors that a node reads from memory whatever made them: behind windows, and starts of sequences."""
        windows = self.windows
        found = (
            [windows[uid].uid for _, uid in node.inputs if uid in windows]
            if windows
            else []
        )
        return (
            [*found, *self.graph.offsets_of(node)] if self.graph.has_ragged else found
        )

    # what one more main node would need

    def refusal(self, f: Fusion, node: Node) -> str:
        """Why a node cannot be one more main node; empty if it can."""
        lim, traits = self.limits, self.cache.traits(node)
        if reason := self.foreign(traits):
            return reason
        if f.foreign:
            return f"its producer's {f.foreign!r} is not fused by this engine"
        if f.num_main and (f.is_joined or "concat" in traits.ops):
            return "a node that joins tensors shares a region only with what stands in front of it"
        if f.num_nodes >= lim.max_nodes:
            return f"the region is full ({lim.max_nodes} nodes)"
        new = {uid for _, uid in node.inputs if uid not in f.made}
        if len(f.operands | new) + len(node.outputs) > lim.max_operands:
            return f"the region would have more than {lim.max_operands} operands"
        for uid in self.from_memory(node):
            if uid in f.made:
                return f"it reads {self.names[uid]!r} from memory, where the region would have to write it first"
        if traits.anchor:
            return self._anchor_refusal(f, node, traits)
        if traits.axes:
            return self._reduction_refusal(f, node, traits)
        return self._pointwise_refusal(f, node, traits)

    def foreign(self, traits: Traits) -> str:
        """Why the engine fuses no node with these traits; empty if it may."""
        if traits.ops <= self.limits.ops:
            return ""
        return (
            f"{sorted(traits.ops - self.limits.ops)[0]!r} is not fused by this engine"
        )

    def _anchor_refusal(self, f: Fusion, node: Node, traits: Traits) -> str:
        if reason := self.count_refusal(f, node, traits):
            return reason
        for _, uid in node.inputs:
            if uid in f.made and uid not in f.front:
                return f"{traits.anchor} reads {self.names[uid]!r}, which others need too, from memory"
        if f.num_main and traits.domain != f.domain:
            return f"it has dims {list(traits.domain)}, the region iterates over {list(f.domain)}"
        if f.axes:
            return f"a reduction shares a region with {traits.anchor} only in front of it or behind it"
        return ""

    def count_refusal(self, f: Fusion, node: Node, traits: Traits) -> str:
        """Why there may not be one more anchor; empty if there may."""
        lim = self.limits
        if len(f.anchors) >= lim.anchors:
            held = (
                self.cache.traits(self.graph.nodes[f.anchors[0]]).anchor
                if f.anchors
                else ""
            )
            number = "one anchor" if lim.anchors == 1 else f"{lim.anchors} anchors"
            return f"a region holds {number}, and the producer's region has a {held}"
        if self._depth(f, node) >= lim.depth:
            return f"{traits.anchor} stands behind {lim.depth} anchor(s) of the region, as many as may"
        return ""

    def _depth(self, f: Fusion, node: Node) -> int:
        return (
            max([f.depth.get(uid, 0) for _, uid in node.inputs], default=0)
            if f.depth
            else 0
        )

    def _reduction_refusal(self, f: Fusion, node: Node, traits: Traits) -> str:
        lim = self.limits
        source = strip(self.graph.tensors[node.inputs[0][1]].dim)
        if f.num_main and source != f.domain:
            return f"it reduces dims {list(source)}, the region iterates over {list(f.domain)}"
        reads_reduced = bool(f.reduced) and any(
            uid in f.reduced for _, uid in node.inputs
        )
        if f.anchors:
            if not lim.reuse_after_anchor and reads_reduced:
                return (
                    f"a reduction's result is used again after the {self._anchor_of(f)}"
                )
            if not traits.modes <= lim.reduce_after_anchor or (
                traits.reuses and not lim.reuse_after_anchor
            ):
                return (
                    f"this reduction cannot close a region with a {self._anchor_of(f)}"
                )
            return ""
        if f.axes and f.axes != traits.axes and not lim.mixed_reductions:
            return f"it reduces axes {list(traits.axes)}, the region already reduces {list(f.axes)}"
        if (reads_reduced or traits.reuses) and not lim.reuse_reduction:
            return "a reduction's result is used again over the reduced axes"
        return ""

    def _pointwise_refusal(self, f: Fusion, node: Node, traits: Traits) -> str:
        domain = traits.domain
        if not f.num_main:
            return ""
        reads_reduced = bool(f.reduced) and any(
            uid in f.reduced for _, uid in node.inputs
        )
        if domain == f.domain:
            is_behind = bool(f.anchors)
            may_reuse = (
                self.limits.reuse_after_anchor
                if is_behind
                else self.limits.reuse_reduction
            )
            if reads_reduced and f.axes and not may_reuse:
                after = f" after the {self._anchor_of(f)}" if is_behind else ""
                return (
                    f"a reduction's result is used again over the reduced axes{after}"
                )
            return ""
        if f.axes and domain == reduced_dim(f.domain, f.axes):
            return ""
        return f"it has dims {list(domain)}, the region iterates over {list(f.domain)}"

    def _anchor_of(self, f: Fusion) -> str:
        return self.cache.traits(self.graph.nodes[f.anchors[-1]]).anchor

    # gathering

    def include(self, f: Fusion, node: Node, *, in_front: bool = False) -> None:
        """Take a node in that nothing speaks against."""
        traits = self.cache.traits(node)
        f.num_nodes += 1
        reads_reduced = bool(f.reduced) and any(
            uid in f.reduced for _, uid in node.inputs
        )
        for _, uid in node.inputs:
            if uid not in f.made:
                f.operands.add(uid)
        if traits.anchor:
            f.anchors.append(node.index)
        depth = self._depth(f, node) + bool(traits.anchor)
        if not in_front:
            if not f.num_main:
                f.domain = traits.domain
            f.num_main += 1
            f.is_joined = f.is_joined or "concat" in traits.ops
            f.axes = f.axes or traits.axes
        for _, uid in node.outputs:
            f.made.add(uid)
            if depth:
                f.depth[uid] = depth
            if in_front:
                f.front.add(uid)
            elif traits.axes or reads_reduced:
                f.reduced.add(uid)
            if not self.graph.tensors[uid].is_virtual:
                f.operands.add(uid)
        if not traits.ops <= self.limits.ops:
            f.foreign = sorted(traits.ops - self.limits.ops)[0]

    def fold(self, nodes: Sequence[int]) -> Fusion | str:
        """The nodes, in order, as one region; or why they cannot be one."""
        if len(nodes) > self.limits.max_nodes:
            return f"the region is full ({self.limits.max_nodes} nodes)"
        ahead = self.front.nodes(nodes)
        f = Fusion()
        for k in nodes:
            node = self.graph.nodes[k]
            reaches = ahead.get(k)
            reason = (
                self.refusal(f, node)
                if reaches is None
                else self._front_refusal(f, node, reaches)
            )
            if reason:
                return reason
            self.include(f, node, in_front=reaches is not None)
        return f

    def _front_refusal(self, f: Fusion, node: Node, reaches: frozenset[str]) -> str:
        traits = self.cache.traits(node)
        for argument in sorted(reaches):
            missing = traits.ops - self.limits.in_front.get(argument, frozenset())
            if missing:
                anchor, _, name = argument.partition(".")
                if argument not in self.limits.in_front:
                    return f"{anchor} reads {name} from memory: nothing is fused in front of it"
                return f"{sorted(missing)[0]!r} is not fused in front of {name} of {anchor}"
        for uid in self.from_memory(node):
            if uid in f.made:
                return f"it reads {self.names[uid]!r} from memory, where the region would have to write it first"
        return self.count_refusal(f, node, traits) if traits.anchor else ""


def reduced_dim(domain: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The domain with `axes` (counted from the right) set to 1, leading ones stripped."""
    dim = list(pad_dim(domain, max(len(domain), max((-a for a in axes), default=0))))
    for a in axes:
        dim[a] = 1
    return strip(tuple(dim))
