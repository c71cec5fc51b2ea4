"""Outputs in the buffers of inputs: every plan gives what it gives with buffers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn

Array = Any
Make = Callable[..., Sequence[Any]]
FLOAT = cudnn.data_type.FLOAT
INFERENCE = cudnn.norm_forward_phase.INFERENCE
ROWS = [(4, 6, 32), (2, 5, 37), (1, 3, 4096)]


def check_in_place(make: Make, inputs: Sequence[Array], places: Sequence[int | None], want: Sequence[Array]) -> None:
    """Run every plan, and the tuned one, with output i in the buffer of input `places[i]`."""
    g = cudnn.pygraph(io_data_type=FLOAT, device="cpu")
    tensors = [g.tensor_like(x) for x in inputs]
    outs = make(g, *tensors)
    for out in outs:
        out.set_output(True)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert g.get_execution_plan_count() > 1

    def run(call: Callable[[dict[Any, Array]], object]) -> None:
        held = [x.copy() for x in inputs]
        made = [
            np.full(o.get_dim(), np.nan, np.float32) if p is None else held[p]
            for o, p in zip(outs, places, strict=True)
        ]
        call(dict(zip((*tensors, *outs), (*held, *made), strict=True)))
        for got, exact in zip(made, want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=2e-4, atol=2e-4)

    for i in range(g.get_execution_plan_count()):
        workspace = np.empty(g.get_workspace_size_plan_at_index(i), np.uint8)
        run(lambda pack, i=i, w=workspace: g.execute_plan_at_index(pack, w, i))  # type: ignore[misc]
    run(lambda pack: g.autotune(pack, budget_s=1.0))
    run(lambda pack: g.execute(pack, np.empty(g.get_workspace_size(), np.uint8)))


def random(*dim: int) -> Array:
    return np.random.default_rng(sum(dim)).standard_normal(dim).astype(np.float32)


@pytest.mark.parametrize("dim", ROWS, ids=str)
@pytest.mark.parametrize("places", [(1, 0), (0, 1), (1, None), (None, 0)], ids=str)
def test_residual_and_norm_of_it(dim: tuple[int, ...], places: Sequence[int | None]) -> None:
    x, r, scale, epsilon = random(*dim), random(*dim) + 1, random(1, 1, dim[2]), np.full((1, 1, 1), 1e-5, np.float32)

    def make(g: Any, *t: Any) -> Sequence[Any]:
        total = g.add(t[0], t[1])
        return [total, g.rmsnorm(total, t[2], None, t[3], INFERENCE)[0]]

    h = x.astype(np.float64) + r
    norm = h / np.sqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale
    check_in_place(make, [x, r, scale, epsilon], places, [h, norm])


@pytest.mark.parametrize("dim", ROWS, ids=str)
@pytest.mark.parametrize("places", [(0, None), (None, 0)], ids=str)
def test_softmax_and_its_numerators(dim: tuple[int, ...], places: Sequence[int | None]) -> None:
    def make(g: Any, x: Any) -> Sequence[Any]:
        row = [*dim[:2], 1]
        top = g.reduction(x, cudnn.reduction_mode.MAX).set_dim(row)
        e = g.exp(g.sub(x, top))
        return [g.div(e, g.reduction(e, cudnn.reduction_mode.ADD).set_dim(row)), e]

    x = random(*dim)
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    check_in_place(make, [x], places, [e / e.sum(-1, keepdims=True), e])


@pytest.mark.parametrize("places", [(1, 0), (0, 1)], ids=str)
def test_outputs_that_change_places(places: Sequence[int]) -> None:
    x, y = random(7, 300), random(7, 300) + 1
    check_in_place(lambda g, a, b: [g.relu(a), g.add(a, b)], [x, y], places, [np.maximum(x, 0), x + y])


def test_copy_of_an_input_that_another_output_overwrites() -> None:
    x = random(7, 300)
    check_in_place(lambda g, a: [g.neg(a), g.identity(a)], [x], (0, None), [-x, x])


@pytest.mark.parametrize("places", [(2, 3), (3, 2), (3, None)], ids=str)
def test_matmul_with_a_residual_and_a_gate(places: Sequence[int | None]) -> None:
    a, b, r, q = random(2, 20, 24), random(2, 24, 17), random(2, 20, 17), random(2, 20, 17) + 1

    def make(g: Any, *t: Any) -> Sequence[Any]:
        h = g.add(g.matmul(t[0], t[1]), t[2])
        return [h, g.mul(g.relu(h), t[3])]

    h = a.astype(np.float64) @ b + r
    check_in_place(make, [a, b, r, q], places, [h, np.maximum(h, 0) * q])
