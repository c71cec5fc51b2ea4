"""What an engine can fuse, as data: engines say it, `lowering.partition` cuts by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusionLimits:
    """What may become one region.

    Args:
        families: node families it takes: pointwise, reduction, norm, matmul, conv, attention
        reuse_reduction: a reduction's result may be used again over the reduced axes in the same region
        reduce_after_anchor: reduction modes that may close a region after an anchor (results not used again)
        pointwise_before_anchor: pointwise nodes may feed an anchor in the same region
        mixed_reductions: reductions over different axes may share a region without an anchor
        max_nodes, max_operands: size of a region
        whole_graph: take the whole graph as one region, whatever it holds
    """

    families: frozenset[str] = frozenset()
    reuse_reduction: bool = False
    reduce_after_anchor: frozenset[str] = frozenset()
    pointwise_before_anchor: bool = False
    mixed_reductions: bool = False
    max_nodes: int = 64
    max_operands: int = 32
    whole_graph: bool = False
