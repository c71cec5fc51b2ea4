"""The plans of one graph: listing, barring, choosing and building them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fuseplan.api import enums
from fuseplan.api.datatypes import to_int, to_list
from fuseplan.api.draft import GraphDraft
from fuseplan.api.knobs import Filter, by_name, knob, ranges
from fuseplan.errors import (
    ArgumentError,
    GraphStateError,
    InvalidGraphError,
    PlanIndexError,
    ToolchainError,
    cudnnGraphNotSupportedError,
)
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import PlanList, make_plans
from fuseplan.plan.rank import Entry
from fuseplan.runtime import logs

#: What makes a walk over plans go on to the next; any other exception is a fault and propagates.
DECLINES = (NotImplementedError, cudnnGraphNotSupportedError, ImportError, ToolchainError)
_DEFAULT_MODES = (enums.heur_mode.A, enums.heur_mode.FALLBACK)
LIBRARY_IDS = range(10000)  # engine ids that belong to libcudnn


class PlanSet:
    """The ranked plans of a graph, those that are built, and the selected one; and what its engines offer besides."""

    def __init__(self, draft: GraphDraft) -> None:
        self.draft = draft
        self.ranked: PlanList | None = None  # None before planning
        self.built: dict[int, BuiltPlan] = {}  # by index
        self.selected, self.is_pinned = 0, False  # what execute runs, and whether no other plan is built
        self.loaded: BuiltPlan | None = None  # the only plan of a graph that came from a plan file
        self.forget: Callable[[], None] = lambda: None  # called when another plan is selected, or one is barred
        self.filters: list[Filter] = []
        self._workspace_limit: int | None = None
        self._offers: list[Entry] = []

    @property
    def entries(self) -> list[Entry]:
        """The ranked entries; empty before planning."""
        return list(self.ranked.entries) if self.ranked else []

    @property
    def offers(self) -> list[Entry]:
        """One ranked list over all engines, whatever the user listed. Raises GraphStateError on an open graph."""
        name = self.draft.name
        if not self.draft.is_frozen:
            raise GraphStateError(f"graph {name!r} has no engines yet", fix="call build_operation_graph() first")
        if not self._offers:
            self._offers = list(make_plans(self.draft.validated(), self.draft.device, _mode_names(None)).entries)
        return self._offers

    @property
    def engine_ids(self) -> list[int]:
        """Engines that can take a part of the graph."""
        return list(dict.fromkeys(entry.engine_id for entry in self.offers))

    def engine_at(self, engine: int) -> int:
        """The id that an engine id or a position stands for."""
        if engine not in LIBRARY_IDS:
            return engine
        ids = self.engine_ids
        return ids[engine] if engine not in ids and engine < len(ids) else engine

    def knobs_of(self, engine: int) -> list[knob]:
        """Knobs of an engine, by id or position, and the range that they have. Raises PlanIndexError."""
        name, ids, wanted = self.draft.name, self.engine_ids, self.engine_at(engine)
        if wanted not in ids:
            raise PlanIndexError(f"graph {name!r} has no engine {engine}", fix=f"it has the engine ids {ids}")
        return ranges(entry.knobs for entry in self.offers if entry.engine_id == wanted)

    @property
    def current(self) -> BuiltPlan | None:
        """The selected plan if it is built."""
        return self.built.get(self.selected)

    def need_built(self) -> BuiltPlan:
        """The selected plan. Raises GraphStateError if it is not built."""
        if self.current is None:
            raise GraphStateError(f"graph {self.draft.name!r} is not built", fix="call build_plans() or build() first")
        return self.current

    def need_list(self, action: str) -> PlanList:
        """The plans. Raises GraphStateError before planning."""
        if self.ranked is None:
            raise GraphStateError(
                f"graph {self.draft.name!r} has no execution plans yet, so {action} is too early",
                fix="call create_execution_plans() first, or build() for all steps",
            )
        return self.ranked

    def entry(self, index: int) -> Entry:
        """One entry. Raises PlanIndexError."""
        entries = self.need_list("asking for a plan").entries
        index = to_int(index, f"plan index of graph {self.draft.name!r}", f"pass 0 to {len(entries) - 1}")
        if not 0 <= index < len(entries):
            raise PlanIndexError(
                f"plan index {index} is out of range for graph {self.draft.name!r}",
                fix=f"it has {len(entries)} plans, 0 to {len(entries) - 1}",
            )
        return entries[index]

    def create(self, heuristics: Iterable[enums.heur_mode] | None) -> None:
        """Ask every engine and make one ranked list. Raises cudnnGraphNotSupportedError if it is empty."""
        name, modes = self.draft.name, _mode_names(heuristics)
        if self.ranked is not None:
            raise GraphStateError(f"graph {name!r} has execution plans already", fix="make a new graph for other modes")
        graph, device = self.draft.freeze(), self.draft.device
        plans = make_plans(graph, device, modes)
        if not plans.entries:
            raise self._nothing_runs(f"on {device}", plans.refusals)
        if modes == _mode_names(None):
            self._offers = list(plans.entries)
        self._adopt(plans)
        logs.info(
            f"graph {name!r} on {device}: {len(plans.entries)} plans, the first is {plans.entries[0].name}; "
            f"refusals: {'; '.join(plans.refusals) or 'none'}"
        )

    def append(self, engine: int, knobs: Mapping[Any, int] | None) -> None:
        """Add exactly this plan, of an engine by its id or by its position among the engines of the graph."""
        engine, named = to_int(engine, "engine_id of create_execution_plan()"), by_name(knobs)
        graph = self.draft.freeze()
        plans = self.ranked if self.ranked is not None else make_plans(graph, self.draft.device, None)
        plans.append(self.engine_at(engine), named)
        self._adopt(plans)

    def adopt_loaded(self, plans: Any, plan: BuiltPlan) -> None:
        """Take over the plan of a file."""
        self.loaded, self.ranked, self.built = plan, plans, {0: plan}
        self._offers = list(plans.entries)
        self.select(0)

    def _adopt(self, plans: PlanList) -> None:
        self.ranked = plans
        for keep in self.filters:
            self._apply(keep)

    def check_support(self) -> None:
        """Confirm that some listed plan is not barred. Raises cudnnGraphNotSupportedError."""
        entries = self.need_list("check_support()").entries
        if all(entry.barred for entry in entries):
            reasons = [f"plan {i} {e.name}: {e.barred}" for i, e in enumerate(entries)]
            raise self._nothing_runs("with these filters", reasons)

    def build_some(self, *, is_all: bool) -> None:
        """Build the first plan that works from the selected one on, or all. Raises cudnnGraphNotSupportedError."""
        if self.is_pinned:
            self.build(self.selected)
            return
        count = len(self.need_list("build_plans()").entries)
        reasons, works = [], []
        for index in range(count) if is_all else [*range(self.selected, count), *range(self.selected)]:
            reason = self._try(index)
            if reason:
                reasons.append(f"plan {index} {self.entry(index).name}: {reason}")
                continue
            works.append(index)
            if not is_all:
                break
        if not works:
            raise self._nothing_runs("when built", reasons)
        if self.selected not in works:
            self.select(works[0])

    def _try(self, index: int) -> str:
        """Build a plan; the reason if it declines."""
        try:
            self.build(index)
        except DECLINES as error:
            return str(error)
        except InvalidGraphError:
            if not self.entry(index).barred:
                raise
            return f"barred by a filter, {self.entry(index).barred}"
        return ""

    def build(self, index: int) -> BuiltPlan:
        """The built plan at an index, built now if needed.

        Raises:
            PlanIndexError: out of range
            InvalidGraphError: a filter bars the plan
        """
        plans, entry, name = self.need_list("building a plan"), self.entry(index), self.draft.name
        if not entry.barred and index not in self.built:
            made = plans.build(index)
            entry.barred = self._over_limit(made)
            if not entry.barred:
                self.built[index] = made
                logs.info(f"graph {name!r}: plan {index} {entry.name} is built, workspace {made.workspace_bytes}")
        if entry.barred:
            raise InvalidGraphError(
                f"plan {index} ({entry.name}) of graph {name!r} is barred by a filter: {entry.barred}",
                fix="use another index, or make the graph without the filter",
            )
        return self.built[index]

    def select(self, index: int) -> None:
        """Make this the plan that execute runs."""
        self.selected = index
        self.forget()

    def barred_by(self, entry: Entry) -> str:
        """Why filters or the limit on workspace bar a plan, listed or not; empty if they do not."""
        reason = next((why for keep in self.filters if (why := keep(entry))), "")
        return reason or (self._over_limit(entry.built) if entry.built is not None else "")

    def add_filter(self, keep: Filter) -> None:
        """Record a filter and apply it to the plans that are there."""
        self.filters.append(keep)
        self._apply(keep)

    def limit_workspace(self, num_bytes: int) -> None:
        """Bar plans that need more workspace than this."""
        self._workspace_limit = to_int(num_bytes, "workspace_limit", "pass bytes")
        for index, built in list(self.built.items()):
            self._bar(index, self._over_limit(built))

    def _apply(self, keep: Filter) -> None:
        for index, entry in enumerate(self.entries):
            self._bar(index, "" if entry.barred else keep(entry))

    def _bar(self, index: int, reason: str) -> None:
        if reason:
            self.entry(index).barred = reason
            self.built.pop(index, None)
            self.forget()

    def _over_limit(self, built: BuiltPlan) -> str:
        needed, limit = built.workspace_bytes, self._workspace_limit
        return f"it needs {needed} bytes of workspace, over {limit}" if limit is not None and needed > limit else ""

    def _nothing_runs(self, where: str, reasons: Iterable[str]) -> cudnnGraphNotSupportedError:
        listed = "\n".join(f"    {reason}" for reason in reasons) or "    no engine answered"
        return cudnnGraphNotSupportedError(
            f"no plan can run graph {self.draft.name!r} {where}:\n{listed}",
            fix="allow heur_mode.FALLBACK, drop filters, or change what the refusals name",
        )


def _mode_names(heuristics: Iterable[enums.heur_mode] | enums.heur_mode | None) -> tuple[str, ...]:
    if isinstance(heuristics, enums.heur_mode):
        heuristics = (heuristics,)
    modes = _DEFAULT_MODES if heuristics is None else tuple(to_list(heuristics, "heuristics", "pass [heur_mode.A]"))
    for mode in modes:
        if not isinstance(mode, enums.heur_mode):
            raise ArgumentError(f"heuristics must be a list of heur_mode, not {mode!r}", fix="pass [heur_mode.A]")
    return tuple(mode.name for mode in modes)
