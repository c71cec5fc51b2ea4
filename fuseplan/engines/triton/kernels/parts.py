"""Products from their sums over parts of K in one kernel: who summed a part then finishes a slice of the tile.

Holes and what is not here are those of `kernels/gemm.py`. Run alone, y = a b for dense matrices, in the type of y.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above

from fuseplan.engines.triton.kernels.gemm import epilogue, kept_part, load_parts


@triton.jit
def wait_for_flag(flag):
    """Wait until flags are set."""
    tl.inline_asm_elementwise(
        """{
.reg .pred p;
.reg .b64 v;
AGAIN:
ld.acquire.gpu.global.b64 v, [$1];
setp.ne.b64 p, v, 0x6a09e667f3bcc908;
@p bra AGAIN;
mov.u32 $0, 0;
}""",
        "=r,l",
        [flag],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def joined_products(  # table
    a_params, b_params, parts_params, join_params, params, flags, n_m, n_n, n_k, n_part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """A program for each tile and part of K, all on the device at once.

    Each pair of programs of a tile has a flag. Nobody sets flags to a start: a set one is a number of 64 bits that
    memory does not hold by chance, and who waited for a flag clears it.
    """
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    part, tile, b, m0, n0 = kept_part(
        a_params, b_params, parts_params, n_m, n_n, n_k, n_part, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_K, index
    )
    tl.debug_barrier()
    others = tl.arange(0, SPLIT_K)
    first = flags + tile * SPLIT_K * SPLIT_K
    tl.atomic_xchg(first + others * SPLIT_K + part, tl.full((SPLIT_K,), 0x6A09E667F3BCC908, tl.int64), sem="release")
    mine = first + part * SPLIT_K + others
    wait_for_flag(mine)
    tl.debug_barrier()
    tl.store(mine, tl.zeros((SPLIT_K,), tl.int64))
    SLICE_M: tl.constexpr = BLOCK_M // SPLIT_K if BLOCK_M > SPLIT_K else 1
    SLICE_N: tl.constexpr = BLOCK_M * BLOCK_N // (SPLIT_K * SLICE_M)
    m0 += part // (BLOCK_N // SLICE_N) * SLICE_M
    n0 += part % (BLOCK_N // SLICE_N) * SLICE_N
    m = (m0 + tl.arange(0, SLICE_M))[:, None].to(index)
    n = (n0 + tl.arange(0, SLICE_N))[None, :].to(index)
    sums = load_parts(join_params, b, m, n, n_m, n_n, m < n_m, n < n_n, SPLIT_K)
    epilogue(params, sums, b, m, n, m0, n0, m < n_m, n < n_n, m0 == 0, n0 == 0, SLICE_M, SLICE_N, 0, 1)


@triton.jit
def parts(  # table
    a, b, y, kept, flags, n_m, n_n, n_k, n_part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    joined_products(
        (a, n_k), (b, n_n), (kept,), (kept,), (y, n_n), flags, n_m, n_n, n_k, n_part,
        BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_K, INDEX_BITS,
    )  # fmt: skip
