"""Rows in blocks, in passes over their columns: a program has ROWS rows, and of their columns all or one part.

`row_values` and `column_step` are holes: a generated kernel has its own, and one `column_step` per pass over the
columns. Run alone, y = x / sum(x) for each row, in two passes.
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above


@triton.jit
def column_step(
    params, known, sums, pid, row, col, row_inside, column_inside, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # table
    """One step of a pass: the accumulators `sums` with these columns added; `known` is what earlier passes found."""
    x, n_columns = params
    (total,) = sums
    total += tl.load(x + row * n_columns + col, mask=row_inside & column_inside, other=0.0)
    return (total,)


@triton.jit
def divide_step(
    params, known, sums, pid, row, col, row_inside, column_inside, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # table
    x, y, n_columns = params
    (total,) = known
    at = row * n_columns + col
    tl.store(y + at, tl.load(x + at, mask=row_inside & column_inside) / total, mask=row_inside & column_inside)
    return ()


@triton.jit
def over_columns(  # table
    step: tl.constexpr, params, known, sums, pid, row, row_inside, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """One pass over the columns from the first to the last of this program; STAGES = 0 if they are one block."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    first, last, n_columns = columns
    lanes = tl.arange(0, BLOCK)[None, :].to(index)
    if STAGES == 0:
        col = first + lanes
        sums = step(params, known, sums, pid, row, col, row_inside, col < n_columns, ROWS, BLOCK)
    else:
        for start in tl.range(first, last, BLOCK, num_stages=STAGES):
            col = start + lanes
            sums = step(params, known, sums, pid, row, col, row_inside, col < n_columns, ROWS, BLOCK)
    return sums


@triton.jit
def row_values(  # table
    params, pid, part, row, row_inside, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """All values of the rows, in passes over their columns."""
    x, y, width = params
    start = (tl.zeros((ROWS, BLOCK), tl.float32),)
    sums = over_columns(
        column_step, (x, width), (), start, pid, row, row_inside, columns, ROWS, BLOCK, STAGES, INDEX_BITS
    )
    known = (tl.sum(sums[0], 1, keep_dims=True),)
    over_columns(divide_step, params, known, (), pid, row, row_inside, columns, ROWS, BLOCK, STAGES, INDEX_BITS)


@triton.jit
def block_of_rows(  # table
    params, n_rows, n_columns, per_part,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, ROWS_FIRST: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """The work of one program; neighbouring programs have neighbouring rows (ROWS_FIRST) or parts of columns."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    if ROWS_FIRST:
        blocks = tl.cdiv(n_rows, ROWS)
        pid, part = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    else:
        parts = tl.cdiv(n_columns, per_part)
        pid, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    row = (pid.to(index) * ROWS + tl.arange(0, ROWS))[:, None]
    first = part.to(index) * per_part
    columns = (first, tl.minimum(first + per_part, n_columns), n_columns)
    row_values(params, pid, part, row, row < n_rows, columns, ROWS, BLOCK, STAGES, INDEX_BITS)


@triton.jit
def rows(  # table
    x, y, n_rows, n_columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, ROWS_FIRST: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    block_of_rows((x, y, n_columns), n_rows, n_columns, n_columns, ROWS, BLOCK, STAGES, ROWS_FIRST, INDEX_BITS)
