"""Numbers of Triton kernels for all extents, in Triton's interpreter; `test_triton_dynamic.py` starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.ir.region import Role
from fuseplan.ops.arrays import numpy_dtype, numpy_namespace
from fuseplan.ops.evaluate import scalar_array
from fuseplan.ops.judge import judge
from fuseplan.testing.run import random_inputs
from tests.kernels import dynamic_graphs as made
from tests.kernels import triton_cases
from tests.kernels.triton_interpret import run_interpreted

# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
SMALL = {
    "gemm": {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32},
    "rows": {"BLOCK": 32},
    "pointwise": {"BLOCK": 256},
    "attention": {"BLOCK_M": 16},
}

# how a shape runs: with vectors (`vectorized` in `source.kernel_text`), with all axes walked as one (MERGED)
PLAIN, VECTORS, MERGED, BOTH = (False, False), (True, False), (False, True), (True, True)

# table: graph, form of its kernel, shapes, and how each shape runs
CASES: dict[str, tuple[made.Maker, str, list[tuple[made.Shape, tuple[bool, bool]]]]] = {
    "chain": (
        made.pointwise_chain, "pointwise",
        [((2, 3, 4), BOTH), ((7, 9, 8), BOTH), ((3, 5, 7), MERGED), ((16, 4, 64), BOTH)],
    ),
    "chain-half": (
        partial(made.pointwise_chain, dtype=made.HALF), "pointwise",
        [((2, 3, 4), BOTH), ((3, 3, 4), MERGED), ((3, 9, 8), BOTH)],
    ),
    "broadcast": (
        made.pointwise_broadcast, "pointwise",
        [((2, 3, 4, 8), VECTORS), ((3, 5, 7, 9), PLAIN), ((2, 2, 31, 64), VECTORS)],
    ),
    "pitched": (made.pitched, "pointwise", [((2, 8), VECTORS), ((3, 24), VECTORS), ((40, 24), BOTH), ((40, 5), PLAIN)]),
    "total": (
        made.totals, "pointwise", [((2, 3, 4), BOTH), ((3, 5, 7), MERGED), ((7, 30, 16), BOTH), ((13, 30, 17), MERGED)]
    ),
    "softmax": (made.softmax, "rows", [((2, 16), VECTORS), ((3, 17), PLAIN), ((7, 100), VECTORS), ((5, 33), PLAIN)]),
    "rmsnorm": (made.rmsnorm, "rows", [((2, 16), VECTORS), ((3, 17), PLAIN), ((7, 100), VECTORS), ((9, 2), PLAIN)]),
    "layernorm": (made.layernorm, "rows", [((2, 16), VECTORS), ((3, 17), PLAIN), ((7, 100), VECTORS)]),
    "column-sums": (made.column_sums, "rows", [((2, 3, 16), VECTORS), ((3, 40, 17), PLAIN), ((2, 70, 100), VECTORS)]),
    "matmul": (
        made.matmul_epilogue, "gemm",
        [((2, 33, 40, 36), VECTORS), ((3, 5, 7, 9), PLAIN), ((2, 64, 64, 64), VECTORS), ((8, 2, 33, 70), PLAIN)],
    ),
    "matmul-half": (
        partial(made.matmul_epilogue, dtype=made.HALF), "gemm", [((2, 33, 40, 48), VECTORS), ((3, 5, 7, 9), PLAIN)]
    ),
    "attention": (
        made.attention, "attention",
        [((2, 4, 9, 16, 24), VECTORS), ((3, 8, 33, 20, 24), VECTORS), ((2, 6, 5, 37, 19), PLAIN)],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def needs_the_interpreter() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("start this file with TRITON_INTERPRET=1, or through test_triton_dynamic.py")
    yield


def run_graph(g: Any, knobs: dict[str, int]) -> tuple[list[str], Kernel]:
    """Run a graph twice on dirty outputs and judge it; returns the texts of its kernels, and the first of them."""
    parts = made.assignments(g, ENGINE, triton_cases.device())
    graph = g._draft.graph
    inputs = random_inputs(graph, seed=5)
    memory: dict[int, Any] = {uid: b.inner.view(numpy_dtype(b.spec.dtype)) for uid, b in inputs.items()}
    for uid in graph.input_uids:
        if graph.tensors[uid].value is not None:
            memory[uid] = scalar_array(numpy_namespace(), graph.tensors[uid], {}).reshape(-1)
    kernels: list[Kernel] = []
    rng = np.random.default_rng(0)
    for part in parts:
        for operand in part.region.operands:
            if operand.role is Role.OUT:
                memory[operand.uid] = triton_cases.buffer_for(operand, rng, poison=True)
        emitted = triton_cases.emitted(part.region, tuple(knobs.items()))
        for _ in range(2):
            run_interpreted(part.region, emitted, [memory[o.uid] for o in part.region.operands])
        kernels += [step for step in emitted.steps if isinstance(step, Kernel)]
    results = {}
    for uid in graph.output_uids:
        spec = graph.tensors[uid]
        steps = tuple(s * memory[uid].itemsize for s in spec.stride)
        results[uid] = np.lib.stride_tricks.as_strided(memory[uid], spec.dim, steps)
    verdict = judge(graph, {uid: b.view.copy() for uid, b in inputs.items()}, results)
    assert verdict.is_right, verdict.message
    return [k.source for k in kernels], kernels[0]


def way_of(kernel: Kernel) -> tuple[bool, bool]:
    """Whether a kernel runs with vectors, and with all axes walked as one."""
    vectorized = next(p.value for p in kernel.params if p.name == "vectorized")
    return bool(vectorized), bool(dict(kernel.constants).get("MERGED"))


@pytest.mark.parametrize("name", CASES)
def test_one_text_is_right_at_all_extents(name: str) -> None:
    make, kind, shapes = CASES[name]
    texts: list[list[str]] = []
    for shape, way in shapes:
        found, kernel = run_graph(make(shape), SMALL[kind])
        assert f"def {kind}(" in found[0]
        assert way_of(kernel) == way and dict(kernel.constants)["INDEX_BITS"] == 32, f"{name} {shape}"
        texts.append(found)
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("name", CASES)
def test_build_with_64_bit_positions_is_right(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("fuseplan.engines.triton.source.index_bits", lambda region: 64)
    make, kind, shapes = CASES[name]
    for shape, way in shapes[:2]:
        _, kernel = run_graph(make(shape), SMALL[kind])
        assert dict(kernel.constants)["INDEX_BITS"] == 64 and way_of(kernel) == way


@pytest.mark.parametrize("block", [1, 4, 16])
def test_short_blocks_are_right(block: int) -> None:
    run_graph(made.pointwise_chain((2, 3, 5)), {"BLOCK": block})


@pytest.mark.parametrize("shape", [(1, 5, 7, 9), (3, 1, 8, 16), (3, 5, 1, 9), (3, 5, 7, 1), (1, 1, 1, 1)])
def test_extents_of_one_are_right(shape: made.Shape) -> None:
    run_graph(made.matmul_epilogue(shape), SMALL["gemm"])
    run_graph(made.softmax(shape[:2]), SMALL["rows"])
    run_graph(made.layernorm(shape[2:]), SMALL["rows"])
    run_graph(made.pointwise_broadcast(shape), SMALL["pointwise"])
