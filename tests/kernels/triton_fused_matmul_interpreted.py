"""Several matmuls in one kernel, and pointwise work in front of them, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import FLOAT, HALF, INT32, DType
from fuseplan.ir.region import Region, Role
from tests.kernels import dynamic_graphs as graphs
from tests.kernels import triton_cases as made
from tests.kernels.triton_dynamic_interpreted import run_graph
from tests.kernels.triton_interpret import run_interpreted
from tests.kernels.triton_interpreted import run_checked

# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
SMALL = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16}
GRAPHS = {"gated": graphs.gated, "scaled-matmul": graphs.scaled_matmul}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("dtype", [graphs.FLOAT, graphs.HALF])
@pytest.mark.parametrize("shape", [(32, 64, 48), (33, 45, 39), (1, 7, 1)])
@pytest.mark.parametrize("name", GRAPHS)
def test_graph_is_one_region_and_right(name: str, shape: graphs.Shape, dtype: Any, is_dynamic: bool) -> None:
    g = GRAPHS[name](shape, dtype, is_dynamic_shape_enabled=is_dynamic)
    texts, kernel = run_graph(g, SMALL)
    assert len(texts) == 1 and kernel.function == "gemm"


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_graph_is_right_in_column_parts(name: str, split: int) -> None:
    run_graph(GRAPHS[name]((20, 70, 24), is_dynamic_shape_enabled=False), {**SMALL, "SPLIT_N": split})


def three_products() -> Region:
    """Three matmuls: two share their left operand, two their right one; sums, a maximum and a half-type output."""
    d = made.Draft(3)
    a, other = d.load((2, 19, 9), FLOAT), d.load((1, 19, 9), HALF)
    b, c = d.load((1, 9, 35), FLOAT), d.load((2, 9, 35), FLOAT, (700, 1, 20))
    products = [d.op("matmul", a, b), d.op("matmul", a, c), d.op("matmul", other, b)]
    total = d.op("add", d.op("mul", products[0], products[1]), products[2])
    d.store(total)
    d.store(products[2])
    d.store(d.op("reduce", total, mode="add", axes=(0, 1)))
    d.store(d.op("reduce", d.op("abs", total), mode="max", axes=(0, 1, 2)))
    return d.region()


def both_sides() -> Region:
    """Pointwise work in front of both operands: positions, a host scalar, a mask; nothing is zero outside of K."""
    d = made.Draft(3)
    a, b = d.load((2, 19, 9), FLOAT), d.load((1, 9, 35), FLOAT)
    scale, rows = d.load((1, 1, 1), FLOAT, scalar=True), d.load((1, 9, 1), FLOAT)
    column = d.op("index", a, axis=2, dtype=INT32, dim=(1, 1, 9))
    mask = d.op("gt", column, d.const(3.0))
    left = d.op("exp", d.op("mul", a, scale))
    left = d.op("select", mask, left, d.const(1.0))
    right = d.op("cos", d.op("add", d.op("abs", b), rows))
    d.store(d.op("matmul", left, right))
    return d.region()


def narrow_operands() -> Region:
    """Operands that are computed from what lacks M, K or N."""
    d = made.Draft(2)
    left = d.op("add", d.load((19, 1), FLOAT), d.load((1, 9), FLOAT))
    right = d.op("mul", d.load((9, 1), FLOAT), d.load((1, 35), FLOAT))
    d.store(d.op("matmul", left, right))
    return d.region()


def repeated_operands() -> Region:
    """Operands that repeat one row or column of memory, read as they are and computed from."""
    d = made.Draft(2)
    row, column = d.load((19, 9), FLOAT, (0, 1)), d.load((9, 35), FLOAT, (1, 0))
    d.store(d.op("matmul", row, column))
    d.store(d.op("matmul", d.op("cos", row), d.op("cos", column)))
    return d.region()


def squared() -> Region:
    """x x, with x computed in the region and added behind the matmul as well."""
    d = made.Draft(2)
    x = d.op("tanh", d.load((24, 24), FLOAT))
    d.store(d.op("add", d.op("matmul", x, x), x))
    return d.region()


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("make", [three_products, both_sides, narrow_operands, repeated_operands, squared])
def test_region_matches_float64(make: Callable[[], Region], split: int) -> None:
    run_checked(make(), **SMALL, SPLIT_N=split)


def test_shared_operand_is_loaded_once() -> None:
    source = made.kernels(three_products())[0].source
    assert source.count("tl.load(x0") == 1 and source.count("tl.load(x2") == 1
    assert "tl.dot(a[0], b[1], acc[1]" in source and "tl.dot(a[1], b[0], acc[2]" in source


def windows(offsets: Sequence[int], dtype: DType) -> Region:
    """x[2:] y[:, 1:] + b from windows on memory."""
    d = made.Draft(2)
    a = d.load((17, 12), dtype, (20, 1), offset=offsets[0])
    b = d.load((12, 33), dtype, (40, 1), offset=offsets[1])
    d.store(d.op("add", d.op("matmul", a, b), d.load((1, 33), dtype, offset=offsets[2])))
    return d.region()


@pytest.mark.parametrize("offsets", [(8, 16, 4), (3, 1, 5)])
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_windows_on_memory_are_read_where_they_are(offsets: Sequence[int], dtype: DType) -> None:
    run_checked(windows(offsets, dtype), **SMALL)


def test_views_of_one_tensor_are_loads_of_their_own() -> None:
    d = made.Draft(2)
    halves = [d.load((6, 10), FLOAT, (20, 1), offset=o, uid=0) for o in (0, 10)]
    d.store(d.op("sub", d.op("mul", halves[0], halves[1]), d.load((6, 10), FLOAT, (1, 6), uid=0)))
    run_checked(d.region())


@pytest.mark.parametrize("make", ["pointwise", "matmul"])
def test_operand_written_in_place_is_read_first(make: str) -> None:
    d = made.Draft(2)
    if make == "pointwise":
        new = d.load((20, 36), FLOAT)
    else:
        new = d.op("matmul", d.load((20, 24), FLOAT), d.load((24, 36), FLOAT))
    state = d.load((20, 36), FLOAT, role=Role.INOUT)
    d.store_in_place(d.op("add", d.op("mul", state, d.const(0.5)), new), state)
    region = d.region()
    buffers = made.buffers_for(region, np.random.default_rng(3))
    (want,) = made.evaluate(region, buffers)
    run_interpreted(region, made.emitted(region), buffers)
    number = region.stores[0][1]
    np.testing.assert_allclose(made.view_of(region.operands[number], buffers[number]), want, rtol=1e-5, atol=1e-5)
