"""Products by warps of their own for loads and for products, where each group has tiles of its own.

The groups take turns: the products of one run beside the epilogue of the other. Holes and what is not here are those
of `kernels/special.py`. Run alone, y = a b with the right operand as [N, K].
"""

from triton.experimental import gluon  # import here: kernel files are read as text, or run alone
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma  # import here: as above

from fuseplan.engines.triton.kernels.special import (
    allocate_barriers,
    allocate_staging,
    allocate_tiles,
    awaited,
    epilogue,
    load_tiles,
    part_of,
    place_of,
    sums_under_way,
)


@gluon.jit
def sums_in_turn(  # table
    a_tiles, b_tiles, full, empty, next_turn, count, steps, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """A group's sums of a tile; once their last product is under way it is the other group's turn."""
    acc, count = sums_under_way(a_tiles, b_tiles, full, empty, count, 0, steps, 1, 0, BLOCK_M, BLOCK_N)
    mbarrier.arrive(next_turn, count=1)
    return awaited(acc, empty, count)


@gluon.jit
def multiply_in_turn(  # table
    GROUP: gl.constexpr, params, staging, a_tiles, b_tiles, full, empty, turns, n_m, n_n, tiles_m, tiles_n, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """A group that multiplies: every second tile of a program is its own."""
    PART_N: gl.constexpr = BLOCK_N // PARTS
    PART_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_N, 16]
    )
    count, turn = GROUP * steps, 0
    start = gl.program_id(0) + GROUP * gl.num_programs(0)
    for tile in range(start, tiles_m * tiles_n, 2 * gl.num_programs(0)):
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        mbarrier.wait(turns.index(GROUP), (turn + GROUP + 1) & 1)
        acc = sums_in_turn(a_tiles, b_tiles, full, empty, turns.index(1 - GROUP), count, steps, BLOCK_M, BLOCK_N)
        count += 2 * steps
        turn += 1
        m0 = pid_m * BLOCK_M
        m = (m0 + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, PART_LAYOUT)))[:, None]
        for PART in gl.static_range(PARTS):
            n0 = pid_n * BLOCK_N + PART * PART_N
            n = (n0 + gl.arange(0, PART_N, layout=gl.SliceLayout(0, PART_LAYOUT)))[None, :]
            epilogue(
                params, staging, GROUP, part_of(acc, PART, PARTS), m, n, m0, n0, m < n_m, n < n_n,
                m0 == 0, n0 == 0, BLOCK_M, PART_N,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def tiles_in_turn(  # table
    a_params, b_params, params, n_m, n_n, n_k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    """One program a multiprocessor, each with every so many-th tile, which its groups take in turn."""
    a_map, b_map = a_params[0], b_params[0]
    a_tiles, b_tiles = allocate_tiles(a_map, b_map, STAGES, 1)
    staging = allocate_staging(params, PARTS)
    full, empty = allocate_barriers(STAGES, 1)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    tiles_m, tiles_n, steps = gl.cdiv(n_m, BLOCK_M), gl.cdiv(n_n, BLOCK_N), gl.cdiv(n_k, BLOCK_K)
    NUM_BYTES: gl.constexpr = a_map.block_type.nbytes + b_map.block_type.nbytes
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    GROUPS: gl.constexpr = 1
    gl.warp_specialize([
        (multiply_in_turn, (FIRST, params, staging, a_tiles, b_tiles, full, empty, turns, n_m, n_n, tiles_m, tiles_n,
                            steps, BLOCK_M, BLOCK_N, GROUP_M, PARTS)),
        (multiply_in_turn, (SECOND, params, staging, a_tiles, b_tiles, full, empty, turns, n_m, n_n, tiles_m, tiles_n,
                            steps, BLOCK_M, BLOCK_N, GROUP_M, PARTS)),
        (load_tiles, (a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, NUM_BYTES,
                      GROUPS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)),
    ], [4, 1], [232, 40])  # fmt: skip


@gluon.jit
def special_turns(  # table
    a, b, y, n_m, n_n, n_k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    tiles_in_turn((a,), (b,), (y,), n_m, n_n, n_k, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP_M, PARTS, INDEX_BITS)
