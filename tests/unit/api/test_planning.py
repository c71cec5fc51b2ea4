"""Listing, choosing, filtering and building plans, over a list that builds nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.api import execution, planning
from tests.unit.api.fakes import FakePlans, entries

MODE, KNOB = cudnn.heur_mode, cudnn.knob_type


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[FakePlans]:
    """The lists that were made, with their modes; each has six plans, or none where none were asked for."""
    made: list[FakePlans] = []

    def make_plans(graph: object, device: object, modes: tuple[str, ...] | None) -> FakePlans:
        del graph, device
        made.append(FakePlans([] if modes is None else entries(), modes or ()))
        return made[-1]

    monkeypatch.setattr(planning, "make_plans", make_plans)
    return made


def make_graph() -> cudnn.pygraph:
    g = cudnn.pygraph(name="g", io_data_type=cudnn.data_type.FLOAT, device="cpu")
    g.relu(g.tensor([4])).set_output(True)
    return g


def planned() -> cudnn.pygraph:
    g = make_graph()
    g.create_execution_plans()
    return g


def test_five_steps_in_order_select_the_first_plan_that_builds(lists: list[FakePlans]) -> None:
    g = make_graph()
    g.validate()
    g.build_operation_graph()
    assert g.get_execution_plan_count() == 0 and g.plans == [] and g.selected_engine is None
    g.create_execution_plans([MODE.A, MODE.B])
    g.check_support()
    g.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    assert lists[0].modes == ("A", "B") and lists[0].built == [1]
    assert g.selected_engine == "quick" and g.get_workspace_size() == 4096
    assert g.get_execution_plan_count() == 6 and len(g.plans) == 6


def test_log_names_the_graph_what_was_planned_and_what_was_built(
    lists: list[FakePlans], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fuseplan"):
        make_graph().build()
    planned_line, built_line = (r.message for r in caplog.records)
    assert planned_line.startswith("graph 'g' on cpu: 6 plans, the first is ") and "refusals: " in planned_line
    assert built_line == "graph 'g': plan 1 quick[TILE_M=64, own=2] is built, workspace 4096"
    assert lists[0].built == [1]


@pytest.mark.parametrize("modes", [None, [MODE.A, MODE.FALLBACK]])
def test_default_modes_are_a_and_fallback(lists: list[FakePlans], modes: Any) -> None:
    g = make_graph()
    g.build(modes)
    g.build()
    assert [one.modes for one in lists] == [("A", "FALLBACK")]
    with pytest.raises(TypeError, match="heur_mode"):
        make_graph().create_execution_plans(["A"])  # type: ignore[list-item]


def test_planning_twice_raises_runtime_error(lists: list[FakePlans]) -> None:
    g = planned()
    with pytest.raises(RuntimeError, match="execution plans already"):
        g.create_execution_plans()


def test_empty_list_lists_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "make_plans", lambda graph, device, modes: FakePlans([]))
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="too small\n.*absent"):
        make_graph().build()


def test_all_builds_every_plan_and_keeps_the_selected_one(lists: list[FakePlans]) -> None:
    g = planned()
    g.build_plan_at_index(2)
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert sorted(g._plans.built) == [1, 2, 4, 5] and g._plans.selected == 2
    g = planned()
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert g._plans.selected == 1


def test_no_plan_builds_lists_the_reason_of_each(lists: list[FakePlans]) -> None:
    g = planned()
    g.deselect_engines(["quick", "library", "general"])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="(?s)needs a GPU.*barred.*no compiler"):
        g.build_plans()


def test_other_exceptions_propagate(lists: list[FakePlans]) -> None:
    g = planned()
    lists[0].entries[0].outcome = ZeroDivisionError("a fault")
    with pytest.raises(ZeroDivisionError):
        g.build_plans()


def test_select_plan_pins_strictly(lists: list[FakePlans]) -> None:
    with pytest.raises(RuntimeError, match="too early"):
        make_graph().select_plan(0)
    g = planned()
    with pytest.raises(IndexError):
        g.select_plan(6)
    assert g.select_plan(0) is g
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="needs a GPU"):
        g.build_plans()
    g.select_plan(5).build_plans()
    assert g.selected_engine == "general"
    g.select_plan(4).deselect_engines(["library"])
    with pytest.raises(ValueError, match="barred"):
        g.build_plans()


def test_queries_by_index(lists: list[FakePlans]) -> None:
    g = planned()
    assert g.get_plan_name_at_index(2) == "quick[TILE_M=128, own=1]"
    assert g.get_engine_and_knobs_at_index(2) == (20200, {KNOB.TILE_M: 128, "own": 1})
    assert g.get_workspace_size_plan_at_index(2) == 64
    assert g.get_behavior_notes_for_plan_at_index(1) == [cudnn.behavior_note.RUNTIME_COMPILATION]
    assert [e.name for e in g.backend_plan_entries()] == ["library"]
    for call in (g.get_plan_name_at_index, g.build_plan_at_index, g.get_workspace_size_plan_at_index):
        with pytest.raises(IndexError, match="0 to 5"):
            call(6)
        with pytest.raises(IndexError):
            call(-1)


def test_questions_before_planning_or_building_raise_runtime_error(lists: list[FakePlans]) -> None:
    g = make_graph()
    for early in (g.check_support, g.get_engine_count, lambda: g.get_plan_name_at_index(0), g.get_workspace_size):
        with pytest.raises(RuntimeError):
            early()
    g.create_execution_plans()
    for early in (g.get_workspace_size, g.get_behavior_notes, g.serialize):
        with pytest.raises(RuntimeError, match="not built"):
            early()


def test_engines_and_the_ranges_of_their_knobs(lists: list[FakePlans]) -> None:
    g = planned()
    assert g.get_engine_count() == 5
    tile, own = g.get_knobs_for_engine(20200)
    assert (tile.type, tile.min_value, tile.max_value, tile.stride) == (KNOB.TILE_M, 64, 128, 1)
    assert own.type == "own" and '"max_value": 2' in repr(own)
    assert [k.max_value for k in g.get_knobs_for_engine(1)] == [128, 2]
    with pytest.raises(AttributeError):
        tile.stride = 3  # type: ignore[misc]
    with pytest.raises(IndexError):
        g.get_knobs_for_engine(9)


def test_create_execution_plan_appends_exactly_that_plan(lists: list[FakePlans]) -> None:
    g = make_graph()
    assert g.create_execution_plan(20100, {KNOB.STAGES: 3, "own": 1}) is g
    assert g.get_execution_plan_count() == 1
    assert g.get_engine_and_knobs_at_index(0) == (20100, {KNOB.STAGES: 3, "own": 1})
    g.build_plans()
    assert g.selected_engine == "appended"
    with pytest.raises(RuntimeError):
        g.create_execution_plans()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="-1"):
        make_graph().create_execution_plan(-1)


# table: filter, plans it bars
FILTERS = {
    "names": (lambda g: g.deselect_engines(["quick", "lib"]), [1, 2, 4]),
    "knob": (lambda g: g.deselect_engines(["TILE_M=64"]), [0, 1]),
    "without note": (lambda g: g.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION]), [1]),
    "with note": (lambda g: g.select_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION]), [0, 2, 3, 4, 5]),
    "both notes": (
        lambda g: g.select_numeric_notes([cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.NONDETERMINISTIC]),
        [0, 1, 2, 3, 5],
    ),
    "no numeric note": (lambda g: g.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE]), [2, 4]),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", sorted(FILTERS))
def test_filter_bars_plans_without_shifting_indices(lists: list[FakePlans], name: str, when: str) -> None:
    keep, barred = FILTERS[name]
    g = make_graph()
    if when == "after":
        g.create_execution_plans()
    assert keep(g) is g
    if when == "before":
        g.create_execution_plans()
    assert [i for i, e in enumerate(g.plans) if e.barred] == barred
    assert g.get_execution_plan_count() == 6
    for i in barred:
        with pytest.raises(ValueError, match="barred by a filter"):
            g.build_plan_at_index(i)


@pytest.mark.parametrize("when", ["before", "after"])
def test_workspace_filter_bars_what_needs_more(lists: list[FakePlans], when: str) -> None:
    g = make_graph()
    if when == "before":
        assert g.deselect_workspace_greater_than(1000) is g
        g.build()
    else:
        g.build()
        assert g._plans.selected == 1
        g.deselect_workspace_greater_than(1000)
        assert g.selected_engine is None
        g.build()
    assert g._plans.selected == 2 and "4096 bytes" in g.plans[1].barred


def test_filter_that_hits_the_built_plan_unbuilds_it(lists: list[FakePlans]) -> None:
    g = planned()
    g.build_plans()
    g.deselect_engines(["own=2"])
    with pytest.raises(RuntimeError, match="not built"):
        g.get_workspace_size()
    g.build()
    assert g._plans.selected == 2


def test_check_support_fails_if_every_plan_is_barred(lists: list[FakePlans]) -> None:
    g = planned()
    g.deselect_engines([""])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="plan 0 .*contains"):
        g.check_support()
    with pytest.raises(TypeError):
        g.deselect_engines("quick")
    with pytest.raises(TypeError):
        g.select_numeric_notes(["TENSOR_CORE"])  # type: ignore[list-item]


def test_explain_and_inspect_name_the_selected_plan(lists: list[FakePlans]) -> None:
    g = planned()
    assert "none is built" in g.explain() and g.inspect()["state"] == "planned"
    g.build()
    assert "selected: plan 1 quick" in g.explain() and "fake ranking" in g.explain()
    assert g.inspect()["selected_plan"] == "quick[TILE_M=64, own=2]" and g.inspect()["state"] == "built"


def test_overrides_keep_the_plan_and_the_filters(lists: list[FakePlans], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "make_plans", lambda graph, device, modes: FakePlans(entries()))
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, device="cpu", is_override_shape_enabled=True)
    x = g.tensor([4])
    g.relu(x).set_output(True)
    g.create_execution_plans()
    given = ([x.get_uid()], [[8]], [[1]])
    assert g.get_workspace_size_plan_at_index(2, None, *given) == 64
    built = g._plans.build(2)
    g.deselect_engines(["TILE_M=128", "TILE_M=64", "library"])
    assert g._runners.sibling_plan(built, ((1, ((8,), (1,))),))[0].name == "general"
    g.deselect_engines(["general"])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="barred by a filter"):
        g._runners.sibling_plan(built, ((1, ((8,), (1,))),))
