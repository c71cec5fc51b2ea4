"""Tuning compares before it times: a wrong plan is never chosen, and what was measured is kept."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.errors import BindError
from fuseplan.ir.graph import Graph
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import PlanList, make_plans
from fuseplan.plan.tune import TuneRow, autotune
from fuseplan.runtime.device import cpu_device
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
