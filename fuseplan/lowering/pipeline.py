"""The passes from graph to regions, in order and by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuseplan import settings
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import FusionLimits
from fuseplan.ir.region import Region
from fuseplan.ir.verify import verify_graph
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fuse import fuse, slice_region
from fuseplan.lowering.partition import partition
from fuseplan.lowering.verify import verify_region


@dataclass(frozen=True, slots=True)
class Piece:
    """A region and its place among the others.

    Args:
        nodes: indices of its nodes in the graph
        starts: why it starts where it does
        ends: why an engine had it cut off from what follows; empty if none did
        refused: why the asked engine does not take it, though it is one node; empty if it does
    """

    nodes: tuple[int, ...]
    region: Region
    starts: str = ""
    ends: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not take a region, and where to cut: the value (without values the node) in front, or -1."""

    reason: str
    at: int = -1


Offer = Callable[[Region], "Refusal | None"]
Trace = Callable[[str, "list[Piece]"], None]


def lower(
    graph: Graph, limits: FusionLimits, cache: FragmentCache | None = None, offer: Offer | None = None,
    trace: Trace | None = None,
) -> list[Piece]:  # fmt: skip
    """Regions of the graph under an engine's limits, in launch order.

    1. decompose: each node to primitives, windows to loads (`fragment`, `windows`; memoised, on demand)
    2. partition: nodes to groups, with the reason at each boundary (`partition`)
    3. fuse: each group to one SSA list with operands and stores (`fuse`)
    4. offer: a region that the engine refuses is cut where it says, and both parts go through 2 and 3 again

    Args:
        offer: asks the engine; without it every region counts as taken
        trace: called after each pass with its name and the pieces so far
    """
    cache = cache or FragmentCache(graph)
    if settings.current().verify:
        verify_graph(graph)
    pieces = _pieces(graph, limits, cache, None)
    if trace is not None:
        trace("partition and fuse", pieces)
    if offer is not None:
        pieces = [
            part
            for piece in pieces
            for part in _offered(graph, limits, cache, piece, offer)
        ]
        if trace is not None:
            trace("offer", pieces)
    return pieces


def _pieces(
    graph: Graph,
    limits: FusionLimits,
    cache: FragmentCache,
    nodes: Sequence[int] | None,
) -> list[Piece]:
    made = []
    for group in partition(graph, limits, cache, nodes):
        region = (
            slice_region(graph, group.nodes)
            if limits.by_graph
            else fuse(graph, group.nodes, cache)
        )
        if settings.current().verify and region.values:
            verify_region(region)
        made.append(Piece(tuple(group.nodes), region, group.reason))
    return made


def _offered(
    graph: Graph, limits: FusionLimits, cache: FragmentCache, piece: Piece, offer: Offer
) -> Iterator[Piece]:  # fmt: skip
    """The piece if the engine takes it, else its parts; what is one node stays, with the refusal."""
    refusal = offer(piece.region)
    if refusal is None:
        yield piece
        return
    first, second = cut(graph, piece, refusal.at, cache)
    if not second:
        yield replace(piece, refused=refusal.reason)
        return
    parts = [_pieces(graph, limits, cache, part) for part in (first, second)]
    parts[0][0] = replace(parts[0][0], starts=piece.starts)
    parts[0][-1] = replace(parts[0][-1], ends=refusal.reason)
    parts[1][0] = replace(parts[1][0], starts=refusal.reason)
    parts[1][-1] = replace(parts[1][-1], ends=piece.ends)
    for part in (*parts[0], *parts[1]):
        yield from _offered(graph, limits, cache, part, offer)


def cut(
    graph: Graph, piece: Piece, at: int, cache: FragmentCache
) -> tuple[list[int], list[int]]:
    """The nodes of a piece in front of what was refused, and from there on; the second part is empty for one node.

    Args:
        at: the value at fault, or without values the node; -1 if none is: the nodes are halved
    """
    nodes = [
        k for k in piece.nodes if graph.nodes[k].outputs[0][1] not in cache.windows
    ]
    if len(nodes) < 2:
        return nodes, []
    guilty = _guilty_node(piece, at)
    if guilty not in nodes:
        return nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
    behind = _closure(nodes, guilty, lambda k: _readers(graph, k))
    if len(behind) < len(nodes):
        return [k for k in nodes if k not in behind], sorted(behind)
    needed = _closure(
        nodes,
        guilty,
        lambda k: [graph.producers.get(u, -1) for u in graph.reads(graph.nodes[k])],
    )
    return sorted(needed), [k for k in nodes if k not in needed]


def _guilty_node(piece: Piece, at: int) -> int:
    if at < 0:
        return -1
    return piece.region.values[at].node if piece.region.values else piece.nodes[at]


def _readers(graph: Graph, node: int) -> list[int]:
    return [
        c for _, uid in graph.nodes[node].outputs for c in graph.consumers.get(uid, ())
    ]


def _closure(
    nodes: Sequence[int], start: int, follow: Callable[[int], Sequence[int]]
) -> set[int]:
    members, found, pending = set(nodes), set[int](), [start]
    while pending:
        k = pending.pop()
        if k not in found:
            found.add(k)
            pending += [n for n in follow(k) if n in members]
    return found
