"""Gives each region of a graph to an engine: the asked one, else another that takes it, at last the general one."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuseplan.engines.base import Config, Engine
from fuseplan.engines.registry import GENERAL, engines_for
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fuse import fuse, slice_region
from fuseplan.lowering.pipeline import Piece, Refusal, Trace, lower
from fuseplan.runtime.device import Device


@dataclass(frozen=True)
class Assignment:
    """One region and the engine that builds it.

    Args:
        notes: the refusals on the way
        starts: why the region starts where it does
        ends: why an engine had it cut off from what follows
    """

    region: Region
    engine: Engine
    config: Config
    notes: tuple[str, ...] = ()
    starts: str = ""
    ends: str = ""


@dataclass
class Assigner:
    """Assignments of one graph on one device; what equal regions got is remembered."""

    graph: Graph
    device: Device
    cache: FragmentCache = field(init=False)
    _offered: dict[tuple[str, tuple[object, ...]], Refusal | None] = field(default_factory=dict)
    _choice: dict[tuple[str, tuple[object, ...]], tuple[Engine | None, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = FragmentCache(self.graph)

    def assign(self, engine: Engine, trace: Trace | None = None) -> list[Assignment]:
        """Regions under the engine's limits, each with the engine that builds it.

        Raises:
            cudnnGraphNotSupportedError: a region that no engine takes, with every reason
        """
        limits = engine.limits(self.device)
        pieces = lower(self.graph, limits, self.cache, lambda region: self._offer(region, engine), trace)
        return [self._place(piece, engine) for piece in pieces]

    def _offer(self, region: Region, engine: Engine) -> Refusal | None:
        key = (engine.name, region.structure)
        if key not in self._offered:
            support = engine.supports(region, self.device)
            self._offered[key] = None if support.is_supported else Refusal(support.reason, support.at)
        refusal = self._offered[key]
        return refusal and Refusal(f"{engine.name}: {refusal.reason}", refusal.at)

    def _place(self, piece: Piece, engine: Engine) -> Assignment:
        region, chosen = piece.region, engine
        notes: tuple[str, ...] = ()
        if piece.refused:
            region = region if region.values else fuse(self.graph, piece.nodes, self.cache)
            taken, notes = self._choose(region, engine)
            if taken is None:
                node = self.graph.nodes[piece.nodes[-1]]
                raise cudnnGraphNotSupportedError(
                    f"no engine can run node {node.name!r} ({node.op}) on {self.device}",
                    asked="; ".join(notes),
                    fix="change the types named above, or run `fuseplan doctor` to see what is missing",
                )
            chosen = taken
        if region.values and chosen.limits(self.device).by_graph:
            region = slice_region(self.graph, piece.nodes)
        config = chosen.knobs(region, self.device).default
        return Assignment(region, chosen, config, notes, piece.starts, piece.ends)

    def _choose(self, region: Region, engine: Engine) -> tuple[Engine | None, tuple[str, ...]]:
        """The asked engine if it takes the region; otherwise another one, the general one for single nodes only."""
        key = (engine.name, region.structure)
        found = self._choice.get(key)
        if found is not None:
            return found
        notes: list[str] = []
        chosen: Engine | None = None
        others = [e for e in engines_for(self.device.kind) if e.name != engine.name]
        for candidate in (engine, *others):
            if candidate.name == GENERAL and len(region.graph.nodes) > 1:
                continue
            support = candidate.supports(region, self.device)
            if support.is_supported:
                chosen = candidate
                break
            notes.append(f"{candidate.name}: {support.reason}")
        found = self._choice[key] = (chosen, tuple(notes))
        return found
