"""Matmul and convolution kernels of `cpu_c` with epilogues and closing reductions."""

from __future__ import annotations

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, HALF, INT8, INT32, INT64, UINT8, DType
from fuseplan.engines.cpu_c.engine import ENGINE
from fuseplan.ir.region import Region, Role
from tests.kernels.cpu_c_harness import CPU, RegionBuilder, interpret, near, random_array, run_region


def check(region: Region, seed: int = 0, scale: float = 8.0) -> None:
    """Against float64; the bound is relative to the sum of magnitudes, that is to the largest result at least."""
    rng = np.random.default_rng(seed)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, a, e in zip(outs, run_region(region, inputs), interpret(region, inputs, exact=True), strict=True):
        finite = np.abs(np.asarray(e, np.float64))
        near(a, e, o.dtype, scale, floor=float(finite.max(initial=1.0)))


def matmul(a: tuple[int, ...], b: tuple[int, ...], types: tuple[DType, DType], compute: DType, out: DType,
           a_stride: tuple[int, ...] | None = None, b_stride: tuple[int, ...] | None = None) -> Region:  # fmt: skip
    r = RegionBuilder(compute)
    x, w = r.load(a, types[0], a_stride), r.load(b, types[1], b_stride)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    r.store(r.op("matmul", x, w, dim=(*batch, a[-2], b[-1]), dtype=out))
    return r.region()


MATMULS = {
    "plain": ((5, 7), (7, 9), None, None),
    "ones": ((1, 1, 1), (1, 1, 1), None, None),
    "row-times-column": ((1, 33), (33, 1), None, None),
    "column-times-row": ((33, 1), (1, 70), None, None),
    "several-blocks": ((3, 65), (65, 130), None, None),
    "exact-block": ((2, 64), (64, 64), None, None),
    "batched": ((3, 4, 5), (3, 5, 6), None, None),
    "broadcast-a": ((1, 2, 4, 5), (3, 2, 5, 6), None, None),
    "broadcast-both": ((3, 1, 4, 5), (1, 2, 5, 6), None, None),
    "transposed-a": ((2, 6, 5), (2, 5, 7), (30, 1, 6), None),
    "transposed-b": ((2, 6, 50), (2, 50, 70), None, (3500, 1, 50)),
    "transposed-both": ((2, 6, 50), (2, 50, 7), (300, 1, 6), (350, 1, 50)),
    "strided": ((2, 3, 4), (2, 4, 5), (40, 12, 3), (60, 14, 2)),
    "zero-stride-batch": ((3, 4, 5), (3, 5, 2), (0, 5, 1), None),
    "zero-stride-rows": ((4, 5), (5, 3), (0, 1), (0, 1)),
}


@pytest.mark.parametrize("name", list(MATMULS))
def test_matmul_shapes_and_strides_match_float64(name: str) -> None:
    a, b, a_stride, b_stride = MATMULS[name]
    check(matmul(a, b, (FLOAT, FLOAT), FLOAT, FLOAT, a_stride, b_stride))


TYPES = {
    "double": ((DOUBLE, DOUBLE), DOUBLE, DOUBLE),
    "half": ((HALF, HALF), FLOAT, HALF),
    "bf16-mixed": ((BFLOAT16, FLOAT), FLOAT, BFLOAT16),
    "half-compute": ((HALF, HALF), HALF, HALF),
    "bf16-compute": ((FLOAT, BFLOAT16), BFLOAT16, FLOAT),
    "int8": ((INT8, UINT8), INT32, INT32),
    "int64": ((INT64, INT32), INT64, INT64),
    "float-from-int8": ((INT8, HALF), FLOAT, FLOAT),
}


@pytest.mark.parametrize("is_transposed", [False, True], ids=["columns", "dot"])
@pytest.mark.parametrize("name", list(TYPES))
def test_matmul_types_match_float64(name: str, is_transposed: bool) -> None:
    types, compute, out = TYPES[name]
    check(matmul((2, 5, 20), (2, 20, 9), types, compute, out, None, (180, 1, 20) if is_transposed else None))


def test_integer_matmul_wraps_around() -> None:
    region = matmul((2, 4), (4, 3), (INT32, INT32), INT32, INT32)
    a, b = np.full((2, 4), 2**30 + 1, np.int32), np.full((4, 3), 3, np.int32)
    (y,) = run_region(region, [a, b])
    exact = 4 * 3 * (2**30 + 1)
    assert (y == (exact + 2**31) % 2**32 - 2**31).all()


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2), (2,), (0,), (0, 1)], ids=str)
@pytest.mark.parametrize("b_stride", [None, pytest.param((0, 1, 24), marks=pytest.mark.full)], ids=["columns", "dot"])
def test_matmul_epilogue_with_two_outputs_and_closing_reductions(
    axes: tuple[int, ...], b_stride: tuple[int, ...] | None
) -> None:
    b = RegionBuilder()
    x, w = b.load((3, 10, 24), HALF), b.load((1, 24, 70), HALF, b_stride)
    bias, scale = b.load((1, 1, 70)), b.load((3, 10, 1))
    t = b.op("matmul", x, w, dim=(3, 10, 70))
    u = b.op("add", b.op("mul", t, scale), bias, dtype=HALF)
    y = b.op("max", u, b.const(0.25, 3))
    b.store(u, (700, 1, 10))
    b.store(y)
    b.store(b.reduce("max", b.op("abs", u), axes))
    b.store(b.reduce("min", u, axes, dtype=HALF))
    b.store(b.op("sqrt", b.reduce("add", b.op("mul", y, y), axes)))
    total = b.reduce("add", y, axes)
    b.store(b.op("div", total, b.op("count", y, dim=(1, 1, 1), axes=axes)))
    check(b.region(), scale=16)


def test_matmul_epilogue_reads_positions_and_its_own_operand() -> None:
    b = RegionBuilder()
    x, w = b.load((2, 6, 6)), b.load((2, 6, 6))
    t = b.op("matmul", x, w, dim=(2, 6, 6))
    is_below = b.op("le", b.op("index", t, axis=2), b.op("index", t, axis=1))
    b.store(b.op("select", is_below, b.op("add", t, x), b.const(-3.0, 3)))
    check(b.region())


def test_matmul_result_broadcasts_over_a_larger_epilogue() -> None:
    b = RegionBuilder()
    x, w, y = b.load((1, 1, 6)), b.load((1, 6, 5)), b.load((4, 3, 5))
    t = b.op("matmul", x, w, dim=(1, 1, 5))
    b.store(b.op("add", t, y))
    b.store(t)
    check(b.region())


def test_matmul_result_of_one_column_broadcasts_over_the_block_axis() -> None:
    b = RegionBuilder()
    x, w, y = b.load((4, 6)), b.load((6, 1)), b.load((4, 70))
    b.store(b.op("mul", b.op("matmul", x, w, dim=(4, 1)), y))
    check(b.region())


def test_amax_propagates_nan() -> None:
    b = RegionBuilder()
    x, w = b.load((40, 8)), b.load((8, 70))
    t = b.op("matmul", x, w, dim=(40, 70))
    b.store(b.reduce("max", b.op("abs", t), (0, 1)))
    data = np.ones((40, 8), np.float32)
    data[13, 2] = np.nan
    (a,) = run_region(b.region(), [data, np.ones((8, 70), np.float32)])
    assert np.isnan(a).all()


def channels_last(dim: tuple[int, ...]) -> tuple[int, ...]:
    """Packed strides with axis 1 fastest."""
    stride, step = [0] * len(dim), 1
    for axis in (1, *range(len(dim) - 1, 1, -1), 0):
        stride[axis], step = step, step * dim[axis]
    return tuple(stride)


# name: image, filter, pre, post, stride, dilation, flip
CONVS = {
    "3x3": ((2, 4, 5, 6), (3, 4, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), False),
    "1x1": ((2, 7, 4, 3), (70, 7, 1, 1), (0, 0), (0, 0), (1, 1), (1, 1), False),
    "stride-dilation": ((1, 3, 12, 11), (5, 3, 3, 2), (2, 1), (2, 1), (2, 3), (2, 3), False),
    "asymmetric": ((1, 2, 4, 5), (3, 2, 3, 3), (0, 2), (1, 0), (1, 2), (1, 1), False),
    "pad-over-filter": ((1, 2, 3, 3), (2, 2, 2, 2), (4, 3), (5, 4), (1, 1), (1, 1), False),
    "flipped": ((2, 4, 5, 6), (3, 4, 3, 2), (1, 1), (1, 1), (1, 1), (1, 1), True),
    "grouped": ((2, 6, 5, 4), (9, 2, 2, 3), (1, 1), (1, 1), (1, 1), (1, 1), False),
    "depthwise": ((2, 5, 6, 4), (10, 1, 3, 3), (1, 1), (1, 1), (2, 1), (1, 1), False),
    "one-axis": ((2, 3, 150), (4, 3, 5), (2,), (2,), (1,), (2,), False),
    "one-axis-stride": ((2, 3, 150), (4, 3, 4), (3,), (1,), (2,), (1,), True),
    "three-axes": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (1, 0, 1), (0, 1, 1), (1, 2, 1), (2, 1, 1), False),
    "one-output": ((1, 1, 3, 3), (1, 1, 3, 3), (0, 0), (0, 0), (1, 1), (1, 1), False),
}


def conv(name: str, io: DType, compute: DType, out: DType, is_channels_last: bool) -> tuple[RegionBuilder, int]:
    x, w, pre, post, stride, dilation, flip = CONVS[name]
    spatial = [
        1 + (n + p + q - d * (f - 1) - 1) // s
        for n, f, p, q, s, d in zip(x[2:], w[2:], pre, post, stride, dilation, strict=True)
    ]
    b = RegionBuilder(compute)
    image = b.load(x, io, channels_last(x) if is_channels_last else None)
    weight = b.load(w, io, channels_last(w) if is_channels_last else None)
    y = b.op("conv_fprop", image, weight, dim=(x[0], w[0], *spatial), dtype=out, pre_pad=pre, post_pad=post,
             stride=stride, dilation=dilation, flip=flip)  # fmt: skip
    return b, y


@pytest.mark.parametrize("is_channels_last", [True, False], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("name", list(CONVS))
def test_convolutions_match_float64(name: str, is_channels_last: bool) -> None:
    b, y = conv(name, FLOAT, FLOAT, FLOAT, is_channels_last)
    b.store(y, channels_last(b.values[y].dim) if is_channels_last else None)
    check(b.region())


@pytest.mark.parametrize("is_channels_last", [True, False], ids=["nhwc", "nchw"])
@pytest.mark.parametrize(
    ("io", "compute", "out"),
    [(HALF, FLOAT, HALF), (BFLOAT16, FLOAT, FLOAT), (DOUBLE, DOUBLE, DOUBLE), (INT8, INT32, INT32), (HALF, HALF, HALF)],
    ids=["half", "bf16", "double", "int8", "half-compute"],
)
def test_convolution_types_match_float64(io: DType, compute: DType, out: DType, is_channels_last: bool) -> None:
    b, y = conv("3x3", io, compute, out, is_channels_last)
    b.store(y)
    check(b.region())


@pytest.mark.parametrize("is_channels_last", [True, False], ids=["nhwc", "nchw"])
def test_convolution_epilogue_and_statistics_match_float64(is_channels_last: bool) -> None:
    b, y = conv("grouped", FLOAT, FLOAT, FLOAT, is_channels_last)
    dim = b.values[y].dim
    bias = b.load((1, dim[1], 1, 1))
    z = b.op("max", b.op("add", y, bias), b.const(0.0, 4), dtype=HALF)
    b.store(z, channels_last(dim) if is_channels_last else None)
    b.store(b.reduce("add", y, (0, 2, 3)))
    b.store(b.reduce("add", b.op("mul", y, y), (0, 2, 3)))
    check(b.region(), scale=16)


def test_convolution_of_one_row_broadcasts_over_a_larger_epilogue() -> None:
    for is_channels_last in (True, False):
        b, y = conv("one-output", FLOAT, FLOAT, FLOAT, is_channels_last)
        b.store(b.op("add", y, b.load((2, 3, 4, 5))))
        check(b.region())


def test_two_anchors_one_of_which_reads_the_other_and_reductions_in_front_are_refused_by_value() -> None:
    b = RegionBuilder()
    x = b.load((4, 4))
    once = b.op("matmul", x, x, dim=(4, 4))
    b.store(b.op("matmul", x, b.op("abs", once), dim=(4, 4)))
    refused = ENGINE.supports(b.region(), CPU)
    assert "two anchors" in refused.reason and "value 3 (matmul) needs value 1" in refused.reason
    assert refused.at == 3
    b = RegionBuilder()
    x = b.load((4, 4))
    scaled = b.op("div", x, b.reduce("max", x, (1,)))
    b.store(b.op("matmul", x, scaled, dim=(4, 4)))
    refused = ENGINE.supports(b.region(), CPU)
    assert "value 2 (div), which needs a reduction" in refused.reason
    assert refused.at == 3


def test_reduction_used_again_after_an_anchor_is_refused() -> None:
    b = RegionBuilder()
    x = b.load((4, 4))
    t = b.op("matmul", x, x, dim=(4, 4))
    b.store(b.op("sub", t, b.reduce("max", t, (1,))))
    assert "again over the reduced axes" in ENGINE.supports(b.region(), CPU).reason
