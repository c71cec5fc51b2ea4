"""How the domain of a kernel is given out in tasks, and the holes that say where a task's rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen.axes import MergedAxis
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.ir.region import Region

_TASK_US = 20.0  # a task with less work would spend a part of it on being drawn
_MOST_TASKS = 64
BLOCK_AND_TASK = ("const struct args *p", "int64_t task")


def tasks_worth(work_us: float) -> int:
    """How many tasks so much work is worth."""
    return max(1, min(_MOST_TASKS, int(work_us / _TASK_US)))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows (positions on all axes but the last) and columns of a domain, and how many tasks divide each.

    Args:
        block: columns are given out in whole blocks of so many
    """

    num_rows: int
    num_columns: int
    block: int = 1
    row_tasks: int = 1
    column_tasks: int = 1

    @property
    def num_tasks(self) -> int:
        return self.row_tasks * self.column_tasks

    def divided(
        self, work_us: float, *, most: int = _MOST_TASKS, rows_only: bool = False
    ) -> Tiling:
        """The same domain in tasks worth drawing; rows first, so that memory is walked in order."""
        wanted = min(most, tasks_worth(work_us))
        row_tasks = min(self.num_rows, wanted)
        num_blocks = -(-self.num_columns // self.block)
        column_tasks = 1 if rows_only else max(1, min(num_blocks, wanted // row_tasks))
        return Tiling(
            self.num_rows, self.num_columns, self.block, row_tasks, column_tasks
        )


def rows_of(axes: Sequence[MergedAxis]) -> int:
    """Positions on these axes."""
    return prod([axis.count for axis in axes])


def stores_vary(
    region: Region, stored: Sequence[int], axes: Sequence[MergedAxis]
) -> bool:
    """Whether every one of these values has an element of its own at each position, which one task then writes."""
    return all(
        axis.varies(region.values[i].dim)
        for i in stored
        for axis in axes
        if axis.extent != 1
    )


def write_positions(
    holes: Holes, tiling: Tiling, axes: Sequence[MergedAxis], labels: Sequence[int]
) -> None:
    """The holes `tiling_of`, `struct position`, `position_of` and `advance`, with a number i<label> for each axis."""
    numbers = [
        holes.args.number("num_rows", tiling.num_rows), holes.args.number("row_tasks", tiling.row_tasks),
        holes.args.number("num_columns", tiling.num_columns), holes.args.number("column_tasks", tiling.column_tasks),
        str(tiling.block),
    ]  # fmt: skip
    holes.function(
        "struct tiling",
        "tiling_of",
        ["const struct args *p"],
        f"return (struct tiling){{{', '.join(numbers)}}};",
    )
    fields = [*(f"i{label}" for label in labels), "task"]
    holes.texts.append(f"\nstruct position {{\n  int64_t {', '.join(fields)};\n}};\n")
    extents = [
        holes.args.number(f"n{label}", axis.count)
        for label, axis in zip(labels, axes, strict=True)
    ]
    w = LineWriter()
    w.line("struct position at = {.task = task};")
    for label, extent in list(zip(labels, extents, strict=True))[:0:-1]:
        w.line(f"at.i{label} = row % {extent};")
        w.line(f"row /= {extent};")
    if labels:
        w.line(f"at.i{labels[0]} = row;")
    w.line("return at;")
    holes.function(
        "struct position",
        "position_of",
        ["const struct args *p", "int64_t row", "int64_t task"],
        w,
    )
    w = LineWriter()
    for label, extent in list(zip(labels, extents, strict=True))[:0:-1]:
        w.line(f"if (++at->i{label} < {extent}) return;")
        w.line(f"at->i{label} = 0;")
    if labels:
        w.line(f"++at->i{labels[0]};")
    holes.function(
        "void", "advance", ["const struct args *p", "struct position *at"], w
    )
