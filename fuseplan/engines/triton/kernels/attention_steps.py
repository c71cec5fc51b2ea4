"""Steps of attention by warps of their own: a group of four warps has 64 queries, and walks the blocks of keys.

The products of a step's scores and of the step before with its values are under way together. `factor` is a hole.
"""

from triton.experimental import gluon  # import here: kernel files are read as text, or run alone
from triton.experimental.gluon import language as gl  # import here: as above
from triton.experimental.gluon.language.nvidia.hopper import (  # import here: as above
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)  # fmt: skip


@gluon.jit
def factor():
    """What scores are multiplied with to be exponents of 2."""
    return 1.0


@gluon.jit
def await_turn(GROUP: gl.constexpr):
    """Wait until the other group has issued its products."""
    if GROUP == 0:
        gl.inline_asm_elementwise("bar.sync 9, 256; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.sync 10, 256; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def give_turn(GROUP: gl.constexpr):
    """Let the other group issue its products."""
    if GROUP == 0:
        gl.inline_asm_elementwise("bar.arrive 10, 256; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.arrive 9, 256; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def powers_of_two(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def exponents(x, top):
    """Scores as exponents of 2 below the highest; the sign of `top` costs nothing inside the instruction."""
    scale, top = gl.to_tensor(factor()).to(gl.float32), gl.broadcast(top[:, None], x)[0]
    return gl.inline_asm_elementwise(
        "{ .reg .f32 n; neg.f32 n, $3; fma.rn.f32 $0, $1, $2, n; }", "=f,f,f,f", [x, scale, top],
        dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def mixed_powers_of_two(x):
    """One in eight by multiply-adds (within 4e-6), of numbers up to 0; those below -126 are as good as 0."""
    return gl.inline_asm_elementwise(
        """{
        .reg .f32 t, n, f, p; .reg .b32 a;
        ex2.approx.ftz.f32 $0, $8; ex2.approx.ftz.f32 $1, $9; ex2.approx.ftz.f32 $2, $10;
        ex2.approx.ftz.f32 $3, $11; ex2.approx.ftz.f32 $4, $12; ex2.approx.ftz.f32 $5, $13;
        ex2.approx.ftz.f32 $6, $14;
        max.NaN.f32 f, $15, 0fC2FC0000;
        add.rn.f32 t, f, 0f4B400000; sub.rn.f32 n, t, 0f4B400000; sub.rn.f32 f, f, n;
        fma.rn.f32 p, f, 0f3C1E8841, 0f3D650E82; fma.rn.f32 p, p, f, 0f3E75FC83;
        fma.rn.f32 p, p, f, 0f3F317061; fma.rn.f32 p, p, f, 0f3F800000;
        mov.b32 a, t; shl.b32 a, a, 23; add.s32 a, a, 0x3F800000; mov.b32 n, a; mul.rn.f32 $7, p, n;
        }""",
        "=f,=f,=f,=f,=f,=f,=f,=f,f,f,f,f,f,f,f,f", [x], dtype=gl.float32, is_pure=True, pack=8,
    )  # fmt: skip


@gluon.jit
def hold(x):
    """Keep what waits for products below what makes `x`: a store that never happens, for x is not negative.

    A trap or a branch in its place would make all products wait for each other.
    """
    gl.inline_asm_elementwise(
        "{ .reg .pred q; .reg .b32 z; mov.b32 z, 0; setp.lt.f32 q, $1, 0fBF800000; "
        "@q st.volatile.shared.f32 [z], $1; mov.u32 $0, 0; }",
        "=r,f", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def sums_of_threads(x):
    """Sums over the columns that one thread holds: [rows, 4 threads of a row]."""
    ROWS: gl.constexpr = x.type.shape[0]
    COLUMNS: gl.constexpr = x.type.shape[1]
    return gl.sum(gl.sum(gl.reshape(x, (ROWS, COLUMNS // 8, 4, 2)), 1), 2)


@gluon.jit
def cut(x, m0, n0, bounds, CUTS: gl.constexpr):
    """Scores with minus infinity where a right (1) or left (2) bound leaves keys out, or they have ended (4)."""
    n_kv, right, left = bounds
    m = gl.arange(0, x.type.shape[0], layout=gl.SliceLayout(1, x.type.layout))[:, None]
    n = gl.arange(0, x.type.shape[1], layout=gl.SliceLayout(0, x.type.layout))[None, :]
    if CUTS & 3 == 3:
        x = gl.where(
            (n + (n0 - m0 + left - 1) - m).to(gl.uint32) < gl.maximum(right + left, 0).to(gl.uint32), x, float("-inf")
        )
    elif CUTS & 1:
        x = gl.where(n + (n0 - m0) - m <= right, x, float("-inf"))
    elif CUTS & 2:
        x = gl.where(n + (n0 - m0) - m > -left, x, float("-inf"))
    if CUTS & 4:
        x = gl.where(n < n_kv - n0, x, float("-inf"))
    return x


@gluon.jit
def scores_under_way(q, k):
    """Products of queries and keys, not awaited."""
    COLUMNS: gl.constexpr = k.type.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    x = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    return warpgroup_mma(q, k.permute((1, 0)), x, use_acc=False, is_async=True)


@gluon.jit
def rows_of(x):
    """A tile of shared memory without its batch and head."""
    return x.reshape([x.type.shape[2], x.type.shape[3]])


@gluon.jit
def first_step(  # table
    GROUP: gl.constexpr, q, kv_parts, count, m0, n0, bounds, P_LAYOUT: gl.constexpr, CUTS: gl.constexpr,
    TURNS: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """Highest exponents, sums of threads and powers of the first block of a tile.

    With HALF the right half of this block is cut off for the first group, which leaves it out.
    """
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = kv_parts
    stage = count % k_tiles.type.shape[0]
    COLUMNS: gl.constexpr = k_tiles.type.shape[3]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    mbarrier.wait(k_full.index(stage), (count // k_tiles.type.shape[0]) & 1)
    if TURNS:
        await_turn(GROUP)
    k = rows_of(k_tiles.index(stage))
    if HALF and GROUP == 0:
        k = k.slice(0, 64, dim=0)
    x = scores_under_way(q, k)
    if TURNS:
        give_turn(GROUP)
    x = warpgroup_mma_wait(0, (x,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    x = cut(x, m0, n0, bounds, CUTS)
    top = gl.maximum(gl.max(x, 1) * factor(), -3.0e38)
    power = powers_of_two(exponents(x, top))
    sums = sums_of_threads(power)
    p = power.to(q.dtype)
    if HALF and GROUP == 0:
        top = gl.convert_layout(top, gl.SliceLayout(1, LAYOUT))
        sums = gl.convert_layout(sums, sums_of_threads(gl.zeros((64, COLUMNS), gl.float32, LAYOUT)).type.layout)
        p = gl.reshape(gl.permute(gl.join(p, gl.zeros_like(p)), (0, 2, 1)), (64, COLUMNS))
    return top, sums, gl.convert_layout(p, P_LAYOUT)


@gluon.jit
def more_steps(  # table
    GROUP: gl.constexpr, q, kv_parts, acc, top, sums, p, count, steps, m0, n0, bounds, CUTS: gl.constexpr,
    TURNS: gl.constexpr, HOLD: gl.constexpr, MIXED: gl.constexpr,
):  # fmt: skip
    """Scores of blocks from n0 downwards, and products of the powers in front of each with their values."""
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = kv_parts
    STAGES: gl.constexpr = k_tiles.type.shape[0]
    for _ in range(steps):
        stage, last = count % STAGES, (count - 1) % STAGES
        mbarrier.wait(k_full.index(stage), (count // STAGES) & 1)
        if TURNS:
            await_turn(GROUP)
        x = scores_under_way(q, rows_of(k_tiles.index(stage)))
        mbarrier.wait(v_full.index(last), ((count - 1) // STAGES) & 1)
        acc = warpgroup_mma(p, rows_of(v_tiles.index(last)), acc, is_async=True)
        if TURNS:
            give_turn(GROUP)
        x = warpgroup_mma_wait(1, (x,))
        mbarrier.arrive(k_empty.index(stage), count=1)
        x = cut(x, m0, n0, bounds, CUTS)
        higher = gl.maximum(top, gl.max(x, 1) * factor())
        shrink = powers_of_two(top - higher)
        below = exponents(x, higher)
        power = mixed_powers_of_two(below) if MIXED and CUTS == 0 else powers_of_two(below)
        added = sums_of_threads(power)
        sums = gl.fma(sums, gl.convert_layout(shrink, gl.SliceLayout(1, sums.type.layout))[:, None], added)
        top = higher
        if HOLD:
            hold(sums)
        acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(v_empty.index(last), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(power.to(q.dtype), p.type.layout)
        n0 -= k_tiles.type.shape[3]
        count += 1
    return acc, top, sums, p, count, n0
