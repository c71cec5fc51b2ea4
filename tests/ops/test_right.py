"""Decompositions evaluated in float32 are right by the rule that engines are held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.dtypes import BFLOAT16
from fuseplan.ops import judge
from fuseplan.ops.arrays import numpy_namespace, torch_namespace
from fuseplan.ops.casts import narrow
from fuseplan.ops.schema import FragmentBuilder, NodeView, OpSchema, Sample, schema_of
from tests.ops.cases import Case, case_id, cases, make_case, run_reference
from tests.ops.primitive_interpreter import run_decomposition

DECOMPOSED = cases(lambda op, s: s.fails is None and op.family != "attention")
ATTENTION = cases(lambda op, s: s.fails is None and op.family == "attention")


def float32_type(t: Any) -> Any:
    return np.float32 if t.is_float else np.int32


def judge_results(case: Case, results: dict[int, Any]) -> judge.Verdict:
    """The rule's verdict on results by uid, rounded to their tensors' types first."""
    view, xp = case.view, numpy_namespace()
    with np.errstate(all="ignore"):
        rounded = {uid: narrow(xp, x, view.graph.tensors[uid].dtype) for uid, x in results.items()}
        return judge.judge(view.graph, {uid: case.inputs[port] for port, uid in view.node.inputs}, rounded)


def verdict(schema: OpSchema, case: Case) -> judge.Verdict:
    """The rule's verdict on the primitives, each rounded to float32."""
    made = run_decomposition(schema, case.view, case.widened(judge=False), scalar=float32_type)
    return judge_results(case, {uid: made[port] for port, uid in case.view.node.outputs})


@pytest.mark.parametrize(("schema", "sample"), DECOMPOSED, ids=case_id)
def test_decomposition_in_float32_is_right(schema: OpSchema, sample: Sample) -> None:
    found = verdict(schema, make_case(schema, sample))
    assert found.is_right, found.message


@pytest.mark.parametrize(("schema", "sample"), ATTENTION, ids=case_id)
def test_attention_reference_over_torch_in_float32_is_right(schema: OpSchema, sample: Sample) -> None:
    case = make_case(schema, sample)
    view, made = case.view, run_reference(schema, case, torch_namespace(), judge=False)
    found = judge_results(case, {uid: made[port] for port, uid in view.node.outputs})
    assert found.is_right, found.message


def naive_elu(b: FragmentBuilder, view: NodeView, args: dict[str, int]) -> dict[str, int]:
    x = args["input"]
    minus = b.emit("sub", b.emit("exp", x), b.const(1.0))
    return {"y": b.emit("select", b.emit("gt", x, b.const(0.0)), x, minus)}


def test_inaccurate_decomposition_is_not_right() -> None:
    schema = schema_of("elu")
    case = make_case(schema, next(s for s in schema.samples() if s.id == "odd"))
    near_zero = Case(case.view, {"input": (case.inputs["input"] * 1e-4).astype(np.float32)})
    assert verdict(schema, near_zero).is_right
    assert not verdict(replace(schema, decompose=naive_elu), near_zero).is_right


def test_comparison_of_neighbours_is_undecided_and_of_others_is_not() -> None:
    """x beside twice its swish: near 0 they are an ulp apart, and engines that round less often find them equal."""
    g = cudnn.pygraph(device="cpu", compute_data_type=cudnn.data_type.BFLOAT16)
    half = cudnn.data_type.HALF
    x = g.tensor(dim=[64, 64], data_type=half)
    y = g.swish(input=x, swish_beta=-0.5).set_data_type(half)
    twice = g.add(y, y).set_data_type(half)
    g.cmp_neq(input=twice, comparison=x).set_output(True).set_data_type(half)
    g.build()
    graph = g._draft.graph
    (uid,), (out,) = graph.input_uids, graph.output_uids
    small = np.random.default_rng(3).uniform(0.001, 0.03, (64, 64)).astype(np.float16)
    large = np.random.default_rng(4).uniform(1.0, 2.0, (64, 64)).astype(np.float16)
    for values, is_undecided in ((small, True), (large, False)):
        wide = values.astype(np.float64)
        once = narrow(numpy_namespace(), 2 * wide / (1 + np.exp(0.5 * wide)), BFLOAT16).astype(np.float64)
        honest = (once != narrow(numpy_namespace(), wide, BFLOAT16).astype(np.float64)).astype(np.float16)
        found = judge.judge(graph, {uid: values}, {out: honest})
        assert found.is_right, found.message
        assert (found.num_undecided > 0.3 * values.size) == is_undecided
    assert not judge.judge(graph, {uid: large}, {out: 1 - honest}).is_right


@pytest.mark.parametrize("limit", [np.inf, -np.inf])
def test_comparison_with_an_infinity_is_decided(limit: float) -> None:
    """Nothing finite is a neighbour of an infinity, however the distance is measured."""
    g = cudnn.pygraph(device="cpu", compute_data_type=cudnn.data_type.FLOAT)
    x, bound = (g.tensor(dim=[32, 8], data_type=cudnn.data_type.FLOAT) for _ in range(2))
    g.cmp_eq(input=x, comparison=bound).set_output(True).set_data_type(cudnn.data_type.FLOAT)
    g.build()
    graph = g._draft.graph
    values = np.random.default_rng(0).uniform(-2, 2, (32, 8)).astype(np.float32)
    values[0] = limit
    given = dict(zip(graph.input_uids, (values, np.full_like(values, limit)), strict=True))
    honest = (values == limit).astype(np.float32)
    found = judge.judge(graph, given, {graph.output_uids[0]: honest})
    assert found.is_right and found.num_undecided == 0
    assert not judge.judge(graph, given, {graph.output_uids[0]: 1 - honest}).is_right
