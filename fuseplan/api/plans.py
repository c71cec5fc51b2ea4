"""Questions about plans: names, engines, knobs, notes, workspace; and the filters on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuseplan.api import enums
from fuseplan.api.arguments import to_int
from fuseplan.api.filters import bar_names, by_notes
from fuseplan.api.knobs import by_type, knob, ranges
from fuseplan.api.planning import Planning
from fuseplan.errors import GraphStateError, PlanIndexError

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan
    from fuseplan.plan.rank import Entry

_LIBRARY_ENGINES = 10000  # engine ids below this belong to libcudnn


class PlanQueries(Planning):
    """What is known about the plans of a graph."""

    @property
    def plans(self) -> list[Entry]:
        """The ranked entries; empty before planning."""
        return list(self.plan_list.entries) if self.plan_list else []

    @property
    def selected_engine(self) -> str | None:
        """Name of the engine that the last build chose."""
        built = self.current_plan()
        return built.engine_name if built else None

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """The plan's name: engine, and knobs in brackets; stable across releases."""
        return self.need_entry(index).name

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[enums.knob_type | str, int]]:
        """What `create_execution_plan` needs to make the same plan again."""
        entry = self.need_entry(index)
        return entry.engine_id, by_type(entry.knobs)

    def get_engine_count(self) -> int:
        """Number of engines that have a plan for this graph."""
        return len(self._engine_ids())

    def get_knobs_for_engine(self, engine: int) -> list[knob]:
        """Knobs of an engine and the range they have in the list.

        Args:
            engine: engine id, or its position among the engines of this graph
        """
        ids = self._engine_ids()
        wanted = engine if engine in ids else ids[engine] if 0 <= engine < len(ids) else None
        if wanted is None:
            raise PlanIndexError(f"graph {self.name!r} has no engine {engine}", fix=f"it has the engine ids {ids}")
        return ranges(entry.knobs for entry in self.plans if entry.engine_id == wanted)

    def _engine_ids(self) -> list[int]:
        return list(dict.fromkeys(entry.engine_id for entry in self.need_plans("asking for engines").entries))

    def backend_plan_entries(self) -> list[Entry]:
        """The entries that belong to libcudnn."""
        return [entry for entry in self.plans if 0 <= entry.engine_id < _LIBRARY_ENGINES]

    def need_built(self) -> BuiltPlan:
        """The selected plan. Raises GraphStateError if it is not built."""
        built = self.current_plan()
        if built is None:
            raise GraphStateError(f"graph {self.name!r} is not built", fix="call build_plans() or build() first")
        return built

    def get_behavior_notes(self) -> list[enums.behavior_note]:
        """Notes of the selected plan. Raises GraphStateError before a build."""
        self.need_built()
        return self.get_behavior_notes_for_plan_at_index(self.selected)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[enums.behavior_note]:
        return [enums.behavior_note[name] for name in self.need_entry(index).behavior_notes]

    def deselect_engines(self, engine_names: Iterable[str]) -> PlanQueries:
        """Bar plans whose name contains any of these strings."""
        self.add_filter(bar_names(engine_names))
        return self

    def deselect_workspace_greater_than(self, workspace_limit: int) -> PlanQueries:
        """Bar plans that need more workspace than this, in bytes."""
        self.workspace_limit = to_int(workspace_limit, "workspace_limit", "pass bytes")
        for index, built in list(self.built.items()):
            reason = self.over_workspace_limit(built)
            if reason:
                self.need_entry(index).barred = reason
                self.unbuild(index)
        return self

    def deselect_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> PlanQueries:
        """Bar plans that have any of these notes."""
        self.add_filter(by_notes("behavior_notes", notes, wanted=False))
        return self

    def deselect_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> PlanQueries:
        """Bar plans that have any of these notes."""
        self.add_filter(by_notes("numeric_notes", notes, wanted=False))
        return self

    def select_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> PlanQueries:
        """Bar plans that lack any of these notes."""
        self.add_filter(by_notes("behavior_notes", notes, wanted=True))
        return self

    def select_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> PlanQueries:
        """Bar plans that lack any of these notes."""
        self.add_filter(by_notes("numeric_notes", notes, wanted=True))
        return self
