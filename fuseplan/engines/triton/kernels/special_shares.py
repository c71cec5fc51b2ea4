"""Products by warps of their own for loads and for products, where programs share the tiles of the last wave.

Holes and what is not here are those of `kernels/special.py`. Run alone, y = a b with the right operand as [N, K].
"""

from triton.experimental import gluon  # import here: kernel files are read as text, or run alone
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import tma  # import here: as above

from fuseplan.engines.triton.kernels.special import (
    allocate_barriers,
    allocate_staging,
    allocate_tiles,
    epilogue,
    half_of,
    load_steps,
    place_of,
    sums_over,
)


@gluon.jit
def piece_of(number, waves, start, end, n_whole, n_groups, steps):
    """A program's piece of work: a tile, and the steps of it that are its own; whole tiles come first."""
    tile = gl.program_id(0) + number * gl.num_programs(0)
    first = tile * 0
    last = first + steps
    if number >= waves:
        place = start // steps + number - waves
        tile = n_whole + gl.program_id(0) % n_groups + n_groups * place
        first = gl.maximum(start - place * steps, 0)
        last = gl.minimum(end - place * steps, steps)
    return tile, first, last


@gluon.jit
def announce(flag):
    """Add 1 to a thread's flag once what the thread stored is there."""
    gl.inline_asm_elementwise(
        "red.release.gpu.global.add.s32 [$1], 1; // $0", "=r,l", [flag], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def zero_after(flag, wanted):
    """Zeros, once each thread's flag has the number wanted; loads behind it add them to their addresses."""
    gl.inline_asm_elementwise(
        """{
.reg .pred p;
.reg .b32 v;
AGAIN:
ld.acquire.gpu.global.b32 v, [$1];
setp.lt.s32 p, v, $2;
@p bra AGAIN;
mov.u32 $0, 0;
}""",
        "=r,l,r",
        [flag, wanted],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    return gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def by_thread(x):
    """Half of a group's sums as 16 vectors of 4 for each thread; registers are renamed, nothing moves."""
    y = gl.permute(gl.reshape(x, (4, 2, 8, 16, 4, 2)), (3, 0, 2, 4, 1, 5))
    return gl.reshape(y, (16, 128, 4))


@gluon.jit
def from_threads(y):
    """`by_thread` undone."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    x = gl.permute(gl.reshape(y, (16, 4, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5))
    return gl.convert_layout(gl.reshape(x, (64, 128)), LAYOUT)


@gluon.jit
def places_like(y):
    """Offsets of the elements of `by_thread`."""
    LAYOUT: gl.constexpr = y.type.layout
    vector = gl.expand_dims(gl.expand_dims(gl.arange(0, 16), 1), 2)
    thread = gl.expand_dims(gl.expand_dims(gl.arange(0, 128), 0), 2)
    word = gl.expand_dims(gl.expand_dims(gl.arange(0, 4), 0), 1)
    return gl.set_auto_layout(vector * 512 + thread * 4 + word, LAYOUT)


@gluon.jit
def finish_half(  # table
    params, staging, GROUP: gl.constexpr, x, pid_m, n0, n_m, n_n
):
    """The epilogue of 128 columns of a group's tile."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    m0 = pid_m * 128 + GROUP * 64
    m = (m0 + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT)))[:, None]
    n = (n0 + gl.arange(0, 128, layout=gl.SliceLayout(0, LAYOUT)))[None, :]
    epilogue(params, staging, GROUP, x, m, n, m0, n0, m < n_m, n < n_n, m0 == 0, n0 == 0, 64, 128)


@gluon.jit
def multiply_shares(  # table
    GROUP: gl.constexpr, params, staging, kept, flags, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m, tiles_n,
    steps, waves, pieces, start, end, n_whole, n_groups, n_tiles, n_shares, BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    """A group that multiplies where programs share tiles.

    Sums of pieces that do not begin a tile go to memory as they lie in registers; each thread needs what one thread
    wrote, so each has a flag. With HALVES two programs share a tile: each sends one half of the columns to the other
    and finishes the other half.
    """
    HALF: gl.constexpr = 64 * BLOCK_N // 2
    count = 0
    for number in range(waves + pieces):
        tile, first, last = piece_of(number, waves, start, end, n_whole, n_groups, steps)
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        acc = sums_over(GROUP, a_tiles, b_tiles, full, empty, count, first, last, BLOCK_N)
        count += last - first
        x0, x1 = half_of(acc, 0), half_of(acc, 1)
        program, shared = gl.program_id(0), tile - n_whole
        thread = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
        n0 = pid_n * BLOCK_N
        halves = tile * 0 + 2
        if last - first < steps:
            if HALVES:
                begins = first == 0
                other = gl.where(begins, program + n_groups, program - n_groups)
                y0, y1 = by_thread(gl.where(begins, x0, x1)), by_thread(gl.where(begins, x1, x0))
                places = places_like(y1)
                gl.store(kept + (program * 2 + GROUP) * HALF + places, y1)
                announce(flags + (program * 2 + GROUP) * 128 + thread)
                zero = zero_after(flags + (other * 2 + GROUP) * 128 + thread, 1)
                y0 += gl.load(kept + (other * 2 + GROUP) * HALF + zero + places, cache_modifier=".cg")
                x0 = from_threads(y0)
                n0 += gl.where(begins, 0, BLOCK_N // 2)
                halves = 1
            elif first > 0:
                y0, y1 = by_thread(x0), by_thread(x1)
                places = places_like(y0)
                target = kept + (program * 2 + GROUP) * (2 * HALF)
                gl.store(target + places, y0)
                gl.store(target + HALF + places, y1)
                announce(flags + (shared * 2 + GROUP) * 128 + thread)
                halves = 0
            else:
                place = shared // n_groups
                mine = program // n_groups + 1
                beyond = (place + 1) * n_shares // n_tiles
                beyond = gl.where(beyond * n_tiles * steps // n_shares < (place + 1) * steps, beyond + 1, beyond)
                zero = zero_after(flags + (shared * 2 + GROUP) * 128 + thread, beyond - mine)
                y0, y1 = by_thread(x0), by_thread(x1)
                places = places_like(y0) + zero
                for share in range(mine, beyond):
                    source = kept + ((share * n_groups + shared % n_groups) * 2 + GROUP) * (2 * HALF)
                    y0 += gl.load(source + places, cache_modifier=".cg")
                for share in range(mine, beyond):
                    source = kept + ((share * n_groups + shared % n_groups) * 2 + GROUP) * (2 * HALF)
                    y1 += gl.load(source + HALF + places, cache_modifier=".cg")
                x0, x1 = from_threads(y0), from_threads(y1)
        if halves > 0:
            finish_half(params, staging, GROUP, x0, pid_m, n0, n_m, n_n)
        if halves > 1:
            finish_half(params, staging, GROUP, x1, pid_m, n0 + BLOCK_N // 2, n_m, n_n)
    tma.store_wait(0)


@gluon.jit
def load_shares(  # table
    a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, waves, pieces, start, end, n_whole,
    n_groups, NUM_BYTES: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """The warp that loads where programs share tiles."""
    count = 0
    for number in range(waves + pieces):
        tile, first, last = piece_of(number, waves, start, end, n_whole, n_groups, steps)
        pid_m, pid_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        load_steps(
            a_params, b_params, a_tiles, b_tiles, full, empty, pid_m, pid_n, count, first, last, NUM_BYTES,
            2, 64, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        count += last - first


@gluon.jit
def shares_by_specialists(  # table
    a_params, b_params, parts_params, params, n_m, n_n, n_k, n_whole, n_groups, n_tiles, n_shares,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr, HALVES: gl.constexpr,
    INDEX_BITS: gl.constexpr,
):  # fmt: skip
    """As `tiles_by_specialists`, and as `share_of_products` of `kernels/gemm.py`: the last tiles are shared."""
    kept, flags = parts_params
    a_map, b_map = a_params[0], b_params[0]
    a_tiles, b_tiles = allocate_tiles(a_map, b_map, STAGES, 2)
    staging = allocate_staging(params, 2)
    full, empty = allocate_barriers(STAGES, 2)
    tiles_m, tiles_n, steps = gl.cdiv(n_m, 128), gl.cdiv(n_n, BLOCK_N), gl.cdiv(n_k, BLOCK_K)
    waves, share = n_whole // gl.num_programs(0), gl.program_id(0) // n_groups
    start, pieces = share * n_tiles * steps // n_shares, n_whole * 0
    end = (share + 1) * n_tiles * steps // n_shares
    if share < n_shares:
        pieces = (end - 1) // steps - start // steps + 1
    NUM_BYTES: gl.constexpr = 2 * a_map.block_type.nbytes + b_map.block_type.nbytes
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    gl.warp_specialize([
        (multiply_shares, (FIRST, params, staging, kept, flags, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m,
                           tiles_n, steps, waves, pieces, start, end, n_whole, n_groups, n_tiles, n_shares, BLOCK_N,
                           GROUP_M, HALVES)),
        (multiply_shares, (SECOND, params, staging, kept, flags, a_tiles, b_tiles, full, empty, n_m, n_n, tiles_m,
                           tiles_n, steps, waves, pieces, start, end, n_whole, n_groups, n_tiles, n_shares, BLOCK_N,
                           GROUP_M, HALVES)),
        (load_shares, (a_params, b_params, a_tiles, b_tiles, full, empty, tiles_m, tiles_n, steps, waves, pieces, start,
                       end, n_whole, n_groups, NUM_BYTES, BLOCK_N, BLOCK_K, GROUP_M)),
    ], [4, 1], [232, 40])  # fmt: skip


@gluon.jit
def special_shares(  # table
    a, b, y, kept, flags, n_m, n_n, n_k, n_whole, n_groups, n_tiles, n_shares, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr, HALVES: gl.constexpr, INDEX_BITS: gl.constexpr,
):  # fmt: skip
    shares_by_specialists(
        (a,), (b,), (kept, flags), (y,), n_m, n_n, n_k, n_whole, n_groups, n_tiles, n_shares, BLOCK_N, BLOCK_K,
        STAGES, GROUP_M, HALVES, INDEX_BITS,
    )  # fmt: skip
