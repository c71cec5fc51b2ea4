"""Products of bfloat16 factors of `cpu_c` in tile registers, with plain C in the place of their instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.cpu_c import engine as cpu_c
from fuseplan.engines.cpu_c.forms import matmul_bf16
from fuseplan.engines.forms import Memo
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.runtime.launch import Artifact
from fuseplan.runtime.toolchain import compile_shared
from tests.kernels import cpu_c_harness
from tests.kernels.cpu_c_harness import (
    CPU,
    TILE_OPERATIONS,
    RegionBuilder,
    build_divided,
    call,
    empty_array,
    random_array,
)
from tests.kernels.test_cpu_c_matmul import Shape, check, fused, gated, plain

TILES = Device("cpu", features=("amx_bf16", "amx_tile", "avx512_bf16"))
# a tile and a row more, a panel and a column more, whole steps, more terms than one block of depth, more rows than a
# chunk, batches of one B with fewer rows than a tile
SHAPES: list[Shape] = [(1, 33, 33, 17), (3, 55, 71, 40), (1, 40, 64, 1100), (2, 64, 128, 64), (2, 600, 70, 64)]
ORDERS = [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns")]
FULL = [pytest.param(orders, marks=pytest.mark.full) for orders in ORDERS]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with tile registers: kernels for it are compiled with what stands for them."""

    def compiled(source: str, flags: tuple[str, ...], *, features: tuple[str, ...], **names: Any) -> Artifact:
        assert set(features) <= set(TILES.features)
        return compile_shared(source, (*flags, "-include", TILE_OPERATIONS), **names)

    monkeypatch.setattr(cpu_c, "compile_shared", compiled)
    monkeypatch.setattr(cpu_c_harness, "CPU", TILES)
    for name in ("_built", "_compiled"):
        monkeypatch.setattr(cpu_c.ENGINE, name, Memo())


def form_of(region: Region, device: Device) -> str:
    found = cpu_c.ENGINE.match(region, device)
    assert isinstance(found, tuple)
    return found[0].name


@pytest.mark.parametrize("orders", [ORDERS[3], *FULL[:3]], ids="-".join)
def test_products_match_float64(tiles: None, orders: tuple[str, str]) -> None:
    for shape in SHAPES:
        region = plain(shape, "bfloat", orders)
        assert form_of(region, TILES) == "matmul_bf16"
        check(region)


@pytest.mark.parametrize("orders", [ORDERS[0], FULL[3]], ids="-".join)
@pytest.mark.parametrize("make", [fused, pytest.param(gated, marks=pytest.mark.full)])
def test_fused_products_match_float64(tiles: None, make: Any, orders: tuple[str, str]) -> None:
    for shape in SHAPES:
        region = make(shape, "bfloat", orders)
        assert form_of(region, TILES) == "matmul_bf16"
        check(region)


def test_products_of_different_depth_with_one_matrix_for_a_batch(tiles: None) -> None:
    b = RegionBuilder()
    x, w = b.load((3, 2, 9, 40), BFLOAT16, (900, 410, 42, 1)), b.load((1, 1, 40, 90), BFLOAT16, (0, 0, 100, 1))
    deep, wide = b.load((3, 2, 9, 1500), BFLOAT16), b.load((1, 1, 1500, 90), BFLOAT16)
    one, two = b.op("matmul", x, w, dim=(3, 2, 9, 90)), b.op("matmul", deep, wide, dim=(3, 2, 9, 90))
    b.store(b.op("sub", one, two, dtype=BFLOAT16))
    region = b.region()
    assert form_of(region, TILES) == "matmul_bf16"
    check(region)


def test_what_lies_between_rows_does_not_count(tiles: None) -> None:
    b = RegionBuilder()
    x, w = b.load((1, 45, 50), BFLOAT16, (0, 61, 1)), b.load((1, 50, 47), BFLOAT16, (0, 1, 63))
    b.store(b.op("matmul", x, w, dim=(1, 45, 47)))
    region = b.region()
    rng, inputs = np.random.default_rng(0), []
    for o in region.operands[:2]:
        inputs.append(empty_array(o))  # NaN everywhere
        inputs[-1][...] = random_array(rng, o)
    (made,) = cpu_c_harness.run_region(region, inputs)
    np.testing.assert_allclose(made, inputs[0].astype(np.float64) @ inputs[1].astype(np.float64), rtol=1e-5, atol=1e-4)


def test_one_and_two_threads_give_the_same_bits(tiles: None) -> None:
    region = fused((2, 150, 300, 600), "bfloat", ("rows", "rows"))
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    built = build_divided(region)
    assert built.launches[0].tasks.count > 1
    found = []
    for num_threads in (1, 2):
        outputs = [empty_array(o) for o in region.operands if o.role is Role.OUT]
        call(built, [*inputs, *outputs], num_threads)
        found.append(outputs)
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_products_of_other_types_or_few_rows_are_computed_as_before() -> None:
    shape = (1, 64, 64, 64)
    for name in ("float", "half", "double", "int8"):
        assert form_of(plain(shape, name, ORDERS[0]), TILES) == "matmul"
    b = RegionBuilder()  # a factor that would have to be rounded, by its own type or by the compute type
    x, w, half = b.load((64, 64), BFLOAT16), b.load((64, 64), FLOAT), b.load((64, 64), BFLOAT16)
    b.store(b.op("matmul", x, w, dim=(64, 64)))
    b.store(b.op("matmul", x, half, dim=(64, 64), compute=HALF))
    assert form_of(b.region(), TILES) == "matmul"
    assert form_of(plain((1, 16, 64, 64), "bfloat", ORDERS[0]), TILES) == "matmul"
    assert form_of(plain(shape, "bfloat", ORDERS[0]), CPU) == "matmul"


def test_an_assembler_that_does_not_know_tiles_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_bf16, "assembles", lambda instruction: False)
    monkeypatch.setattr(cpu_c.ENGINE, "_matched", Memo())
    assert form_of(plain((1, 64, 64, 64), "bfloat", ORDERS[0]), TILES) == "matmul"


def test_kernels_with_tiles_are_not_loaded_by_a_cpu_without_them() -> None:
    if "amx_bf16" in cpu_device().features:
        pytest.skip("this CPU has them")
    with pytest.raises(cudnnGraphNotSupportedError, match="amx_bf16, amx_tile"):
        cpu_c.ENGINE.build(plain((1, 64, 64, 64), "bfloat", ORDERS[0]), TILES, ())
