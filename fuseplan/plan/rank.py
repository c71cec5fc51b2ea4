"""The plans that one engine has for a graph: its own choice, variants of it, a replay; each with estimate and name.

Equal regions always get the same config. A knob of the region with the most work goes by its name, that of region k
by ``name@k``; ``engine@k`` is the id of the engine that another than this one's choice gave region k to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuseplan.engines.base import ENGINE_KNOB, Config, Engine, KnobSpace, Value
from fuseplan.engines.registry import engines_for
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.region import Region
from fuseplan.plan.assign import Assignment, region_for
from fuseplan.plan.plan import BuiltPlan
from fuseplan.runtime.device import Device


@dataclass
class Entry:
    """One plan of the list, built or not.

    Args:
        name: lasting name: engines, then knobs in brackets
        knobs: knob values as users see them: integers, names by their position
        numeric_notes: numerical notes of any of its regions, sorted
        barred: why a filter excludes the plan, else empty
    """

    name: str
    engine_name: str
    engine_id: int
    knobs: dict[str, int]
    estimate_us: float
    assignments: tuple[Assignment, ...] = field(repr=False)
    behavior_notes: tuple[str, ...] = ()
    numeric_notes: tuple[str, ...] = ()
    barred: str = ""
    is_general: bool = False
    built: BuiltPlan | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Pick:
    """The engine and config of all regions of a kind."""

    engine: Engine
    config: Config


Picks = Mapping[int, Pick]  # by position of the kind


def engine_id(pick: Pick) -> int:
    """The id under which users know an engine with this config."""
    offset = dict(pick.config).get(ENGINE_KNOB, 0)
    return pick.engine.engine_ids[offset if isinstance(offset, int) else 0]


class Candidates:
    """The plans of one engine for a graph.

    Args:
        assignments: what the engine makes of the graph on its own
    """

    def __init__(self, engine: Engine, device: Device, assignments: Sequence[Assignment]) -> None:
        self.engine, self.device, self.assignments = engine, device, tuple(assignments)
        self.kinds = _kinds(engine, self.assignments)
        self.own = {at: self._pick(self.assignments[kind[0]]) for at, kind in enumerate(self.kinds)}
        self._estimates: dict[tuple[int, str, Config], float] = {}
        self._spaces: dict[tuple[int, str], KnobSpace] = {}

    @property
    def is_own(self) -> bool:
        """Whether the engine takes any region itself."""
        return any(pick.engine is self.engine for pick in self.own.values())

    @staticmethod
    def _pick(a: Assignment) -> Pick:
        return Pick(a.engine, a.config)

    def space(self, at: int, engine: Engine) -> KnobSpace:
        """The knobs that an engine has for the regions of a kind."""
        key = (at, engine.name)
        if key not in self._spaces:
            self._spaces[key] = engine.knobs(self._region(at, engine), self.device)
        return self._spaces[key]

    def estimate_us(self, at: int, pick: Pick) -> float:
        """Expected time of all regions of a kind."""
        key = (at, pick.engine.name, pick.config)
        if key not in self._estimates:
            once = pick.engine.estimate_us(self._region(at, pick.engine), self.device, pick.config)
            self._estimates[key] = once * len(self.kinds[at])
        return self._estimates[key]

    def _region(self, at: int, engine: Engine) -> Region:
        """A region of a kind in the form that an engine wants."""
        own = self.assignments[self.kinds[at][0]]
        return own.region if own.engine is engine else region_for(engine, self.device, own.region)

    def answered(self, assignments: Sequence[Assignment]) -> Entry | None:
        """The plan with a store's answers, which are in these assignments of the same regions; None without any."""
        picks = {at: self._pick(assignments[kind[0]]) for at, kind in enumerate(self.kinds)}
        changed = {at: pick for at, pick in picks.items() if pick != self.own[at]}
        self.assignments = tuple(
            replace(own, answer=other.answer) for own, other in zip(self.assignments, assignments, strict=True)
        )
        return self.entry(changed) if changed else None

    def entry(self, changed: Picks) -> Entry:
        """The plan in which some kinds differ from the engine's own choice."""
        picks = {**self.own, **changed}
        first = picks.get(0, Pick(self.engine, ()))  # a graph that stores nothing has no regions
        main = first if first.engine is self.engine else self.own[0]
        shown = {name: value for at, pick in picks.items() for name, value in self._changes(at, pick)}
        numbers = {name: self._number(name, value, picks) for name, value in shown.items() if name != ENGINE_KNOB}
        is_compiled = any(pick.engine.is_compiled for pick in picks.values())
        return Entry(
            _name(self.engine, picks, shown),
            self.engine.name,
            engine_id(main),
            numbers,
            sum([self.estimate_us(at, pick) for at, pick in picks.items()]),
            self._assigned(changed),
            ("RUNTIME_COMPILATION",) if is_compiled else (),
            self._notes(picks),
            is_general=self.engine.is_general,
        )

    def changed(self, entry: Entry) -> dict[int, Pick]:
        """The kinds in which a plan differs from the engine's own choice."""
        picks = {at: self._pick(entry.assignments[kind[0]]) for at, kind in enumerate(self.kinds)}
        return {at: pick for at, pick in picks.items() if pick != self.own[at]}

    def _assigned(self, changed: Picks) -> tuple[Assignment, ...]:
        made = list(self.assignments)
        for at, pick in changed.items():
            for k in self.kinds[at]:
                region = made[k].region
                region = region if pick.engine is made[k].engine else region_for(pick.engine, self.device, region)
                made[k] = replace(made[k], region=region, engine=pick.engine, config=pick.config)
        return tuple(made)

    def _notes(self, picks: Picks) -> tuple[str, ...]:
        found: set[str] = set()
        for at, pick in picks.items():
            found |= pick.engine.notes(self._region(at, pick.engine), self.device, pick.config)
        return tuple(sorted(found))

    def _changes(self, at: int, pick: Pick) -> Iterator[tuple[str, Value]]:
        """The knobs of a kind that a plan's name shows: all of the main one, of others those that differ."""
        own = self.own[at]
        if at == 0 and pick.engine is own.engine:
            yield from pick.config
            return
        place = self.kinds[at][0]
        is_other = pick.engine is not own.engine
        default = self.space(at, pick.engine).default if is_other else own.config
        differs = [knob for knob in pick.config if knob not in default]
        if is_other or any(name == ENGINE_KNOB for name, _ in differs):
            yield f"{ENGINE_KNOB}@{place}", engine_id(pick)
        yield from ((f"{name}@{place}", value) for name, value in differs if name != ENGINE_KNOB)

    def _number(self, shown: str, value: Value, picks: Picks) -> int:
        if isinstance(value, int):
            return value
        name, _, place = shown.partition("@")
        at = self._kind_at(place)
        assert at is not None
        return self.space(at, picks[at].engine).knobs[name].number(value)

    def _kind_at(self, place: str) -> int | None:
        """The kind of the region with this number, the main one without a number; None if there is no such region."""
        if not place:
            return 0
        return next((at for at, kind in enumerate(self.kinds) if place == str(kind[0])), None)

    def variants(self, limit: int) -> list[Entry]:
        """The fastest of the plans that change the config of one kind of regions."""
        found: list[tuple[float, int, Pick]] = []
        for at, own in self.own.items():
            for config in self.space(at, own.engine).configs():
                if config != own.config:
                    pick = Pick(own.engine, config)
                    found.append((self.estimate_us(at, pick) - self.estimate_us(at, own), at, pick))
        found.sort(key=lambda f: f[0])
        return [self.entry({at: pick}) for _, at, pick in found[:limit]]

    def replay(self, wanted_id: int, knobs: Mapping[str, int], *, is_exact: bool = True) -> Entry:
        """The plan with these knob values.

        Args:
            is_exact: if not, regions for which a value is not valid keep the engine's own choice
        Raises:
            cudnnGraphNotSupportedError: an unknown knob, or a value or combination that is not valid
        """
        wanted: dict[int, dict[str, int]] = {0: {}}
        for shown, number in sorted(knobs.items()):
            name, _, place = shown.partition("@")
            at = self._kind_at(place)
            if at is None and is_exact:
                raise self._unknown(shown)
            if at is not None:
                wanted.setdefault(at, {})[name] = number
        if len(self.engine.engine_ids) > 1 and f"{ENGINE_KNOB}@{self.kinds[0][0]}" not in knobs:
            wanted[0][ENGINE_KNOB] = wanted_id
        changed = {}
        for at, given in wanted.items():
            try:
                changed[at] = self._pick_of(at, given)
            except cudnnGraphNotSupportedError:
                if is_exact:
                    raise
        return self.entry(changed)

    def _pick_of(self, at: int, given: dict[str, int]) -> Pick:
        engine, wanted_id = self.own[at].engine, given.pop(ENGINE_KNOB, None)
        if wanted_id is not None:
            engine = self._engine_of(wanted_id, at)
        space, values = self.space(at, engine), dict[str, Value]()
        if wanted_id is not None and ENGINE_KNOB in space.knobs:
            values[ENGINE_KNOB] = engine.engine_ids.index(wanted_id)
        for name, number in given.items():
            if name not in space.knobs:
                raise self._unknown(name, at, engine)
            value = space.knobs[name].value(number)
            if value is None:
                valid = [space.knobs[name].number(v) for v in space.knobs[name].values]
                raise cudnnGraphNotSupportedError(
                    f"engine {engine.name!r} cannot set knob {name!r} to {number} here", fix=f"its values are {valid}"
                )
            values[name] = value
        chosen = space.complete(values)
        if refusal := space.refusal(chosen):
            raise cudnnGraphNotSupportedError(
                f"engine {engine.name!r} cannot use {dict(chosen)} here: {refusal}",
                fix=f"its configs are {[dict(c) for c in space.configs()[:8]]}",
            )
        return Pick(engine, chosen)

    def _engine_of(self, wanted_id: int, at: int) -> Engine:
        for engine in engines_for(self.device.kind):
            if wanted_id in engine.engine_ids and engine.supports(self._region(at, engine), self.device).is_supported:
                return engine
        raise cudnnGraphNotSupportedError(
            f"no engine with id {wanted_id} takes region {self.kinds[at][0]} here", fix="use the knobs of a listed plan"
        )

    def _unknown(self, shown: str, at: int = 0, engine: Engine | None = None) -> cudnnGraphNotSupportedError:
        engine = engine or self.engine
        return cudnnGraphNotSupportedError(
            f"engine {engine.name!r} has no knob {shown!r} here",
            fix=f"its knobs are {sorted(self.space(at, engine).knobs)}",
        )


def _name(engine: Engine, picks: Picks, shown: Mapping[str, Value]) -> str:
    """Engines, the asked one first, then knobs."""
    names = sorted({p.engine.name for p in picks.values()} or {engine.name}, key=lambda n: (n != engine.name, n))
    inside = ", ".join(f"{name}={value}" for name, value in sorted(shown.items()))
    return "+".join(names) + (f"[{inside}]" if inside else "")


def _kinds(engine: Engine, assignments: Sequence[Assignment]) -> list[list[int]]:
    """Positions of equal regions, by kind; first the kind that has the engine's region with the most work."""
    found: dict[object, list[int]] = {}
    for k, a in enumerate(assignments):
        found.setdefault((a.engine.name, a.region.structure), []).append(k)
    if not found:
        return []
    own = [kind for kind in found.values() if assignments[kind[0]].engine is engine] or list(found.values())
    main = max(own, key=lambda kind: (assignments[kind[0]].region.cost.flops, -kind[0]))
    return [main, *(kind for kind in found.values() if kind is not main)]
