"""One ranked list of plans over all engines, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fuseplan.engines.base import Engine
from fuseplan.engines.registry import GENERAL, engines_for
from fuseplan.errors import PlanIndexError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.plan.assign import Assigner, Assignment
from fuseplan.plan.explain import explain_plans
from fuseplan.plan.plan import Builder, BuiltPlan
from fuseplan.runtime import collector
from fuseplan.runtime.device import Device

MAX_PLANS = 32


@dataclass
class Entry:
    """One plan of the list, built or not.

    Args:
        name: lasting name: engines, then knobs in brackets
        knobs: knob values of the region with the most work
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
    built: BuiltPlan | None = field(default=None, repr=False)


class PlanList:
    """The ranked plans of one graph on one device. Indices never shift."""

    def __init__(self, graph: Graph, device: Device, modes: Sequence[str] | None) -> None:
        self.graph, self.device = graph, device
        self.entries: list[Entry] = []
        self.refusals: list[str] = []
        self._assigner = Assigner(graph, device)
        self._builder = Builder(graph, device)
        if modes is None:
            return
        ranked = self._ranked()
        for mode in dict.fromkeys(modes):
            if mode == "FALLBACK":
                self._add_general()
            elif mode == "B":
                self._extend(sorted(ranked, key=lambda e: e.estimate_us))
            else:
                self._extend(ranked)
        if not self.entries:
            self._add_general()

    def _ranked(self) -> list[Entry]:
        """Every engine's default, then its other configs, by estimate; without the general engine."""
        defaults: list[Entry] = []
        others: list[Entry] = []
        for engine in engines_for(self.device.kind):
            if engine.name == GENERAL:
                continue
            try:
                assignments = tuple(self._assigner.assign(engine))
            except cudnnGraphNotSupportedError as e:
                self.refusals.append(f"{engine.name}: {e}")
                continue
            if not any(a.engine.name == engine.name for a in assignments):
                notes = dict.fromkeys(n for a in assignments for n in a.notes if n.startswith(f"{engine.name}:"))
                self.refusals.extend(notes or [f"{engine.name}: no node is of a family that it fuses"])
                continue
            defaults.append(self._entry(engine, assignments))
            others.extend(self._variants(engine, assignments))
        defaults.sort(key=lambda e: e.estimate_us)
        others.sort(key=lambda e: e.estimate_us)
        return [*defaults, *others][: MAX_PLANS - 1]

    def _variants(self, engine: Engine, assignments: tuple[Assignment, ...]) -> list[Entry]:
        """The other configs of the region with the most work."""
        main = _main_region(engine, assignments)
        space = engine.knobs(assignments[main].region, self.device)
        found = []
        for config in space.configs()[1:]:
            changed = replace(assignments[main], config=config)
            found.append(self._entry(engine, (*assignments[:main], changed, *assignments[main + 1 :])))
        return found

    def _entry(self, engine: Engine, assignments: tuple[Assignment, ...]) -> Entry:
        names = sorted({a.engine.name for a in assignments}, key=lambda n: (n != engine.name, n))
        knobs = dict(assignments[_main_region(engine, assignments)].config) if len(assignments) else {}
        inside = ", ".join(f"{k}={v}" for k, v in sorted(knobs.items()))
        estimates: dict[int, float] = {}
        numeric_notes: set[str] = set()
        total = 0.0
        for a in assignments:
            # a whole graph is estimated once anyway, and its structure takes a walk over it
            key = hash((a.engine.name, a.region.structure, a.config)) if a.region.values else id(a)
            if key not in estimates:
                estimates[key] = a.engine.estimate_us(a.region, self.device, a.config)
                numeric_notes |= a.engine.notes(a.region, self.device, a.config)
            total += estimates[key]
        name = "+".join(names) + (f"[{inside}]" if inside else "")
        notes = ("RUNTIME_COMPILATION",) if any(a.engine.name != GENERAL for a in assignments) else ()
        return Entry(
            name, engine.name, engine.engine_id, knobs, total, assignments, notes, tuple(sorted(numeric_notes))
        )  # fmt: skip

    def _extend(self, entries: Sequence[Entry]) -> None:
        known = {e.name for e in self.entries}
        self.entries.extend(e for e in entries if e.name not in known)

    def _add_general(self) -> None:
        engine = next(e for e in engines_for(self.device.kind) if e.name == GENERAL)
        if any(e.name == GENERAL for e in self.entries):
            return
        try:
            self.entries.append(self._entry(engine, tuple(self._assigner.assign(engine))))
        except cudnnGraphNotSupportedError as e:
            self.refusals.append(f"{engine.name}: {e}")

    def append(self, engine_id: int, knobs: dict[str, int]) -> int:
        """Add exactly this plan and return its index.

        Raises:
            cudnnGraphNotSupportedError: no such engine here, an unknown knob, or the engine refuses the graph
        """
        engine = next((e for e in engines_for(self.device.kind) if e.engine_id == engine_id), None)
        if engine is None:
            ids = {e.engine_id: e.name for e in engines_for(self.device.kind)}
            raise cudnnGraphNotSupportedError(f"no engine has id {engine_id} on {self.device}", fix=f"use one of {ids}")
        assignments = tuple(self._assigner.assign(engine))
        main = _main_region(engine, assignments)
        if assignments[main].engine is not engine:
            raise cudnnGraphNotSupportedError(
                f"engine {engine.name!r} takes no part of graph {self.graph.name!r}",
                fix="use an engine of the list: get_engine_and_knobs_at_index()",
            )
        space = engine.knobs(assignments[main].region, self.device).knobs
        unknown = sorted(set(knobs) - set(space))
        if unknown:
            raise cudnnGraphNotSupportedError(
                f"engine {engine.name!r} has no knob {unknown[0]!r} here", fix=f"its knobs are {sorted(space)}"
            )
        for name, value in sorted(knobs.items()):
            if value not in space[name]:
                raise cudnnGraphNotSupportedError(
                    f"engine {engine.name!r} cannot set knob {name!r} to {value} here",
                    fix=f"its values are {list(space[name])}",
                )
        config = tuple(sorted({**dict(assignments[main].config), **knobs}.items()))
        changed = replace(assignments[main], config=config)
        self.entries.append(self._entry(engine, (*assignments[:main], changed, *assignments[main + 1 :])))
        return len(self.entries) - 1

    def entry(self, index: int) -> Entry:
        """The entry at an index. Raises PlanIndexError."""
        if not 0 <= index < len(self.entries):
            raise PlanIndexError(
                f"plan index {index} is out of range: graph {self.graph.name!r} has {len(self.entries)} plans",
                fix=f"use an index from 0 to {len(self.entries) - 1}",
            )
        return self.entries[index]

    def build(self, index: int) -> BuiltPlan:
        """The built plan at an index; built once."""
        entry = self.entry(index)
        if entry.built is None:
            engine = (entry.engine_name, entry.engine_id)
            with collector.paused():
                entry.built = self._builder.build(entry.name, engine, entry.knobs, entry.assignments)
        return entry.built

    def general(self, plan: BuiltPlan) -> BuiltPlan:
        """The plan without any promise on addresses."""
        return self._builder.general(plan)

    def explain(self) -> str:
        """Ranking, refusals, and the regions of each engine with the reason at each boundary."""
        return explain_plans(self)


def _main_region(engine: Engine, assignments: Sequence[Assignment]) -> int:
    """Index of the engine's region with the most work."""
    own = [k for k, a in enumerate(assignments) if a.engine is engine] or list(range(len(assignments)))
    return max(own, key=lambda k: (assignments[k].region.cost.flops, -k))


def make_plans(graph: Graph, device: Device, modes: Sequence[str] | None = ("A", "FALLBACK")) -> PlanList:
    """Plans of the graph, ranked without timing.

    Args:
        modes: A (also as OPENSOURCE): every engine's default config first, then the others, each by estimate; B: all
            by estimate alone; FALLBACK: the general engine; concatenated in the order given, without repetition.
            None lists nothing and asks no engine: plans are appended
    """
    with collector.paused():
        return PlanList(graph, device, modes)
