"""What an engine can fuse, as data: engines say it, `lowering.partition` cuts by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import ELEMENTWISE

POINTWISE = ELEMENTWISE | {"const", "index"}
ROWS = POINTWISE | {"reduce", "count"}


@dataclass(frozen=True)
class FusionLimits:
    """What may become one region.

    Args:
        ops: ops of values (`ir.region`) that it takes; loads always
        anchors: how many anchors a region may hold
        depth: how many of them may stand one behind another
        in_front: ``anchor.argument`` (or ``concat.x``) -> ops of values that may stand in front of it; missing: none
        reuse_reduction: a reduction's result may be used again over the reduced axes in the same region
        reduce_after_anchor: modes of reductions that may close a region after an anchor
        reuse_after_anchor: the result of such a reduction may be used again in the same region
        mixed_reductions: reductions over different axes may share a region without an anchor
        max_nodes, max_operands: size of a region
        by_graph: the engine runs the nodes of `Region.graph` itself: it is offered the largest piece that it takes,
            without values
    """

    ops: frozenset[str] = frozenset()
    anchors: int = 1
    depth: int = 1
    in_front: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reuse_reduction: bool = False
    reduce_after_anchor: frozenset[str] = frozenset()
    reuse_after_anchor: bool = False
    mixed_reductions: bool = False
    max_nodes: int = 64
    max_operands: int = 32
    by_graph: bool = False


def everything() -> FusionLimits:
    """Limits of an engine that takes all there is; what it cannot have together has no one iteration space."""
    ops = ROWS | ANCHORS.keys() | {"pick", "concat"}
    names = {a.name: [*(name for name, _ in a.arguments), *a.optional] for a in ANCHORS.values()}
    arguments = ["concat.x", *(f"{anchor}.{name}" for anchor, known in names.items() for name in known)]
    return FusionLimits(
        ops=ops, anchors=1000, depth=1000, in_front=dict.fromkeys(arguments, ops), reuse_reduction=True,
        reduce_after_anchor=frozenset({"add", "mul", "max", "min"}), reuse_after_anchor=True, mixed_reductions=True,
        max_nodes=10_000, max_operands=10_000,
    )  # fmt: skip


__all__ = ["FusionLimits", "POINTWISE", "ROWS", "everything"]
