"""Values that once came out wrong, or were called wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph
from fuseplan.ops.judge import judge
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import make_plans
from fuseplan.plan.tune import autotune
from fuseplan.runtime.device import cpu_device
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import HostBuffer, build_on, judge_engines, random_inputs, run_on_host

ENGINES = ("array", "cpu_c")


def chain(io: DType, compute: DType, *steps: tuple[str, dict[str, Any]], dim: tuple[int, ...] = (64,)) -> Graph:
    """Unary nodes one after the other."""
    m = GraphMaker(random.Random(0), io, io)
    m.builder.compute_dtype = compute
    x = m.input(dim, stride=(1,) * len(dim) if len(dim) == 1 else None)
    for op, attrs in steps:
        (x,) = m.node(op, {"input": x}, **attrs)
    return m.finish()


def run(graph: Graph, engine: str, values: Any) -> Any:
    buffers = random_inputs(graph, 0)
    (uid,) = graph.input_uids
    buffers[uid].view[...] = values
    (result,) = run_on_host(build_on(graph, engine), buffers).values()
    return result


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1, 2**53 + 1])
def test_relu_of_long_integers_keeps_every_bit(engine: str, value: int) -> None:
    graph = chain(dtypes.INT64, dtypes.INT64, ("relu", {"lower_clip": 1.0, "upper_clip": None, "negative_slope": None}))
    assert (run(graph, engine, value) == max(value, 1)).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_relu_slope_of_the_smallest_integer_wraps(engine: str) -> None:
    graph = chain(dtypes.INT32, dtypes.INT32, ("relu", {"negative_slope": 2.0}))
    assert (run(graph, engine, -(2**31)) == 0).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_small_negative_number_through_an_integer_becomes_zero_without_sign(engine: str) -> None:
    m = GraphMaker(random.Random(0))
    (whole,) = m.node("identity", {"input": m.input((64,), stride=(1,))})
    whole.dtype = dtypes.INT32
    m.node("add", {"a": whole, "b": m.input((1,), stride=(1,))})
    graph = m.finish(1)
    buffers = random_inputs(graph, 0)
    for uid, value in zip(graph.input_uids, (-0.25, -0.0), strict=True):
        buffers[uid].view[...] = value
    (result,) = run_on_host(build_on(graph, engine), buffers).values()
    assert not result.any() and not np.signbit(result).any()


@pytest.mark.parametrize("compute", [dtypes.HALF, dtypes.BFLOAT16], ids=lambda t: t.name)
@pytest.mark.parametrize("op", ["identity", "abs", "relu", "tanh"])
def test_narrow_compute_type_is_right_and_every_plan_is_timed(op: str, compute: DType) -> None:
    graph = chain(dtypes.FLOAT, compute, (op, {}), dim=(40, 33))
    assert all(v.is_right for v in judge_engines(graph, ENGINES, 0).values())
    plans = make_plans(graph, cpu_device())
    out = HostBuffer(graph.tensors[graph.output_uids[0]])
    pack: dict[int, Any] = {uid: b.view for uid, b in random_inputs(graph, 0).items()}
    report = autotune(plans, _runner, {**pack, graph.output_uids[0]: out.view}, None, 0)
    assert [r.outcome for r in report.rows] == ["right"] * len(plans.entries)


def _runner(plan: BuiltPlan) -> Runner:
    return Runner(plan, {}, {}, lambda pack: dict(pack))


def test_equality_of_rounded_values_is_undecided_not_wrong() -> None:
    m = GraphMaker(random.Random(0), dtypes.HALF, dtypes.BFLOAT16)
    m.builder.compute_dtype = dtypes.HALF
    dim = (12, 260)
    (t,) = m.node("tanh", {"input": m.input(dim, stride=(260, 1))})
    m.builder.nodes[-1].compute = dtypes.BFLOAT16
    (y,) = m.node("mul", {"a": t, "b": m.input(dim, stride=(260, 1))})
    m.node("cmp_eq", {"input": y, "comparison": m.input(dim, dtypes.BFLOAT16, (260, 1))})
    graph = m.finish(1)
    for engine, verdict in judge_engines(graph, ENGINES, 4).items():
        assert verdict.is_right, (engine, verdict)


def test_overflow_that_the_judge_does_not_see_is_undecided() -> None:
    m = GraphMaker(random.Random(0))
    x = m.input((4, 33), stride=(33, 1))
    (square,) = m.node("mul", {"a": x, "b": x})
    (none,) = m.node("sub", {"a": square, "b": square})
    (top,) = m.node("tanh", {"input": x})
    m.node("div", {"a": top, "b": none})  # infinite, and NaN where the square is infinite in FLOAT
    graph = m.finish(1)
    buffers = random_inputs(graph, 0)
    buffers[x.uid].view[0, :5] = 3e38
    arrays = {uid: b.view.copy() for uid, b in buffers.items()}
    for engine in ENGINES:
        verdict = judge(graph, arrays, run_on_host(build_on(graph, engine), buffers))
        assert verdict.is_right and verdict.num_undecided >= 5, verdict
