"""Reduction and norm kernels of `cpu_c`: row form, and column form through private scratch."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, HALF, INT8, INT32, INT64, DType
from fuseplan.engines.cpu_c.engine import ENGINE
from fuseplan.engines.cpu_c.forms.columns import ColumnSchedule, ColumnsForm
from fuseplan.ir.region import Region, Role
from tests.kernels.cpu_c_harness import CPU, RegionBuilder, interpret, near, random_array, run_region

MODES = ("add", "mul", "max", "min")
DIM = (3, 4, 5, 6)
AXES = [axes for n in range(1, 5) for axes in combinations(range(4), n)]


def inputs_of(region: Region, seed: int, low: float = -2.0, high: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [random_array(rng, o, low, high) for o in region.operands if o.role is not Role.OUT]


def check(
    region: Region, seed: int = 0, scale: float = 4.0, floor: float = 0.0, low: float = -2.0, high: float = 2.0
) -> None:
    """Every output against float64 arithmetic with the region's roundings."""
    inputs = inputs_of(region, seed, low, high)
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, a, e in zip(outs, run_region(region, inputs), interpret(region, inputs, exact=True), strict=True):
        near(a, e, o.dtype, scale, floor)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_all_modes_over_all_axes_match_numpy(axes: tuple[int, ...]) -> None:
    b = RegionBuilder()
    x = b.load(DIM, stride=(120, 1, 24, 4) if len(axes) % 2 else None)
    for mode in MODES:
        b.store(b.reduce(mode, x, axes))
    check(b.region(), floor=4.0)


@pytest.mark.parametrize("compute", [DOUBLE, HALF, BFLOAT16, INT8, INT32, INT64, BOOLEAN], ids=str)
@pytest.mark.parametrize("axes", [(2,), (0,)], ids=str)
def test_modes_in_every_compute_type_match_numpy(axes: tuple[int, ...], compute: DType) -> None:
    b = RegionBuilder(compute)
    x = b.load((4, 3, 9), compute)
    for mode in MODES:
        b.store(b.reduce(mode, x, axes, dtype=INT32 if compute is BOOLEAN else compute))
    if compute is not INT8:
        check(b.region(), floor=2.0 if compute.is_float else 0.0)
        return
    region = b.region()
    (x_in,) = inputs_of(region, 1)
    wide = x_in.astype(np.int64)
    table = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}
    for mode, a in zip(MODES, run_region(region, [x_in]), strict=True):
        exact = table[mode](wide, axis=axes, keepdims=True)
        wrapped = (exact + 2**31) % 2**32 - 2**31  # sums and products wrap around in 32 bits, then saturate
        np.testing.assert_array_equal(a, np.clip(wrapped, -128, 127))


def test_integer_sums_wrap_around() -> None:
    for axes in ((1,), (0,)):
        b = RegionBuilder(INT32)
        b.store(b.reduce("add", b.load((70, 80), INT32), axes))
        x = np.full((70, 80), 2**30 + 12345, np.int32)
        (a,) = run_region(b.region(), [x])
        exact = x.shape[axes[0]] * (2**30 + 12345)
        assert (a == (exact + 2**31) % 2**32 - 2**31).all()


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)], ids=str)
@pytest.mark.parametrize("place", [0, 17, 32])
@pytest.mark.parametrize("sign", [1, -1])
def test_maximum_and_minimum_propagate_nan_from_any_position(axes: tuple[int, ...], place: int, sign: int) -> None:
    b = RegionBuilder()
    x = b.load((33, 540))
    b.store(b.reduce("max", x, axes))
    b.store(b.reduce("min", x, axes))
    data = np.random.default_rng(2).normal(size=(33, 540)).astype(np.float32)
    data[place, place], data[32 - place, 507 + place] = np.copysign(np.nan, [sign, -sign])
    data[5, 6], data[6, 5] = np.inf, -np.inf
    high, low = run_region(b.region(), [data])
    np.testing.assert_array_equal(high, np.max(data, axis=axes, keepdims=True))
    np.testing.assert_array_equal(low, np.min(data, axis=axes, keepdims=True))


def softmax(dim: tuple[int, ...], axes: tuple[int, ...], stride: tuple[int, ...] | None = None) -> Region:
    b = RegionBuilder()
    x = b.load(dim, stride=stride)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x, axes)))
    b.store(b.op("div", e, b.reduce("add", e, axes)), stride)
    return b.region()


@pytest.mark.parametrize("axes", [(3,), (1,), (0, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("stride", [None, (120, 1, 24, 4)], ids=["row", "channels-last"])
def test_softmax_matches_float64(axes: tuple[int, ...], stride: tuple[int, ...] | None) -> None:
    check(softmax(DIM, axes, stride), scale=16)


def test_softmax_of_infinite_scores_is_zero_there() -> None:
    region = softmax((2, 3, 4, 5), (3,))
    x = np.zeros((2, 3, 4, 5), np.float32)
    x[..., 1:3] = -np.inf
    (a,) = run_region(region, [x])
    np.testing.assert_array_equal(a[..., 1:3], 0.0)
    np.testing.assert_array_equal(a[..., 0], np.float32(1) / np.float32(3))


def layernorm(dim: tuple[int, ...], axes: tuple[int, ...], io: DType, stride: tuple[int, ...] | None = None) -> Region:
    """Mean, inverse deviation and the scaled rows; the statistics are stored too."""
    b = RegionBuilder()
    inner = tuple(d if a in axes else 1 for a, d in enumerate(dim))
    x, scale, bias = b.load(dim, io, stride), b.load(inner, io), b.load(inner)
    count = b.op("count", x, dim=(1,) * len(dim), axes=axes)
    mean = b.op("div", b.reduce("add", x, axes), count)
    centred = b.op("sub", x, mean)
    var = b.op("div", b.reduce("add", b.op("mul", centred, centred), axes), count)
    inv = b.op("div", b.const(1.0, len(dim)), b.op("sqrt", b.op("add", var, b.const(1e-5, len(dim)))))
    y = b.op("add", b.op("mul", b.op("mul", centred, inv), scale), bias, dtype=io)
    b.store(y, stride)
    b.store(mean)
    b.store(inv)
    b.store(b.op("sqrt", b.reduce("add", b.op("mul", y, y), axes)))
    return b.region()


@pytest.mark.parametrize("io", [FLOAT, HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("dim", "axes", "stride"),
    [
        ((5, 64), (1,), None),
        ((2, 3, 7, 5), (1, 2, 3), None),
        ((2, 3, 7, 5), (0, 2, 3), (105, 1, 15, 3)),
        ((2, 3, 7, 5), (0, 2, 3), None),
        ((6, 1, 4), (0, 2), (4, 4, 1)),
    ],
    ids=["rows", "instance", "batch-nhwc", "batch-nchw", "unit-axis"],
)
def test_layernorm_with_statistics_matches_float64(
    dim: tuple[int, ...], axes: tuple[int, ...], stride: tuple[int, ...] | None, io: DType
) -> None:
    region = layernorm(dim, axes, io, stride)
    inputs = inputs_of(region, 3)
    outs = [o for o in region.operands if o.role is Role.OUT]
    actual, exact = run_region(region, inputs), interpret(region, inputs, exact=True)
    for o, a, e in zip(outs, actual, exact, strict=True):
        near(a, e, o.dtype, scale=16 if o.dtype is FLOAT else 4, floor=2.0)


def test_reduction_over_part_of_the_domain_uses_its_own_extents() -> None:
    """Sum of a row vector inside a region that walks a matrix: no element may count twice."""
    b = RegionBuilder()
    x, w = b.load((6, 8)), b.load((1, 8))
    total = b.reduce("add", b.op("mul", w, w), (1,))
    b.store(b.op("div", x, total))
    b.store(total)
    b.store(b.op("mul", b.reduce("add", x, (1,)), total))
    check(b.region(), scale=16, floor=1.0)


def test_zero_strides_do_not_hide_that_extents_differ() -> None:
    """Both operands allow one loop over both axes by strides, but the second has four elements, not 32."""
    b = RegionBuilder()
    x, y = b.load((4, 8)), b.load((4, 1), stride=(0, 0))
    b.store(b.op("sub", x, b.reduce("add", x, (0, 1))))
    b.store(b.reduce("add", y, (0, 1)))
    check(b.region(), scale=8, floor=1.0)


def test_reduction_over_unit_axes_keeps_its_argument() -> None:
    b = RegionBuilder()
    x = b.load((4, 1, 6))
    r = b.reduce("add", x, (1,))
    b.store(r)
    b.store(b.reduce("max", b.op("neg", r), (1,)))
    region = b.region()
    (x_in,) = inputs_of(region, 4)
    same, negated = run_region(region, [x_in])
    np.testing.assert_array_equal(same, x_in)
    np.testing.assert_array_equal(negated, -x_in)


def test_column_reduction_with_followers_matches_float64() -> None:
    b = RegionBuilder()
    x, y = b.load((40, 3, 16), HALF), b.load((40, 3, 16))
    product = b.op("mul", x, y)
    b.store(product)
    total = b.reduce("add", product, (0, 1))
    largest = b.reduce("max", b.op("abs", product), (0, 1), dtype=HALF)
    mean = b.op("div", total, b.op("count", product, dim=(1, 1, 1), axes=(0, 1)))
    b.store(total)
    b.store(largest)
    b.store(b.op("sub", mean, largest))
    region = b.region()
    assert isinstance(ColumnsForm().match(region, CPU), ColumnSchedule)
    check(region, scale=16, floor=4.0)


def test_reductions_over_different_axes_without_reuse_share_a_region() -> None:
    b = RegionBuilder()
    x = b.load((5, 6, 7))
    b.store(b.reduce("add", x, (0,)))
    b.store(b.reduce("max", x, (1,)))
    region = b.region()
    assert ENGINE.supports(region, CPU).is_supported
    check(region, scale=8, floor=2.0)


def test_reused_reductions_over_different_axes_are_refused_with_the_axes() -> None:
    b = RegionBuilder()
    x = b.load((5, 6))
    b.store(b.op("sub", x, b.reduce("add", x, (0,))))
    b.store(b.op("sub", x, b.reduce("max", x, (1,))))
    answer = ENGINE.supports(b.region(), CPU)
    assert not answer.is_supported
    assert "different axes" in answer.reason


def test_long_sums_lose_no_digits() -> None:
    b = RegionBuilder()
    x = b.load((1, 200_003))
    b.store(b.reduce("add", x, (1,)))
    b.store(b.reduce("mul", b.op("add", b.op("mul", x, b.const(1e-5, 2)), b.const(1.0, 2)), (1,)))
    region = b.region()
    (x_in,) = inputs_of(region, 5, 0.1, 1.0)
    total, product = run_region(region, [x_in])
    near(total, x_in.astype(np.float64).sum(keepdims=True), FLOAT, scale=1.01)
    factors = (x_in * np.float32(1e-5) + np.float32(1)).astype(np.float64)
    near(product, factors.prod(keepdims=True), FLOAT, scale=1.01)


def test_seven_axes_in_scrambled_order_match_float64() -> None:
    dim = (2, 3, 1, 2, 3, 2, 2)
    order = (3, 0, 5, 2, 6, 1, 4)  # from fastest to slowest
    stride, step = [0] * 7, 1
    for a in order:
        stride[a], step = step, step * dim[a]
    for axes in ((0, 4), (1, 2, 5), (3,), (6, 5)):
        b = RegionBuilder()
        x, y = b.load(dim, stride=stride), b.load((1, 3, 1, 1, 3, 1, 2))
        z = b.op("mul", x, y)
        b.store(b.op("sub", z, b.reduce("add", z, axes)), stride)
        b.store(b.reduce("min", z, axes))
        check(b.region(), scale=16, floor=4.0)


@pytest.mark.parametrize("io", [HALF, BFLOAT16], ids=str)
def test_value_that_is_kept_between_passes_can_be_stored_in_the_last(io: DType) -> None:
    b = RegionBuilder()
    x = b.load((5, 300), io)
    e = b.op("exp", x, dtype=io)
    b.store(b.op("div", e, b.reduce("add", e, (1,)), dtype=io))
    b.store(e)
    region = b.region()
    rng = np.random.default_rng(5)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, a, wanted in zip(outs, run_region(region, inputs), interpret(region, inputs, exact=True), strict=True):
        near(a, wanted, o.dtype, 1e-6)
