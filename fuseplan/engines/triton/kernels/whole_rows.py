"""Whole rows: a program computes ROWS rows at a time, all columns at once, and takes further rows until none are left.

`column_values`, `first_sums`, `row_values` and `store_sums` are holes: a generated kernel has its own. Run alone,
y = x / sum(x) for rows of 32, and for each program the sums of its rows of y in p.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above


@triton.jit
def column_values(column_params, ROWS: tl.constexpr):
    """What does not depend on the row."""
    return ()


@triton.jit
def first_sums(sum_params, ROWS: tl.constexpr):
    """Accumulators of sums over rows."""
    return (tl.zeros((ROWS, 32), tl.float32),)


@triton.jit
def row_values(params, known, sums, pid, row, row_inside, ROWS: tl.constexpr):
    """All values of block `pid` of the rows; the accumulators `sums` with these rows added."""
    x, y = params
    (total,) = sums
    at = row * 32 + tl.arange(0, 32)[None, :]
    made = tl.load(x + at, mask=row_inside, other=0.0)
    made = tl.where(row_inside, made / tl.sum(made, 1, keep_dims=True), 0.0)
    tl.store(y + at, made, mask=row_inside)
    return (total + made,)


@triton.jit
def store_sums(end_params, sums, program, ROWS: tl.constexpr):
    """The accumulators, as this program's row of partial sums."""
    (p,) = end_params
    tl.store(p + program * 32 + tl.arange(0, 32)[None, :], tl.sum(sums[0], 0, keep_dims=True))


@triton.jit
def rows_in_turn(  # table
    column_params, sum_params, params, end_params, n_rows,
    ROWS: tl.constexpr, STAGES: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """The work of one program; STAGES = 0 if it is one block of rows."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    lanes, height = tl.arange(0, ROWS)[:, None].to(index), tl.full((), ROWS, index)
    known = column_values(column_params, ROWS)
    sums = first_sums(sum_params, ROWS)
    program = tl.program_id(0)
    if STAGES == 0:
        row = program * height + lanes
        sums = row_values(params, known, sums, program, row, row < n_rows, ROWS)
    else:
        for pid in tl.range(program, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            row = pid * height + lanes
            sums = row_values(params, known, sums, pid, row, row < n_rows, ROWS)
    store_sums(end_params, sums, program.to(index), ROWS)


@triton.jit
def whole_rows(x, y, p, n_rows, ROWS: tl.constexpr, STAGES: tl.constexpr, INDEX_BITS: tl.constexpr):
    rows_in_turn((), (), (x, y), (p,), n_rows, ROWS, STAGES, INDEX_BITS)
