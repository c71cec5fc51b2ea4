"""Matrix products of `cpu_c`: types, orders, odd sizes and what is fused, on the vector widths that this CPU runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, HALF, INT8, INT32, DType
from fuseplan.engines.cpu_c import engine as cpu_c
from fuseplan.engines.forms import Memo
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Cost, Region, Role
from fuseplan.runtime.device import TIERS, native_features
from fuseplan.runtime.toolchain import compile_shared
from tests.kernels.cpu_c_harness import (
    CPU,
    RegionBuilder,
    build_divided,
    call,
    empty_array,
    interpret,
    near,
    random_array,
    run_region,
)

Shape = tuple[int, int, int, int]  # batch, M, N, K
Maker = Callable[[Shape, str, tuple[str, str]], Region]
ORDERS = ("rows", "columns")
TYPES = {
    "float": (FLOAT, FLOAT, FLOAT),
    "half": (HALF, FLOAT, HALF),
    "bfloat": (BFLOAT16, FLOAT, BFLOAT16),
    "double": (DOUBLE, DOUBLE, DOUBLE),
    "int8": (INT8, INT32, INT32),
}
# one row, few rows, a tile and a row more, a panel and a column more, more terms than one block of depth
SHAPES: list[Shape] = [
    (1, 1, 130, 67), (2, 7, 65, 129), (1, 19, 33, 17), (3, 55, 71, 40), (1, 25, 64, 1100), (1, 16, 100, 1030),
]  # fmt: skip


@pytest.fixture(params=["native", "x86-64-v3", "x86-64-v2"])
def march(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Kernels of the test are compiled for this target."""
    target: str = request.param
    if target != "native":
        if not set(native_features()).issuperset(TIERS[target]):
            pytest.skip(f"this CPU does not run {target}")
        monkeypatch.setattr(cpu_c, "compile_shared", partial(compile_shared, march=target))
        monkeypatch.setattr(cpu_c.ENGINE, "_built", Memo())
        monkeypatch.setattr(cpu_c.ENGINE, "_compiled", Memo())
    yield target


def strides(dim: Sequence[int], order: str) -> tuple[int, ...]:
    """Packed, with neighbours in a row or in a column."""
    batch, m, n = dim
    return packed_stride(dim) if order == "rows" else (m * n, 1, m)


def check(region: Region, seed: int = 0) -> None:
    """Against float64; errors of a sum are measured by the largest result."""
    rng = np.random.default_rng(seed)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, made, wanted in zip(outs, run_region(region, inputs), interpret(region, inputs, exact=True), strict=True):
        near(made, wanted, o.dtype, 16.0, floor=float(np.abs(np.asarray(wanted, np.float64)).max(initial=1.0)))


def factors(b: RegionBuilder, shape: Shape, io: DType, orders: tuple[str, str]) -> tuple[int, int]:
    batch, m, n, k = shape
    left, right = (batch, m, k), (batch, k, n)
    return b.load(left, io, strides(left, orders[0])), b.load(right, io, strides(right, orders[1]))


def plain(shape: Shape, name: str, orders: tuple[str, str]) -> Region:
    io, compute, out = TYPES[name]
    b = RegionBuilder(compute)
    x, w = factors(b, shape, io, orders)
    b.store(b.op("matmul", x, w, dim=shape[:3], dtype=out))
    return b.region()


def fused(shape: Shape, name: str, orders: tuple[str, str]) -> Region:
    """Computed in front of both factors, bias and activation behind, two outputs, a maximum, sums of columns."""
    io, compute, out = TYPES[name]
    batch, m, n, k = shape
    b = RegionBuilder(compute)
    x, w = factors(b, shape, io, orders)
    x = b.op("max", b.op("mul", x, b.load((1, 1, k), io)), b.const(0, 3, compute), dtype=io)
    w = b.op("add", w, b.load((batch, 1, n), io), dtype=io)
    product = b.op("matmul", x, w, dim=shape[:3])
    y = b.op("max", b.op("add", product, b.load((1, 1, n), io)), b.const(0, 3, compute))
    b.store(y, (m * n, 1, m))
    b.store(b.op("cast", product, dtype=out))
    b.store(b.reduce("max", b.op("abs", y), (0, 1, 2)))
    b.store(b.reduce("add", y, (0, 1)))
    return b.region()


def gated(shape: Shape, name: str, orders: tuple[str, str]) -> Region:
    """Two products with one left factor, and their product."""
    io, _, out = TYPES[name]
    b = RegionBuilder(TYPES[name][1])
    x, gate = factors(b, shape, io, orders)
    up = b.load((1, shape[3], shape[2]), io)
    one, two = b.op("matmul", x, gate, dim=shape[:3]), b.op("matmul", x, up, dim=shape[:3])
    b.store(b.op("mul", one, two, dtype=out))
    return b.region()


def some(names: Sequence[str]) -> list[object]:
    """All types, those that are not named in the full run only: each costs two kernels."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.full) for name in TYPES]


QUICK_FUSED = [("float", fused, "columns"), ("int8", gated, "rows")]


@pytest.mark.parametrize("right", ORDERS)
@pytest.mark.parametrize("left", [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.full)])
@pytest.mark.parametrize("name", some(["float"]))
def test_products_match_float64(name: str, left: str, right: str) -> None:
    for shape in SHAPES:
        check(plain(shape, name, (left, right)))


FUSED = [
    pytest.param(name, make, (order, order), id=f"{name}-{make.__name__}-{order}",
                 marks=() if (name, make, order) in QUICK_FUSED else pytest.mark.full)
    for name in TYPES for make in (fused, gated) for order in ORDERS
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "orders"), FUSED)
def test_fused_products_match_float64(name: str, make: object, orders: tuple[str, str]) -> None:
    for shape in SHAPES:
        check(make(shape, name, orders))  # type: ignore[operator]


@pytest.mark.parametrize(
    "orders", [pytest.param(("rows", "rows"), marks=pytest.mark.full), ("columns", "columns")], ids="-".join
)
@pytest.mark.parametrize("name", some(["double"]))
def test_products_match_float64_on_every_vector_width(march: str, name: str, orders: tuple[str, str]) -> None:
    for shape in SHAPES:
        check(plain(shape, name, orders))
    check(fused(SHAPES[3], name, orders))


# rows of tiles of every size, panels and pairs with a rest, more terms than are read at once
FEW_ROWS: list[Shape] = [
    (1, 1, 130, 67),
    (1, 2, 70, 96),
    (1, 3, 9, 1100),
    (1, 5, 200, 31),
    (2, 8, 64, 640),
    (1, 16, 65, 600),
]


QUICK_FEW = [("float", "rows"), ("bfloat", "columns")]


@pytest.mark.parametrize(("name", "right"), [
    pytest.param(name, right, id=f"{name}-{right}", marks=() if (name, right) in QUICK_FEW else pytest.mark.full)
    for name in ("float", "bfloat") for right in ORDERS
])  # fmt: skip
def test_few_rows_match_float64(name: str, right: str) -> None:
    for shape in FEW_ROWS:
        check(plain(shape, name, ("rows", right)))


def worked(region: Region) -> Region:
    """The region with the work that it has."""
    shapes = [o.dim for o in region.operands]
    m, n, k = shapes[-1][-2], shapes[-1][-1], shapes[0][-1]
    return replace(region, cost=Cost(2.0 * m * n * k, 4 * n * k, 4 * m * n))


@pytest.mark.parametrize(("make", "name"), [(plain, "bfloat"), (gated, "float")])
def test_tasks_that_divide_the_terms_add_up_in_one_order(make: Maker, name: str) -> None:
    for shape in [(1, 1, 300, 5000), (1, 7, 70, 9001)]:
        region = worked(make(shape, name, ("rows", "rows")))
        built = cpu_c.ENGINE.build(region, CPU, ())
        assert built.scratch_bytes > 0
        assert built.launches[0].tasks.count >= 4
        check(region)
        rng = np.random.default_rng(1)
        inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
        found = [[empty_array(o) for o in region.operands if o.role is Role.OUT] for _ in range(2)]
        for num_threads, outputs in enumerate(found, 1):
            call(built, [*inputs, *outputs], num_threads)
        for one, two in zip(*found, strict=True):
            np.testing.assert_array_equal(one, two)


def test_one_matrix_for_a_whole_batch_and_gaps_in_memory() -> None:
    b = RegionBuilder()
    x = b.load((3, 2, 29, 40), FLOAT, (9000, 4000, 50, 1))
    w = b.load((1, 1, 40, 90), FLOAT, (0, 0, 100, 1))
    b.store(b.op("matmul", x, w, dim=(3, 2, 29, 90)), (6000, 2900, 100, 1))
    check(b.region())


def test_rows_that_are_one_row_and_columns_that_are_one_column() -> None:
    b = RegionBuilder()
    x, w = b.load((2, 30, 50), FLOAT, (50, 0, 1)), b.load((2, 50, 70), FLOAT, (50, 1, 0))
    b.store(b.op("matmul", x, w, dim=(2, 30, 70)))
    check(b.region())


@pytest.mark.parametrize("shape", [(1, 200, 300, 100), (4, 96, 64, 96), (1, 5, 4000, 300)], ids=str)
def test_one_and_two_threads_give_the_same_bits(shape: Shape) -> None:
    region = fused(shape, "float", ("rows", "rows"))
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    built = build_divided(region)
    found = []
    for num_threads in (1, 2):
        outputs = [empty_array(o) for o in region.operands if o.role is Role.OUT]
        call(built, [*inputs, *outputs], num_threads)
        found.append(outputs)
    assert built.launches[0].tasks.count > 1
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_long_sums_lose_no_more_than_blocks_of_them() -> None:
    """Added up one by one, so many terms of equal sign lose far more."""
    b = RegionBuilder()
    x, w = b.load((20, 20_000)), b.load((20_000, 70))
    b.store(b.op("matmul", x, w, dim=(20, 70)))
    region = b.region()
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, o, 0.5, 1.5) for o in region.operands if o.role is not Role.OUT]
    wanted = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    error = np.abs(run_region(region, inputs)[0] - wanted) / wanted
    assert error.max() < 32 * 2.0**-24


def test_small_products_need_no_workspace_and_large_ones_say_how_much() -> None:
    small, large = (plain(shape, "float", ("rows", "rows")) for shape in ((1, 8, 8, 8), (1, 300, 300, 300)))
    assert cpu_c.ENGINE.build(small, CPU, ()).launches[0].tasks.thread_bytes == 0
    assert cpu_c.ENGINE.build(large, CPU, ()).launches[0].tasks.thread_bytes >= 300 * 64 * 4


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
def test_random_products_match_float64(seed: int) -> None:
    rng = np.random.default_rng(seed)
    makers = (plain, fused, gated)
    for _ in range(30):
        batch, m, n, k = int(rng.integers(1, 4)), *(int(2 ** rng.uniform(0, 8.2)) for _ in range(3))
        if rng.integers(8) == 0:
            k *= 20
        orders = ORDERS[rng.integers(2)], ORDERS[rng.integers(2)]
        name = list(TYPES)[rng.integers(len(TYPES))]
        region = makers[rng.integers(3)]((batch, m, n, k), name, orders)
        inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
        outs = [o for o in region.operands if o.role is Role.OUT]
        judged = interpret(region, inputs, exact=True)
        for built, num_threads in ((cpu_c.ENGINE.build(region, CPU, ()), 1), (build_divided(region), 2)):
            made = [empty_array(o) for o in outs]
            call(built, [*inputs, *made], num_threads)
            for o, actual, wanted in zip(outs, made, judged, strict=True):
                largest = float(np.abs(np.asarray(wanted, np.float64)).max(initial=1.0))
                near(actual, wanted, o.dtype, 32.0, floor=largest)
