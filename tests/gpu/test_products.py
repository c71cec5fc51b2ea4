"""Every way of computing products (tensor maps, walking programs, parts of K, swapped, shared tail) on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.base import Support
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.ir.region import Region
from fuseplan.runtime.device import cuda_devices
from tests.kernels import triton_cases as made
from tests.kernels import triton_gemm_interpreted as ways
from tests.kernels.test_triton_gpu import run_checked

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not cuda_devices(), reason="no CUDA device")]
REGIONS = [ways.plain, ways.batched, ways.in_front, ways.one_row, ways.shared]
TILE = {**ways.TILE, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("way", ways.WAYS)
@pytest.mark.parametrize("make", REGIONS)
def test_region_matches_float64(make: Callable[[], Region], way: str) -> None:
    run_checked(make(), tuple({**TILE, **ways.WAYS[way]}.items()))


@pytest.mark.parametrize("way", [way for way in ways.WAYS if "SPLIT_K" in ways.WAYS[way]])
@pytest.mark.parametrize("make", REGIONS)
def test_parts_of_k_are_joined_in_one_kernel(make: Callable[[], Region], way: str) -> None:
    config = tuple({**TILE, **ways.WAYS[way], "SHARED_TAIL": 1}.items())
    region, device = make(), cuda_devices()[0]
    found = ENGINE.match(region, device)
    assert not isinstance(found, Support)
    steps = found[0].emit(found[1], config).steps
    assert [step.function for step in steps if getattr(step, "is_cooperative", False)] == ["parts"]
    run_checked(region, config)


@pytest.mark.parametrize("parts", [32, 64])
def test_long_sums_of_few_results_are_joined_in_one_kernel(parts: int) -> None:
    tile = {**TILE, "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "SPLIT_K": parts, "SHARED_TAIL": 1}
    run_checked(long(40, 200, 65536, BFLOAT16), tuple(tile.items()))


def long(m: int, n: int, k: int, dtype: DType) -> Region:
    """A product of long sums, with a bias, the maximum of it and two outputs."""
    d = made.Draft(2)
    product = d.op("add", d.op("matmul", d.load((m, k), dtype), d.load((k, n), dtype, (1, k))), d.load((1, n), FLOAT))
    d.store(product)
    d.store(d.op("cast", product, dtype=dtype))
    d.store(d.op("reduce", d.op("abs", product), mode="max", axes=(0, 1)))
    return d.region()


@pytest.mark.parametrize("shape", [(1024, 1000, 4104), (1000, 2504, 8200)])
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF])
def test_tiles_of_the_last_wave_are_shared(shape: tuple[int, int, int], dtype: DType) -> None:
    region, device = long(*shape, dtype), cuda_devices()[0]
    tile = {**TILE, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "SPLIT_N": 2, "PROGRAMS": 1}
    config = tuple({**tile, "SHARED_TAIL": 1}.items())
    found = ENGINE.match(region, device)
    assert not isinstance(found, Support)
    assert any(getattr(step, "is_cooperative", False) for step in found[0].emit(found[1], config).steps)
    run_checked(region, config)


def scaled(m: int, n: int, k: int, dtype: DType, left: bool, right: bool) -> Region:
    """A product of operands that lie by rows or by columns, scaled, with a bias and a floor, in two types."""
    d = made.Draft(3)
    a = d.load((1, m, k), dtype, (m * k, k, 1) if left else (m * k, 1, m))
    b = d.load((1, k, n), dtype, (k * n, n, 1) if right else (k * n, 1, k))
    y = d.op("mul", d.op("matmul", a, b), d.load((1, 1, 1), FLOAT, scalar=True))
    y = d.op("max", d.op("add", y, d.load((1, 1, n), dtype)), d.const(-1.0))
    d.store(d.op("cast", y, dtype=dtype))
    d.store(y, (m * n, 1, m))
    return d.region()


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF])
def test_loads_and_products_have_warps_of_their_own(sides: tuple[bool, bool], dtype: DType) -> None:
    tile = {**TILE, "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "PROGRAMS": 1, "SPECIALISTS": 1}
    for shape, stages, parts in (((1000, 776, 520), 3, 2), ((3000, 5000, 136), 3, 2)):
        region = scaled(*shape, dtype, *sides)
        found = ENGINE.match(region, cuda_devices()[0])
        assert not isinstance(found, Support)
        config = tuple({**tile, "num_stages": stages, "SPLIT_N": parts}.items())
        assert any(getattr(step, "is_gluon", False) for step in found[0].emit(found[1], config).steps)
        run_checked(region, config)


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("parts", [2, 4])
def test_groups_of_warps_take_turns(sides: tuple[bool, bool], parts: int) -> None:
    """Several tiles a program; fewer tiles than programs; one step along K."""
    tile = {**TILE, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": 1, "SPECIALISTS": 2}
    config = tuple({**tile, "num_stages": 4, "SPLIT_N": parts}.items())
    for shape in ((3000, 5000, 136), (1000, 776, 520), (3000, 2504, 64)):
        region = scaled(*shape, BFLOAT16, *sides)
        found = ENGINE.match(region, cuda_devices()[0])
        assert not isinstance(found, Support)
        assert any(getattr(step, "is_gluon", False) for step in found[0].emit(found[1], config).steps)
        run_checked(region, config)


@pytest.mark.parametrize("shape", [(2040, 7160, 4104), (1000, 2504, 8200), (1000, 1784, 36000)])
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF])
def test_warps_of_their_own_share_the_tiles_of_the_last_wave(shape: tuple[int, int, int], dtype: DType) -> None:
    """By halves of a tile; three programs for two tiles; many programs for four tiles."""
    m, n, k = shape
    region, device = scaled(m, n, k, dtype, True, False), cuda_devices()[0]
    tile = {**TILE, "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 3, "SPLIT_N": 2, "PROGRAMS": 1}
    config = tuple({**tile, "SHARED_TAIL": 1, "SPECIALISTS": 1}.items())
    found = ENGINE.match(region, device)
    assert not isinstance(found, Support)
    steps = found[0].emit(found[1], config).steps
    assert any(getattr(step, "is_gluon", False) and getattr(step, "is_cooperative", False) for step in steps)
    run_checked(region, config)


def float_product(m: int, n: int, k: int) -> Region:
    d = made.Draft(2)
    d.store(d.op("matmul", d.load((m, k), FLOAT), d.load((k, n), FLOAT)))
    return d.region()


@pytest.mark.parametrize("parts", [0, 1])
def test_float_products_are_as_exact_as_float32(parts: int) -> None:
    tile = {**TILE, "MAPS": 0, "FLOAT_PARTS": parts}
    for shape in ((200, 136, 1000), (65, 33, 129)):
        run_checked(float_product(*shape), tuple(tile.items()))
