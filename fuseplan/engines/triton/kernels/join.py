"""Products from their sums over parts of K, and what follows from them; `load_parts` and `epilogue` are holes.

Run alone, y = the sum of SPLIT_K matrices, in the type of y.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.helpers import columns_part


@triton.jit
def load_parts(  # table
    parts_params, b, m, n, n_m, n_n, m_inside, n_inside, SPLIT_K: tl.constexpr
):  # fmt: skip
    """The products: all parts are loaded at once and added up in one order."""
    parts = parts_params[0]
    part = tl.arange(0, SPLIT_K)[:, None, None]
    inside = (m_inside & n_inside)[None, :, :]
    return (tl.sum(tl.load(parts + (part * n_m + m[None, :, :]) * n_n + n[None, :, :], mask=inside, other=0.0), 0),)


@triton.jit
def epilogue(  # table
    params, acc, b, m, n, m0, n0, m_inside, n_inside, m_first, n_first,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """What follows from the products, as in `kernels/gemm.py`."""
    y, row_stride = params
    x = columns_part(acc[0], PART, PARTS)
    tl.store(y + m * row_stride + n, x.to(y.dtype.element_ty), mask=m_inside & n_inside)


@triton.jit
def joined_parts(  # table
    parts_params, params, n_m, n_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    tiles_m, tiles_n = tl.cdiv(n_m, BLOCK_M), tl.cdiv(n_n, BLOCK_N)
    b = (tl.program_id(0) // (tiles_m * tiles_n)).to(index)
    pid_m = tl.program_id(0) % (tiles_m * tiles_n) // tiles_n
    pid_n = tl.program_id(0) % tiles_n
    m0, n0 = pid_m * BLOCK_M, pid_n * BLOCK_N
    m = (m0 + tl.arange(0, BLOCK_M))[:, None].to(index)
    n = (n0 + tl.arange(0, BLOCK_N))[None, :].to(index)
    acc = load_parts(parts_params, b, m, n, n_m, n_n, m < n_m, n < n_n, SPLIT_K)
    epilogue(params, acc, b, m, n, m0, n0, m < n_m, n < n_n, pid_m == 0, pid_n == 0, BLOCK_M, BLOCK_N, 0, 1)


@triton.jit
def join(  # table
    parts, y, n_m, n_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    joined_parts((parts,), (y, n_n), n_m, n_n, BLOCK_M, BLOCK_N, SPLIT_K, INDEX_BITS)
