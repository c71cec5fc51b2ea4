"""Gives each region of a graph to an engine: the asked one, else the fastest by estimate of those that take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fuseplan.engines.base import Config, Engine, no
from fuseplan.engines.registry import engines_for
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fuse import fuse, whole_region
from fuseplan.lowering.pipeline import Piece, Refusal, Trace, lower
from fuseplan.runtime.device import Device

#: What a store knows of a region on a device: the name of an engine and a config of it.
Choose = Callable[[Region, Device], tuple[str, Config] | None]


@dataclass(frozen=True)
class Assignment:
    """One region and the engine that builds it.

    Args:
        notes: the refusals on the way, each as ``engine: reason``
        starts: why the region starts where it does
        ends: why an engine had it cut off from what follows
        answer: what became of a store's answer: ``taken``, why it was ignored, or empty if there was none
    """

    region: Region
    engine: Engine
    config: Config
    notes: tuple[str, ...] = ()
    starts: str = ""
    ends: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What regions of one structure get; `engine` is None where nobody takes them."""

    engine: Engine | None
    config: Config = ()
    notes: tuple[str, ...] = ()
    answer: str = ""


@dataclass
class Assigner:
    """Assignments of one graph on one device; what equal regions got is remembered.

    Args:
        choose: asked once for each region that differs; an answer that is not valid is noted and ignored
    """

    graph: Graph
    device: Device
    choose: Choose | None = None
    cache: FragmentCache = field(init=False)
    _offered: dict[tuple[str, tuple[object, ...]], Refusal | None] = field(default_factory=dict)
    _choices: dict[tuple[str, tuple[object, ...]], _Choice] = field(default_factory=dict)
    _answers: dict[tuple[object, ...], _Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = FragmentCache(self.graph)

    def assign(self, engine: Engine, trace: Trace | None = None) -> list[Assignment]:
        """Regions under the engine's limits, each with the engine that builds it; no store is asked.

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
        region = piece.region
        choice = _Choice(engine)
        if piece.refused:
            choice = self._other_choice(region if region.values else fuse(self.graph, piece.nodes, self.cache), engine)
        if choice.engine is None:
            node = self.graph.nodes[piece.nodes[-1]]
            raise cudnnGraphNotSupportedError(
                f"no engine can run node {node.name!r} ({node.op}) on {self.device}",
                asked="; ".join(choice.notes),
                fix="change the types named above, or run `fuseplan doctor` to see what is missing",
            )
        region = region if choice.engine is engine else region_for(choice.engine, self.device, region)
        config = choice.engine.knobs(region, self.device).default
        return Assignment(region, choice.engine, config, choice.notes, piece.starts, piece.ends)

    def _other_choice(self, region: Region, engine: Engine) -> _Choice:
        """The engine with the smallest estimate of those that take what the asked one refused, all with defaults."""
        key = (engine.name, region.structure)
        found = self._choices.get(key)
        if found is None:
            others = [e for e in engines_for(self.device.kind) if e.name != engine.name]
            notes: list[str] = []
            takers: list[tuple[Engine, Config, float]] = []
            for candidate in (e for e in (engine, *others) if _may(region, e)):
                support = candidate.supports(region, self.device)
                if support.is_supported:
                    config = candidate.knobs(region, self.device).default
                    takers.append((candidate, config, candidate.estimate_us(region, self.device, config)))
                else:
                    notes.append(f"{candidate.name}: {support.reason}")
            taken, config, _ = min(takers, key=lambda t: t[2]) if takers else (None, (), 0.0)
            found = self._choices[key] = _Choice(taken, config, tuple(notes))
        return found

    def answered(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """The assignments with a store's answers in place of what they hold."""
        made = []
        for a in assignments:
            choice = self._answer(a.region)
            if choice.engine is None:
                made.append(replace(a, answer=choice.answer))
            else:
                region = region_for(choice.engine, self.device, a.region)
                made.append(replace(a, region=region, engine=choice.engine, config=choice.config, answer=choice.answer))
        return made

    def _answer(self, region: Region) -> _Choice:
        """The store's choice for a region; `engine` is None where it has none or none that can be used."""
        found = self._answers.get(region.structure)
        if found is None:
            answer = self.choose(region, self.device) if self.choose is not None else None
            found = _Choice(None) if answer is None else self._judged(region, *answer)
            self._answers[region.structure] = found
        return found

    def _judged(self, region: Region, name: str, chosen: Config) -> _Choice:
        """A store's answer for a region, or why it cannot be used."""
        engine = next((e for e in engines_for(self.device.kind) if e.name == name), None)
        if engine is None:
            return _Choice(None, answer=f"ignored, no engine {name!r} is here")
        region = region_for(engine, self.device, region)
        support = engine.supports(region, self.device) if _may(region, engine) else no("it runs node by node")
        reason = support.reason if not support.is_supported else engine.knobs(region, self.device).refusal(chosen)
        return _Choice(None, answer=f"ignored, {name}: {reason}") if reason else _Choice(engine, chosen, answer="taken")


def _may(region: Region, engine: Engine) -> bool:
    """Whether to offer a region: the general engine gets single nodes, or the whole graph on its own account."""
    return not engine.is_general or len(region.graph.nodes) == 1


def region_for(engine: Engine, device: Device, region: Region) -> Region:
    """The region in the form that an engine wants: with values, or as its slice of the graph alone."""
    by_graph, graph = engine.limits(device).by_graph, region.graph
    if by_graph == (not region.values):
        return region
    return whole_region(graph) if by_graph else fuse(graph, range(len(graph.nodes)), FragmentCache(graph))
