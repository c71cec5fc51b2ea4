"""How the API's methods of attention are called: older arguments, the order of all, the text of help."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from fuseplan.errors import InvalidGraphError
from fuseplan.ops.schema import Attr, Call

O, STATS, MAX, SUM = "o", "stats", "score_max", "score_sum_exp"  # noqa: E741 - the paper's letter


def prepare_sdpa(bound: dict[str, Any]) -> None:
    """Map legacy and two-natured arguments to what nodes store, of attention and of its gradient."""
    _prepare_flags(bound)
    _prepare_stats(bound)
    _prepare_band(bound)
    scale = bound.get("attn_scale")
    if isinstance(scale, Real) and not isinstance(scale, bool):
        bound["attn_scale_value"] = float(bound.pop("attn_scale"))
    if bound.get("attn_scale_prefolded"):
        if scale is not None:
            raise _contradiction(
                "attn_scale_prefolded excludes attn_scale", "leave attn_scale out"
            )
        bound["attn_scale_value"] = math.log(
            2.0
        )  # q holds attn_scale log2(e), so q k^T is the score in base 2
    bound["has_dropout"] = bound.pop("dropout", None) is not None
    bound["has_score_mod"] = bound.pop("score_mod", None) is not None


def _prepare(bound: dict[str, Any]) -> None:
    prepare_sdpa(bound)
    precision = bound.pop("softmax_precision", None)
    precision = getattr(precision, "name", precision)
    bound["has_half_softmax"] = precision not in (None, "FLOAT", "NOT_SET") and not str(
        precision
    ).endswith("float32")


def _prepare_flags(bound: dict[str, Any]) -> None:
    for name in (
        "is_inference",
        "generate_stats",
        "use_causal_mask",
        "use_causal_mask_bottom_right",
    ):
        value = bound.get(name)
        if value is None:
            continue
        # an int may be a scale that came by position to one of the first two, and a causal mask in older programs
        kinds = (
            (bool, np.bool_)
            if name in ("is_inference", "generate_stats")
            else (bool, np.bool_, int)
        )
        if not isinstance(value, kinds) or value not in (0, 1):
            raise _contradiction(f"{name} is {value!r}", "pass True or False")
        bound[name] = bool(value)


def _prepare_stats(bound: dict[str, Any]) -> None:
    if bound.get("is_inference") is not None:
        if bound.get("generate_stats") is not None:
            raise _contradiction(
                "is_inference and generate_stats are both given", "pass one of them"
            )
        bound["generate_stats"] = not bound.pop("is_inference")


def _prepare_band(bound: dict[str, Any]) -> None:
    top, bottom = (
        bound.pop("use_causal_mask", False),
        bound.pop("use_causal_mask_bottom_right", False),
    )
    if top and bottom:
        raise _contradiction(
            "use_causal_mask and use_causal_mask_bottom_right are both given",
            "pass one of them",
        )
    if top or bottom:
        if bound.get("diagonal_band_right_bound") is not None:
            raise _contradiction(
                "a causal mask and diagonal_band_right_bound are both given",
                "pass one of them",
            )
        bound["diagonal_band_right_bound"] = 0
        bound["diagonal_alignment"] = "BOTTOM_RIGHT" if bottom else "TOP_LEFT"
    window = bound.pop("sliding_window_length", None)
    if window is not None:
        if bound.get("diagonal_band_left_bound") is not None:
            raise _contradiction(
                "sliding_window_length and diagonal_band_left_bound are both given",
                "pass one of them",
            )
        bound["diagonal_band_left_bound"] = window


def _contradiction(wrong: str, fix: str) -> InvalidGraphError:
    return InvalidGraphError(f"sdpa: {wrong}", fix=fix)


def _results(bound: Mapping[str, Any]) -> tuple[str, ...]:
    return ("Stats",) if bound.get("generate_stats") else ()


OPTIONAL_PORTS = (
    "attn_scale", "bias", "block_mask", "seq_len_q", "seq_len_kv", "paged_attention_k_table", "paged_attention_v_table",
    "sink_token", "cu_seq_len_q", "cu_seq_len_kv", "kv_mask",
)  # fmt: skip

_CLASSIC = (  # table
    "q", "k", "v", "is_inference", "attn_scale", "bias", "block_mask", "use_alibi_mask", "use_padding_mask",
    "seq_len_q", "seq_len_kv", "use_causal_mask", "use_causal_mask_bottom_right", "sliding_window_length",
    "diagonal_alignment", "diagonal_band_left_bound", "diagonal_band_right_bound", "dropout", "rng_dump",
    "paged_attention_k_table", "paged_attention_v_table", "paged_attention_max_seq_len_kv", "max_total_seq_len_q",
    "max_total_seq_len_kv", "compute_data_type", "name", "score_mod", "generate_stats", "implementation", "score_max",
    "score_sum_exp", "sink_token", "unfuse_fma", "cu_seq_len_q", "cu_seq_len_kv", "stats_use_log2",
)  # fmt: skip

SDPA_ATTRS = (  # table
    Attr("attn_scale_value", "float"),  # attn_scale as a number
    Attr("has_dropout", "bool", False),
    Attr("has_score_mod", "bool", False),
    Attr("has_half_softmax", "bool", False),
    Attr("use_alibi_mask", "bool", False),
    Attr("use_padding_mask", "bool", False),
    Attr("diagonal_alignment", "enum:diagonal_alignment", "TOP_LEFT"),
    Attr("diagonal_band_left_bound", "int"),
    Attr("diagonal_band_right_bound", "int"),
    Attr("paged_attention_max_seq_len_kv", "int"),
    Attr("max_total_seq_len_q", "int"),
    Attr("max_total_seq_len_kv", "int"),
    Attr("generate_stats", "bool"),
    Attr("implementation", "enum:attention_implementation", "AUTO"),
    Attr("unfuse_fma", "bool", False),
    Attr("stats_use_log2", "bool", False),
)  # fmt: skip

_DOC = """Attention: softmax of scaled, biased and masked scores q k^T, times v; optionally its row statistics.

Shapes:
    q: [B, H, S_q, D_qk]; k: [B, H_k, S_kv, D_qk]; v: [B, H_v, S_kv, D_v]; H is a multiple of H_k and of H_v
    O: [B, H, S_q, D_v]; Stats: [B, H, S_q, 1], logarithm of the sum of exp over each row's scores
Args:
    generate_stats: must be given, True or False; without statistics Stats is None
    is_inference: the older form, not generate_stats
    attn_scale: factor of q k^T, a number or a tensor of one element; 1 if left out
    bias: added to the scaled scores, broadcasts to [B, H, S_q, S_kv]
    use_causal_mask: row i sees columns 0 to i; use_causal_mask_bottom_right: counted from the last ones
    diagonal_band_left_bound, diagonal_band_right_bound: row i sees columns above i - left, and up to i + right
    use_padding_mask: rows and columns past seq_len_q and seq_len_kv, INT32 [B, 1, 1, 1], are left out
"""

SDPA_CALL = Call(
    positional=("q", "k", "v"), classic=_CLASSIC, doc=_DOC, names={O: "O", STATS: "Stats"},
    arguments=(
        "is_inference", "attn_scale", "use_causal_mask", "use_causal_mask_bottom_right",
        "sliding_window_length", "dropout", "score_mod", "softmax_precision", "attn_scale_prefolded",
    ),
    hidden=("attn_scale_value", "has_dropout", "has_score_mod", "has_half_softmax"),
    returns_list=True, prepare=_prepare, results=_results, aliases=("scaled_dot_product_flash_attention",),
)  # fmt: skip
