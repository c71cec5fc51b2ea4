"""Matrix products by tiles: a program computes one tile of all products, which share their extents.

`load_a`, `load_b`, `zeros`, `add_products` and `epilogue` are holes: a generated kernel has its own. Run alone,
y = a b for dense matrices, in the type of y. Any strides, broadcast batches and odd sizes work, because tiles are
loaded through pointers and masks.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.helpers import columns_part


@triton.jit
def load_a(a_params, b, m, k, m_inside, k_inside, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """Tiles of the left operands at rows `m` and columns `k` of batch `b`; zeros outside of K."""
    x, row_stride = a_params
    return (tl.load(x + m * row_stride + k, mask=m_inside & k_inside, other=0.0),)


@triton.jit
def load_b(b_params, b, k, n, k_inside, n_inside, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
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
def epilogue(  # table
    params, acc, b, m, n, m_inside, n_inside, m_first, n_first,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """What follows from one of PARTS equal parts of the products' columns; BLOCK_N is the width of the part.

    `m_first` and `n_first` say that row 0 and column 0 are here: what lacks an axis is stored by that program.
    """
    y, row_stride = params
    x = columns_part(acc[0], PART, PARTS)
    tl.store(y + m * row_stride + n, x.to(y.dtype.element_ty), mask=m_inside & n_inside)


@triton.jit
def tile_of_products(  # table
    a_params, b_params, params, n_m, n_n, n_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_N: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """The work of one program; tiles go down GROUP_M rows before they go right, for the L2.

    With SPLIT_N = 2 the epilogue runs on one half of the columns after the other, which halves its registers and
    its staging in shared memory.
    """
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    tiles_m, tiles_n = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N)
    b = (tl.program_id(0) // (tiles_m * tiles_n)).to(index)
    pid = tl.program_id(0) % (tiles_m * tiles_n)
    first_m = pid // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - first_m, GROUP_M)
    pid_m = first_m + pid % (GROUP_M * tiles_n) % height
    pid_n = pid % (GROUP_M * tiles_n) // height
    m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None].to(index)
    n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :].to(index)
    acc = zeros(BLOCK_M, BLOCK_N)
    for start in range(0, n_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K).to(index)
        k_inside = k < n_k
        a_tiles = load_a(a_params, b, m, k[None, :], m < n_m, k_inside[None, :], BLOCK_M, BLOCK_K)
        b_tiles = load_b(b_params, b, k[:, None], n, k_inside[:, None], n < n_n, BLOCK_K, BLOCK_N)
        acc = add_products(a_tiles, b_tiles, acc)
    for PART in tl.static_range(SPLIT_N):
        n = (pid_n * BLOCK_N + PART * (BLOCK_N // SPLIT_N) + tl.arange(0, BLOCK_N // SPLIT_N))[None, :].to(index)
        n_first = (pid_n == 0) & (PART == 0)
        epilogue(
            params, acc, b, m, n, m < n_m, n < n_n, pid_m == 0, n_first, BLOCK_M, BLOCK_N // SPLIT_N, PART, SPLIT_N
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
