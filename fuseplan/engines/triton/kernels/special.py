"""Matrix products by warps of their own for loads and for products, in Gluon, for sm_90.

One warp keeps the copy engine busy; two groups of four warps multiply, each 64 rows of a tile. While they run the
epilogue, loads of the next tile are under way. `load_a`, `load_b`, `tile_a`, `tile_b`, `allocate_staging` and
`epilogue` are holes: a generated kernel has its own. Run alone, y = a b with the right operand as [N, K].
"""

from triton.experimental import gluon  # import here: as above
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import (  # import here: as above
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)  # fmt: skip


@gluon.jit
def full_scalar(x, T: gl.constexpr):
    """A number in a type."""
    return gl.to_tensor(x).to(T)


@gluon.jit
def store_tile(tile_map, staging, SLOT: gl.constexpr, GROUP: gl.constexpr, place, x):
    """Send a tile to memory through a slot of shared memory; what was sent through it last has left it then."""
    PENDING: gl.constexpr = len(staging) - 1
    tma.store_wait(PENDING)
    slot = staging[SLOT].index(GROUP)
    slot.store(x)
    fence_async_shared()
    tma.async_copy_shared_to_global(tile_map, place, slot)


@gluon.jit
def load_a(a_params, m0, k0, barrier, target):
    """Start to load 64 rows of the left operand."""
    tma.async_copy_global_to_shared(a_params[0], [m0, k0], barrier, target)


@gluon.jit
def load_b(b_params, n0, k0, barrier, target):
    """Start to load the columns of the right operand."""
    tma.async_copy_global_to_shared(b_params[0], [n0, k0], barrier, target)


@gluon.jit
def tile_a(x):
    """A tile of the left operand as rows of M."""
    return x


@gluon.jit
def tile_b(x):
    """A tile of the right operand as rows of K."""
    return x.permute((1, 0))


@gluon.jit
def allocate_staging(params, PARTS: gl.constexpr):
    """Shared memory for the tiles that are stored, for both groups."""
    y = params[0]
    return (gl.allocate_shared_memory(y.dtype, [2, y.block_type.shape[0], y.block_type.shape[1]], y.layout),)


@gluon.jit
def epilogue(  # table
    params, staging, GROUP: gl.constexpr, acc, m, n, m0, n0, m_inside, n_inside, m_first, n_first,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """What follows from a part of the products' columns, as in `kernels/gemm.py`."""
    store_tile(params[0], staging, 0, GROUP, [m0, n0], acc.to(params[0].dtype))


@gluon.jit
def place_of(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """As in `kernels/gemm.py`."""
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = gl.minimum(tiles_m - first, GROUP_M)
    inside = tile % (GROUP_M * tiles_n)
    return first + inside % height, inside // height


@gluon.jit
def half_of(x, HALF: gl.constexpr):
    """The left (0) or the right (1) half of the columns of sums; registers are renamed, nothing moves."""
    N: gl.constexpr = x.type.shape[1] // 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    left, right = gl.split(gl.permute(gl.reshape(x, (x.type.shape[0], 2, N)), (0, 2, 1)))
    return gl.convert_layout(left if HALF == 0 else right, LAYOUT)


@gluon.jit
def part_of(x, PART: gl.constexpr, PARTS: gl.constexpr):
    """One of 1, 2 or 4 equal parts of the columns of sums."""
    if PARTS == 1:
        part = x
    elif PARTS == 2:
        part = half_of(x, PART)
    else:
        part = half_of(half_of(x, PART // 2), PART % 2)
    return part


@gluon.jit
def load_steps(  # table
    a_params, b_params, a_tiles, b_tiles, full, empty, pid_m, pid_n, count, first, last, NUM_BYTES: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Load some steps of a tile, ROWS rows for each of its groups: stages in turn, each once they have left it."""
    STAGES: gl.constexpr = b_tiles.type.shape[0]
    for step in range(first, last):
        stage = count % STAGES
        mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), NUM_BYTES)
        for group in gl.static_range(GROUPS):
            m0 = pid_m * (GROUPS * ROWS) + group * ROWS
            load_a(a_params, m0, step * BLOCK_K, full.index(stage), a_tiles.index(GROUPS * stage + group))
        load_b(b_params, pid_n * BLOCK_N, step * BLOCK_K, full.index(stage), b_tiles.index(stage))
        count += 1


@gluon.jit
def load_tiles(  # table
    a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, NUM_BYTES: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """The warp that loads: tiles one after another, whichever groups they are for."""
    count = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        load_steps(
            a_params, b_params, a_tiles, b_tiles, full, empty, pid_m, pid_n, count, 0, steps, NUM_BYTES,
            GROUPS, ROWS, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        count += steps


@gluon.jit
def sums_under_way(  # table
    a_tiles, b_tiles, full, empty, count, first, last, GROUPS: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
):  # fmt: skip
    """A group's sums of its rows of a tile, the last product not awaited.

    A stage is free again when the product after its own has begun.
    """
    STAGES: gl.constexpr = b_tiles.type.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    acc = gl.zeros((ROWS, BLOCK_N), gl.float32, LAYOUT)
    for step in range(first, last):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), (count // STAGES) & 1)
        a, b = tile_a(a_tiles.index(GROUPS * stage + GROUP)), tile_b(b_tiles.index(stage))
        acc = warpgroup_mma(a, b, acc, use_acc=step > first, is_async=True)
        acc = warpgroup_mma_wait(1, (acc,))
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1, pred=step > first)
        count += 1
    return acc, count


@gluon.jit
def awaited(acc, empty, count):
    """The sums once their last product, of the stage in front of `count`, has ended; that stage is free then."""
    STAGES: gl.constexpr = empty.type.shape[0]
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)
    return acc


@gluon.jit
def sums_over(  # table
    GROUP: gl.constexpr, a_tiles, b_tiles, full, empty, count, first, last, BLOCK_N: gl.constexpr
):  # fmt: skip
    """The sums of a group that has a half of a tile's rows over some steps."""
    acc, count = sums_under_way(a_tiles, b_tiles, full, empty, count, first, last, 2, GROUP, 64, BLOCK_N)
    return awaited(acc, empty, count)


@gluon.jit
def multiply_tiles(  # table
    GROUP: gl.constexpr, params, staging, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m, tiles_n, steps,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """A group that multiplies."""
    PART_N: gl.constexpr = BLOCK_N // PARTS
    PART_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_N, 16]
    )
    count = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        acc = sums_over(GROUP, a_tiles, b_tiles, full, empty, count, 0, steps, BLOCK_N)
        count += steps
        m0 = pid_m * 128 + GROUP * 64
        m = (m0 + gl.arange(0, 64, layout=gl.SliceLayout(1, PART_LAYOUT)))[:, None]
        for PART in gl.static_range(PARTS):
            n0 = pid_n * BLOCK_N + PART * PART_N
            n = (n0 + gl.arange(0, PART_N, layout=gl.SliceLayout(0, PART_LAYOUT)))[None, :]
            epilogue(
                params, staging, GROUP, part_of(acc, PART, PARTS), m, n, m0, n0, m < n_m, n < n_n,
                m0 == 0, n0 == 0, 64, PART_N,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def allocate_tiles(a_map, b_map, STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """Shared memory of all stages: rows of the left operand for each group of a tile, and the right operand."""
    a_tiles = gl.allocate_shared_memory(
        a_map.dtype, [GROUPS * STAGES, a_map.block_type.shape[0], a_map.block_type.shape[1]], a_map.layout
    )
    b_tiles = gl.allocate_shared_memory(
        b_map.dtype, [STAGES, b_map.block_type.shape[0], b_map.block_type.shape[1]], b_map.layout
    )
    return a_tiles, b_tiles


@gluon.jit
def allocate_barriers(STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """For each stage whether it is full, and empty: all groups of its tile must have left it."""
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=GROUPS)
    return full, empty


@gluon.jit
def tiles_by_specialists(  # table
    a_params, b_params, params, n_m, n_n, n_k,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr, PARTS: gl.constexpr,
    INDEX_BITS: gl.constexpr,
):  # fmt: skip
    """One program a multiprocessor, each with every so many-th tile of 128 rows."""
    a_map, b_map = a_params[0], b_params[0]
    a_tiles, b_tiles = allocate_tiles(a_map, b_map, STAGES, 2)
    staging = allocate_staging(params, PARTS)
    full, empty = allocate_barriers(STAGES, 2)
    tiles_m, tiles_n, steps = gl.cdiv(n_m, 128), gl.cdiv(n_n, BLOCK_N), gl.cdiv(n_k, BLOCK_K)
    NUM_BYTES: gl.constexpr = 2 * a_map.block_type.nbytes + b_map.block_type.nbytes
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    GROUPS: gl.constexpr = 2
    ROWS: gl.constexpr = 64
    gl.warp_specialize([
        (multiply_tiles, (FIRST, params, staging, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m, tiles_n, steps,
                          BLOCK_N, GROUP_M, PARTS)),
        (multiply_tiles, (SECOND, params, staging, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m, tiles_n, steps,
                          BLOCK_N, GROUP_M, PARTS)),
        (load_tiles, (a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, NUM_BYTES,
                      GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M)),
    ], [4, 1], [232, 40])  # fmt: skip


@gluon.jit
def special(  # table
    a, b, y, n_m, n_n, n_k, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, PARTS: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    tiles_by_specialists((a,), (b,), (y,), n_m, n_n, n_k, BLOCK_N, BLOCK_K, STAGES, GROUP_M, PARTS, INDEX_BITS)
