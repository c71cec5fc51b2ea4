"""The last three steps: list plans, check them, build them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fuseplan.api import enums
from fuseplan.api.arguments import to_int, to_list
from fuseplan.api.datatypes import to_enum
from fuseplan.api.filters import Filter
from fuseplan.api.knobs import by_name
from fuseplan.api.validation import Validation
from fuseplan.errors import (
    ArgumentError,
    GraphStateError,
    InvalidGraphError,
    PlanIndexError,
    ToolchainError,
    cudnnGraphNotSupportedError,
)
from fuseplan.plan.planner import make_plans
from fuseplan.runtime import logs

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan
    from fuseplan.plan.planner import PlanList
    from fuseplan.plan.rank import Entry

#: What makes a walk over plans go on to the next; any other exception is a fault and propagates.
DECLINES = (NotImplementedError, cudnnGraphNotSupportedError, ImportError, ToolchainError)
_DEFAULT_MODES = (enums.heur_mode.A, enums.heur_mode.FALLBACK)


class Planning(Validation):
    """Listing, choosing and building plans."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.filters: list[Filter] = []
        self.workspace_limit: int | None = None

    def create_execution_plans(self, heuristics: Iterable[enums.heur_mode] | None = None) -> None:
        """Ask every engine and make one ranked list of plans; once per graph.

        Args:
            heuristics: modes, in order; None is [A, FALLBACK]
        Raises:
            GraphStateError: the graph has plans already
            cudnnGraphNotSupportedError: nothing can run it; lists every refusal
        """
        if self.plan_list is not None:
            raise GraphStateError(
                f"graph {self.name!r} has execution plans already", fix="make a new graph to plan with other modes"
            )
        modes = _mode_names(heuristics)
        self.build_operation_graph()
        plans = make_plans(self.validated(), self.device, modes)
        if not plans.entries:
            raise _nothing_runs(self.name, f"on {self.device}", plans.refusals)
        self._adopt_plans(plans)
        refused = "; ".join(plans.refusals) or "none"
        logs.info(
            f"graph {self.name!r} on {self.device}: {len(plans.entries)} plans, the first is {plans.entries[0].name}; "
            f"refusals: {refused}"
        )

    def create_execution_plan(self, engine_id: int, knobs: dict[Any, int] | None = None) -> Planning:
        """Append exactly this plan (replay of a choice); its index is the count less one."""
        engine_id = to_int(engine_id, "engine_id of create_execution_plan()")
        named = by_name(knobs)
        self.build_operation_graph()
        plans = self.plan_list
        if plans is None:
            plans = make_plans(self.validated(), self.device, None)
        plans.append(engine_id, named)
        self._adopt_plans(plans)
        return self

    def _adopt_plans(self, plans: PlanList) -> None:
        self.plan_list = plans
        for keep in self.filters:
            self._apply_filter(keep)

    def check_support(self) -> None:
        """Confirm that some listed plan is not barred. Raises cudnnGraphNotSupportedError."""
        plans = self.need_plans("check_support()")
        if all(entry.barred for entry in plans.entries):
            reasons = [f"plan {i} {e.name}: {e.barred}" for i, e in enumerate(plans.entries)]
            raise _nothing_runs(self.name, "with these filters", reasons)

    def build_plans(
        self, policy: enums.build_plan_policy = enums.build_plan_policy.HEURISTICS_CHOICE, *, ctx: Any = None
    ) -> None:
        """Build the first plan that works from the selected one on, or all of them.

        Raises:
            cudnnGraphNotSupportedError: none builds; lists the reason of each
        """
        del ctx
        build_all = to_enum(policy, enums.build_plan_policy, "policy of build_plans()") == "ALL"
        if self.plan_list is None:
            self.create_execution_plans()
        if self.is_pinned:
            self.build_index(self.selected)
            return
        count = len(self.need_plans("build_plans()").entries)
        walk = range(count) if build_all else [*range(self.selected, count), *range(self.selected)]
        reasons, works = [], []
        for i in walk:
            reason = self._try_index(i)
            if reason:
                reasons.append(reason)
                continue
            works.append(i)
            if not build_all:
                break
        if not works:
            raise _nothing_runs(self.name, "when built", reasons)
        if self.selected not in works:
            self.select_index(works[0])

    def _try_index(self, index: int) -> str:
        """Build a plan; the reason if it declines."""
        name = self.need_entry(index).name
        try:
            self.build_index(index)
        except DECLINES as error:
            return f"plan {index} {name}: {error}"
        except InvalidGraphError:
            barred = self.need_entry(index).barred
            if not barred:
                raise
            return f"plan {index} {name}: barred by a filter, {barred}"
        return ""

    def build(self, heuristics: Iterable[enums.heur_mode] | None = None, ctx: Any = None) -> None:
        """All five steps, skipping those that are done."""
        del ctx
        if self.current_plan() is not None:
            return
        self.build_operation_graph()
        if self.plan_list is None:
            self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans()

    def build_plan_at_index(self, index: int) -> Planning:
        """Build this plan and select it."""
        self.build_index(index)
        self.select_index(index)
        return self

    def select_plan(self, index: int) -> Planning:
        """Pin this plan: if it does not build, build_plans() raises instead of trying the next."""
        self.need_plans("select_plan()")
        self.need_entry(index)
        self.select_index(index)
        self.is_pinned = True
        return self

    def select_index(self, index: int) -> None:
        """Make this the plan that execute runs."""
        self.selected = index

    def build_index(self, index: int) -> BuiltPlan:
        """The built plan at an index, built now if needed.

        Raises:
            PlanIndexError: out of range
            InvalidGraphError: a filter bars the plan
        """
        plans, entry = self.need_plans("building a plan"), self.need_entry(index)
        if not entry.barred and index not in self.built:
            made = plans.build(index)
            entry.barred = self.over_workspace_limit(made)
            if not entry.barred:
                self.built[index] = made
                logs.info(f"graph {self.name!r}: plan {index} {entry.name} is built, workspace {made.workspace_bytes}")
        if entry.barred:
            raise InvalidGraphError(
                f"plan {index} ({entry.name}) of graph {self.name!r} is barred by a filter: {entry.barred}",
                fix="use another index, or make the graph without the filter",
            )
        return self.built[index]

    def over_workspace_limit(self, built: BuiltPlan) -> str:
        """Why the limit on workspace bars a built plan; empty if it does not."""
        needed, limit = built.workspace_bytes, self.workspace_limit
        return f"it needs {needed} bytes of workspace, over {limit}" if limit is not None and needed > limit else ""

    def current_plan(self) -> BuiltPlan | None:
        """The selected plan if it is built."""
        return self.built.get(self.selected)

    def need_plans(self, action: str) -> PlanList:
        """The plans. Raises GraphStateError before planning."""
        if self.plan_list is None:
            raise GraphStateError(
                f"graph {self.name!r} has no execution plans yet, so {action} is too early",
                fix="call create_execution_plans() first, or build() for all steps",
            )
        return self.plan_list

    def need_entry(self, index: int) -> Entry:
        """One entry. Raises PlanIndexError."""
        entries = self.need_plans("asking for a plan").entries
        index = to_int(index, f"plan index of graph {self.name!r}", f"pass 0 to {len(entries) - 1}")
        if not 0 <= index < len(entries):
            raise PlanIndexError(
                f"plan index {index} is out of range for graph {self.name!r}",
                fix=f"it has {len(entries)} plans, 0 to {len(entries) - 1}",
            )
        return entries[index]

    def add_filter(self, keep: Filter) -> None:
        """Record a filter and apply it to the plans that are there."""
        self.filters.append(keep)
        self._apply_filter(keep)

    def _apply_filter(self, keep: Filter) -> None:
        for i, entry in enumerate(self.plan_list.entries if self.plan_list else ()):
            reason = "" if entry.barred else keep(entry)
            if reason:
                entry.barred = reason
                self.unbuild(i)

    def unbuild(self, index: int) -> None:
        """Forget a built plan."""
        self.built.pop(index, None)


def _mode_names(heuristics: Iterable[enums.heur_mode] | enums.heur_mode | None) -> tuple[str, ...]:
    if isinstance(heuristics, enums.heur_mode):
        heuristics = (heuristics,)
    modes = _DEFAULT_MODES if heuristics is None else tuple(to_list(heuristics, "heuristics", "pass [heur_mode.A]"))
    for mode in modes:
        if not isinstance(mode, enums.heur_mode):
            raise ArgumentError(f"heuristics must be a list of heur_mode, not {mode!r}", fix="pass [heur_mode.A]")
    return tuple(mode.name for mode in modes)


def _nothing_runs(name: str, where: str, reasons: Iterable[str]) -> cudnnGraphNotSupportedError:
    listed = "\n".join(f"    {reason}" for reason in reasons) or "    no engine answered"
    return cudnnGraphNotSupportedError(
        f"no plan can run graph {name!r} {where}:\n{listed}",
        fix="allow heur_mode.FALLBACK, drop filters, or change what the refusals name",
    )
