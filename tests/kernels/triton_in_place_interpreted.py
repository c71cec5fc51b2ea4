"""Outputs in the buffers of inputs, in Triton's interpreter; `test_triton_interpreter.py` starts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fuseplan.dtypes import FLOAT
from fuseplan.ir.region import Region, Role
from tests.kernels import triton_cases as made
from tests.kernels.triton_interpret import run_interpreted

# of the interpreter itself, where a loop's bound is a one-element array
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


def layer_norm() -> Region:
    """The sum x + y is stored beside its norm."""
    return made.add_layer_norm_gelu(6, 40, FLOAT)


def crossed_pair() -> Region:
    """relu(x) and x + y; y is read after the first is known."""
    d = made.Draft(2)
    x = d.load((3, 40), FLOAT)
    d.store(d.op("max", x, d.const(0.0)))
    d.store(d.op("add", x, d.load((3, 40), FLOAT)))
    return d.region()


def matmul_gate() -> Region:
    """h = a b + r, and h * q; q is read after h is known."""
    d = made.Draft(3)
    product = d.op("matmul", d.load((1, 20, 24), FLOAT), d.load((1, 24, 36), FLOAT))
    h = d.op("add", product, d.load((1, 20, 36), FLOAT))
    d.store(h)
    d.store(d.op("mul", h, d.load((1, 20, 36), FLOAT)))
    return d.region()


@pytest.mark.parametrize(
    ("make", "places", "knobs"),
    [
        (layer_norm, (0, None, None, 1), {}),
        (layer_norm, (0, None, None, 1), {"BLOCK": 16, "ROWS": 4}),
        (layer_norm, (1, None, None, None), {"BLOCK": 16}),
        (crossed_pair, (1, 0), {}),
        (matmul_gate, (3, 2), {}),
        (matmul_gate, (3, 2), {"BLOCK_N": 32, "SPLIT_N": 2}),
    ],
)
def test_outputs_in_the_buffers_of_operands(
    make: Callable[[], Region], places: Sequence[int | None], knobs: dict[str, int]
) -> None:
    region, rng = make(), np.random.default_rng(7)
    buffers = [made.buffer_for(o, rng, poison=o.role is Role.OUT) for o in region.operands]
    expected = made.evaluate(region, buffers)
    for (_, number), place in zip(region.stores, places, strict=True):
        buffers[number] = buffers[number] if place is None else buffers[place]
    run_interpreted(region, made.emitted(region, tuple(knobs.items())), buffers)
    for (_, number), want in zip(region.stores, expected, strict=True):
        got = made.view_of(region.operands[number], buffers[number])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(abs(want).max())))
