"""Matrix products by tiles: a program computes tiles of all products, which share their extents.

`load_a`, `load_b`, `zeros`, `add_products`, `keep_parts` and `epilogue` are holes: a generated kernel has its own.
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
def work_on(  # table
    tile, a_params, b_params, params, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """One tile from its loads to its stores.

    With SPLIT_N = 2 the epilogue runs on one half of the columns after the other, which halves its registers and
    its staging in shared memory.
    """
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    tiles_m, tiles_n = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N)
    b = (tile // (tiles_m * tiles_n)).to(index)
    pid_m, pid_n = place_of(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    m0, n0 = pid_m * BLOCK_M, pid_n * BLOCK_N
    m = (m0 + tl.arange(0, BLOCK_M))[:, None].to(index)
    n = (n0 + tl.arange(0, BLOCK_N))[None, :].to(index)
    acc = sums_over(0, n_k, a_params, b_params, b, m, n, m0, n0, n_m, n_n, BLOCK_M, BLOCK_N, BLOCK_K, index)
    for PART in tl.static_range(SPLIT_N):
        n0_part = n0 + PART * (BLOCK_N // SPLIT_N)
        n = (n0_part + tl.arange(0, BLOCK_N // SPLIT_N))[None, :].to(index)
        n_first = (pid_n == 0) & (PART == 0)
        epilogue(
            params, acc, b, m, n, m0, n0_part, m < n_m, n < n_n, pid_m == 0, n_first,
            BLOCK_M, BLOCK_N // SPLIT_N, PART, SPLIT_N,
        )  # fmt: skip


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
def part_of_products(  # table
    a_params, b_params, parts_params, n_m, n_n, n_k, n_part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile and part of K, whose sums it keeps; `kernels/join.py` adds them up."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
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


@triton.jit
def gemm(  # table
    a, b, y, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    tile_of_products(
        (a, n_k), (b, n_n), (y, n_n), n_m, n_n, n_k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_N, INDEX_BITS
    )
