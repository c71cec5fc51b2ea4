"""What the triton engine takes, refuses and offers; needs neither Triton nor a GPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, FP8_E8M0, HALF, INT8, INT32, DType
from fuseplan.engines.base import Support
from fuseplan.engines.triton import support
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.knobs import complete_knobs
from fuseplan.engines.triton.products.schedule import GemmSchedule
from fuseplan.engines.triton.products.tiles import Tile, gemm_shared_bytes
from fuseplan.errors import ArgumentError, cudnnGraphNotSupportedError
from fuseplan.ir.region import Cost, Region, Role, Value
from fuseplan.runtime.device import Device
from tests.kernels import triton_cases as made


def matmul(dtype: object, compute: object) -> Region:
    d = made.Draft(2)
    d.store(d.op("matmul", d.load((8, 8), dtype), d.load((8, 8), dtype), compute=compute))  # type: ignore[arg-type]
    return d.region()


def mixed_reductions() -> Region:
    d = made.Draft(2)
    x = d.load((8, 9), FLOAT)
    d.store(d.op("reduce", d.op("reduce", x, mode="add", axes=(0,)), mode="max", axes=(1,)))
    return d.region()


def normalised_operand() -> Region:
    """A reduction in front of a matmul."""
    d = made.Draft(2)
    x = d.load((8, 8), HALF)
    d.store(d.op("matmul", d.op("sub", x, d.op("reduce", x, mode="max", axes=(1,))), d.load((8, 8), HALF)))
    return d.region()


def chained_matmuls() -> Region:
    d = made.Draft(2)
    first = d.op("matmul", d.load((8, 8), HALF), d.load((8, 8), HALF))
    d.store(d.op("matmul", d.op("cast", first, dtype=HALF), d.load((8, 8), HALF)))
    return d.region()


def unequal_matmuls() -> Region:
    d = made.Draft(2)
    products = [d.op("matmul", d.load((8, k), HALF), d.load((k, 8), HALF)) for k in (8, 16)]
    d.store(d.op("add", *products))
    return d.region()


def reused_sum() -> Region:
    d = made.Draft(2)
    product = d.op("matmul", d.load((8, 8), HALF), d.load((8, 8), HALF))
    d.store(d.op("sub", product, d.op("reduce", product, mode="max", axes=(0, 1))))
    return d.region()


def partial_max() -> Region:
    d = made.Draft(2)
    product = d.op("matmul", d.load((8, 8), HALF), d.load((8, 8), HALF))
    d.store(d.op("reduce", product, mode="max", axes=(1,)))
    return d.region()


def of_operand(**changes: Any) -> Region:
    """x - 1 with an input that is something else than a plain one."""
    d = made.Draft(2)
    if "rows" in changes:
        d.load((8, 1), INT32)
    d.store(d.op("sub", d.load((8, 8), FLOAT, **changes), d.const(1.0)))
    return d.region()


def in_place(*, in_front: bool) -> Region:
    """An operand that is written, and read at other elements than those: in front of a matmul, or by a whole row."""
    d = made.Draft(2)
    state = d.load((8, 8) if in_front else (8, 1), FLOAT, role=Role.INOUT)
    if in_front:
        d.store_in_place(d.op("matmul", state, d.load((8, 8), FLOAT)), state)
    else:
        d.store_in_place(d.op("neg", state), state)
        d.store(d.op("add", state, d.load((8, 8), FLOAT)))
    return d.region()


def written_through_another_view() -> Region:
    d = made.Draft(2)
    d.store_in_place(d.op("neg", state := d.load((8, 8), FLOAT, role=Role.INOUT)), state)
    d.store(d.op("neg", d.load((8, 8), FLOAT, (1, 8), uid=0)))
    return d.region()


def joined_stores() -> Region:
    region = of_operand()
    joined = dataclasses.replace(region.operands[1], init=0.0, combine="add")
    return dataclasses.replace(region, operands=(region.operands[0], joined))


def of_op(op: str) -> Region:
    d = made.Draft(4)
    x, w = d.load((1, 8, 8, 8), HALF), d.load((1, 8, 8, 8), HALF)
    d.values.append(Value(op, (x, w), (1, 8, 8, 8), HALF, FLOAT))
    d.store(2)
    return d.region()


def of_type() -> Region:
    d = made.Draft(2)
    d.store(d.op("cast", d.load((8, 8), FP8_E8M0), dtype=FLOAT))
    return d.region()


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions as on a machine that has Triton."""
    monkeypatch.setattr(support, "missing_package", lambda: "")


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: matmul(DOUBLE, DOUBLE), "matmul in compute type DOUBLE"),
        (lambda: matmul(INT8, INT32), "matmul in compute type INT32"),
        (mixed_reductions, "reductions over different axes"),
        (normalised_operand, "a reduction in front of a matmul"),
        (chained_matmuls, "a matmul that reads another one's result"),
        (unequal_matmuls, "matmuls of different M, N or K"),
        (reused_sum, "used again over the tile"),
        (partial_max, "runs over all axes, or adds up in a dense FLOAT output"),
        (lambda: of_op("conv_fprop"), "'conv_fprop' has no kernel form"),
        (lambda: of_op("sdpa_backward"), "'sdpa_backward' has no kernel form"),
        (of_type, "type FP8_E8M0"),
        (lambda: of_operand(rows=(0, 1)), "packed sequences"),
        (lambda: of_operand(role=Role.SCRATCH), "scratch"),
        (joined_stores, "has a starting value or joins stores"),
        (lambda: in_place(in_front=True), "written in place, and read at other elements"),
        (lambda: in_place(in_front=False), "written in place, and read at other elements"),
        (written_through_another_view, "writes through another view"),
    ],
)
def test_refusal_has_its_reason(make: Callable[[], Region], reason: str) -> None:
    region = make()
    answer = ENGINE.supports(region, made.device())
    assert not answer.is_supported and reason in answer.reason
    with pytest.raises(cudnnGraphNotSupportedError, match="the triton engine cannot build"):
        ENGINE.build(region, made.device(), ())


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize(
    ("make", "at"),
    [
        (normalised_operand, 1),
        (chained_matmuls, 5),
        (unequal_matmuls, 5),
        (reused_sum, 4),
        (partial_max, 3),
        (mixed_reductions, 2),
        (lambda: matmul(DOUBLE, DOUBLE), 2),
        (of_type, 1),
        (lambda: in_place(in_front=True), 2),
    ],
)
def test_refusal_names_the_value_at_fault(make: Callable[[], Region], at: int) -> None:
    """A value that is computed, so that a cut can be made in front of it."""
    region = make()
    answer = ENGINE.supports(region, made.device())
    assert answer.at == at and region.values[at].op != "load"


@pytest.mark.usefixtures("with_triton")
def test_device_that_is_not_a_recent_gpu_is_refused() -> None:
    region = made.softmax(8, 8, FLOAT)
    assert ENGINE.supports(region, made.device()).is_supported
    assert "needs a CUDA device" in ENGINE.supports(region, Device("cpu")).reason
    old = dataclasses.replace(made.device(), arch="sm_75")
    assert "sm_75 is older than sm_80" in ENGINE.supports(region, old).reason


def test_absence_of_triton_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    support.missing_package.cache_clear()
    try:
        assert "triton is not installed: " in ENGINE.supports(made.softmax(8, 8, FLOAT), made.device()).reason
    finally:
        support.missing_package.cache_clear()


def test_importing_the_engine_imports_neither_triton_nor_torch() -> None:
    code = "import sys, fuseplan.engines.triton.engine; assert not {'triton', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    "region",
    [made.matmul_gelu_amax(16, 512, 1024, 512, BFLOAT16), made.softmax(64, 40000, HALF), made.rms_norm(9, 7, FLOAT)],
)
def test_configs_are_few_with_the_default_first(region: Region) -> None:
    space = ENGINE.knobs(region, made.device())
    configs = space.configs()
    assert 1 < len(configs) <= 6 and configs[0] == space.default and len(set(configs)) == len(configs)
    assert all(dict(c)[name] in values for c in configs for name, values in space.knobs.items())


def four_products(dtype: DType) -> Region:
    d = made.Draft(2)
    operands = [(d.load((512, 512), dtype), d.load((512, 512), dtype)) for _ in range(4)]
    products = [d.op("matmul", *pair) for pair in operands]
    d.store(d.op("add", d.op("add", *products[:2]), d.op("add", *products[2:])))
    return d.region()


@pytest.mark.parametrize(
    "region", [made.matmul_bias_gelu(1, 4096, 4096, 1024, HALF), four_products(HALF), four_products(FLOAT)]
)
def test_tiles_fit_the_shared_memory_of_small_chips(region: Region) -> None:
    device = made.device(120)
    found = ENGINE.match(region, device)
    assert not isinstance(found, Support) and isinstance(found[1], GemmSchedule)
    for config in ENGINE.knobs(region, device).configs():
        k = dict(config)
        tile = Tile(k["BLOCK_M"], k["BLOCK_N"], k["BLOCK_K"], k["num_warps"], k["num_stages"])
        assert gemm_shared_bytes(tile, found[1]) <= device.shared_bytes


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"TILE": 3}, "no knob 'TILE'"), ({"BLOCK": 100}, "power of two"), ({"num_warps": 0}, "power of two")],
)
def test_unknown_or_impossible_knob_is_refused(knobs: dict[str, int], message: str) -> None:
    space = ENGINE.knobs(made.softmax(8, 100, FLOAT), made.device())
    with pytest.raises(ArgumentError, match=message):
        complete_knobs(space, tuple(knobs.items()))


def test_estimate_grows_with_the_work() -> None:
    device = made.device()
    regions = [made.matmul_bias_gelu(1, m, 1024, 1024, HALF) for m in (256, 8192)]
    counted = [dataclasses.replace(r, cost=Cost(flops=2.0 * r.domain[1] * 2**20)) for r in regions]
    times = [ENGINE.estimate_us(r, device, ENGINE.knobs(r, device).default) for r in counted]
    assert 0 < times[0] < times[1]
