"""One ranked list of plans over all engines, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from fuseplan.engines.base import Config, Engine
from fuseplan.engines.registry import engines_for
from fuseplan.errors import GraphStateError, PlanIndexError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.plan import collector
from fuseplan.plan.assign import Assigner, Choose
from fuseplan.plan.explain import explain_plans
from fuseplan.plan.plan import Builder, BuiltPlan
from fuseplan.plan.rank import Candidates, Entry
from fuseplan.plan.search import Times, search
from fuseplan.runtime.device import Device

MAX_PLANS = 32
GENERAL_GAIN = 2.0  # the general engine is ranked only where it is this much faster: it allocates at every call


class PlanList:
    """The ranked plans of one graph on one device. Indices never shift."""

    def __init__(self, graph: Graph, device: Device, modes: Sequence[str] | None, choose: Choose | None = None) -> None:
        self.graph, self.device = graph, device
        self.entries: list[Entry] = []
        self.refusals: list[str] = []
        self._assigner = Assigner(graph, device, choose)
        self._builder = Builder(graph, device)
        self._candidates: dict[str, Candidates] = {}
        if modes is not None:
            self._list(modes)

    def _list(self, modes: Sequence[str]) -> None:
        ranked, general = self._ranked(), self._general()
        if general and ranked and GENERAL_GAIN * general[0].estimate_us <= min(e.estimate_us for e in ranked):
            ranked = [*general, *ranked]
        for mode in dict.fromkeys(modes):
            if mode == "FALLBACK":
                self._extend(general)
            elif mode == "B":
                self._extend(sorted(ranked, key=lambda e: e.estimate_us))
            else:
                self._extend(ranked)
        if not self.entries:
            self._extend(general)

    def candidates(self, engine: Engine) -> Candidates:
        """The engine's plans. Raises cudnnGraphNotSupportedError if it cannot have any."""
        found = self._candidates.get(engine.name)
        if found is None:
            found = Candidates(engine, self.device, self._assigner.assign(engine))
            self._candidates[engine.name] = found
        return found

    def _ranked(self) -> list[Entry]:
        """Every engine's own choice, then variants, by estimate; without the general engine."""
        defaults: list[Entry] = []
        others: list[Entry] = []
        for engine in engines_for(self.device.kind):
            if engine.is_general:
                continue
            try:
                found = self.candidates(engine)
            except cudnnGraphNotSupportedError as e:
                self.refusals.append(f"{engine.name}: {e}")
                continue
            if not found.is_own:
                notes = dict.fromkeys(n for a in found.assignments for n in a.notes if n.startswith(f"{engine.name}:"))
                self.refusals.extend(notes or [f"{engine.name}: no node is of a family that it fuses"])
                continue
            answered = found.answered(self._assigner.answered(found.assignments))
            (defaults if answered is None else others).append(found.entry({}))
            defaults.extend([] if answered is None else [answered])
            others.extend(found.variants(MAX_PLANS))
        defaults.sort(key=lambda e: e.estimate_us)
        others.sort(key=lambda e: e.estimate_us)
        return [*defaults, *others][: MAX_PLANS - 1]

    def _general(self) -> list[Entry]:
        """The plan of the engine that takes any graph, if it takes this one."""
        engine = next(e for e in engines_for(self.device.kind) if e.is_general)
        try:
            return [self.candidates(engine).entry({})]
        except cudnnGraphNotSupportedError as e:
            self.refusals.append(f"{engine.name}: {e}")
            return []

    def _extend(self, entries: Sequence[Entry]) -> None:
        known = {e.name for e in self.entries}
        self.entries.extend(e for e in entries if e.name not in known)

    def append(self, engine_id: int, knobs: dict[str, int], *, is_exact: bool = True) -> int:
        """Add exactly this plan and return its index.

        Args:
            is_exact: if not, regions for which a knob value is not valid keep the engine's own choice
        Raises:
            cudnnGraphNotSupportedError: no such engine here, an unknown knob, or the engine refuses the graph
        """
        engine = next((e for e in engines_for(self.device.kind) if engine_id in e.engine_ids), None)
        if engine is None:
            ids = {_shown_ids(e): e.name for e in engines_for(self.device.kind)}
            raise cudnnGraphNotSupportedError(f"no engine has id {engine_id} on {self.device}", fix=f"use one of {ids}")
        found = self.candidates(engine)
        if not found.is_own:
            raise cudnnGraphNotSupportedError(
                f"engine {engine.name!r} takes no part of graph {self.graph.name!r}",
                fix="use an engine of the list: get_engine_and_knobs_at_index()",
            )
        self.entries.append(found.replay(engine_id, knobs, is_exact=is_exact))
        return len(self.entries) - 1

    def again(self, plan: BuiltPlan) -> Iterator[int]:
        """Indices to try for a plan that was chosen under other extents.

        First the same engine with the same configs where they are still valid; no other engine is asked for more
        than the regions that it refuses. All plans are listed only if a second index is asked for.
        """
        try:
            self.append(plan.engine_id, plan.knobs, is_exact=False)
            made = self.entries.pop()
            self._extend([made])
            yield next(k for k, e in enumerate(self.entries) if e.name == made.name)
        except cudnnGraphNotSupportedError as e:
            self.refusals.append(f"{plan.name}: {e}")
        self._list(("A", "FALLBACK"))
        yield from range(len(self.entries))

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
        return self.build_entry(self.entry(index))

    def build_entry(self, entry: Entry) -> BuiltPlan:
        """The built plan of an entry, listed or not; built once."""
        if entry.built is None:
            engine = (entry.engine_name, entry.engine_id)
            with collector.paused():
                entry.built = self._builder.build(entry.name, engine, entry.knobs, entry.assignments)
        return entry.built

    def compile_ahead(self, entries: Sequence[Entry], until: float) -> None:
        """Have engines compile what these entries need side by side, where they have a method `compile_ahead`."""
        work: dict[str, tuple[Engine, dict[tuple[object, Config], Region]]] = {}
        for entry in entries:
            for a in entry.assignments if entry.built is None else ():
                _, wanted = work.setdefault(a.engine.name, (a.engine, {}))
                wanted.setdefault((a.region.structure, a.config), a.region)
        for engine, wanted in work.values():
            if (ahead := getattr(engine, "compile_ahead", None)) is not None:
                ahead([(region, config) for (_, config), region in wanted.items()], self.device, until)

    def search(self, start: int, times: Times) -> Generator[Entry, float | None, None]:
        """Plans that are not listed and may be faster than the one at this index (see `search.search`)."""
        return search(self._candidates[self.entry(start).engine_name], self.entry(start), times)

    def keep(self, entry: Entry) -> int:
        """List a plan that a search found; its index."""
        self.entries.append(entry)
        return len(self.entries) - 1

    def general(self, plan: BuiltPlan) -> BuiltPlan:
        """The plan without any promise on addresses."""
        return self._builder.general(plan)

    def explain(self) -> str:
        """Ranking, refusals, and the regions of each engine with the reason at each boundary."""
        return explain_plans(self.graph, self.device, self.entries, self.refusals)


class LoadedPlans:
    """The list of a graph that was loaded: one plan, index 0. Stands in for a PlanList."""

    def __init__(self, plan: BuiltPlan) -> None:
        self.plan, self.graph, self.device = plan, plan.graph, plan.device
        self.entries = [Entry(plan.name, plan.engine_name, plan.engine_id, plan.knobs, 0.0, ())]
        self.refusals: list[str] = []

    def build(self, index: int) -> BuiltPlan:
        del index
        return self.plan

    def build_entry(self, entry: Entry) -> BuiltPlan:
        del entry
        return self.plan

    def compile_ahead(self, entries: Sequence[Entry], until: float) -> None:
        """Nothing: the one plan is built."""

    def append(self, engine_id: int, knobs: dict[str, int]) -> int:
        del engine_id, knobs
        raise GraphStateError("a loaded graph holds one plan and no nodes to plan anew", fix="build the graph itself")

    def explain(self) -> str:
        return f"graph {self.graph.name!r} on {self.device}: loaded from a plan file\n   0 {self.plan.name}"


def _shown_ids(engine: Engine) -> int | str:
    ids = engine.engine_ids
    return ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"


def make_plans(graph: Graph, device: Device, modes: Sequence[str] | None = ("A", "FALLBACK"),
               choose: Choose | None = None) -> PlanList:  # fmt: skip
    """Plans of the graph, ranked without timing.

    Args:
        modes: A (also as OPENSOURCE): every engine's own choice first, then variants, each by estimate; B: all by
            estimate alone; in both the general engine comes first where it is GENERAL_GAIN times as fast as the
            others, else it is left out; FALLBACK: the general engine; concatenated in the order given, without
            repetition.
            None lists nothing and asks no engine: plans are appended
        choose: a store that may answer for a region; its answers come first, the engines' own choices after them
    """
    with collector.paused():
        return PlanList(graph, device, modes, choose)
