"""Columns: reductions that close a region, added up in the order of memory, a few rows at a time.

They are those that leave the fastest axis alone, and those of few and long rows, which several tasks share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order, reduced_axes
from fuseplan.engines.base import Config, Support
from fuseplan.engines.cpu_c.dataflow import needed_for
from fuseplan.engines.cpu_c.elements import (
    element_stores,
    global_reductions,
    most_tasks,
    reductions_refusal,
)
from fuseplan.engines.cpu_c.estimate import expected_us, work_us
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.cpu_c.sums import Block, RowSums, beside_of
from fuseplan.engines.cpu_c.tiling import (
    Tiling,
    rows_of,
    stores_vary,
    tasks_worth,
    write_positions,
)
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_ROWS = 4  # rows of a matrix that are added at once
_MANY_ROWS = 256  # in so many, sums of up to 32 times `_ROWS` as floats lose no more than other sums of floats do
_GROUPS = 16  # so many groups of rows are worth a task each


@dataclass(frozen=True)
class ColumnSchedule:
    """How a region is reduced in the order of memory; the last of `axes` is the fastest.

    Args:
        num_leading: axes in front whose positions are groups, each reduced by one task
        rows: how many are added at once
    """

    region: Region
    axes: tuple[MergedAxis, ...]
    reduces: tuple[int, ...]
    tiling: Tiling
    num_leading: int
    rows: int
    work_us: float
    expected_us: float


class ColumnsForm(OneWayForm):
    """Loops over all axes; each element is added into its result in private memory."""

    name = "columns"

    def match(self, region: Region, device: Device) -> ColumnSchedule | Support:
        reduces = global_reductions(region)
        if region.anchors or not reduces:
            return NOT_THIS
        axes = merge_in_memory_order(region, range(len(region.domain)))
        fit = reductions_refusal(region)
        if not fit.is_supported:
            return fit
        work = work_us(region)
        if _has_many_rows(region, axes, reduces, work):
            return NOT_THIS
        leading = _num_leading(region, axes, reduces, work)
        if leading:
            tiling = Tiling(rows_of(axes[:leading]), axes[-1].count)
        else:
            tiling = Tiling(rows_of(axes[:-1]), axes[-1].count)
        if stores_vary(region, [i for i, _ in element_stores(region, reduces)], axes):
            most = most_tasks(region, reduces)
            tiling = tiling.divided(work, most=most, rows_only=bool(leading))
        return ColumnSchedule(
            region,
            axes,
            reduces,
            tiling,
            leading,
            _rows_at_once(region, axes, reduces, leading),
            work,
            expected_us(region, device, tiling.num_tasks),
        )

    def emit(self, schedule: ColumnSchedule, config: Config) -> Source:
        holes, axes = Holes(schedule.region), schedule.axes
        last, leading = len(axes) - 1, schedule.num_leading
        write_positions(holes, schedule.tiling, axes[:-1], range(last))
        sums = RowSums(
            holes,
            axes,
            schedule.reduces,
            schedule.tiling,
            (last,),
            leading,
            has_buffers=_has_buffers(schedule),
        )
        holes.macro("GROUPED", int(bool(leading)))
        holes.macro("ROWS", schedule.rows)
        _write_counts(holes, schedule)
        sums.write_flush()
        step = f"(at->i{last - 1} + u)" if schedule.rows > 1 else f"at->i{last - 1}"
        index = [
            *(f"at->i{k}" for k in range(last - 1)),
            *([step] if last else []),
            "j",
        ]
        frame = Frame(holes, axes, index)
        _write_rows(frame, sums, schedule.rows)
        head = (
            "const struct args *p",
            "const struct position *at",
            "int64_t first",
            "int64_t past",
            "void *scratch",
            "const int64_t rows",
        )
        holes.function("void", "add_rows", head, frame.writer)
        sums.write_close()
        sums.write_finish()
        return assemble(
            "columns", "reduction", holes, schedule.tiling.num_tasks, schedule.work_us
        )


def _reduces_last(
    region: Region, axes: Sequence[MergedAxis], reduces: Sequence[int]
) -> list[int]:
    """Reductions over the fastest axis."""
    last = axes[-1].axes[0]
    return [r for r in reduces if last in reduced_axes(region, r)]


def _has_many_rows(
    region: Region, axes: Sequence[MergedAxis], reduces: Sequence[int], work: float
) -> bool:
    """Whether reductions over the fastest axis have so many results that rows by themselves are tasks enough."""
    over_last = _reduces_last(region, axes, reduces)
    if not over_last:
        return False
    reduced = {a for r in over_last for a in reduced_axes(region, r)}
    kept = [axis for axis in axes if axis.axes[0] not in reduced]
    if region.graph.is_dynamic:
        return bool(kept)
    return 4 * rows_of(kept) > max(4, tasks_worth(work))


def _num_leading(
    region: Region, axes: Sequence[MergedAxis], reduces: Sequence[int], work: float
) -> int:
    """Axes in front that all reductions keep, if they have positions enough to be tasks."""
    reduced = {a for r in reduces for a in reduced_axes(region, r)}
    count = 0
    while count < len(axes) - 1 and axes[count].axes[0] not in reduced:
        count += 1
    enough = rows_of(axes[:count]) >= max(1, min(_GROUPS, tasks_worth(work)))
    return count if enough and not region.graph.is_dynamic else 0


def _rows_at_once(
    region: Region,
    axes: Sequence[MergedAxis],
    reduces: Sequence[int],
    num_leading: int,
) -> int:
    if len(axes) - num_leading < 2 or _reduces_last(region, axes, reduces):
        return 1
    second, last = axes[-2], axes[-1]
    if any(second.axes[0] not in reduced_axes(region, r) for r in reduces):
        return 1
    for i in _needed(region, reduces):
        dim = region.values[i].dim
        if second.varies(dim) and not last.varies(dim):
            return 1
    return _ROWS


def _needed(region: Region, reduces: Sequence[int]) -> list[int]:
    """Values that are computed for each element."""
    roots = [i for i, _ in element_stores(region, reduces)]
    roots += [region.values[r].args[0] for r in reduces]
    return needed_for(region, roots, [False] * len(region.values))


def _has_buffers(schedule: ColumnSchedule) -> bool:
    """Whether there are so many rows to be added that floats may add up some of them."""
    region = schedule.region
    reduced = [reduced_axes(region, r) for r in schedule.reduces]
    counts = [prod([region.domain[a] for a in axes]) for axes in reduced]
    return min(counts) >= _MANY_ROWS and not region.graph.is_dynamic


def _write_counts(holes: Holes, schedule: ColumnSchedule) -> None:
    """The holes `rows_of` and `rows_left`."""
    axes, leading = schedule.axes, schedule.num_leading
    numbers = [holes.args.number(f"n{k}", axis.count) for k, axis in enumerate(axes)]
    inside = numbers[leading:-1]
    text = f"return {' * '.join(inside) if leading and inside else '1'};"
    holes.function("int64_t", "rows_of", ["const struct args *p"], text)
    k = len(axes) - 2
    text = f"return {numbers[k]} - at->i{k};" if k >= 0 else "return 1;"
    head = ("const struct args *p", "const struct position *at")
    holes.function("int64_t", "rows_left", head, text)


def _write_rows(frame: Frame, sums: RowSums, rows: int) -> None:
    """The loop over columns, and inside of it the one over rows: values, stores, and what is added up."""
    region = frame.region
    needed = _needed(region, sums.reduces)
    for i in needed:
        if not frame.axes[-1].varies(region.values[i].dim):
            frame.value(i)
    sums.write_pointers(frame)
    moving = [i for i in needed if frame.axes[-1].varies(region.values[i].dim)]
    in_row = sums.in_row

    def write_element() -> None:
        if rows > 1:
            _write_step(frame, sums, moving, rows)
            return
        for i in moving:
            frame.value(i)
        for r in sums.reduces:
            if r not in in_row:
                sums.update(frame, r)
        for i, operand in element_stores(region, sums.reduces):
            frame.store(i, operand)

    block = Block("j", "first", "past", in_row, beside_of(region, moving))
    block.write(frame, write_element, lambda r, text: sums.update(frame, r, text))


def _write_step(frame: Frame, sums: RowSums, moving: Sequence[int], rows: int) -> None:
    """One column of some rows."""
    region, w = frame.region, frame.writer
    each = [i for i in moving if frame.axes[-2].varies(region.values[i].dim)]
    for i in moving:
        if i not in each:
            frame.value(i)
    for r in sums.reduces:
        acc = c_expr.BLOCK["add"] if r in sums.buffers else frame.accumulator(r)
        w.line(f"{acc.ctype} q{r} = {acc.init};")
    w.margin(f"#pragma GCC unroll {rows}")
    w.open("for (int64_t u = 0; u < rows; ++u) {")
    for i in each:
        frame.value(i)
    for r in sums.reduces:
        sums.add(frame, r, f"q{r}")
    for i, operand in element_stores(region, sums.reduces):
        frame.store(i, operand)
    w.close()
    for r in sums.reduces:
        sums.update(frame, r, f"q{r}")
