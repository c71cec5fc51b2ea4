"""Attention whose keys were divided: adds up what `kernels/attention.py` kept of each part, and finishes.

`load_parts`, `lengths` and `finish` are holes: a generated kernel has its own.
Run alone, o = softmax(q k^T) v from the sums over parts of the keys.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.attention import finish, lengths, place_of_rows
from fuseplan.engines.triton.kernels.helpers import exp2_near


@triton.jit
def load_parts(part_params, slot, row, e, row_inside, BLOCK_E: tl.constexpr):
    """Outputs, largest scores and sums of all parts; for rows outside those of a part without keys."""
    outputs, tops, totals, count = part_params
    place = slot * count + row
    o = tl.load(outputs + place * BLOCK_E + e, mask=row_inside, other=0.0)
    top = tl.load(tops + place, mask=row_inside, other=float("-inf"))
    return o, top, tl.load(totals + place, mask=row_inside, other=0.0)


@triton.jit
def joined_attention(  # table
    length_params, part_params, params, n_q, n_kv, n_h,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile of rows; parts are added up in one order."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    pack, b, h_first, row0, row, m, h = place_of_rows(tl.program_id(0), n_q, n_h, BLOCK_M, GROUP, 0, index)
    e = tl.arange(0, BLOCK_E).to(index)[None, :]
    slot = (pack * PARTS + tl.arange(0, PARTS).to(index))[:, None, None]
    o, tops, totals = load_parts(part_params, slot, row[None, :, :], e[None, :, :], (m < n_q)[None, :, :], BLOCK_E)
    top = tl.max(tops, 0)
    origin = tl.where(top == float("-inf"), 0.0, top)
    shrink = exp2_near(tops - origin[None, :, :])
    total = tl.sum(totals * shrink, 0)
    o = tl.sum(o * shrink, 0) * (1.0 / tl.where(total == 0.0, 1.0, total))
    rows, columns, shift = lengths(length_params, b, n_q, n_kv)
    finish(params, o, top, total, b, h, m, e, m < n_q, m < rows, BLOCK_M, BLOCK_E)


@triton.jit
def attention_join(  # table
    outputs, tops, totals, o, n_q, width,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    joined_attention(
        (), (outputs, tops, totals, n_q), (o, width), n_q, 1, 1, BLOCK_M, BLOCK_E, GROUP, PARTS, INDEX_BITS
    )
