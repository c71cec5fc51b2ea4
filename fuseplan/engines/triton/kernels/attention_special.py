"""Attention by warps of their own for loads and for products, in Gluon, for sm_90.

A program walks a list of tiles that was made with the plan: 128 queries of one head each. One warp loads; two groups
of four warps have 64 queries each. Keys are walked from the last to the first, so that the blocks that bounds cut come
first (and, with a left bound, last); the others are never masked. `store_rows` is a hole; what is not here is in
`kernels/attention_steps.py`. Run alone, scores in base 2.
"""

from triton.experimental import gluon  # import here: kernel files are read as text, or run alone
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import (  # import here: as above
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)  # fmt: skip

from fuseplan.engines.triton.kernels.attention_steps import first_step, give_turn, more_steps, rows_of


@gluon.jit
def store_rows(params, b, h, m, m_inside, top, total):
    """What is stored of each query: the highest exponent, and the sum of the powers below it."""


@gluon.jit
def listed_tile(table, place):
    """A tile of this program as its head of all batches, 65536 times, and its number among the head's."""
    return gl.load(table + gl.program_id(0) + (place + 1) * gl.num_programs(0), volatile=True)


@gluon.jit
def blocks_of(m0, bounds, CUTS: gl.constexpr, BLOCK_N: gl.constexpr):
    """First and last + 1 of the blocks of keys for 128 queries; one at least."""
    n_kv, right, left = bounds
    first, last = 0, gl.cdiv(n_kv, BLOCK_N)
    if CUTS & 1:
        last = gl.maximum(gl.minimum(last, (m0 + 127 + right) // BLOCK_N + 1), 1)
    if CUTS & 2:
        first = gl.minimum(gl.maximum(m0 + 1 - left, 0) // BLOCK_N, last - 1)
    return first, last


@gluon.jit
def load_tiles(  # table
    maps, q_parts, kv_parts, table, bounds, n_h, n_g, CUTS: gl.constexpr
):
    """The warp that loads."""
    q_map, k_map, v_map, o_map = maps
    q_tiles, q_full, q_empty = q_parts
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = kv_parts
    STAGES: gl.constexpr = k_tiles.type.shape[0]
    Q_STAGES: gl.constexpr = q_tiles.type.shape[0] // 2
    BLOCK_N: gl.constexpr = k_tiles.type.shape[3]
    tiles, tile, count = listed_tile(table, -1), listed_tile(table, 0), 0
    for i in range(tiles):
        after = listed_tile(table, i + 1)
        b, h, m0 = (tile >> 16) // n_h, (tile >> 16) % n_h, (tile & 65535) * 128
        for group in gl.static_range(2):
            slot = (i % Q_STAGES) * 2 + group
            mbarrier.wait(q_empty.index(slot), ((i // Q_STAGES) & 1) ^ 1)
            mbarrier.expect(q_full.index(slot), q_map.block_type.nbytes)
            tma.async_copy_global_to_shared(q_map, [b, h, m0 + group * 64, 0], q_full.index(slot), q_tiles.index(slot))
        first, last = blocks_of(m0, bounds, CUTS, BLOCK_N)
        n0 = (last - 1) * BLOCK_N
        for _ in range(first, last):
            stage = count % STAGES
            phase = ((count // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), k_map.block_type.nbytes)
            tma.async_copy_global_to_shared(k_map, [b, h // n_g, n0, 0], k_full.index(stage), k_tiles.index(stage))
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), v_map.block_type.nbytes)
            tma.async_copy_global_to_shared(v_map, [b, h // n_g, n0, 0], v_full.index(stage), v_tiles.index(stage))
            n0 -= BLOCK_N
            count += 1
        tile = after


@gluon.jit
def attend_tiles(  # table
    GROUP: gl.constexpr, params, o_map, q_parts, kv_parts, table, n_q, bounds, n_h, CUTS: gl.constexpr,
    EDGES: gl.constexpr, LEFT_EDGES: gl.constexpr, TURNS: gl.constexpr, HALF: gl.constexpr, HOLD: gl.constexpr,
    MIXED: gl.constexpr,
):  # fmt: skip
    """A group that multiplies."""
    q_tiles, q_full, q_empty = q_parts
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = kv_parts
    STAGES: gl.constexpr = k_tiles.type.shape[0]
    Q_STAGES: gl.constexpr = q_tiles.type.shape[0] // 2
    BLOCK_N: gl.constexpr = k_tiles.type.shape[3]
    WIDTH: gl.constexpr = q_tiles.type.shape[4]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=LAYOUT, k_width=2)
    tiles, tile, count = listed_tile(table, -1), listed_tile(table, 0), 0
    if TURNS:
        if GROUP == 1:
            give_turn(GROUP)
    for i in range(tiles):
        after = listed_tile(table, i + 1)
        b, h, m0 = (tile >> 16) // n_h, (tile >> 16) % n_h, (tile & 65535) * 128
        first, last = blocks_of(m0, bounds, CUTS, BLOCK_N)
        m0 += GROUP * 64
        n0 = (last - 1) * BLOCK_N
        slot = (i % Q_STAGES) * 2 + GROUP
        acc = gl.zeros((64, WIDTH), gl.float32, LAYOUT)
        mbarrier.wait(q_full.index(slot), (i // Q_STAGES) & 1)
        q = rows_of(q_tiles.index(slot))
        top, sums, p = first_step(GROUP, q, kv_parts, count, m0, n0, bounds, P_LAYOUT, CUTS, TURNS, HALF)
        if Q_STAGES > 1:
            if i > 0:  # the output of the tile in front has left its place
                tma.store_wait(0)
                mbarrier.arrive(q_empty.index(((i + 1) % Q_STAGES) * 2 + GROUP), count=1)
        count += 1
        n0 -= BLOCK_N
        steps = last - first - 1
        if EDGES > 1:
            edges = gl.minimum(EDGES - 1, steps)
            acc, top, sums, p, count, n0 = more_steps(
                GROUP, q, kv_parts, acc, top, sums, p, count, edges, m0, n0, bounds, CUTS & 3, TURNS, HOLD, MIXED
            )
            steps -= edges
        lefts = gl.minimum(LEFT_EDGES, steps)
        acc, top, sums, p, count, n0 = more_steps(
            GROUP, q, kv_parts, acc, top, sums, p, count, steps - lefts, m0, n0, bounds, 0, TURNS, HOLD, MIXED
        )
        if LEFT_EDGES > 0:
            acc, top, sums, p, count, n0 = more_steps(
                GROUP, q, kv_parts, acc, top, sums, p, count, lefts, m0, n0, bounds, 2, TURNS, HOLD, MIXED
            )
        stage = (count - 1) % STAGES
        mbarrier.wait(v_full.index(stage), ((count - 1) // STAGES) & 1)
        acc = warpgroup_mma(p, rows_of(v_tiles.index(stage)), acc, is_async=True)
        total = gl.where(top > -3.0e38, gl.convert_layout(gl.sum(sums, 1), top.type.layout), 0.0)
        m = m0 + gl.arange(0, 64, layout=top.type.layout)
        store_rows(params, b, h, m, m < n_q, top, total)
        inverse = gl.convert_layout(gl.where(total > 0, 1.0 / total, 0.0), gl.SliceLayout(1, LAYOUT))
        acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(v_empty.index(stage), count=1)
        q.store((acc * inverse[:, None]).to(q.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_map, [b, h, m0, 0], q_tiles.index(slot))
        if Q_STAGES == 1:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(slot), count=1)
        tile = after
    tma.store_wait(0)


@gluon.jit
def allocate_full_and_empty(STAGES: gl.constexpr, READERS: gl.constexpr):
    """For each stage whether it is full, and empty: its readers must have left it."""
    LAYOUT: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=READERS)
    return full, empty


@gluon.jit
def allocate_stages(tile_map, STAGES: gl.constexpr):
    """Shared memory for tiles of a map."""
    ROWS: gl.constexpr = tile_map.block_type.shape[2]
    WIDTH: gl.constexpr = tile_map.block_type.shape[3]
    return gl.allocate_shared_memory(tile_map.dtype, [STAGES, 1, 1, ROWS, WIDTH], tile_map.layout)


@gluon.jit
def attention_by_specialists(  # table
    maps, params, table, n_q, bounds, n_h, n_g, CUTS: gl.constexpr, EDGES: gl.constexpr, LEFT_EDGES: gl.constexpr,
    STAGES: gl.constexpr, Q_STAGES: gl.constexpr, TURNS: gl.constexpr, HALF: gl.constexpr, HOLD: gl.constexpr,
    MIXED: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    """One program a multiprocessor."""
    q_map, k_map, v_map, o_map = maps
    q_full, q_empty = allocate_full_and_empty(2 * Q_STAGES, 1)
    k_full, k_empty = allocate_full_and_empty(STAGES, 2)
    v_full, v_empty = allocate_full_and_empty(STAGES, 2)
    q_parts = (allocate_stages(q_map, 2 * Q_STAGES), q_full, q_empty)
    kv_parts = (allocate_stages(k_map, STAGES), allocate_stages(v_map, STAGES), k_full, k_empty, v_full, v_empty)
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    gl.warp_specialize([
        (attend_tiles, (FIRST, params, o_map, q_parts, kv_parts, table, n_q, bounds, n_h, CUTS, EDGES, LEFT_EDGES,
                        TURNS, HALF, HOLD, MIXED)),
        (attend_tiles, (SECOND, params, o_map, q_parts, kv_parts, table, n_q, bounds, n_h, CUTS, EDGES, LEFT_EDGES,
                        TURNS, HALF, HOLD, MIXED)),
        (load_tiles, (maps, q_parts, kv_parts, table, bounds, n_h, n_g, CUTS)),
    ], [4, 1], [240, 24])  # fmt: skip


@gluon.jit
def attention_special(  # table
    q, k, v, o, table, n_q, n_kv, right, left, n_h, n_g, CUTS: gl.constexpr, EDGES: gl.constexpr,
    LEFT_EDGES: gl.constexpr, STAGES: gl.constexpr, Q_STAGES: gl.constexpr, TURNS: gl.constexpr, HALF: gl.constexpr,
    HOLD: gl.constexpr, MIXED: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    attention_by_specialists(
        (q, k, v, o), (), table, n_q, (n_kv, right, left), n_h, n_g, CUTS, EDGES, LEFT_EDGES, STAGES, Q_STAGES, TURNS,
        HALF, HOLD, MIXED, INDEX_BITS,
    )  # fmt: skip
