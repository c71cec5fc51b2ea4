"""The passes from graph to regions, in order and by name; nothing else."""

from __future__ import annotations

from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import FusionLimits
from fuseplan.ir.region import Region
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fuse import fuse
from fuseplan.lowering.partition import partition


def lower(graph: Graph, limits: FusionLimits, cache: FragmentCache | None = None) -> list[Region]:
    """Regions of the graph under an engine's limits, in launch order.

    1. decompose: each node to primitives (`fragment`)
    2. partition: nodes to groups, with the reason at each boundary (`partition`)
    3. fuse: each group to one SSA list with operands and stores (`fuse`)
    """
    cache = cache or FragmentCache(graph)
    return [fuse(graph, group.nodes, cache, group.reason) for group in partition(graph, limits, cache)]
