"""Numbers of generated Triton kernels, in Triton's interpreter; `test_triton_interpreter.py` starts it.

Each kernel runs twice in a row on outputs that hold NaN or nonsense, and is compared with float64
NumPy; memory between the elements of an output must stay as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BOOLEAN, DOUBLE, FLOAT, FP8_E4M3, FP8_E5M2, HALF, INT8, INT32, INT64, UINT8, DType
from fuseplan.engines.base import Support
from fuseplan.engines.triton.engine import ENGINE, LIMITS
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.ir.graph import Graph, span_elements
from fuseplan.ir.region import Region
from fuseplan.lowering.pipeline import lower
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.ops.judge import judge
from fuseplan.ops.schema import OpSchema, Sample
from tests.kernels import triton_cases as made
from tests.kernels.triton_interpret import run_interpreted
from tests.ops.cases import case_id, cases, make_case

Array = Any
# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


@pytest.fixture(autouse=True)
def needs_the_interpreter() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("start this file with TRITON_INTERPRET=1, or through test_triton_interpreter.py")
    yield


def run_checked(region: Region, change: Callable[[list[Array]], None] | None = None, **knobs: int) -> None:
    """Run a region twice and compare each output with float64."""
    rng = np.random.default_rng(7)
    buffers = made.buffers_for(region, rng)
    if change:
        change(buffers)
    before = [b.copy() for b in buffers]
    expected = made.evaluate(region, buffers)
    emitted = made.emitted(region, tuple(knobs.items()))
    for _ in range(2):
        run_interpreted(region, emitted, buffers)
        for (_, number), want in zip(region.stores, expected, strict=True):
            operand = region.operands[number]
            check_close(made.view_of(operand, buffers[number]), want, operand.dtype, region)
            gap, old = made.untouched(operand, buffers[number]), made.untouched(operand, before[number])
            np.testing.assert_array_equal(gap, old)


def check_close(got: Array, want: Array, dtype: DType, region: Region) -> None:
    """Within what the storage types and the length of the sums allow."""
    if not dtype.is_float:
        np.testing.assert_array_equal(got.astype(np.float64), want)
        return
    halves = any(v.dtype is HALF for v in region.values)
    length = max((region.values[v.args[0]].dim[-1] for v in region.values if v.op == "matmul"), default=16)
    epsilon = 2.0**-10 if halves else 2.0**-23
    finite = np.abs(want[np.isfinite(want)])
    scale = float(finite.max(initial=1e-30))
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=8 * epsilon, atol=epsilon * scale * (2 + length**0.5))


CASES: dict[str, tuple[Callable[[], Region], dict[str, int]]] = {  # table
    "pointwise-chain": (lambda: made.pointwise_chain((3, 17, 33), FLOAT), {}),
    "pointwise-half": (lambda: made.pointwise_chain((2, 5, 16), HALF), {"BLOCK": 64}),
    "softmax": (lambda: made.softmax(5, 37, FLOAT), {}),
    "softmax-exact-block": (lambda: made.softmax(4, 64, FLOAT), {"ROWS": 2}),
    "softmax-looped": (lambda: made.softmax(5, 100, FLOAT), {"BLOCK": 32, "ROWS": 2}),
    "rms-norm": (lambda: made.rms_norm(7, 50, HALF), {"ROWS": 4}),
    "rms-norm-looped": (lambda: made.rms_norm(7, 50, FLOAT), {"BLOCK": 16}),
    "layer-norm": (lambda: made.add_layer_norm_gelu(6, 40, FLOAT), {}),
    "layer-norm-looped": (lambda: made.add_layer_norm_gelu(6, 40, FLOAT), {"BLOCK": 16, "ROWS": 4}),
    "matmul-odd": (lambda: made.matmul_bias_gelu(2, 33, 45, 39, FLOAT), {}),
    "matmul-even": (lambda: made.matmul_bias_gelu(1, 32, 64, 32, FLOAT), {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16}),
    "matmul-split": (lambda: made.matmul_bias_gelu(1, 20, 72, 24, FLOAT), {"BLOCK_M": 16, "BLOCK_N": 64, "SPLIT_N": 2}),
    "matmul-vector": (lambda: made.matmul_bias_gelu(3, 1, 45, 1, FLOAT), {}),
    "matmul-column": (lambda: made.matmul_bias_gelu(1, 19, 1, 9, FLOAT), {}),
    "matmul-amax": (lambda: made.matmul_gelu_amax(2, 33, 45, 39, FLOAT), {}),
    "matmul-amax-split": (lambda: made.matmul_gelu_amax(1, 33, 70, 39, HALF), {"BLOCK_N": 32, "SPLIT_N": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_region_matches_float64(name: str) -> None:
    make, knobs = CASES[name]
    run_checked(make(), **knobs)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
@pytest.mark.parametrize(
    ("axes", "stride"), [((1,), None), ((0, 2, 3), (60, 1, 15, 3)), ((0, 1, 2, 3), None), ((2,), (1, 2, 6, 30))]
)
@pytest.mark.parametrize("block", [4, 64])
def test_plain_reduction_over_any_axes(
    mode: str, axes: tuple[int, ...], stride: Sequence[int] | None, block: int
) -> None:
    d = made.Draft(4)
    d.store(d.op("reduce", d.load((2, 3, 5, 4), FLOAT, stride), mode=mode, axes=axes))
    run_checked(d.region(), BLOCK=block)


@pytest.mark.parametrize("block", [4, 32])
@pytest.mark.parametrize("mode", ["max", "min", "add"])
def test_reduction_of_nan_and_infinity(mode: str, block: int) -> None:
    d = made.Draft(2)
    d.store(d.op("reduce", d.load((4, 19), FLOAT), mode=mode, axes=(1,)))

    def poison(buffers: list[Array]) -> None:
        x = buffers[0].reshape(4, 19)
        x[0, 3], x[1, 18], x[2, 0], x[3, 5] = np.nan, np.inf, -np.inf, -np.nan

    run_checked(d.region(), poison, BLOCK=block)


def test_reduction_of_values_that_lack_reduced_axes() -> None:
    d = made.Draft(3)
    x, narrow, row = d.load((3, 4, 5), FLOAT), d.load((3, 4, 1), FLOAT), d.load((3, 1, 1), FLOAT)
    for value in (x, narrow, row):
        d.store(d.op("reduce", value, mode="add", axes=(1, 2)))
    wide = d.op("cast", row, dim=(3, 4, 5))
    d.store(d.op("reduce", wide, mode="add", axes=(1, 2)))
    d.store(d.op("mul", narrow, d.const(2.0)))
    for block in (8, 32):
        run_checked(d.region(), BLOCK=block, ROWS=2)


def test_max_and_min_keep_nan_from_either_side() -> None:
    d = made.Draft(1)
    a, b = d.load((9,), FLOAT), d.load((9,), FLOAT)
    d.store(d.op("max", a, b))
    d.store(d.op("min", a, b))

    def special(buffers: list[Array]) -> None:
        buffers[0][:4] = np.nan, 1.0, np.inf, -np.inf
        buffers[1][:4] = 1.0, np.nan, -np.inf, np.nan

    run_checked(d.region(), special)


def test_conversions_round_to_nearest_even_and_saturate() -> None:
    d = made.Draft(1)
    x = d.load((12,), FLOAT)
    for target in (INT8, UINT8, INT32, INT64, BOOLEAN):
        d.store(d.op("cast", x, dtype=target))

    def special(buffers: list[Array]) -> None:
        buffers[0][:] = 0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 300.0, -300.0, 3e9, -3e9, np.nan, 0.0

    run_checked(d.region(), special)


def test_integers_indices_and_booleans() -> None:
    d = made.Draft(3)
    x, y = d.load((3, 5, 7), INT32), d.load((1, 5, 1), BOOLEAN)
    position = d.op("index", x, axis=1, dtype=INT32, dim=(3, 5, 7))
    total = d.op("add", x, position, dtype=INT32, compute=INT32)
    d.store(d.op("select", y, total, position, dtype=INT32, compute=INT32))
    d.store(d.op("and_", y, d.op("gt", x, position, dtype=BOOLEAN), dtype=BOOLEAN))
    d.store(
        d.op("mod", total, d.op("add", position, d.const(1.0), dtype=INT32, compute=INT32), dtype=INT32, compute=INT32)
    )
    d.store(d.op("not_", y, dtype=BOOLEAN))
    run_checked(d.region(), BLOCK=64)


def test_strided_outputs_leave_their_gaps_alone() -> None:
    d = made.Draft(3)
    x = d.load((3, 4, 5), FLOAT, (1, 15, 3))
    y = d.op("mul", x, d.load((3, 1, 5), FLOAT, (7, 99, 0)))
    d.store(y, (40, 9, 1))
    d.store(y, (1, 4, 20))
    run_checked(d.region())


@pytest.mark.full
@pytest.mark.parametrize("a_stride", [None, (400, 1, 19)])
@pytest.mark.parametrize("b_stride", [None, (500, 1, 23)])
def test_matmul_transposed_operands_and_strided_output(
    a_stride: Sequence[int] | None, b_stride: Sequence[int] | None
) -> None:
    d = made.Draft(3)
    a, b = d.load((2, 17, 21), FLOAT, a_stride), d.load((2, 21, 18), FLOAT, b_stride)
    residual, column = d.load((2, 17, 18), FLOAT, (1, 40, 2)), d.load((1, 17, 1), FLOAT)
    total = d.op("add", d.op("mul", d.op("matmul", a, b), column), residual)
    d.store(total, (700, 1, 20))
    d.store(d.op("mul", column, d.const(3.0)))
    run_checked(d.region(), BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)


def test_matmul_broadcast_batches() -> None:
    d = made.Draft(4)
    a, b = d.load((2, 1, 17, 9), FLOAT), d.load((1, 3, 9, 18), FLOAT)
    per_batch = d.load((2, 3, 1, 1), FLOAT)
    d.store(d.op("add", d.op("matmul", a, b), per_batch))
    run_checked(d.region())


def test_matmul_nan_and_infinity_stay_where_they_belong() -> None:
    region = made.matmul_gelu_amax(1, 20, 40, 24, FLOAT)

    def special(buffers: list[Array]) -> None:
        buffers[0].reshape(20, 24)[3, 5] = np.nan

    run_checked(region, special)


@pytest.mark.full
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("mode", ["add", "max", "min", "amax", "average", "norm"])
def test_reduction_over_everything_closes_a_matmul(mode: str, split: int) -> None:
    d = made.Draft(3)
    product = d.op("matmul", d.load((2, 19, 9), FLOAT), d.load((1, 9, 35), FLOAT))
    d.store(product)
    axes = (0, 1, 2)
    if mode in ("add", "max", "min"):
        result = d.op("reduce", product, mode=mode, axes=axes)
    elif mode == "amax":
        result = d.op("reduce", d.op("abs", product), mode="max", axes=axes, dtype=HALF)
    elif mode == "average":
        result = d.op("div", d.op("reduce", product, mode="add", axes=axes), d.op("count", product, axes=axes))
    else:
        result = d.op("sqrt", d.op("reduce", d.op("mul", product, product), mode="add", axes=axes))
    d.store(result)
    run_checked(d.region(), BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, SPLIT_N=split)


@pytest.mark.full
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("axes", [(1,), (2,), (0,), (0, 1), (1, 2)])
def test_reduction_over_some_axes_closes_a_matmul(axes: tuple[int, ...], split: int) -> None:
    d = made.Draft(3)
    product = d.op("matmul", d.load((2, 19, 9), FLOAT), d.load((2, 9, 35), FLOAT))
    d.store(product)
    d.store(d.op("reduce", product, mode="add", axes=axes))
    d.store(d.op("reduce", d.op("abs", product), mode="max", axes=axes))
    run_checked(d.region(), BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, SPLIT_N=split)


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_sticks_in_a_closing_reduction(mode: str, sign: float) -> None:
    d = made.Draft(2)
    product = d.op("matmul", d.load((40, 9), FLOAT), d.load((9, 35), FLOAT))
    d.store(d.op("reduce", product, mode=mode, axes=(0, 1)))

    def special(buffers: list[Array]) -> None:
        buffers[0][-1] = np.copysign(np.nan, sign)

    run_checked(d.region(), special, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)


def test_closing_reductions_of_values_that_lack_axes() -> None:
    d = made.Draft(3)
    product = d.op("matmul", d.load((2, 19, 9), FLOAT), d.load((1, 9, 35), FLOAT))
    column, bias = d.load((1, 1, 35), FLOAT), d.load((1, 19, 1), FLOAT)
    d.store(d.op("add", product, column))
    for value in (column, bias):
        d.store(d.op("reduce", value, mode="add", axes=(0, 1, 2)))
    for split in (1, 2):
        run_checked(d.region(), BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, SPLIT_N=split)


@pytest.mark.parametrize("mode", ["add", "max", "min", "amax", "average"])
def test_large_reduction_over_everything(mode: str) -> None:
    d = made.Draft(3)
    x, row = d.load((30, 40, 50), FLOAT, (1, 1500, 30)), d.load((1, 40, 1), FLOAT)
    y = d.op("mul", x, row)
    d.store(y)
    axes = (0, 1, 2)
    if mode == "amax":
        result = d.op("reduce", d.op("abs", y), mode="max", axes=axes)
    elif mode == "average":
        result = d.op("div", d.op("reduce", y, mode="add", axes=axes), d.op("count", y, axes=axes))
        d.store(d.op("reduce", row, mode="add", axes=axes))
    else:
        result = d.op("reduce", y, mode=mode, axes=axes)
    d.store(result)
    region = d.region()
    assert made.form_of(region) == "rows"
    assert [k.function for k in made.kernels(region)] == ["rows", "whole_rows"]
    run_checked(region)


def test_eight_bit_floats_are_read_exactly() -> None:
    # stores are left to the device tests: the interpreter's own rounding to 8 bits loses carries
    d = made.Draft(2)
    a, b = d.load((33, 40), FP8_E4M3), d.load((40, 50), FP8_E5M2)
    product = d.op("matmul", a, b)
    d.store(product)
    d.store(d.op("reduce", d.op("abs", product), mode="max", axes=(0, 1)))
    run_checked(d.region())
    d = made.Draft(2)
    d.store(d.op("add", d.load((33, 40), FP8_E4M3), d.load((1, 40), FP8_E5M2)))
    run_checked(d.region())


def test_double_compute() -> None:
    d = made.Draft(2, compute=DOUBLE)
    x = d.load((5, 33), DOUBLE)
    y = d.op("div", d.op("exp", x), d.op("reduce", d.op("exp", x), mode="add", axes=(1,)))
    d.store(y)
    run_checked(d.region())


def samples(quick: bool) -> list[tuple[OpSchema, Sample]]:
    """Good samples of all ops that the engine may fuse; the quick half is every ninth."""

    def wanted(schema: OpSchema, sample: Sample) -> bool:
        types = {kind for _, kind, *_ in sample.inputs.values()} | set(sample.types.values()) | {sample.compute}
        # the interpreter computes bfloat16 wrongly, and rounds wrongly to 8 bits
        return (
            sample.fails is None
            and schema.family in ("pointwise", "reduction", "norm", "matmul", "attention")
            and schema.name != "sdpa_backward"
            and not types & {"BFLOAT16", "FP8_E4M3", "FP8_E5M2"}
        )

    return [pair for index, pair in enumerate(cases(wanted)) if (index % 9 == 0) == quick]


def run_sample(schema: OpSchema, sample: Sample) -> None:
    """Lower a one-node graph, run its regions, and ask the judge."""
    case = make_case(schema, sample)
    graph: Graph = case.view.graph
    memory: dict[int, Array] = {}
    for port, uid in case.view.node.inputs:
        spec = graph.tensors[uid]
        memory[uid] = np.zeros(span_elements(spec.dim, spec.stride), numpy_dtype(spec.dtype))
        strided(memory[uid], spec.dim, spec.stride)[...] = case.inputs[port]
    rng = np.random.default_rng(0)
    for piece in lower(graph, LIMITS):
        region = piece.region
        found = ENGINE.match(region, made.device())
        if isinstance(found, Support):
            assert "matmul in compute type INT32" in found.reason, found.reason
            return
        for operand in region.operands:
            memory.setdefault(operand.uid, made.buffer_for(operand, rng, poison=True))
        emitted = made.emitted(region)
        assert any(isinstance(step, Kernel) for step in emitted.steps)
        run_interpreted(region, emitted, [memory[o.uid] for o in region.operands])
    inputs = {uid: case.inputs[port] for port, uid in case.view.node.inputs}
    specs = {uid: graph.tensors[uid] for uid in graph.output_uids}
    verdict = judge(graph, inputs, {uid: strided(memory[uid], s.dim, s.stride) for uid, s in specs.items()})
    assert verdict.is_right, verdict.message


def strided(flat: Array, dim: Sequence[int], stride: Sequence[int]) -> Array:
    return np.lib.stride_tricks.as_strided(flat, dim, tuple(s * flat.itemsize for s in stride))


@pytest.mark.parametrize(("schema", "sample"), samples(quick=True), ids=case_id)
def test_sample_is_right(schema: OpSchema, sample: Sample) -> None:
    run_sample(schema, sample)


@pytest.mark.full
@pytest.mark.parametrize(("schema", "sample"), samples(quick=False), ids=case_id)
def test_every_sample_is_right(schema: OpSchema, sample: Sample) -> None:
    run_sample(schema, sample)
