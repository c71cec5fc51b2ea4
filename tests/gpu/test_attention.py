"""Attention by warps of their own on a device: odd lengths, head dims, bounds, groups of heads, types and strides."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.engines.triton.attention.special import KNOBS
from fuseplan.engines.triton.engine import ENGINE
from tests.kernels.gpu_run import run_and_judge
from tests.kernels.test_attention_special import BF16, HALF, Dims, graph_of

LENGTHS = (1, 7, 333, 1025, 1152)
# table: options by name
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"use_causal_mask": True},
    "window": {"use_causal_mask": True, "sliding_window_length": 100},
    "bounds": {"diagonal_band_right_bound": 37, "diagonal_band_left_bound": 200},
}
UNEQUAL = [
    ((1, 4, 333, 64), (1, 4, 1025, 64)),
    ((1, 4, 1025, 128), (1, 4, 333, 128)),
    ((2, 2, 5, 64), (2, 2, 2000, 64)),
]


def judged(
    handle: Any, q: Dims, kv: Dims, dtype: Any = BF16, knobs: dict[str, int] | None = None, **options: Any
) -> None:
    """The first plan, or the one with some knobs changed, on random inputs and poisoned outputs, twice."""
    g = graph_of(q, kv, dtype, handle=handle, **options)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    own = next(p for p in g.plans if p.engine_name == "triton" and p.knobs["SPECIALISTS"])
    g.create_execution_plan(ENGINE.engine_ids[0], {**own.knobs, **(knobs or {})})
    g.build_plan_at_index(len(g.plans) - 1)
    verdict = run_and_judge(g, handle)
    assert verdict.is_right, (q, kv, options, verdict.message)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("dtype", [BF16, HALF])
def test_lengths_and_masks(handle: Any, mask: str, width: int, dtype: Any) -> None:
    for length in LENGTHS:
        q, kv = (1, 4, length, width), (1, 2, length, width)
        judged(handle, q, kv, dtype, is_by_rows=length % 2 > 0, **MASKS[mask])


@pytest.mark.parametrize(("q", "kv"), UNEQUAL)
@pytest.mark.parametrize("is_bottom", [False, True])
def test_unequal_lengths_and_rows_that_see_nothing(handle: Any, q: Dims, kv: Dims, is_bottom: bool) -> None:
    corner = cudnn.diagonal_alignment.BOTTOM_RIGHT if is_bottom else cudnn.diagonal_alignment.TOP_LEFT
    for right, left in ((0, None), (None, 300), (0, 10), (5, 129)):
        bounds = {"diagonal_band_right_bound": right, "diagonal_band_left_bound": left, "diagonal_alignment": corner}
        given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
        judged(handle, q, kv, **given)


@pytest.mark.parametrize("width", [8, 40, 72, 96, 192])
def test_head_dims_that_fill_no_tile(handle: Any, width: int) -> None:
    judged(handle, (2, 6, 200, width), (2, 2, 200, width), use_causal_mask=True)
    judged(handle, (1, 2, 77, width), (1, 1, 130, width), HALF, is_by_rows=True)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_every_way_with_more_tiles_than_programs(handle: Any, width: int, mask: str) -> None:
    q, kv = (18, 8, 200, width), (18, 4, 200, width)
    for turns, half, hold, mixed in itertools.product((0, 1), repeat=4):
        if (mask == "causal" or not half) and (width == 64 or not mixed):
            knobs = dict(zip(KNOBS[5:], (32 if turns else 1, turns, half, hold, mixed), strict=True))
            judged(handle, q, kv, knobs=knobs, **MASKS[mask])


def test_results_beside_the_output(handle: Any) -> None:
    """Maxima and sums, statistics in base 2, and none at all."""
    q = (2, 3, 150, 64)
    judged(handle, q, q, has_stats=False)
    judged(handle, q, q, has_tops=True, diagonal_band_right_bound=3)
    judged(handle, q, q, stats_use_log2=True, use_causal_mask=True)
