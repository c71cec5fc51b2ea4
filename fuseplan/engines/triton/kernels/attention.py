"""Attention by tiles of queries: softmax(scale q k^T) v in one pass over the blocks of keys.

`lengths`, `load_q`, `load_k`, `load_v`, `started`, `factor`, `scores`, `first_product`, `second_product`, `keep` and
`finish` are holes: a generated kernel has its own. `factor` makes scores those of base 2. Sums are relative to the
largest score so far; a row that sees no key has the sum 0 and the largest score minus infinity.

CUTS says what may cut a block of keys: 1 a right bound, 2 a left bound, 4 the end of the keys, 8 that of the queries.
A row of a tile is a query of one of GROUP heads, which share their keys and values.
Run alone, o = softmax(q k^T) v for dense float32 matrices.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.helpers import exp2_near


@triton.jit
def lengths(length_params, b, n_q, n_kv):
    """Queries and keys of a batch, and what a row is moved by before bounds are looked at."""
    return n_q, n_kv, 0


@triton.jit
def load_q(q_params, b, h, m, d, m_inside, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """A tile of queries by rows; zeros outside."""
    q, width = q_params
    return tl.load(q + m * width + d, mask=m_inside & (d < width), other=0.0)


@triton.jit
def load_k(  # table
    k_params, b, h, n, d, n_inside, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, IS_CUT: tl.constexpr
):  # fmt: skip
    """A tile of keys by columns; zeros outside, of the keys only where IS_CUT."""
    k, width = k_params
    return tl.load(k + n * width + d, mask=n_inside & (d < width), other=0.0)


@triton.jit
def load_v(  # table
    v_params, b, h, n, e, n_inside, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, IS_CUT: tl.constexpr
):  # fmt: skip
    """A tile of values by rows; zeros outside, of the keys only where IS_CUT."""
    v, width = v_params
    return tl.load(v + n * width + e, mask=n_inside & (e < width), other=0.0)


@triton.jit
def started(start_params, h, BLOCK_M: tl.constexpr):
    """Largest score, in base 2, and sum of a row before any key."""
    return tl.full((BLOCK_M, 1), float("-inf"), tl.float32), tl.zeros((BLOCK_M, 1), tl.float32)


@triton.jit
def factor(score_params):
    """What scores are multiplied by, above 0."""
    return 1.4426950408889634


@triton.jit
def scores(score_params, s, b, h, m, n, m_inside, n_inside):
    """Scores from the products of queries and keys."""
    return s


@triton.jit
def first_product(q, k):
    """Queries times keys."""
    return tl.dot(q, k, input_precision="ieee")


@triton.jit
def second_product(p, v, o):
    """The output with powers times values added."""
    return tl.dot(p, v, o, input_precision="ieee")


@triton.jit
def finish(  # table
    params, o, top, total, b, h, m, e, m_inside, is_row, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr
):  # fmt: skip
    """What follows from the output and, by rows, the largest score and the sum; `is_row`: the batch has this query."""
    y, width = params
    tl.store(y + m * width + e, o, mask=m_inside & (e < width))


@triton.jit
def row_statistics(top, total, is_row, FACTOR: tl.constexpr):
    """Logarithm of the sum of all powers, from base 2 to that of FACTOR."""
    return tl.where(is_row, (top + tl.log2(total)) * FACTOR, float("-inf"))


@triton.jit
def row_maximum(top, total):
    """Largest score in base e; NaN if there was one."""
    return tl.where((total == total) | (top == float("inf")), top, float("nan")) * 0.6931471805599453


@triton.jit
def add_blocks(  # table
    o, top, total, first, last, q, k_params, v_params, score_params, b, h, h_first, m, d, e, n_q, columns, bounds,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    CUTS: tl.constexpr, index: tl.constexpr,
):  # fmt: skip
    """Output, largest score and sum with the blocks of keys from `first` to `last` added; CUTS of these blocks."""
    scale = factor(score_params)
    right, left = bounds
    for n0 in tl.range(first, last, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N).to(index)
        k = load_k(k_params, b, h_first, n[None, :], d[:, None], n[None, :] < columns, BLOCK_N, BLOCK_D, CUTS > 0)
        s = first_product(q, k)
        s = scores(score_params, s, b, h, m, n[None, :], m < n_q, n[None, :] < columns)
        if CUTS > 0:
            is_seen = n[None, :] < columns
            if CUTS & 1:
                is_seen &= n[None, :] <= m + right
            if CUTS & 2:
                is_seen &= n[None, :] + left > m
            s = tl.where(is_seen, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1, keep_dims=True) * scale)
        origin = tl.where(higher == float("-inf"), 0.0, higher)
        p = exp2_near(s * scale - origin)
        shrink = exp2_near(top - origin)
        total = total * shrink + tl.sum(p, 1, keep_dims=True)
        v = load_v(v_params, b, h_first, n[:, None], e[None, :], n[:, None] < columns, BLOCK_N, BLOCK_E, CUTS > 0)
        o = second_product(p, v, o * shrink)
        top = higher
    return o, top, total


@triton.jit
def seen_blocks(  # table
    m_first, m_last, columns, right, left, BLOCK_N: tl.constexpr, CUTS: tl.constexpr, index: tl.constexpr
):  # fmt: skip
    """Keys that rows from `m_first` to `m_last` see: where they begin, where all rows see all, to where, the end."""
    zero = columns * 0
    first, last = zero, columns
    if CUTS & 2:
        first = tl.maximum(m_first - left + 1, zero) // BLOCK_N * BLOCK_N
    if CUTS & 1:
        last = tl.minimum(last, tl.maximum(m_last + right + 1, zero))
    last = tl.maximum(first, last)
    whole, cut = first, last
    if CUTS & 2:
        whole = tl.minimum(tl.cdiv(tl.maximum(m_last - left + 1, zero), BLOCK_N) * BLOCK_N, last)
    if CUTS & 1:
        cut = tl.minimum(cut, tl.maximum(m_first + right + 1, zero))
    cut = tl.maximum(whole, cut // BLOCK_N * BLOCK_N)
    return first, whole, cut, last


@triton.jit
def keep(  # table
    part_params, o, top, total, slot, row, e, row_inside, BLOCK_E: tl.constexpr
):  # fmt: skip
    """Store the sums over one part of the keys in a slot of scratch."""
    outputs, tops, totals, count = part_params
    place = slot * count + row
    tl.store(outputs + place * BLOCK_E + e, o, mask=row_inside)
    tl.store(tops + place, top, mask=row_inside)
    tl.store(totals + place, total, mask=row_inside)


@triton.jit
def place_of_rows(  # table
    number, n_q, n_h, BLOCK_M: tl.constexpr, GROUP: tl.constexpr, FROM_LAST: tl.constexpr, index: tl.constexpr
):  # fmt: skip
    """Batch, first head, rows of a tile, and the query and the head of each row."""
    tiles, packs = tl.cdiv(n_q * GROUP, BLOCK_M), n_h // GROUP
    tile, pack = number % tiles, number // tiles
    if FROM_LAST:
        tile = tiles - 1 - tile
    h_first = (pack % packs).to(index) * GROUP
    row = tile.to(index) * BLOCK_M + tl.arange(0, BLOCK_M).to(index)[:, None]
    m, h = row // GROUP, h_first
    if GROUP > 1:
        h += row % GROUP
    return pack.to(index), (pack // packs).to(index), h_first, tile.to(index) * BLOCK_M, row, m, h


@triton.jit
def part_of_blocks(first, whole, cut, last, part, BLOCK_N: tl.constexpr, PARTS: tl.constexpr):
    """What `seen_blocks` found, for one of PARTS equal parts of the blocks."""
    share = tl.cdiv(tl.cdiv(last - first, BLOCK_N), PARTS) * BLOCK_N
    start = tl.minimum(first + part * share, last)
    end = tl.minimum(start + share, last)
    whole = tl.minimum(tl.maximum(whole, start), end)
    return start, whole, tl.minimum(tl.maximum(cut, whole), end), end


@triton.jit
def tile_of_attention(  # table
    length_params, q_params, k_params, v_params, start_params, score_params, part_params, params,
    n_q, n_kv, n_h, bounds,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    GROUP: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile and part of its keys; where a right bound cuts, tiles with most keys come first.

    With one part it finishes the tile; else it keeps its sums, and `kernels/attention_join.py` adds them up.
    """
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    part = tl.program_id(0) % PARTS
    pack, b, h_first, row0, row, m, h = place_of_rows(
        tl.program_id(0) // PARTS, n_q, n_h, BLOCK_M, GROUP, CUTS & 1, index
    )
    d, e = tl.arange(0, BLOCK_D).to(index), tl.arange(0, BLOCK_E).to(index)
    rows, columns, shift = lengths(length_params, b, n_q, n_kv)
    q = load_q(q_params, b, h, m, d[None, :], m < n_q, BLOCK_M, BLOCK_D)
    m_first, m_last = row0 // GROUP, tl.minimum((row0 + BLOCK_M - 1) // GROUP, rows - 1)
    right, left = bounds[0] + shift, bounds[1] - shift
    first, whole, cut, last = seen_blocks(m_first, m_last, columns, right, left, BLOCK_N, CUTS, index)
    if CUTS & 8:  # a tile without any query of this batch
        whole, cut = tl.where(m_first < rows, whole, first), tl.where(m_first < rows, cut, first)
        last = tl.where(m_first < rows, last, first)
    top, total = started(start_params, h, BLOCK_M)
    if PARTS > 1:
        first, whole, cut, last = part_of_blocks(first, whole, cut, last, part, BLOCK_N, PARTS)
        top, total = tl.where(part == 0, top, float("-inf")), tl.where(part == 0, total, 0.0)
    top_before, total_before = top, total
    o = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    if CUTS & 2:
        o, top, total = add_blocks(
            o, top, total, first, whole, q, k_params, v_params, score_params, b, h, h_first, m, d, e, n_q, columns,
            (right, left), BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, CUTS & 7 | 4, index,
        )  # fmt: skip
    o, top, total = add_blocks(
        o, top, total, whole, cut, q, k_params, v_params, score_params, b, h, h_first, m, d, e, n_q, columns,
        (right, left), BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, 0, index,
    )  # fmt: skip
    if CUTS & 5:
        o, top, total = add_blocks(
            o, top, total, cut, last, q, k_params, v_params, score_params, b, h, h_first, m, d, e, n_q, columns,
            (right, left), BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, CUTS & 7 | 4, index,
        )  # fmt: skip
    is_row = m < rows
    if CUTS & 8:
        o, top = tl.where(is_row, o, 0.0), tl.where(is_row, top, top_before)
        total = tl.where(is_row, total, total_before)
    if PARTS == 1:
        o = o * (1.0 / tl.where(total == 0.0, 1.0, total))
        finish(params, o, top, total, b, h, m, e[None, :], m < n_q, is_row, BLOCK_M, BLOCK_E)
    else:
        keep(part_params, o, top, total, pack * PARTS + part, row, e[None, :], m < n_q, BLOCK_E)


@triton.jit
def attention(  # table
    q, k, v, o, n_q, n_kv, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    GROUP: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    tile_of_attention(
        (), (q, width), (k, width), (v, width), (), (), (), (o, width), n_q, n_kv, 1, (0, 0),
        BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, GROUP, CUTS, PARTS, INDEX_BITS,
    )  # fmt: skip
