"""Rows that do not begin at multiples of 16 bytes (50257 columns): their tiles begin a few columns before them.

All tiles but the first and the last, which have masks, are then loaded and stored in vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.codegen.axes import MergedAxis
from fuseplan.engines.triton.rows.tiles import RowsSchedule

VECTOR_BYTES = 16
_LEAST_COLUMNS = 32769  # of shorter rows several are on a multiprocessor at a time, and narrow loads are hidden


@dataclass(frozen=True)
class Shift:
    """Rows begin `row * stride % vector` columns after such an address.

    Args:
        operand: one whose rows do; the others have the same strides
        rows: the axis that the stride is along
        vector: a number of elements
    """

    operand: int
    rows: MergedAxis
    vector: int


def shift_of(schedule: RowsSchedule) -> Shift | None:
    """How rows are shifted; None where all begin at such addresses, are short, or operands differ in that."""
    region = schedule.region
    is_plain = len(schedule.kept) == len(schedule.reduced) == 1 and not schedule.across
    if region.graph.is_dynamic or not is_plain or schedule.columns < _LEAST_COLUMNS:
        return None
    rows, columns = schedule.kept[0], schedule.reduced[0]
    own = {
        i: o
        for i, o in enumerate(region.operands)
        if rows.varies(o.dim) and columns.varies(o.dim)
    }
    steps = {(rows.stride(o), columns.stride(o)) for o in own.values()}
    is_shared = any(
        columns.varies(o.dim) for i, o in enumerate(region.operands) if i not in own
    )
    if (
        is_shared
        or len(steps) != 1
        or any(o.offset * o.dtype.itemsize % VECTOR_BYTES for o in own.values())
    ):
        return None
    ((step, along),) = steps
    vector = VECTOR_BYTES // min(o.dtype.itemsize for o in own.values())
    return (
        Shift(next(iter(own)), rows, vector) if along == 1 and step % vector else None
    )
