"""Every way of computing products (tensor maps, walking programs, parts of K, swapped), in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import FLOAT, HALF
from fuseplan.engines.base import Support
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamKind
from fuseplan.ir.region import Region
from tests.kernels import triton_cases as made
from tests.kernels.triton_interpret import run_interpreted
from tests.kernels.triton_interpreted import check_close

# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
TILE = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "SPLIT_N": 1, "SWAP": 0, "MAPS": 1, "PROGRAMS": 0, "SPLIT_K": 1}
WAYS = {
    "one-tile": {},
    "walking": {"PROGRAMS": 1, "SPLIT_N": 2},
    "parts": {"SPLIT_K": 4},
    "swapped": {"SWAP": 1, "PROGRAMS": 1},
    "swapped-parts": {"SWAP": 1, "SPLIT_K": 2},
    "pointers-parts": {"MAPS": 0, "SPLIT_K": 2},
    "pointers-swapped": {"MAPS": 0, "SWAP": 1},
    "pointers-walking": {"MAPS": 0, "PROGRAMS": 1},
}


def plain() -> Region:
    """Odd extents; the left operand lies by columns, so does the output."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((40, 72), HALF, (1, 40)), d.load((72, 50), HALF, (56, 1)))
    d.store(d.op("cast", product, dtype=HALF), (1, 48))
    return d.region()


def batched() -> Region:
    """Two batch axes, over one of which the right operand is repeated; bias, two outputs and a maximum."""
    d = made.Draft(4)
    a, b = d.load((2, 3, 20, 24), HALF), d.load((1, 3, 24, 40), HALF, (0, 960, 1, 24))
    product = d.op("add", d.op("matmul", a, b), d.load((1, 1, 1, 40), HALF))
    d.store(product)
    d.store(d.op("cast", d.op("tanh", product), dtype=HALF))
    d.store(d.op("reduce", d.op("abs", product), mode="max", axes=(0, 1, 2, 3)))
    return d.region()


def in_front() -> Region:
    """Work in front of both operands that makes something of the zeros outside of K; a sum over the rows."""
    d = made.Draft(2)
    a = d.op("cast", d.op("exp", d.op("mul", d.load((19, 40), HALF), d.load((19, 1), FLOAT))), dtype=HALF)
    b = d.op("cast", d.op("cos", d.load((40, 48), HALF)), dtype=HALF)
    product = d.op("matmul", a, b)
    d.store(product)
    d.store(d.op("reduce", product, mode="add", axes=(0,)))
    return d.region()


def one_row() -> Region:
    d = made.Draft(2)
    d.store(d.op("matmul", d.load((1, 80), HALF), d.load((80, 72), HALF, (1, 80))))
    return d.region()


def shared() -> Region:
    """Gate and up, which share their left operand."""
    d = made.Draft(2)
    a = d.load((24, 64), HALF)
    gate, up = (d.op("matmul", a, d.load((64, 40), HALF)) for _ in range(2))
    d.store(d.op("mul", d.op("tanh", gate), up))
    return d.region()


GUARD = 256  # elements in front of and behind each buffer


def guard(buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.full(GUARD, 3, buffer.dtype)


def emitted(region: Region, knobs: dict[str, int]) -> Emitted:
    """Kernels for a device of two multiprocessors, so that programs walk over several tiles."""
    found = ENGINE.match(region, replace(made.device(), sm_count=2))
    assert not isinstance(found, Support), found.reason
    return found[0].emit(found[1], tuple({**TILE, **knobs}.items()))


def num_maps(made_: Emitted) -> int:
    kernels = [s for s in made_.steps if isinstance(s, Kernel)]
    return sum(p.kind is ParamKind.MAP for k in kernels for p in k.params)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [plain, batched, in_front, one_row, shared])
def test_region_matches_float64(make: Callable[[], Region], way: str) -> None:
    region, knobs = make(), WAYS[way]
    kernels = emitted(region, knobs)
    assert (num_maps(kernels) > 0) == bool({**TILE, **knobs}["MAPS"])
    guarded = [np.concatenate([guard(b), b, guard(b)]) for b in made.buffers_for(region, np.random.default_rng(7))]
    buffers = [g[GUARD:-GUARD] for g in guarded]
    before, expected = [b.copy() for b in buffers], made.evaluate(region, buffers)
    for _ in range(2):
        run_interpreted(region, kernels, buffers)
        for (_, number), want in zip(region.stores, expected, strict=True):
            operand = region.operands[number]
            check_close(made.view_of(operand, buffers[number]), want, operand.dtype, region)
            gap, old = made.untouched(operand, buffers[number]), made.untouched(operand, before[number])
            np.testing.assert_array_equal(gap, old)
        for held, buffer in zip(guarded, buffers, strict=True):  # a tile's edge must not reach beyond
            np.testing.assert_array_equal(held[:GUARD], guard(buffer))
            np.testing.assert_array_equal(held[-GUARD:], guard(buffer))


def test_addresses_that_maps_do_not_take_get_kernels_without_them() -> None:
    kernels = emitted(plain(), {})
    assert kernels.unaligned is not None and num_maps(kernels.unaligned()) == 0
