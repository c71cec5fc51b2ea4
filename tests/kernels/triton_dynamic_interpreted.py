"""Numbers of Triton kernels that all extents share, in Triton's interpreter; `test_triton_dynamic.py` starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from fuseplan.engines.triton.engine import ENGINE, emit
from fuseplan.engines.triton.interpret import run_interpreted
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.engines.triton.knobs import complete_knobs, knob_space
from fuseplan.ir.region import Role
from fuseplan.ops.arrays import numpy_dtype, numpy_namespace
from fuseplan.ops.evaluate import scalar_array
from fuseplan.ops.judge import judge
from fuseplan.testing.run import random_inputs
from tests.kernels import dynamic_graphs as made
from tests.kernels import triton_cases

# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
SMALL = {"gemm": {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}, "rows": {"BLOCK": 32}, "pointwise": {"BLOCK": 256}}

# table: graph, form of its kernel, shapes, and the form (see `finish_shared`) that each shape picks
CASES: dict[str, tuple[made.Maker, str, list[tuple[made.Shape, int]]]] = {
    "chain": (
        made.pointwise_chain, "pointwise", [((2, 3, 4), 2), ((7, 9, 8), 2), ((3, 5, 7), 3), ((16, 4, 64), 2)]
    ),
    "chain-half": (
        partial(made.pointwise_chain, dtype=made.HALF), "pointwise", [((2, 3, 4), 2), ((3, 3, 4), 3), ((3, 9, 8), 2)]
    ),
    "broadcast": (
        made.pointwise_broadcast, "pointwise", [((2, 3, 4, 8), 1), ((3, 5, 7, 9), 3), ((2, 2, 31, 64), 1)]
    ),
    "pitched": (made.pitched, "pointwise", [((2, 8), 1), ((3, 24), 1), ((40, 24), 2), ((40, 5), 3)]),
    "total": (
        made.totals, "pointwise", [((2, 3, 4), 2), ((3, 5, 7), 3), ((7, 30, 16), 2), ((13, 30, 17), 3)]
    ),
    "softmax": (made.softmax, "rows", [((2, 16), 1), ((3, 17), 0), ((7, 100), 1), ((5, 33), 0)]),
    "rmsnorm": (made.rmsnorm, "rows", [((2, 16), 1), ((3, 17), 0), ((7, 100), 1), ((9, 2), 0)]),
    "layernorm": (made.layernorm, "rows", [((2, 16), 1), ((3, 17), 0), ((7, 100), 1)]),
    "column-sums": (made.column_sums, "rows", [((2, 3, 16), 1), ((3, 40, 17), 0), ((2, 70, 100), 1)]),
    "matmul": (
        made.matmul_epilogue, "gemm",
        [((2, 33, 40, 36), 1), ((3, 5, 7, 9), 0), ((2, 64, 64, 64), 1), ((8, 2, 33, 70), 0)],
    ),
    "matmul-half": (
        partial(made.matmul_epilogue, dtype=made.HALF), "gemm", [((2, 33, 40, 48), 1), ((3, 5, 7, 9), 0)]
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def needs_the_interpreter() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("start this file with TRITON_INTERPRET=1, or through test_triton_dynamic.py")
    yield


def run_graph(g: Any, knobs: dict[str, int]) -> tuple[list[str], int]:
    """Run a graph twice on dirty outputs and judge it; returns the texts of its kernels, and the form of the first."""
    parts = made.assignments(g, ENGINE, triton_cases.device())
    graph = g.graph
    inputs = random_inputs(graph, seed=5)
    memory: dict[int, Any] = {uid: b.inner.view(numpy_dtype(b.spec.dtype)) for uid, b in inputs.items()}
    for uid in graph.input_uids:
        if graph.tensors[uid].value is not None:
            memory[uid] = scalar_array(numpy_namespace(), graph.tensors[uid], {}).reshape(-1)
    texts: list[str] = []
    forms: list[int] = []
    rng = np.random.default_rng(0)
    for part in parts:
        for operand in part.region.operands:
            if operand.role is Role.OUT:
                memory[operand.uid] = triton_cases.buffer_for(operand, rng, poison=True)
        emitted = emit(
            part.region, complete_knobs(knob_space(part.region, triton_cases.device()), tuple(knobs.items()))
        )
        for _ in range(2):
            run_interpreted(part.region, emitted, [memory[o.uid] for o in part.region.operands])
        for step in emitted.steps:
            if isinstance(step, Kernel):
                texts.append(step.source)
                forms += [p.value for p in step.params if p.name == "form"]
    results = {}
    for uid in graph.output_uids:
        spec = graph.tensors[uid]
        steps = tuple(s * memory[uid].itemsize for s in spec.stride)
        results[uid] = np.lib.stride_tricks.as_strided(memory[uid], spec.dim, steps)
    verdict = judge(graph, {uid: b.view.copy() for uid, b in inputs.items()}, results)
    assert verdict.is_right, verdict.message
    return texts, forms[0]


@pytest.mark.parametrize("name", CASES)
def test_one_text_is_right_at_all_extents(name: str) -> None:
    make, kind, shapes = CASES[name]
    texts: list[list[str]] = []
    for shape, form in shapes:
        found, picked = run_graph(make(shape), SMALL[kind])
        assert f"def {kind}(" in found[0]
        assert picked == form, f"{name} {shape} picks form {picked}"
        texts.append(found)
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("name", CASES)
def test_form_with_64_bit_positions_is_right(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("fuseplan.engines.triton.source.is_wide", lambda region, domain: True)
    make, kind, shapes = CASES[name]
    for shape, _ in shapes[:2]:
        assert run_graph(make(shape), SMALL[kind])[1] == 0


@pytest.mark.parametrize("block", [1, 4, 16])
def test_blocks_shorter_than_the_parts_of_a_program_are_right(block: int) -> None:
    run_graph(made.pointwise_chain((2, 3, 5)), {"BLOCK": block})


@pytest.mark.parametrize("shape", [(1, 5, 7, 9), (3, 1, 8, 16), (3, 5, 1, 9), (3, 5, 7, 1), (1, 1, 1, 1)])
def test_extents_of_one_are_right(shape: made.Shape) -> None:
    run_graph(made.matmul_epilogue(shape), SMALL["gemm"])
    run_graph(made.softmax(shape[:2]), SMALL["rows"])
    run_graph(made.layernorm(shape[2:]), SMALL["rows"])
    run_graph(made.pointwise_broadcast(shape), SMALL["pointwise"])
