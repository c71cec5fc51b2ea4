"""Scaled dot-product attention, backward."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from fuseplan import dtypes
from fuseplan.errors import InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import DraftNode
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.attention_call import SDPA_ATTRS, prepare_sdpa
from fuseplan.ops.attention_scores import (
    anchor_with_picks,
    check_operands,
    check_options,
    grouped_matmul,
    lengths_of,
    refuse_unavailable,
    scores_of,
    without_padding,
)
from fuseplan.ops.schema import (
    Array,
    Attr,
    Call,
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    Sample,
    register,
    reject,
)
from fuseplan.ops.shapes import Dims, need_stride, same_stride, set_dim

GRAD, DBIAS, DSINK = "do", "dbias", "dsink"
_OF = {"dq": "q", "dk": "k", "dv": "v", DBIAS: "bias", DSINK: "sink_token"}
_OPTIONS = ("attn_scale", "bias", "seq_len_q", "seq_len_kv", "sink_token")


def _infer(node: DraftNode) -> None:
    refuse_unavailable(node)
    q, k, v = (node.inputs[port].need_dim() for port in "qkv")
    scores = check_operands(node, q, k, v)
    check_options(node, scores)
    left = node.attrs.get("diagonal_band_left_bound")
    if isinstance(left, int) and left <= 0:
        raise reject(
            node, f"diagonal_band_left_bound is {left}", "it must be 1 or more"
        )
    out = (*scores[:3], v[3])
    for port, dim in (("o", out), (GRAD, out), ("stats", (*scores[:3], 1))):
        found = node.inputs[port].need_dim()
        if found != dim:
            raise reject(
                node,
                f"{port} has dims {list(found)}, the forward call gives {list(dim)}",
                "pass o, its gradient and Stats as the forward call has them",
            )
    for result, port in _OF.items():
        if result in node.outputs and port not in node.inputs:
            raise reject(
                node, f"{result} is asked for without {port}", f"pass {port}= as well"
            )
        if port in node.inputs:
            source = node.inputs[port]
            like = partial(same_stride, stride=need_stride(source))
            made = set_dim(node, result, source.need_dim(), like)
            if result == DSINK and made is not None and made.dtype is None:
                made.dtype = dtypes.FLOAT


def _over_groups(xp: ArrayNamespace, p: Array, x: Array, groups: int) -> Array:
    """p^T [B, H, T, S] times x [B, H, S, D], added up over the heads that share one of `groups`."""
    batch, heads, rows, columns = p.shape
    tall = (batch, groups, heads // groups * rows)
    p, x = xp.reshape(p, (*tall, columns)), xp.reshape(x, (*tall, x.shape[3]))
    return xp.matmul(xp.permute_dims(p, (0, 1, 3, 2)), x)


def _summed_to(xp: ArrayNamespace, x: Array, dim: Dims) -> Array:
    axes = tuple(i for i, (d, e) in enumerate(zip(dim, x.shape, strict=True)) if d != e)
    return xp.sum(x, axis=axes, keepdims=True, dtype=x.dtype) if axes else x


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    attrs = dict(view.node.attrs)
    lengths = lengths_of(xp, arrays, attrs)
    arrays = without_padding(xp, arrays, lengths)
    q, k, v, grad, stats = (arrays[port] for port in ("q", "k", "v", GRAD, "stats"))
    s = scores_of(xp, arrays, attrs, lengths)
    # rows without any score have statistics of minus infinity: their probabilities are 0 instead of NaN
    is_empty = stats == -math.inf
    origin = xp.where(is_empty, xp.zeros_like(stats), stats)
    is_hidden = xp.broadcast_to(is_empty, s.shape) | (s == -math.inf)
    p = xp.where(is_hidden, xp.zeros_like(s), xp.exp(s - origin))
    delta = xp.sum(grad * arrays["o"], axis=-1, keepdims=True, dtype=grad.dtype)
    ds = grouped_matmul(xp, grad, xp.permute_dims(v, (0, 1, 3, 2))) - delta
    ds = p * ds
    results = {"dv": _over_groups(xp, p, grad, v.shape[1])}
    bias, sink = view.input("bias"), arrays.get("sink_token")
    if bias is not None:
        results[DBIAS] = _summed_to(xp, ds, bias.dim)
    if sink is not None:
        share = xp.where(
            is_empty,
            xp.zeros_like(stats),
            xp.exp(xp.broadcast_to(sink, stats.shape) - origin),
        )
        results[DSINK] = -_summed_to(xp, share * delta, (1, stats.shape[1], 1, 1))
    if "attn_scale" in arrays:
        ds = ds * xp.reshape(arrays["attn_scale"], (1, 1, 1, 1))
    elif attrs.get("attn_scale_value") is not None:
        ds = ds * attrs["attn_scale_value"]
    results["dq"] = grouped_matmul(xp, ds, k)
    results["dk"] = _over_groups(xp, ds, q, k.shape[1])
    return results


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    return anchor_with_picks(b, view, args, {port: port for port in _OF})


def _cost(view: NodeView) -> Cost:
    q, k, v = (view.need(port).dim for port in "qkv")
    products = 2.0 * q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3])
    return Cost(
        products + 8.0 * q[0] * q[1] * q[2] * k[2], view.in_bytes, view.out_bytes
    )


_B, _H, _Q, _KV, _D = 2, 4, 5, 7, 8


def _sample(
    id: str, q: Dims = (_B, _H, _Q, _D), kv: Dims = (_B, _H, _KV, _D), **more: Any
) -> Sample:
    """A case; `ports`: further inputs, `results`: of biases and sinks, `io`: type of all but statistics."""
    io, v = more.pop("io", "FLOAT"), more.pop("v", kv)
    out = (*q[:3], v[3])
    ins = {"q": (q, io), "k": (kv, io), "v": (v, io), "o": (out, io), GRAD: (out, io)}
    ins["stats"] = ((*q[:3], 1), "FLOAT")
    ins |= more.pop("ports", {})
    results = more.pop("results", ())
    absent = tuple(r for r in (DBIAS, DSINK) if r not in results)
    attrs = {"attn_scale_value": 0.35, **more.pop("attrs", {})}
    ranges = {"stats": (1.0, 3.0), **more.pop("ranges", {})}
    types = {**dict.fromkeys(("dq", "dk", "dv"), io), **more.pop("types", {})}
    return Sample(id, ins, attrs, types=types, absent=absent, ranges=ranges, **more)


def _samples() -> Iterable[Sample]:
    causal, bottom = (
        {"diagonal_band_right_bound": 0},
        {"diagonal_alignment": "BOTTOM_RIGHT"},
    )
    sink: dict[str, Any] = {"sink_token": ((1, _H, 1, 1), "FLOAT")}
    lengths: dict[str, Any] = dict.fromkeys(
        ("seq_len_q", "seq_len_kv"), ((_B, 1, 1, 1), "INT32")
    )
    counts = {"seq_len_q": (0, _Q), "seq_len_kv": (0, _KV)}
    padded: dict[str, Any] = {"ports": lengths, "ranges": counts}
    yield _sample("plain")
    yield _sample("causal", attrs=causal)
    yield _sample("causal-bottom-right", q=(_B, _H, 9, _D), attrs={**causal, **bottom})
    yield _sample("window", attrs={**causal, "diagonal_band_left_bound": 3})
    yield _sample("grouped-heads", kv=(_B, 2, _KV, _D), v=(_B, 1, _KV, 5))
    for id, dim in (
        ("full", (_B, _H, _Q, _KV)),
        ("row", (1, 1, 1, _KV)),
        ("heads", (1, _H, _Q, _KV)),
    ):
        yield _sample(
            f"bias-{id}",
            ports={"bias": (dim, "FLOAT")},
            results=(DBIAS,),
            types={DBIAS: "FLOAT"},
        )
    yield _sample("alibi", attrs={**causal, "use_alibi_mask": True})
    yield _sample("padding", attrs={"use_padding_mask": True}, **padded)
    yield _sample(
        "padding-bottom-right",
        attrs={"use_padding_mask": True, **causal, **bottom},
        **padded,
    )
    yield _sample("sink", ports=sink, results=(DSINK,))
    yield _sample("scale-tensor", attrs={"attn_scale_value": None}, ports={"attn_scale": ((1, 1, 1, 1), "FLOAT")},
                  ranges={"attn_scale": (0.1, 0.5)})  # fmt: skip
    yield _sample("half", io="HALF", attrs=causal)
    yield _sample(
        "bf16", io="BFLOAT16", attrs={**causal, "use_deterministic_algorithm": True}
    )
    yield _sample("one-query", q=(_B, _H, 1, _D))
    bad = InvalidGraphError
    yield _sample("left-bound", attrs={"diagonal_band_left_bound": 0}, fails=bad)
    yield _sample("dbias-without-bias", results=(DBIAS,), fails=bad)
    yield _sample("dsink-without-sink", results=(DSINK,), fails=bad)
    yield _sample("stats-dims", ports={"stats": ((_B, _H, _Q, 2), "FLOAT")}, fails=bad)
    yield _sample(
        "dropout", attrs={"has_dropout": True}, fails=cudnnGraphNotSupportedError
    )


def _prepare(bound: dict[str, Any]) -> None:
    if (
        bound.pop("score_mod_bprop", None) is not None
        and bound.get("score_mod") is None
    ):
        raise InvalidGraphError(
            "sdpa_backward: score_mod_bprop is given without score_mod",
            fix="pass score_mod as well",
        )
    prepare_sdpa(bound)


_CLASSIC = (  # table
    "q", "k", "v", "o", "dO", "stats", "attn_scale", "bias", "dBias", "use_alibi_mask", "use_padding_mask", "seq_len_q",
    "seq_len_kv", "max_total_seq_len_q", "max_total_seq_len_kv", "use_causal_mask", "use_causal_mask_bottom_right",
    "sliding_window_length", "diagonal_alignment", "diagonal_band_left_bound", "diagonal_band_right_bound", "dropout",
    "rng_dump", "use_deterministic_algorithm", "compute_data_type", "name", "score_mod", "score_mod_bprop",
    "sink_token", "dSink_token",
)  # fmt: skip
_DOC = """Gradients of attention by q, k and v, from its output and the logarithms of its sums.

Shapes:
    q, k, v and options: as in the forward call; o, dO: [B, H, S_q, D_v]; stats: [B, H, S_q, 1], FLOAT, natural
    dQ, dK, dV: as q, k, v; heads of k and v that several of q share get the sum
Args:
    dBias: tensor for the gradient of bias, summed over the axes that bias repeats
    dSink_token: tensor for the gradient of sink_token
    use_deterministic_algorithm: only plans that add up in one order
"""
_FORWARD_ALONE = ("has_half_softmax", "generate_stats", "implementation", "unfuse_fma", "stats_use_log2",
                  "paged_attention_max_seq_len_kv")  # fmt: skip

SDPA_BACKWARD = register(
    OpSchema(
        name="sdpa_backward", family="attention",
        inputs=(*(Port(p) for p in ("q", "k", "v", "o", GRAD, "stats")), *(Port(p, is_optional=True) for p in _OPTIONS),
                Port("rng_dump", is_optional=True)),
        outputs=(*(Port(p) for p in ("dq", "dk", "dv")), Port(DBIAS, is_optional=True), Port(DSINK, is_optional=True)),
        infer=_infer, reference=_reference, cost=_cost, decompose=_decompose, samples=_samples,
        attrs=(*(a for a in SDPA_ATTRS if a.name not in _FORWARD_ALONE),
               Attr("use_deterministic_algorithm", "bool", False)),
        call=Call(
            positional=("q", "k", "v", "o", "dO", "stats"), classic=_CLASSIC, doc=_DOC,
            names={GRAD: "dO", "dq": "dQ", "dk": "dK", "dv": "dV", DBIAS: "dBias", DSINK: "dSink_token"},
            arguments=("attn_scale", "use_causal_mask", "use_causal_mask_bottom_right", "sliding_window_length",
                       "dropout", "score_mod", "score_mod_bprop"),
            hidden=("attn_scale_value", "has_dropout", "has_score_mod"), returns_list=True, prepare=_prepare,
            results=lambda bound: (), aliases=("scaled_dot_product_flash_attention_backward",),
        ),
    )
)  # fmt: skip
