"""Each file of `engines/triton/kernels`, run alone with its own holes; `test_triton_interpreter.py` starts it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import tests.kernels.triton_interpret as interpret
from fuseplan.dtypes import FLOAT
from fuseplan.engines.triton.kernels import (
    attention,
    attention_join,
    finish,
    gemm,
    helpers,
    join,
    pointwise,
    rows,
    whole_rows,
)
from fuseplan.ops.judge import ulp

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def without_libdevice() -> Iterator[None]:
    for module in (helpers, attention, attention_join):
        interpret.stand_in(module)
    with np.errstate(invalid="ignore"):  # of rows that are masked
        yield


def normal(*shape: int) -> Any:
    return torch.from_numpy(RNG.standard_normal(shape, dtype=np.float32))


@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize("count", [1, 100, 128])
def test_pointwise_alone_is_relu(count: int, index_bits: int) -> None:
    x, y = normal(count), torch.full((count,), float("nan"))
    pointwise.pointwise[(-(-count // 32),)](x, y, count, BLOCK=32, MERGED=0, INDEX_BITS=index_bits)
    np.testing.assert_array_equal(y.numpy(), np.maximum(x.numpy(), 0))


@pytest.mark.parametrize(("rows_", "columns"), [(5, 100), (4, 64), (1, 1)])
def test_rows_alone_divide_by_their_sum(rows_: int, columns: int) -> None:
    x, y = normal(rows_, columns).abs(), torch.full((rows_, columns), float("nan"))
    rows.rows[(-(-rows_ // 2),)](x, y, rows_, columns, ROWS=2, BLOCK=32, STAGES=1, ROWS_FIRST=0, INDEX_BITS=32)
    want = x.numpy().astype(np.float64)
    np.testing.assert_allclose(y.numpy(), want / want.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("stages", [0, 1, 3])
@pytest.mark.parametrize("rows_", [1, 4, 11])
def test_whole_rows_alone_divide_by_their_sum_and_add_up(rows_: int, stages: int) -> None:
    programs = 2 if stages else -(-rows_ // 4)
    x, y, p = normal(rows_, 32).abs(), torch.full((rows_, 32), float("nan")), torch.full((programs, 32), float("nan"))
    whole_rows.whole_rows[(programs,)](x, y, p, rows_, ROWS=4, STAGES=stages, INDEX_BITS=32)
    want = x.numpy().astype(np.float64)
    want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(p.numpy().sum(0), want.sum(0), rtol=1e-5)


@pytest.mark.parametrize("value", [3.0, -1e-30, 1e38, 1e-44, float("inf"), 0.0, float("nan")])
def test_factors_of_a_quotient_divide(value: float) -> None:
    x, y = torch.tensor([value]), torch.zeros(2)

    @triton.jit
    def factors(x, y):  # type: ignore[no-untyped-def]
        first, second = helpers.factors_of_quotient(tl.load(x))
        tl.store(y, first)
        tl.store(y + 1, second)

    with np.errstate(all="ignore"):
        factors[(1,)](x, y)
    first, second = y.numpy()
    for numerator in (1.0, 3e-20, -2e25, 1e-44):
        with np.errstate(all="ignore"):
            got = np.float32(numerator) * first * second
            want = np.float32(np.float32(numerator) / np.float32(value))
        np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-44)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("m", "n", "k"), [(40, 70, 33), (32, 64, 32), (1, 5, 1)])
def test_gemm_alone_is_a_product(m: int, n: int, k: int, split: int) -> None:
    a, b, y = normal(m, k), normal(k, n), torch.full((m, n), float("nan"))
    tiles = -(-m // 16) * -(-n // 32)
    blocks = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 2, "SPLIT_N": split, "INDEX_BITS": 32}
    gemm.gemm[(tiles,)](a, b, y, m, n, k, **blocks)
    want = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-5)


def test_join_alone_is_a_sum_of_matrices() -> None:
    parts, y = normal(4, 9, 37), torch.full((9, 37), float("nan"))
    join.join[(-(-9 // 4) * -(-37 // 32),)](parts, y, 9, 37, BLOCK_M=4, BLOCK_N=32, SPLIT_K=4, INDEX_BITS=32)
    np.testing.assert_allclose(y.numpy(), parts.numpy().astype(np.float64).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-25])
def test_float_cut_in_three_parts_is_whole(scale: float) -> None:
    x = normal(4, 8) * scale
    x[0, :3] = torch.tensor([float("inf"), float("nan"), 3.4e38])
    y = torch.zeros_like(x)
    sum_of_parts[(1,)](x, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy())


@triton.jit
def sum_of_parts(x, y):
    at = tl.arange(0, 32)
    first, second, third = helpers.bfloat16_parts(tl.load(x + at))
    tl.store(y + at, first.to(tl.float32) + (second.to(tl.float32) + third.to(tl.float32)))


@pytest.mark.parametrize(("rows_", "columns", "width"), [(5, 37, 20), (16, 32, 32), (1, 1, 1)])
def test_attention_alone(rows_: int, columns: int, width: int) -> None:
    q, k, v = normal(rows_, width), normal(columns, width), normal(columns, width)
    y = torch.full((rows_, width), float("nan"))
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 32, "BLOCK_E": 32, "GROUP": 1, "CUTS": 4, "INDEX_BITS": 32}
    attention.attention[(-(-rows_ // 16),)](q, k, v, y, rows_, columns, width, PARTS=1, **tiles)
    p = np.exp(q.numpy().astype(np.float64) @ k.numpy().T)
    np.testing.assert_allclose(y.numpy(), p @ v.numpy() / p.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_parts_of_attention_joined_alone() -> None:
    """A part without keys has the largest score minus infinity and the sum 0."""
    outputs, tops, totals = normal(4, 9, 32), normal(4, 9), normal(4, 9).abs()
    outputs[2], tops[2], totals[2] = 0.0, float("-inf"), 0.0
    y = torch.full((9, 20), float("nan"))
    constants = {"BLOCK_M": 4, "BLOCK_E": 32, "GROUP": 1, "PARTS": 4, "INDEX_BITS": 32}
    attention_join.attention_join[(3,)](outputs, tops, totals, y, 9, 20, **constants)
    shrink = np.exp2(tops.numpy().astype(np.float64))
    want = (outputs.numpy() * shrink[:, :, None]).sum(0) / (totals.numpy() * shrink).sum(0)[:, None]
    np.testing.assert_allclose(y.numpy(), want[:, :20], rtol=1e-4, atol=1e-5)


def test_finish_alone_is_a_square_root() -> None:
    x, y = torch.full((1,), 2.25), torch.zeros(1)
    finish.finish[(1,)](x, y, INDEX_BITS=32)
    assert y.item() == 1.5


def test_functions_of_float32_are_near_at_every_exponent() -> None:
    """tanh within 3 ulp of its result, what has 1 added within 3 ulp of 1; exp within 4 and what an ulp of x makes."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38], np.float32)
    anything = RNG.integers(0, 2**32, 3072 - len(special), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = torch.from_numpy(np.concatenate([special, anything, RNG.uniform(-12, 12, 1024).astype(np.float32)]))
    y = torch.zeros(4, 4096)

    @triton.jit
    def apply(x, y):  # type: ignore[no-untyped-def]
        i = tl.arange(0, 4096)
        v = tl.load(x + i)
        tl.store(y + i, helpers.float_tanh(v))
        tl.store(y + 4096 + i, helpers.one_plus_tanh(v))
        tl.store(y + 8192 + i, helpers.one_plus_erf(v))
        tl.store(y + 12288 + i, helpers.exp_of_rounded(v * 8.0))

    with np.errstate(all="ignore"):
        apply[(1,)](x, y)
    wide = x.numpy().astype(np.float64)
    tanh, erfc = np.tanh(wide), np.array([math.erfc(-v) for v in wide])
    with np.errstate(over="ignore"):
        exp = np.exp(wide * 8.0)
        exp = np.where(exp > np.finfo(np.float32).max, np.inf, exp)
    moved = exp * np.abs(wide) * 8.0 * 2.0**-23 + 4 * ulp(exp, FLOAT)
    for got, want, bound in zip(
        y.numpy().astype(np.float64),
        (tanh, 1 + tanh, erfc, exp),
        (3 * ulp(tanh, FLOAT), 3 * 2.0**-23, 3 * 2.0**-23, moved),
        strict=True,
    ):
        assert np.all((np.abs(got - want) <= bound) | (got == want) | (np.isnan(got) & np.isnan(want)))
    np.testing.assert_array_equal(np.signbit(y[0, :2].numpy()), [False, True])
