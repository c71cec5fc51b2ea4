"""Legacy and two-natured arguments, and which optional results a call makes."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import pytest

import fuseplan.ops  # noqa: F401 - registers the ops
from fuseplan.errors import InvalidGraphError
from fuseplan.ops.schema import schema_of


def prepared(op: str, **bound: Any) -> dict[str, Any]:
    """The arguments after the op's own preparation, without those that are off."""
    prepare = schema_of(op).call.prepare
    assert prepare is not None
    prepare(bound)
    return {name: value for name, value in bound.items() if value is not None and value is not False}


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({"use_causal_mask": True}, {"diagonal_alignment": "TOP_LEFT", "diagonal_band_right_bound": 0}),
        ({"use_causal_mask": False}, {}),
        ({"use_causal_mask": np.True_}, {"diagonal_alignment": "TOP_LEFT", "diagonal_band_right_bound": 0}),
        ({"use_causal_mask": 0, "generate_stats": np.True_}, {"generate_stats": True}),
        (
            {"use_causal_mask_bottom_right": True},
            {"diagonal_alignment": "BOTTOM_RIGHT", "diagonal_band_right_bound": 0},
        ),
        ({"sliding_window_length": 5}, {"diagonal_band_left_bound": 5}),
        ({"is_inference": False}, {"generate_stats": True}),
        ({"attn_scale": 0.5}, {"attn_scale_value": 0.5}),
        ({"attn_scale": 1}, {"attn_scale_value": 1.0}),
        ({"attn_scale": "a tensor"}, {"attn_scale": "a tensor"}),
        ({"attn_scale_prefolded": True}, {"attn_scale_prefolded": True, "attn_scale_value": math.log(2.0)}),
        ({"dropout": (0.1, 1, 2)}, {"has_dropout": True}),
        ({"score_mod": len}, {"has_score_mod": True}),
        ({"softmax_precision": "HALF"}, {"has_half_softmax": True}),
        ({"softmax_precision": "FLOAT"}, {}),
    ],
)
def test_sdpa_arguments_become_stored_ones(bound: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prepared("sdpa", **bound) == expected


@pytest.mark.parametrize(
    "bound",
    [
        {"use_causal_mask": True, "use_causal_mask_bottom_right": True},
        {"use_causal_mask": True, "diagonal_band_right_bound": 0},
        {"sliding_window_length": 3, "diagonal_band_left_bound": 3},
        {"is_inference": True, "generate_stats": True},
        {"is_inference": 1},
        {"use_causal_mask": "no"},
        {"use_causal_mask_bottom_right": 2},
        {"attn_scale_prefolded": True, "attn_scale": 0.5},
    ],
)
def test_sdpa_contradictory_arguments_are_refused(bound: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraphError, match="sdpa"):
        prepared("sdpa", **bound)


def test_conv_padding_goes_to_both_sides() -> None:
    made = prepared("conv_fprop", padding=[1, 2], stride=[1, 1])
    assert made == {"pre_padding": [1, 2], "post_padding": [1, 2], "stride": [1, 1]}


class Phase(Enum):
    INFERENCE = 1
    TRAINING = 2


@pytest.mark.parametrize(
    ("op", "bound", "expected"),
    [
        ("layernorm", {"norm_forward_phase": Phase.TRAINING}, ("mean", "inv_var")),
        ("layernorm", {"norm_forward_phase": "TRAINING"}, ("mean", "inv_var")),
        ("layernorm", {"norm_forward_phase": Phase.INFERENCE}, ()),
        ("layernorm", {}, ()),
        ("rmsnorm", {"norm_forward_phase": "TRAINING"}, ("inv_var",)),
        ("rmsnorm", {"norm_forward_phase": "INFERENCE"}, ()),
        ("layernorm_backward", {"scale": "a tensor"}, ("DScale", "DBias")),
        ("layernorm_backward", {}, ()),
        ("rmsnorm_backward", {"scale": "a tensor", "has_dbias": True}, ("DScale", "DBias")),
        ("rmsnorm_backward", {"scale": "a tensor", "has_dbias": False}, ("DScale",)),
        ("rmsnorm_backward", {"has_dbias": True}, ()),
        ("sdpa", {"generate_stats": True}, ("Stats",)),
        ("sdpa", {"generate_stats": False}, ()),
        ("sdpa", {}, ()),
    ],
)
def test_optional_results_follow_the_arguments(op: str, bound: dict[str, Any], expected: tuple[str, ...]) -> None:
    results = schema_of(op).call.results
    assert results is not None
    assert results(bound) == expected
