"""Products by warps of their own for loads and for products, where each group has tiles of its own.

The groups take turns: the products of one run beside the epilogue of the other. Holes and what is not here are those
of `kernels/special.py`. Run alone, y = a b with the right operand as [N, K].
"""

from triton.experimental import gluon  # import here: kernel files are read as text, or run alone
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import (  # import here: as above
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)  # fmt: skip

from fuseplan.engines.triton.kernels.special import (
    allocate_staging,
    epilogue,
    load_a,
    load_b,
    part_of,
    place_of,
    tile_a,
    tile_b,
)


@gluon.jit
def load_in_turn(  # table
    a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, NUM_BYTES: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """The warp that loads: tiles one after another, whichever group they are for."""
    STAGES: gl.constexpr = b_tiles.type.shape[0]
    count = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), NUM_BYTES)
            load_a(a_params, pid_m * BLOCK_M, step * BLOCK_K, full.index(stage), a_tiles.index(stage))
            load_b(b_params, pid_n * BLOCK_N, step * BLOCK_K, full.index(stage), b_tiles.index(stage))
            count += 1


@gluon.jit
def sums_in_turn(  # table
    a_tiles, b_tiles, full, empty, next_turn, count, steps, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """A group's sums of a tile; once their last product is under way it is the other group's turn."""
    STAGES: gl.constexpr = b_tiles.type.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
    for step in range(steps):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), (count // STAGES) & 1)
        a, b = tile_a(a_tiles.index(stage)), tile_b(b_tiles.index(stage))
        acc = warpgroup_mma(a, b, acc, use_acc=step > 0, is_async=True)
        acc = warpgroup_mma_wait(1, (acc,))
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1, pred=step > 0)
        count += 1
    mbarrier.arrive(next_turn, count=1)
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)
    return acc


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
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    a_tiles = gl.allocate_shared_memory(
        a_map.dtype, [STAGES, a_map.block_type.shape[0], a_map.block_type.shape[1]], a_map.layout
    )
    b_tiles = gl.allocate_shared_memory(
        b_map.dtype, [STAGES, b_map.block_type.shape[0], b_map.block_type.shape[1]], b_map.layout
    )
    staging = allocate_staging(params, PARTS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    tiles_m, tiles_n, steps = gl.cdiv(n_m, BLOCK_M), gl.cdiv(n_n, BLOCK_N), gl.cdiv(n_k, BLOCK_K)
    NUM_BYTES: gl.constexpr = a_map.block_type.nbytes + b_map.block_type.nbytes
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    gl.warp_specialize([
        (multiply_in_turn, (FIRST, params, staging, a_tiles, b_tiles, full, empty, turns, n_m, n_n, tiles_m, tiles_n,
                            steps, BLOCK_M, BLOCK_N, GROUP_M, PARTS)),
        (multiply_in_turn, (SECOND, params, staging, a_tiles, b_tiles, full, empty, turns, n_m, n_n, tiles_m, tiles_n,
                            steps, BLOCK_M, BLOCK_N, GROUP_M, PARTS)),
        (load_in_turn, (a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, NUM_BYTES,
                        BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)),
    ], [4, 1], [232, 40])  # fmt: skip


@gluon.jit
def special_turns(  # table
    a, b, y, n_m, n_n, n_k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    tiles_in_turn((a,), (b,), (y,), n_m, n_n, n_k, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP_M, PARTS, INDEX_BITS)
