"""What attention and its gradient share: checks of operands and options, masks, and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fuseplan import dtypes
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import AttrValue, DraftNode, DraftTensor
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.schema import Array, FragmentBuilder, NodeView, reject
from fuseplan.ops.shapes import Dims, broadcasts_to, check_scalar

_LENGTHS = ("seq_len_q", "seq_len_kv")
_UNAVAILABLE_PORTS = (
    "block_mask", "paged_attention_k_table", "paged_attention_v_table", "cu_seq_len_q", "cu_seq_len_kv", "kv_mask",
    "rng_dump",
)  # fmt: skip
_UNAVAILABLE_ATTRS = {  # attribute -> option as the caller knows it
    "has_dropout": "dropout",
    "has_score_mod": "score_mod",
    "has_half_softmax": "softmax_precision",
    "paged_attention_max_seq_len_kv": "paged_attention_max_seq_len_kv",
    "max_total_seq_len_q": "max_total_seq_len_q",
    "max_total_seq_len_kv": "max_total_seq_len_kv",
}


def refuse_unavailable(node: DraftNode, allowed: frozenset[str] = frozenset()) -> None:
    """Refuse ports and attributes that no reference knows, except those allowed."""
    asked = [p for p in _UNAVAILABLE_PORTS if p in node.inputs or p in node.outputs]
    for attr, option in _UNAVAILABLE_ATTRS.items():
        value = node.attrs.get(attr)
        if value is not None and value is not False:
            asked.append(option)
    asked = [name for name in asked if name not in allowed]
    if asked:
        raise cudnnGraphNotSupportedError(
            f"node {node.name!r} ({node.op}): {'option' if len(asked) == 1 else 'options'} "
            f"{', '.join(map(repr, asked))} not available",
            fix="leave it out, or build the attention from matmul and pointwise nodes",
        )


def check_operands(node: DraftNode, q: Dims, k: Dims, v: Dims) -> Dims:
    """Dims of the scores: batch, query heads, rows, columns."""
    shown = f"q {list(q)}, k {list(k)}, v {list(v)}"
    if not len(q) == len(k) == len(v) == 4:
        raise reject(
            node,
            f"q, k and v must have rank 4: {shown}",
            "dims are batch, heads, sequence, head dim",
        )
    if not q[0] == k[0] == v[0]:
        raise reject(
            node, f"batch extents differ: {shown}", "give q, k and v the same batch"
        )
    if q[3] != k[3]:
        raise reject(
            node,
            f"head dims of q and k differ: {shown}",
            "give q and k the same last extent",
        )
    if k[2] != v[2]:
        raise reject(
            node,
            f"sequence lengths of k and v differ: {shown}",
            "give k and v the same sequence",
        )
    if q[1] % k[1] or q[1] % v[1]:
        raise reject(
            node,
            f"query heads are no multiple of key or value heads: {shown}",
            "make the head counts divide",
        )
    return (q[0], q[1], q[2], k[2])


def check_options(node: DraftNode, scores: Dims) -> None:
    batch, heads = scores[:2]
    bias, sink = node.inputs.get("bias"), node.inputs.get("sink_token")
    if bias is not None:
        dim = bias.need_dim()
        if len(dim) != 4 or not broadcasts_to(dim, scores):
            raise reject(
                node,
                f"bias has dims {list(dim)}, the scores {list(scores)}",
                "it must broadcast to the scores",
            )
        if bias.dtype is dtypes.BOOLEAN:
            raise cudnnGraphNotSupportedError(
                f"node {node.name!r} ({node.op}): bias {bias.name!r} is BOOLEAN, but it is added to the scores",
                fix="use 0 and minus infinity in a float type",
            )
    if sink is not None and sink.need_dim() != (1, heads, 1, 1):
        raise reject(
            node,
            f"sink_token has dims {list(sink.need_dim())}",
            f"give it dims {[1, heads, 1, 1]}",
        )
    check_scalar(node, "attn_scale")
    if "attn_scale" in node.inputs and node.attrs.get("attn_scale_value") is not None:
        raise reject(
            node, "attn_scale is given as a number and as a tensor", "pass one of them"
        )
    right = node.attrs.get("diagonal_band_right_bound")
    if isinstance(right, int) and right < 0:
        raise reject(
            node, f"diagonal_band_right_bound is {right}", "it must be 0 or more"
        )
    _check_lengths(node, [node.inputs.get(p) for p in _LENGTHS], batch)


def _check_lengths(
    node: DraftNode, lengths: list[DraftTensor | None], batch: int
) -> None:
    if node.attrs.get("use_padding_mask"):
        for port, tensor in zip(_LENGTHS, lengths, strict=True):
            if tensor is None:
                raise reject(
                    node,
                    f"use_padding_mask is set, but {port} is missing",
                    f"pass {port}= as INT32 [B, 1, 1, 1]",
                )
            if tensor.need_dim() not in ((batch, 1, 1, 1), (batch,)):
                raise reject(
                    node,
                    f"{port} has dims {list(tensor.need_dim())}",
                    f"give it dims {[batch, 1, 1, 1]}",
                )
    elif any(lengths):
        raise reject(
            node,
            "seq_len_q or seq_len_kv is given without use_padding_mask",
            "pass use_padding_mask=True",
        )


def lengths_of(
    xp: ArrayNamespace, arrays: Mapping[str, Array], attrs: Mapping[str, AttrValue]
) -> list[Array] | None:
    """Lengths of queries and keys as int64 [B, 1, 1, 1], None without a padding mask."""
    if not attrs.get("use_padding_mask"):
        return None
    return [xp.reshape(xp.astype(arrays[p], xp.int64), (-1, 1, 1, 1)) for p in _LENGTHS]


def without_padding(
    xp: ArrayNamespace, arrays: Mapping[str, Array], lengths: list[Array] | None
) -> dict[str, Array]:
    """The arguments with zeros in rows past a sequence's end: what stands there must not matter."""
    if lengths is None:
        return dict(arrays)
    cleared = dict(arrays)
    for port in arrays.keys() & {"q", "k", "v", "o", "do", "stats"}:
        x, length = arrays[port], lengths[port in ("k", "v")]
        row = xp.reshape(xp.positions(x.shape[2], x), (1, 1, -1, 1))
        cleared[port] = xp.where(row < length, x, xp.zeros_like(x))
    return cleared


def _keep_mask(
    xp: ArrayNamespace, scores: Array, lengths: list[Array] | None, attrs: Mapping[str, AttrValue]
) -> Array | None:  # fmt: skip
    """True where a score stays, None if all do."""
    num_rows, num_columns = scores.shape[2:]
    r = xp.reshape(xp.positions(num_rows, scores), (1, 1, num_rows, 1))
    c = xp.reshape(xp.positions(num_columns, scores), (1, 1, 1, num_columns))
    rules: list[Array] = []
    shift: Any = 0
    if lengths is not None:
        rules += [r < lengths[0], c < lengths[1]]
    if attrs.get("diagonal_alignment") == "BOTTOM_RIGHT":
        shift = num_columns - num_rows if lengths is None else lengths[1] - lengths[0]
    right, left = (
        attrs.get("diagonal_band_right_bound"),
        attrs.get("diagonal_band_left_bound"),
    )
    if right is not None:
        rules.append(c <= r + right + shift)
    if left is not None:
        rules.append(c + left > r + shift)
    keep: Array | None = None
    for rule in rules:
        keep = rule if keep is None else keep & rule
    return keep


def _slopes(xp: ArrayNamespace, like: Array, heads: int) -> Array:
    """ALiBi slopes [1, H, 1, 1]: powers of 2^(-8/n) for n = 2^floor(log2 H) heads, then odd powers of 2^(-4/n)."""
    n = 1 << (heads.bit_length() - 1)
    h = xp.positions(heads, like, like.dtype)
    exponent = xp.where(h < n, (h + 1) * (8.0 / n), (2 * (h - n) + 1) * (4.0 / n))
    return xp.reshape(xp.exp(exponent * -math.log(2.0)), (1, heads, 1, 1))


def grouped_matmul(xp: ArrayNamespace, a: Array, b: Array) -> Array:
    """a [B, H, S, T] times b [B, G, T, U], where H / G heads in a row share one of b."""
    batch, heads, rows, inner = a.shape
    groups = b.shape[1]
    a = xp.reshape(a, (batch, groups, heads // groups * rows, inner))
    return xp.reshape(xp.matmul(a, b), (batch, heads, rows, b.shape[3]))


def scores_of(
    xp: ArrayNamespace, arrays: Mapping[str, Array], attrs: Mapping[str, AttrValue], lengths: list[Array] | None
) -> Array:  # fmt: skip
    """Scaled, biased and masked scores [B, H, Sq, Skv]."""
    s = grouped_matmul(xp, arrays["q"], xp.permute_dims(arrays["k"], (0, 1, 3, 2)))
    if "attn_scale" in arrays:
        s = s * xp.reshape(arrays["attn_scale"], (1, 1, 1, 1))
    elif attrs.get("attn_scale_value") is not None:
        s = s * attrs["attn_scale_value"]
    if "bias" in arrays:
        s = s + arrays["bias"]
    if attrs.get("use_alibi_mask"):
        num_rows, num_columns = s.shape[2:]
        r = xp.reshape(xp.positions(num_rows, s, s.dtype), (num_rows, 1))
        s = s + _slopes(xp, s, s.shape[1]) * (xp.positions(num_columns, s, s.dtype) - r)
    keep = _keep_mask(xp, s, lengths, attrs)
    return s if keep is None else xp.where(keep, s, xp.full_like(s, -math.inf))


def anchor_with_picks(
    b: FragmentBuilder, view: NodeView, args: Mapping[str, int], results: Mapping[str, str]
) -> dict[str, int]:  # fmt: skip
    """The node as one anchor of the op's name, from which the results that it makes are picked.

    Args:
        args: value of each port, by the anchor's names, in order
        results: what the anchor calls each output; the first one is always made
    """
    attrs: dict[str, Any] = {n: x for n, x in view.node.attrs if x is not None}
    made = {port: t for port in results if (t := view.output(port)) is not None}
    anchor = b.emit(
        view.node.op,
        *args.values(),
        dim=b.ranked(view.made(next(iter(results))).dim),
        **attrs,
        ports=tuple(args),
        results=tuple(results[port] for port in made),
    )
    return {
        port: b.emit("pick", anchor, dim=b.ranked(t.dim), result=results[port])
        for port, t in made.items()
    }
