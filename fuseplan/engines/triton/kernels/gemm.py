"""Matrix products by tiles: a program computes tiles of all products, which share their extents.

`load_a`, `load_b`, `zeros`, `add_products`, `keep_parts`, `load_parts` and `epilogue` are holes: a generated kernel has
its own.
Run alone, y = a b for dense matrices, in the type of y. Any strides, broadcast batches and odd sizes work where tiles
are loaded through pointers and masks; a tensor map takes `m0`, `k0` and `n0`, the first positions of a tile.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.helpers import columns_part


@triton.jit
def load_a(  # table
    a_params, b, m, k, m0, k0, m_inside, k_inside, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Tiles of the left operands at rows `m` and columns `k` of batch `b`; zeros outside of K."""
    x, row_stride = a_params
    return (tl.load(x + m * row_stride + k, mask=m_inside & k_inside, other=0.0),)


@triton.jit
def load_b(  # table
    b_params, b, k, n, k0, n0, k_inside, n_inside, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Tiles of the right operands at rows `k` and columns `n` of batch `b`; zeros outside of K."""
    x, row_stride = b_params
    return (tl.load(x + k * row_stride + n, mask=k_inside & n_inside, other=0.0),)


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """An accumulator for each product."""
    return (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),)


@triton.jit
def add_products(a, b, acc):
    """The accumulators with the products of these tiles added."""
    return (tl.dot(a[0], b[0], acc[0], input_precision="ieee"),)


@triton.jit
def keep_parts(  # table
    parts_params, acc, part, b, m, n, n_m, n_n, m_inside, n_inside
):  # fmt: skip
    """Store the sums over one part of K."""
    parts = parts_params[0]
    tl.store(parts + (part * n_m + m) * n_n + n, acc[0], mask=m_inside & n_inside)


@triton.jit
def load_parts(  # table
    parts_params, b, m, n, n_m, n_n, m_inside, n_inside, SPLIT_K: tl.constexpr
):  # fmt: skip
    """The products from their sums over parts of K: all are loaded at once and added up in one order."""
    parts = parts_params[0]
    part = tl.arange(0, SPLIT_K)[:, None, None]
    inside = (m_inside & n_inside)[None, :, :]
    place = (part * n_m + m[None, :, :]) * n_n + n[None, :, :]
    return (tl.sum(tl.load(parts + place, mask=inside, other=0.0, cache_modifier=".cg"), 0),)


@triton.jit
def epilogue(  # table
    params, acc, b, m, n, m0, n0, m_inside, n_inside, m_first, n_first,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """What follows from one of PARTS equal parts of the products' columns; BLOCK_N is the width of the part.

    `m_first` and `n_first` say that row 0 and column 0 are here: what lacks an axis is stored by that program.
    """
    y, row_stride = params
    x = columns_part(acc[0], PART, PARTS)
    tl.store(y + m * row_stride + n, x.to(y.dtype.element_ty), mask=m_inside & n_inside)


@triton.jit
def place_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile in the grid of tiles; they go down GROUP_M rows before they go right, for the L2."""
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    inside = tile % (GROUP_M * tiles_n)
    return first + inside % height, inside // height


@triton.jit
def sums_over(  # table
    start, end, a_params, b_params, b, m, n, m0, n0, n_m, n_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, index: tl.constexpr,
):  # fmt: skip
    """The main loop: accumulators of a tile over k from `start` to `end`."""
    acc = zeros(BLOCK_M, BLOCK_N)
    for k0 in range(start, end, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K).to(index)
        k_inside = k < end
        a_tiles = load_a(a_params, b, m, k[None, :], m0, k0, m < n_m, k_inside[None, :], BLOCK_M, BLOCK_K)
        b_tiles = load_b(b_params, b, k[:, None], n, k0, n0, k_inside[:, None], n < n_n, BLOCK_K, BLOCK_N)
        acc = add_products(a_tiles, b_tiles, acc)
    return acc


@triton.jit
def finish_tile(  # table
    params, acc, b, m, m0, n0, n_m, n_n, pid_m, pid_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_N: tl.constexpr, index: tl.constexpr,
):  # fmt: skip
    """The epilogue of a tile.

    With SPLIT_N = 2 it runs on one half of the columns after the other, which halves its registers and its staging
    in shared memory.
    """
    for PART in tl.static_range(SPLIT_N):
        n0_part = n0 + PART * (BLOCK_N // SPLIT_N)
        n = (n0_part + tl.arange(0, BLOCK_N // SPLIT_N))[None, :].to(index)
        n_first = (pid_n == 0) & (PART == 0)
        epilogue(
            params, acc, b, m, n, m0, n0_part, m < n_m, n < n_n, pid_m == 0, n_first,
            BLOCK_M, BLOCK_N // SPLIT_N, PART, SPLIT_N,
        )  # fmt: skip


@triton.jit
def work_on(  # table
    tile, a_params, b_params, params, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """One tile from its loads to its stores."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    tiles_m, tiles_n = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N)
    b = (tile // (tiles_m * tiles_n)).to(index)
    pid_m, pid_n = place_of(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    m0, n0 = pid_m * BLOCK_M, pid_n * BLOCK_N
    m = (m0 + tl.arange(0, BLOCK_M))[:, None].to(index)
    n = (n0 + tl.arange(0, BLOCK_N))[None, :].to(index)
    acc = sums_over(0, n_k, a_params, b_params, b, m, n, m0, n0, n_m, n_n, BLOCK_M, BLOCK_N, BLOCK_K, index)
    finish_tile(params, acc, b, m, m0, n0, n_m, n_n, pid_m, pid_n, BLOCK_M, BLOCK_N, SPLIT_N, index)


@triton.jit
def tile_of_products(  # table
    a_params, b_params, params, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile."""
    work_on(
        tl.program_id(0), a_params, b_params, params, n_m, n_n, n_k,
        BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_N, INDEX_BITS,
    )  # fmt: skip


@triton.jit
def tiles_of_products(  # table
    a_params, b_params, params, n_m, n_n, n_k, n_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """As many programs as the device holds, each with every so many-th tile: loads of the next one start early."""
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        work_on(
            tile, a_params, b_params, params, n_m, n_n, n_k,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_N, INDEX_BITS,
        )  # fmt: skip


@triton.jit
def keep_shared(parts_params, acc, slot, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store the sums of a whole tile over some of K in a slot of scratch."""
    parts = parts_params[0]
    place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(parts + slot * (BLOCK_M * BLOCK_N) + place, acc[0])


@triton.jit
def shared_sums(  # table
    parts_params, acc, first, last, step, PART: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """One half of the columns of a tile, with those of every `step`-th slot added."""
    parts = parts_params[0]
    place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + PART * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]
    x = columns_part(acc[0], PART, 2)
    for slot in range(first, last, step):
        x += tl.load(parts + slot * (BLOCK_M * BLOCK_N) + place, cache_modifier=".cg")
    return (x,)


@triton.jit
def finish_shared(  # table
    parts_params, params, acc, first, last, step, b, m, m0, n0, n_m, n_n, pid_m, pid_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, index: tl.constexpr,
):  # fmt: skip
    """`finish_tile` for a tile some of whose sums are in slots."""
    for PART in tl.static_range(2):
        half = shared_sums(parts_params, acc, first, last, step, PART, BLOCK_M, BLOCK_N)
        n0_part = n0 + PART * (BLOCK_N // 2)
        n = (n0_part + tl.arange(0, BLOCK_N // 2))[None, :].to(index)
        n_first = (pid_n == 0) & (PART == 0)
        epilogue(params, half, b, m, n, m0, n0_part, m < n_m, n < n_n, pid_m == 0, n_first, BLOCK_M, BLOCK_N // 2, 0, 1)


@triton.jit
def share_of_products(  # table
    a_params, b_params, parts_params, params, flags, n_m, n_n, n_k, n_whole, n_groups, n_tiles, n_shares,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """As `tiles_of_products` for `n_whole` tiles that keep all programs busy; the rest is shared.

    Each of `n_groups` groups of `n_shares` programs has `n_tiles` of the other tiles, whose ranges of K stand in one
    row that is cut into equal shares. So few places of K are read at a time, and the L2 serves most of it. A share ends
    one tile, whose sums it keeps and announces in a flag, and begins a next one, which it finishes: it adds what the
    others kept, in order. All programs are on the device at once; flags are 0 at the start; SPLIT_N is 2.
    """
    for tile in tl.range(tl.program_id(0), n_whole, tl.num_programs(0), flatten=True):
        work_on(
            tile, a_params, b_params, params, n_m, n_n, n_k,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_N, INDEX_BITS,
        )  # fmt: skip
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    tiles_m, tiles_n, steps = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N), tl.cdiv(n_k, BLOCK_K)
    group, share = tl.program_id(0) % n_groups, tl.program_id(0) // n_groups
    start, end = share * n_tiles * steps // n_shares, (share + 1) * n_tiles * steps // n_shares
    for piece in range(2):
        number = start // steps + piece
        first, last = tl.maximum(start - number * steps, 0), tl.minimum(end - number * steps, steps)
        if (share < n_shares) & (first < last):
            tile = n_whole + group + n_groups * number
            b = (tile // (tiles_m * tiles_n)).to(index)
            pid_m, pid_n = place_of(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
            m0, n0 = pid_m * BLOCK_M, pid_n * BLOCK_N
            m = (m0 + tl.arange(0, BLOCK_M))[:, None].to(index)
            n = (n0 + tl.arange(0, BLOCK_N))[None, :].to(index)
            acc = sums_over(
                first * BLOCK_K, tl.minimum(last * BLOCK_K, n_k), a_params, b_params, b, m, n, m0, n0, n_m, n_n,
                BLOCK_M, BLOCK_N, BLOCK_K, index,
            )  # fmt: skip
            flag = flags + group + n_groups * number
            if first > 0:
                keep_shared(parts_params, acc, tl.program_id(0), BLOCK_M, BLOCK_N)
                tl.debug_barrier()
                tl.atomic_add(flag, 1, sem="release")
            else:
                beyond = (number + 1) * n_shares // n_tiles
                beyond += (beyond * n_tiles * steps // n_shares < (number + 1) * steps).to(tl.int32)
                while tl.atomic_add(flag, 0, sem="acquire") < beyond - share - 1:
                    pass
                tl.debug_barrier()
                finish_shared(
                    parts_params, params, acc, tl.program_id(0) + n_groups, beyond * n_groups + group, n_groups,
                    b, m, m0, n0, n_m, n_n, pid_m, pid_n, BLOCK_M, BLOCK_N, index,
                )  # fmt: skip


@triton.jit
def kept_part(  # table
    a_params, b_params, parts_params, n_m, n_n, n_k, n_part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, index: tl.constexpr,
):  # fmt: skip
    """Keep the sums of a program's tile over its part of K; which part and tile, and where the tile is."""
    tiles_m, tiles_n = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N)
    part, tile = tl.program_id(0) % SPLIT_K, tl.program_id(0) // SPLIT_K
    b = (tile // (tiles_m * tiles_n)).to(index)
    pid_m, pid_n = place_of(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    m0, n0 = pid_m * BLOCK_M, pid_n * BLOCK_N
    m = (m0 + tl.arange(0, BLOCK_M))[:, None].to(index)
    n = (n0 + tl.arange(0, BLOCK_N))[None, :].to(index)
    start, end = part * n_part, tl.minimum(part * n_part + n_part, n_k)
    acc = sums_over(start, end, a_params, b_params, b, m, n, m0, n0, n_m, n_n, BLOCK_M, BLOCK_N, BLOCK_K, index)
    keep_parts(parts_params, acc, part, b, m, n, n_m, n_n, m < n_m, n < n_n)
    return part, tile, b, m0, n0


@triton.jit
def part_of_products(  # table
    a_params, b_params, parts_params, n_m, n_n, n_k, n_part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile and part of K, whose sums it keeps; `kernels/join.py` adds them up."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    kept_part(
        a_params, b_params, parts_params, n_m, n_n, n_k, n_part, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_K, index
    )


@triton.jit
def gemm(  # table
    a, b, y, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    tile_of_products(
        (a, n_k), (b, n_n), (y, n_n), n_m, n_n, n_k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_N, INDEX_BITS
    )
