"""Rows in blocks: a program computes ROWS rows, and what it reduces are their columns.

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
    step: tl.constexpr, params, known, sums, pid, row, row_inside, n_columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, INDEX_BITS: tl.constexpr,
):  # fmt: skip
    """One pass over the columns."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    for start in range(0, n_columns, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :].to(index)
        sums = step(params, known, sums, pid, row, col, row_inside, col < n_columns, ROWS, BLOCK)
    return sums


@triton.jit
def row_values(
    params, pid, row, row_inside, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, INDEX_BITS: tl.constexpr
):
    """All values of the rows: one tile of whole rows, or passes over their columns."""
    x, y, width = params
    start = (tl.zeros((ROWS, BLOCK), tl.float32),)
    sums = over_columns(column_step, (x, width), (), start, pid, row, row_inside, n_columns, ROWS, BLOCK, INDEX_BITS)
    known = (tl.sum(sums[0], 1, keep_dims=True),)
    over_columns(divide_step, params, known, (), pid, row, row_inside, n_columns, ROWS, BLOCK, INDEX_BITS)


@triton.jit
def block_of_rows(params, n_rows, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, INDEX_BITS: tl.constexpr):
    """The work of one program."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    pid = tl.program_id(0)
    row = (pid.to(index) * ROWS + tl.arange(0, ROWS))[:, None]
    row_values(params, pid, row, row < n_rows, n_columns, ROWS, BLOCK, INDEX_BITS)


@triton.jit
def rows(x, y, n_rows, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, INDEX_BITS: tl.constexpr):
    block_of_rows((x, y, n_columns), n_rows, n_columns, ROWS, BLOCK, INDEX_BITS)
