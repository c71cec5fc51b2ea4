"""Tuning compares before it times: a wrong plan is never chosen, and what was measured is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.engines import registry
from fuseplan.engines.base import Config, Executable, FusionLimits, Knob, KnobSpace
from fuseplan.engines.cpu_c.engine import CpuCEngine
from fuseplan.errors import BindError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import PlanList, make_plans
from fuseplan.plan.tune import HOPELESS, TuneRow, autotune, show, worth_trying
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import HostBuffer, random_inputs


def unary_graph(op: str) -> Graph:
    m = GraphMaker(random.Random(0))
    m.node(op, {"input": m.input((16, 33), stride=(33, 1))})
    return m.finish()


def make_runner(plan: BuiltPlan) -> Runner:
    return Runner(plan, {}, {}, lambda pack: dict(pack))


def plans_and_pack() -> tuple[PlanList, dict[int, Any], HostBuffer]:
    graph = unary_graph("tanh")
    plans = make_plans(graph, cpu_device())
    (uid,) = graph.output_uids
    out = HostBuffer(graph.tensors[uid])
    pack: dict[int, Any] = {u: b.view for u, b in random_inputs(graph, 0).items()}
    return plans, {**pack, uid: out.view}, out


def make_wrong(plans: PlanList, index: int) -> None:
    """Put the kernels of another function behind an entry."""
    other = make_plans(unary_graph("sin"), cpu_device()).build(0)
    plans.entries[index].built = replace(plans.build(index), program=other.program)


def test_wrong_plan_is_never_chosen_and_is_named_in_the_table() -> None:
    plans, pack, out = plans_and_pack()
    make_wrong(plans, 0)
    report = autotune(plans, make_runner, pack, None, 0)
    assert report.best == len(plans.entries) - 1
    assert report.rows[0].outcome.startswith("wrong: output 't2'") and report.rows[0].us is None
    np.testing.assert_allclose(out.view, np.tanh(pack[1].astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("which", ["input", "output"])
def test_pack_that_does_not_fit_is_refused_before_anything_is_timed(which: str) -> None:
    plans, pack, out = plans_and_pack()
    (in_uid,), (out_uid,) = plans.graph.input_uids, plans.graph.output_uids
    uid = in_uid if which == "input" else out_uid
    rows: list[TuneRow] = []
    for bad, words in ((np.zeros((16, 33)), "has DOUBLE"), (None, "no.* pack")):
        with pytest.raises(BindError, match=rf"\(uid {uid}\).*{words}"):
            autotune(plans, make_runner, {**pack, uid: bad}, None, 0, progress=lambda row, *_: rows.append(row))
    assert rows == [] and len(set(out.inner)) == 1  # still the filling


def test_repr_of_a_plan_is_one_line() -> None:
    plans, *_ = plans_and_pack()
    graph = plans.graph.name
    assert repr(plans.build(len(plans.entries) - 1)) == f"BuiltPlan(array of graph {graph!r} on cpu, workspace 0)"


def test_nothing_is_chosen_when_every_plan_is_wrong_and_the_outputs_stay_untouched() -> None:
    plans, pack, out = plans_and_pack()
    for k in range(len(plans.entries)):
        make_wrong(plans, k)
    report = autotune(plans, make_runner, pack, None, 0)
    assert report.best is None
    assert (out.inner == 0xFF).all()


def test_interrupt_keeps_what_was_measured_and_runs_the_best_of_it() -> None:
    plans, pack, out = plans_and_pack()

    def stop_after_the_first(row: TuneRow, done: int, total: int) -> None:
        raise KeyboardInterrupt

    report = autotune(plans, make_runner, pack, None, 0, progress=stop_after_the_first)
    assert len(report.rows) == 1 and report.best == 0 and not report.is_complete
    assert "stopped early" in str(report)
    np.testing.assert_allclose(out.view, np.tanh(pack[1].astype(np.float64)), rtol=1e-6)


def test_time_budget_starts_at_least_one_candidate() -> None:
    plans, pack, _ = plans_and_pack()
    report = autotune(plans, make_runner, pack, None, 0, budget_s=0.0)
    assert len(report.rows) == 1 and not report.is_complete and report.best == 0


def test_barred_plan_is_not_tried() -> None:
    plans, pack, _ = plans_and_pack()
    plans.entries[0].barred = "by a filter"
    report = autotune(plans, make_runner, pack, None, 0)
    assert [r.index for r in report.rows] == list(range(1, len(plans.entries)))


def test_inputs_are_not_changed_and_an_in_place_output_is_written_once() -> None:
    graph = unary_graph("tanh")
    plans = make_plans(graph, cpu_device())
    (uid,) = graph.output_uids
    shared = random_inputs(graph, 0)[1]
    before = shared.view.astype(np.float64)
    autotune(plans, make_runner, {1: shared.view, uid: shared.view}, None, 0)
    np.testing.assert_allclose(shared.view, np.tanh(before), rtol=1e-6)


def test_buffer_too_small_is_refused_before_anything_is_read() -> None:
    plans, pack, _ = plans_and_pack()
    pack[1] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"'t1' has 12 bytes"):
        autotune(plans, make_runner, pack, None, 0)


def test_table_lists_every_plan_with_name_time_and_outcome() -> None:
    plans, pack, _ = plans_and_pack()
    seen: list[str] = []
    report = autotune(plans, make_runner, pack, None, 0, progress=lambda row, done, total: seen.append(row.name))
    assert seen == [e.name for e in plans.entries]
    assert all(e.name in str(report) for e in plans.entries)
    assert all(r.us is not None and r.us > 0 for r in report.rows)


class RepeatingEngine(CpuCEngine):
    """Every region by itself, launched as often as a knob says."""

    name, engine_ids = "repeating", range(30000, 30001)

    def limits(self, device: Device) -> FusionLimits:
        return replace(super().limits(device), max_nodes=1)

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace({"TIMES": Knob((1, 8, 60), 2)})

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        built = super().build(region, device, (), aligned=aligned)
        return replace(built, launches=built.launches * int(dict(config)["TIMES"]))


@pytest.fixture
def repeating(monkeypatch: pytest.MonkeyPatch) -> Callable[[BuiltPlan], Runner]:
    """The repeating engine beside the general one; makes runners whose time is the number of launches."""
    engine = RepeatingEngine()
    general = registry.engine_named(registry.GENERAL)
    for module in ("planner", "assign", "rank"):
        monkeypatch.setattr(f"fuseplan.plan.{module}.engines_for", lambda kind: (engine, general))
    counts: list[int] = []

    def make(plan: BuiltPlan) -> Runner:
        counts.append(len(plan.program.launches))
        return make_runner(plan)

    def time_us(call: Callable[[], None], synchronise: Callable[[], None]) -> float:
        call()
        return float(counts[-1])

    monkeypatch.setattr("fuseplan.plan.tune.time_us", time_us)
    return make


def two_regions() -> tuple[PlanList, dict[int, Any], HostBuffer]:
    m = GraphMaker(random.Random(0))
    (x,) = m.node("tanh", {"input": m.input((64, 333), stride=(333, 1))})
    m.node("sigmoid", {"input": x})
    graph = m.finish()
    (uid,) = graph.output_uids
    out = HostBuffer(graph.tensors[uid])
    plans = make_plans(graph, cpu_device(), ("A",))
    plans.entries = [e for e in plans.entries if not e.is_general]
    pack: dict[int, Any] = {u: b.view for u, b in random_inputs(graph, 0).items()}
    return plans, {**pack, uid: out.view}, out


def test_tuning_lists_a_faster_plan_that_only_the_search_finds(repeating: Callable[[BuiltPlan], Runner]) -> None:
    plans, pack, out = two_regions()
    listed = [e.name for e in plans.entries]
    report = autotune(plans, repeating, pack, None, 0)
    assert report.is_complete and report.best is not None
    assert {r.name for r in report.rows} > set(listed) and all(r.outcome == "right" for r in report.rows)
    best = plans.entries[report.best]
    assert best.name == "repeating[TIMES=1, TIMES@1=1]" and report.best == len(listed) == len(plans.entries) - 1
    again = make_plans(plans.graph, cpu_device(), None)
    again.append(best.engine_id, best.knobs)
    assert again.entries[0].name == best.name
    (x,) = (pack[u].astype(np.float64) for u in plans.graph.input_uids)
    np.testing.assert_allclose(out.view, 1 / (1 + np.exp(-np.tanh(x))), rtol=1e-6)


def test_plan_that_a_filter_bars_is_not_kept_by_the_search(repeating: Callable[[BuiltPlan], Runner]) -> None:
    plans, pack, _ = two_regions()
    report = autotune(plans, repeating, pack, None, 0, bar=lambda e: "too few" if e.name.count("=1") == 2 else "")
    assert report.best is not None and plans.entries[report.best].name.count("=1") < 2
    assert [r.us for r in report.rows if r.outcome == "barred: too few"] == [None]
    assert "repeating[TIMES=1, TIMES@1=1]" in str(report)


def test_a_config_that_is_expected_to_be_hopeless_is_not_tried() -> None:
    plans, _, _ = plans_and_pack()
    first = plans.entries[0]
    assert HOPELESS > 1 and first in worth_trying(plans.entries)
    slow = replace(first, name="slow", estimate_us=first.estimate_us * HOPELESS * 1.01)
    barred = replace(first, name="barred", estimate_us=first.estimate_us / 100, barred="a filter")
    other = replace(first, name="other", engine_name="another", estimate_us=slow.estimate_us)
    assert worth_trying([first, slow, barred, other]) == [first, other]


def test_progress_is_printed_for_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    plans, pack, _ = plans_and_pack()
    report = autotune(plans, make_runner, pack, None, 0, progress=show)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == len(report.rows) and all(
        r.name in line for r, line in zip(report.rows, printed, strict=True)
    )
    assert printed[0].startswith(f"autotune 1/{len(worth_trying(plans.entries))}: ")
