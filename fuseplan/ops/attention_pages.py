"""Keys and values of an attention in pages, and its mask of blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fuseplan import dtypes
from fuseplan.ir.graph import AttrValue, DraftNode
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.schema import Array, reject
from fuseplan.ops.shapes import Dims

TABLES = {"k": "paged_attention_k_table", "v": "paged_attention_v_table"}
MASK_SIDE = 128  # queries, and keys, of a bit of a block mask
_MOST = "paged_attention_max_seq_len_kv"


def resolve_pages(node: DraftNode) -> tuple[Dims, Dims]:
    """Dims of keys and values as if they were in no pages; the longest sequence is noted as an attribute."""
    paged = {port: node.inputs[t] for port, t in TABLES.items() if t in node.inputs}
    found = {port: node.inputs[port].need_dim() for port in "kv"}
    most = node.attrs.get(_MOST)
    if not paged:
        if most is not None:
            raise reject(
                node,
                f"{_MOST} is given without a table of pages",
                "leave it out",
            )
        return found["k"], found["v"]
    batch, reach = node.inputs["q"].need_dim()[0], []
    for port, table in paged.items():
        dim = table.need_dim()
        if (
            len(found[port]) != 4
            or len(dim) != 4
            or dim[:2] != (batch, 1)
            or dim[3] != 1
        ):
            raise reject(
                node,
                f"{TABLES[port]} has dims {list(dim)}, the pages of {port} {list(found[port])}",
                f"dims are {[batch, 1, 'pages of a sequence', 1]} and pages, heads, rows of a page, head dim",
            )
        if table.dtype not in (None, dtypes.INT32):
            raise reject(node, f"{TABLES[port]} is {table.dtype}", "make it INT32")
        reach.append(dim[2] * found[port][2])
    if not node.attrs.get("use_padding_mask"):
        raise reject(
            node,
            "keys or values are in pages, but there is no padding mask",
            "pass use_padding_mask=True, seq_len_q= and seq_len_kv=",
        )
    if most is None:
        bias = node.inputs.get("bias")
        most = min(reach) if bias is None else bias.need_dim()[3]
    if not isinstance(most, int) or not 0 < most <= min(reach):
        raise reject(
            node,
            f"{_MOST} is {most}, the tables reach {min(reach)} keys",
            "give tables with a page for every key",
        )
    node.attrs[_MOST] = most
    for port in paged:
        _, heads, _, width = found[port]
        found[port] = (batch, heads, most, width)
    return found["k"], found["v"]


def check_block_mask(node: DraftNode, scores: Dims) -> None:
    mask = node.inputs.get("block_mask")
    if mask is None:
        return
    batch, heads, rows, columns = scores
    tiles = (-(-rows // MASK_SIDE), -(-columns // (8 * MASK_SIDE)))
    if mask.need_dim() != (batch, heads, *tiles) or mask.dtype not in (
        None,
        dtypes.UINT8,
    ):
        raise reject(
            node,
            f"block_mask is {mask.dtype} with dims {list(mask.need_dim())}",
            f"give it UINT8 and dims {[batch, heads, *tiles]}: a bit for {MASK_SIDE} x {MASK_SIDE} scores",
        )


def without_pages(
    xp: ArrayNamespace, arrays: Mapping[str, Array], lengths: list[Array] | None, attrs: Mapping[str, AttrValue]
) -> dict[str, Array]:  # fmt: skip
    """The arguments with keys and values in one piece; pages that a sequence does not reach do not matter."""
    found = dict(arrays)
    for port, name in TABLES.items():
        if name not in arrays:
            continue
        assert lengths is not None
        x, most = arrays[port], attrs[_MOST]
        _, heads, size, width = x.shape
        table = xp.astype(arrays[name], xp.int64)[:, 0, :, 0]
        batch, turns = table.shape
        first = xp.reshape(xp.positions(turns, x), (1, -1)) * size
        table = xp.where(first < lengths[1][:, 0, 0, :], table, xp.zeros_like(table))
        rows = xp.take(x, xp.reshape(table, (-1,)), axis=0)
        rows = xp.permute_dims(
            xp.reshape(rows, (batch, turns, heads, size, width)), (0, 2, 1, 3, 4)
        )
        found[port] = xp.reshape(rows, (batch, heads, turns * size, width))[:, :, :most]
    return found


def without_masked_blocks(xp: ArrayNamespace, s: Array, mask: Array | None) -> Array:
    """Scores, minus infinity where the bit of their block is 0: of byte i, bit j is for block 8 i + j of keys."""
    if mask is None:
        return s
    num_rows, num_columns = s.shape[2:]
    r, c = (
        xp.positions(num_rows, s) // MASK_SIDE,
        xp.positions(num_columns, s) // MASK_SIDE,
    )
    of_rows: Any = xp.take(xp.astype(mask, xp.int64), r, axis=2)
    bits = xp.take(of_rows, c // 8, axis=3) // xp.reshape(2 ** (c % 8), (1, 1, 1, -1))
    return xp.where(bits % 2 == 1, s, xp.full_like(s, -math.inf))
