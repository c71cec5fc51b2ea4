"""Long rows, groups of rows, reductions shared out over tasks, and sums over rows beside a norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, HALF, INT32, DType
from fuseplan.engines.base import Support
from fuseplan.engines.cpu_c.engine import ENGINE
from fuseplan.engines.cpu_c.forms.columns import ColumnSchedule
from fuseplan.ir.region import Cost, Region, Role
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.runtime.toolchain import has_compiler
from tests.kernels.cpu_c_harness import CPU, RegionBuilder, call, empty_array, interpret, near, random_array, run_region

Array = np.ndarray[Any, Any]
TYPES = [FLOAT, BFLOAT16, HALF, DOUBLE]
pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")


def inputs_of(region: Region, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]


def check(region: Region, scale: float, floor: float, seed: int = 0) -> None:
    """Every output against float64 arithmetic with the region's roundings, in poisoned memory."""
    inputs = inputs_of(region, seed)
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, a, e in zip(outs, run_region(region, inputs, floor), interpret(region, inputs, exact=True), strict=True):
        near(a, e, o.dtype, scale, floor)


def schedule_of(region: Region) -> Any:
    found = ENGINE.match(region, CPU)
    assert not isinstance(found, Support), found.reason
    return found[1]


def softmax(dim: tuple[int, ...], io: DType, compute: DType) -> Region:
    b = RegionBuilder(compute)
    x = b.load(dim, io)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x, (1,))))
    b.store(b.op("div", e, b.reduce("add", e, (1,)), dtype=io))
    return b.region()


@pytest.mark.parametrize("io", TYPES, ids=str)
@pytest.mark.parametrize("length", [1, 511, 512, 513, 1500])
def test_softmax_of_rows_around_a_block_matches_float64(length: int, io: DType) -> None:
    region = softmax((5, length), io, DOUBLE if io is DOUBLE else FLOAT)
    check(region, scale=16, floor=0.0)


@pytest.mark.parametrize("size", [1023, 1_100_001])
def test_neighbours_of_bfloat16_in_pairs_keep_their_places(size: int) -> None:
    """In parts of any length; one output is an exact value rounded, one a rounded value, one a maximum."""
    b = RegionBuilder(FLOAT)
    x, y = b.load((size,), BFLOAT16), b.load((size,), BFLOAT16)
    product = b.op("mul", x, y, dtype=BFLOAT16)
    b.store(product)
    b.store(b.op("add", product, x, dtype=BFLOAT16))
    b.store(b.op("max", x, y, dtype=BFLOAT16))
    region = b.region()
    assert schedule_of(region).is_paired
    check(region, scale=4, floor=0.0)


@pytest.mark.parametrize("size", [1024, 1301])
def test_a_lone_sum_takes_both_elements_of_a_word(size: int) -> None:
    """Of what stands in the row and of what follows from a first sum."""
    b = RegionBuilder(FLOAT)
    x = b.load((5, size), BFLOAT16)
    rest = b.op("sub", x, b.reduce("add", x, (1,)))
    b.store(b.op("add", rest, b.reduce("add", b.op("mul", rest, rest), (1,)), dtype=BFLOAT16))
    region = b.region()
    found = ENGINE.match(region, CPU)
    assert not isinstance(found, Support), found.reason
    assert found[0].emit(found[1], ()).source.count("(both[0] + both[1])") == 2
    check(region, scale=4, floor=0.0)


def test_exponentials_are_computed_once_and_kept() -> None:
    region = softmax((5, 513), FLOAT, FLOAT)
    schedule = schedule_of(region)
    assert [region.values[i].op for one in schedule.passes for i in one.keeps] == ["exp"]
    assert ENGINE.build(region, CPU, ()).launches[0].tasks.thread_bytes == 2112  # 513 floats, up to whole lines
    long = softmax((1, 1 << 20), FLOAT, FLOAT)
    assert not any(one.keeps for one in schedule_of(long).passes)  # more than a cache holds: computed again


@pytest.mark.parametrize("io", TYPES, ids=str)
@pytest.mark.parametrize("dim", [(3, 511), (4, 1025), (3, 7, 130)], ids=str)
def test_norm_with_statistics_of_long_rows_matches_float64(dim: tuple[int, ...], io: DType) -> None:
    b = RegionBuilder(DOUBLE if io is DOUBLE else FLOAT)
    axes, rank = tuple(range(1, len(dim))), len(dim)
    x, scale = b.load(dim, io), b.load((1, *dim[1:]), io)
    count = b.op("count", x, dim=(1,) * rank, axes=axes)
    mean = b.op("div", b.reduce("add", x, axes), count)
    centred = b.op("sub", x, mean)
    var = b.op("div", b.reduce("add", b.op("mul", centred, centred), axes), count)
    inv = b.op("div", b.const(1.0, rank), b.op("sqrt", b.op("add", var, b.const(1e-5, rank))))
    b.store(b.op("mul", b.op("mul", centred, inv), scale, dtype=io))
    b.store(mean)
    b.store(inv)
    check(b.region(), scale=16, floor=2.0)


def all_sums(dim: tuple[int, ...], axes: tuple[int, ...], io: DType, stride: tuple[int, ...] | None = None) -> Region:
    b = RegionBuilder(io if io in (DOUBLE, INT32) else FLOAT)
    x = b.load(dim, io, stride)
    b.store(b.reduce("add", b.op("mul", x, x), axes))
    b.store(b.reduce("max", x, axes))
    b.store(b.reduce("min", x, axes))
    return b.region()


@pytest.mark.parametrize("io", [*TYPES, INT32], ids=str)
@pytest.mark.parametrize(
    ("dim", "axes"),
    [((1, 5001), (1,)), ((9, 700), (0, 1)), ((7, 33), (0,)), ((20, 9, 33), (1,)), ((3, 6, 5, 21), (0, 2)),
     ((2, 3, 9, 40), (0, 2, 3)), ((2, 530, 3), (1,)), ((40, 2, 3, 4), (1, 2))], ids=str,
)  # fmt: skip
def test_sums_over_any_axes_match_float64(dim: tuple[int, ...], axes: tuple[int, ...], io: DType) -> None:
    check(all_sums(dim, axes, io), scale=64 if io is DOUBLE else 8, floor=256.0)  # the judge is in double itself


def test_channels_last_statistics_match_float64() -> None:
    """Batch norm's reductions: over all axes but the fastest, which is the channel."""
    region = all_sums((3, 5, 6, 7), (0, 2, 3), FLOAT, (210, 1, 35, 5))
    assert schedule_of(region).rows > 1
    check(region, scale=8, floor=4.0)


def test_reductions_over_rows_and_over_columns_share_a_sweep() -> None:
    b = RegionBuilder()
    x, w = b.load((37, 600)), b.load((37, 1))
    y = b.op("mul", x, w)
    b.store(y)
    for axes in ((1,), (0,), (0, 1)):
        b.store(b.reduce("add", y, axes))
    b.store(b.reduce("max", y, (0,)))
    check(b.region(), scale=16, floor=64.0)


def with_cost(region: Region, read_bytes: int) -> Region:
    from dataclasses import replace

    return replace(region, cost=Cost(0.0, read_bytes, 4))


@pytest.mark.parametrize(("dim", "axes"), [((1, 1 << 18), (1,)), ((4, 65537), (0, 1)), ((2, 1_000_003), (1,))], ids=str)
def test_few_long_rows_are_shared_out_with_the_same_bits_for_any_threads(
    dim: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    b = RegionBuilder()
    x = b.load(dim)
    b.store(b.reduce("add", x, axes))
    b.store(b.reduce("max", b.op("abs", x), axes))
    region = with_cost(b.region(), 4 * dim[0] * dim[1])
    schedule = schedule_of(region)
    assert isinstance(schedule, ColumnSchedule)
    assert schedule.tiling.num_tasks > 4
    inputs = inputs_of(region, 3)
    built = ENGINE.build(region, CPU, ())
    results = []
    for num_threads in (1, 2, 5):
        outputs = [empty_array(o) for o in region.operands if o.role is Role.OUT]
        call(built, [*inputs, *outputs], num_threads)
        results.append(b"".join(a.tobytes() for a in outputs))
    assert results == results[:1] * 3
    for a, e in zip(outputs, interpret(region, inputs, exact=True), strict=True):
        near(a, e, FLOAT, scale=4, floor=4096.0)


def test_the_error_of_a_sum_does_not_grow_with_its_length() -> None:
    """All terms are equal and not a power of two: a sum of floats in a row would stop growing."""
    for dim, axes in (((1, 1 << 24), (1,)), ((1 << 18, 64), (0,)), ((64, 1 << 18), (1,))):
        b = RegionBuilder()
        b.store(b.reduce("add", b.load(dim), axes))
        region = b.region()
        outputs = [empty_array(o) for o in region.operands if o.role is Role.OUT]
        call(ENGINE.build(region, CPU, ()), [np.full(dim, 0.1, np.float32), *outputs])
        exact = float(np.float32(0.1)) * dim[axes[0]]
        assert np.abs(outputs[0] - exact).max() <= 4e-6 * exact


def norm_backward(dim: tuple[int, int], io: DType, has_mean: bool) -> Region:
    """Gradients of a norm: of x by row, of scale and bias over all rows."""
    b = RegionBuilder(DOUBLE if io is DOUBLE else FLOAT)
    dy, x, scale = b.load(dim, io), b.load(dim, io), b.load((1, dim[1]), io)
    mean, inv = b.load((dim[0], 1)), b.load((dim[0], 1))
    count = b.op("count", x, dim=(1, 1), axes=(1,))
    normal = b.op("mul", b.op("sub", x, mean) if has_mean else x, inv)
    g = b.op("mul", dy, scale)
    along = b.op("div", b.reduce("add", b.op("mul", g, normal), (1,)), count)
    rest = b.op("sub", g, b.op("mul", normal, along))
    if has_mean:
        rest = b.op("sub", rest, b.op("div", b.reduce("add", g, (1,)), count))
    b.store(b.op("mul", rest, inv, dtype=io))
    b.store(b.op("cast", b.reduce("add", b.op("mul", dy, normal), (0,)), dtype=io))
    b.store(b.reduce("add", dy, (0,)))
    return b.region()


@pytest.mark.parametrize("io", TYPES, ids=str)
@pytest.mark.parametrize("has_mean", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("dim", [(1, 1), (3, 64), (97, 33), (70, 1030)], ids=str)
def test_norm_backward_in_one_sweep_matches_float64(dim: tuple[int, int], io: DType, has_mean: bool) -> None:
    region = norm_backward(dim, io, has_mean)
    if dim[0] > 1:
        assert schedule_of(region).sums
    check(region, scale=32, floor=32.0)


def test_what_a_sum_over_rows_leads_to_may_not_need_a_row() -> None:
    b = RegionBuilder()
    x = b.load((8, 16))
    row, column = b.reduce("add", x, (1,)), b.reduce("add", x, (0,))
    b.store(b.op("sub", b.op("sub", x, row), column))
    assert "different axes" in ENGINE.supports(b.region(), CPU).reason


def test_quotients_by_one_divisor_are_rounded_once() -> None:
    """Also at the ends of the range, where the divisor's inverse is used."""
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, 1.1754942e-38, 1.0, 3.0, 1 / 3, 1e38, 1e-38, -7.0]
    rng = np.random.default_rng(7)
    divisors = np.array([*ends, *np.exp(rng.uniform(-80, 80, 50))], np.float32)
    x = np.concatenate([np.tile(np.array(ends, np.float32), (divisors.size, 1)),
                        np.exp(rng.uniform(-80, 80, (divisors.size, 600))).astype(np.float32)], axis=1)  # fmt: skip
    b = RegionBuilder()
    b.store(b.op("div", b.load(x.shape), b.load((divisors.size, 1))))
    (y,) = run_region(b.region(), [x, divisors[:, None]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, x / divisors[:, None])


@pytest.mark.parametrize("dtype", [BFLOAT16, HALF])
def test_quotients_by_one_divisor_that_are_rounded_to_a_half_type(dtype: DType) -> None:
    """Divisors at the ends of the range, whose inverse may be no number: at most the neighbour of the nearest value."""
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, 1.1754942e-38, 1.0, 3.0, 1 / 3, 1e38, 1e-38, -7.0]
    rng = np.random.default_rng(9)
    divisors = np.array([*ends, *np.exp(rng.uniform(-87, 87, 50))], np.float32)
    x = np.concatenate([np.tile(np.array(ends, np.float32), (divisors.size, 1)),
                        np.exp(rng.uniform(-87, 87, (divisors.size, 300))).astype(np.float32)], axis=1)  # fmt: skip
    b = RegionBuilder()
    quotient = b.op("div", b.load(x.shape), b.load((divisors.size, 1)))
    b.store(b.op("cast", quotient, dtype=dtype))
    (y,) = run_region(b.region(), [x, divisors[:, None]])
    with np.errstate(all="ignore"):
        exact = x / divisors[:, None]
        half = exact.astype(numpy_dtype(dtype))
        unit = np.maximum(np.abs(half.astype(np.float64)) * 2.0**-dtype.mantissa_bits, 1e-7 if dtype is HALF else 1e-40)
        close = np.abs(y.astype(np.float64) - half.astype(np.float64)) <= 1.01 * unit
    assert (close | (y == half) | (np.isnan(y) & np.isnan(half))).all()


@pytest.mark.parametrize("mode", ["max", "min"])
def test_extremes_of_long_rows_propagate_nan_of_either_sign(mode: str) -> None:
    x = np.random.default_rng(8).normal(size=(6, 1300)).astype(np.float32)
    x[0, 700] = np.nan
    x[1, 5] = np.copysign(np.float32(np.nan), np.float32(-1))
    x[2, 1299], x[3, 0] = np.inf, -np.inf
    x[4] = -np.inf if mode == "max" else np.inf
    x[5] = -np.abs(x[5])
    b = RegionBuilder()
    b.store(b.reduce(mode, b.load(x.shape), (1,)))
    (y,) = run_region(b.region(), [x])
    np.testing.assert_array_equal(y, (np.max if mode == "max" else np.min)(x, axis=1, keepdims=True))
