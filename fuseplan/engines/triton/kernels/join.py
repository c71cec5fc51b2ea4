"""Products from their sums over parts of K, and what follows from them.

Holes and what is not here are those of `kernels/gemm.py`. Run alone, y = the sum of SPLIT_K matrices, in the type of y.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.gemm import epilogue, load_parts


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
