"""Scaled dot-product attention, forward."""

from __future__ import annotations

import math

from fuseplan import dtypes
from fuseplan.ir.graph import DraftNode, packed_stride
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.attention_call import (
    MAX,
    OPTIONAL_PORTS,
    SDPA_ATTRS,
    SDPA_CALL,
    STATS,
    SUM,
    O,
)
from fuseplan.ops.attention_pages import (
    TABLES,
    check_block_mask,
    resolve_pages,
    without_masked_blocks,
    without_pages,
)
from fuseplan.ops.attention_samples import sdpa_samples
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
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    register,
    reject,
)
from fuseplan.ops.shapes import set_dim

_ROW_RESULTS = (STATS, MAX, SUM)
_FORWARD_ONLY = frozenset(
    {"block_mask", "paged_attention_max_seq_len_kv", *TABLES.values()}
)


def _infer(node: DraftNode) -> None:
    refuse_unavailable(node, allowed=_FORWARD_ONLY)
    q, (k, v) = node.inputs["q"].need_dim(), resolve_pages(node)
    batch, heads, rows, columns = check_operands(node, q, k, v)
    check_options(node, (batch, heads, rows, columns))
    check_block_mask(node, (batch, heads, rows, columns))
    if not isinstance(node.attrs.get("generate_stats"), bool):
        raise reject(
            node,
            "neither generate_stats nor is_inference is given",
            "pass generate_stats=True or False",
        )
    set_dim(node, O, (batch, heads, rows, v[3]), packed_stride)
    for port in _ROW_RESULTS:
        stat = set_dim(node, port, (batch, heads, rows, 1), packed_stride)
        if stat is not None and stat.dtype is None:
            stat.dtype = dtypes.FLOAT


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    attrs = dict(view.node.attrs)
    lengths = lengths_of(xp, arrays, attrs)
    arrays = without_padding(xp, without_pages(xp, arrays, lengths, attrs), lengths)
    s = scores_of(xp, arrays, attrs, lengths)
    s = without_masked_blocks(xp, s, arrays.get("block_mask"))
    m = xp.max(s, axis=-1, keepdims=True)
    sink = arrays.get("sink_token")
    if sink is not None:
        m = xp.maximum(m, xp.broadcast_to(sink, m.shape))
    # a row without any score has m = -inf; any finite number in its place gives e^-inf = 0 instead of NaN
    origin = xp.where(m == -math.inf, xp.zeros_like(m), m)
    p = xp.exp(s - origin)
    total = xp.sum(p, axis=-1, keepdims=True)
    if sink is not None:
        total = total + xp.exp(sink - origin)
    is_empty = total == 0
    p = p / xp.where(is_empty, xp.ones_like(total), total)
    p = xp.held_in(p, view.need("v").dtype)
    results = {O: grouped_matmul(xp, p, arrays["v"]), MAX: m, SUM: total}
    stats = origin + xp.log(xp.where(is_empty, xp.ones_like(total), total))
    if lengths is not None:
        is_empty = is_empty | (
            xp.reshape(xp.positions(m.shape[2], m), (1, 1, -1, 1)) >= lengths[0]
        )
    stats = xp.where(is_empty, xp.full_like(stats, -math.inf), stats)
    results[STATS] = stats / math.log(2.0) if attrs.get("stats_use_log2") else stats
    return results


_RESULTS = {O: "o", STATS: "stats", MAX: "max", SUM: "sum"}
_PORTS = {
    "paged_attention_k_table": "page_table_k",
    "paged_attention_v_table": "page_table_v",
}


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    named = {_PORTS.get(port, port): value for port, value in args.items()}
    return anchor_with_picks(b, view, named, _RESULTS)


def _cost(view: NodeView) -> Cost:
    q, k, v = (view.need(port).dim for port in "qkv")
    most = dict(view.node.attrs).get("paged_attention_max_seq_len_kv")
    scores = float(q[0] * q[1] * q[2] * (most if isinstance(most, int) else k[2]))
    return Cost(scores * (2.0 * (q[3] + v[3]) + 6.0), view.in_bytes, view.out_bytes)


SDPA = register(
    OpSchema(
        name="sdpa", family="attention",
        inputs=(Port("q"), Port("k"), Port("v"), *(Port(p, is_optional=True) for p in OPTIONAL_PORTS)),
        outputs=(Port(O), *(Port(p, is_optional=True) for p in (STATS, "rng_dump", MAX, SUM))),
        infer=_infer, reference=_reference, cost=_cost, decompose=_decompose, samples=sdpa_samples,
        call=SDPA_CALL,
        attrs=SDPA_ATTRS,
    )
)  # fmt: skip
