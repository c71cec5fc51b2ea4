"""Sums of many terms are right by both rules: engines add up in pieces, as a library does."""

from __future__ import annotations

import random

import pytest

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph
from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.evaluate import run_declared, run_judge
from fuseplan.ops.judge import is_right_by_norm, judge
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import build_on, random_inputs, run_on_host


def matmul_graph(io: DType, k: int) -> Graph:
    m = GraphMaker(random.Random(0), io)
    m.builder.compute_dtype = io
    m.node("matmul", {"A": m.input((4, k), stride=(k, 1)), "B": m.input((k, 33), stride=(33, 1))}, {"C": (4, 33)})
    return m.finish()


def conv_graph(io: DType, c: int) -> Graph:
    m = GraphMaker(random.Random(0), io)
    m.builder.compute_dtype = io
    inputs = {"image": m.input((1, c, 4, 6), stride=(24 * c, 24, 6, 1)), "weight": m.input((2, c, 3, 3))}
    m.node("conv_fprop", inputs, {"y": (1, 2, 2, 4)}, padding=(0, 0), stride=(1, 1), dilation=(1, 1))
    return m.finish()


@pytest.mark.parametrize("low", [-2.0, 0.0], ids=["any-sign", "positive"])
@pytest.mark.parametrize("io", [dtypes.FLOAT, dtypes.DOUBLE], ids=lambda t: t.name)
@pytest.mark.parametrize(("make", "size"), [(matmul_graph, 16384), (conv_graph, 2048)], ids=["matmul", "conv"])
def test_long_sum_is_right_by_both_rules(make: object, size: int, io: DType, low: float) -> None:
    graph = make(io, size)  # type: ignore[operator]
    buffers = random_inputs(graph, 0, low, 2.0)
    results = run_on_host(build_on(graph, "cpu_c"), buffers)
    arrays = {uid: b.view.copy() for uid, b in buffers.items()}
    verdict = judge(graph, arrays, results)
    assert verdict.is_right and verdict.num_undecided < verdict.num_elements, verdict
    (uid,) = graph.output_uids
    exact, declared = run_judge(graph, arrays)[uid], run_declared(graph, arrays)[uid]
    if io is dtypes.FLOAT:  # in DOUBLE the judge is as far from the truth as a candidate
        assert is_right_by_norm(numpy_namespace(), exact, declared, results[uid], io)
