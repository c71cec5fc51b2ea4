"""What the kernels that own rows have in common: the axes of their tile, and values that a row has one of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.dtypes import FLOAT
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.kernel import ParamList
from fuseplan.engines.triton.layout import is_adjacent, reduced_axes
from fuseplan.engines.triton.source import Function
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


@dataclass(frozen=True)
class RowsSchedule:
    """How a region is walked.

    Args:
        kept: axes of the rows, slow to fast
        reduced: axes of the columns, slow to fast
        rows_adjacent: neighbouring rows (rather than columns) are adjacent in memory
        across: reductions over the rows; all others run over the columns
        may_split: what is reduced may be divided among programs, whose parts a second kernel adds up
    """

    region: Region
    device: Device
    kept: tuple[MergedAxis, ...]
    reduced: tuple[MergedAxis, ...]
    rows_adjacent: bool
    across: frozenset[int] = frozenset()
    may_split: bool = False

    @property
    def rows(self) -> int:
        return prod(g.extent for g in self.kept)

    @property
    def columns(self) -> int:
        return prod(g.extent for g in self.reduced)


class RowTiles:
    """Writes values over ``row`` and ``col``; a base of the writers of kernels."""

    def __init__(
        self, schedule: RowsSchedule, knobs: Mapping[str, int], *, first_part: str = ""
    ) -> None:
        """`first_part` is the condition that a program has the first columns."""
        self.schedule, self.region, self.knobs = schedule, schedule.region, knobs
        row_mask = (
            "row_inside"
            if self.region.graph.is_dynamic or schedule.rows % knobs["ROWS"]
            else ""
        )
        self.row_axis = TileAxis(
            "row", schedule.kept, mask=row_mask, first="(pid == 0)"
        )
        self.column_axis = TileAxis("col", schedule.reduced, first=first_part)
        self.params = ParamList(self.region)
        values = self.region.values
        self.is_tile = [self.column_axis.varies(v.dim) for v in values]
        self.loops = {
            i for i in self.region.reductions
            if i not in schedule.across and self.is_tile[values[i].args[0]] and reduced_axes(self.region, i)
        }  # fmt: skip
        self.divisors = self._divisors()

    def _divisors(self) -> frozenset[int]:
        """Results of reductions by which tiles are divided: two products each cost less than a division."""
        values, late = self.region.values, set(self.loops)
        for i, v in enumerate(values):
            if any(a in late for a in v.args):
                late.add(i)
        return frozenset(
            v.args[1] for i, v in enumerate(values)
            if v.op == "div" and self.is_tile[i] and not self.is_tile[v.args[1]] and v.args[1] in late
            and v.compute is FLOAT
        )  # fmt: skip

    def levels(self) -> list[int]:
        """For each value how many reductions over columns it waits for, one after the other; a result is one later."""
        levels: list[int] = []
        for index, value in enumerate(self.region.values):
            level = (
                max((levels[a] for a in value.args), default=0)
                if value.op != "count"
                else 0
            )
            levels.append(level + 1 if index in self.loops else level)
        return levels

    def body_in(
        self, function: Function, column_axis: TileAxis | None = None, part: str = ""
    ) -> Body:
        axes = [self.row_axis, column_axis or self.column_axis]
        origin = "tl.zeros((1, 1), tl.int32)"
        return Body(
            self.region,
            axes,
            function,
            origin=origin,
            part=part,
            divisors=self.divisors,
        )

    def count(
        self, params: ParamList, groups: Sequence[MergedAxis], name: str, total: int
    ) -> str:
        """Parameter holding the positions along a tile axis."""
        last = groups[-1].axes[-1] if groups else 0
        name = f"n{last}" if len(groups) == 1 else name
        return params.number(
            name, total, is_vector=bool(groups) and is_adjacent(self.region, last)
        )

    def num_rows(self, params: ParamList) -> str:
        return self.count(params, self.schedule.kept, "n_rows", self.schedule.rows)

    def num_columns(self, params: ParamList) -> str:
        return self.count(
            params, self.schedule.reduced, "n_columns", self.schedule.columns
        )

    def define_per_row(self, body: Body, index: int) -> None:
        """A value that needs no pass."""
        body.define(index)
        if index in self.divisors:
            body.define_factors(index)

    def neutral(self, index: int) -> str:
        reduction = self.region.values[index]
        return expr.neutral(reduction.mode, expr.work_type(reduction.compute))

    def accumulator(self, index: int, columns: int | str) -> str:
        """A tile that holds nothing yet of a reduction."""
        reduction = self.region.values[index]
        rows = (
            "ROWS"
            if self.row_axis.varies(self.region.values[reduction.args[0]].dim)
            else "1"
        )
        work = expr.VALUE_TYPES[expr.work_type(reduction.compute)]
        return f"tl.full(({rows}, {columns}), {self.neutral(index)}, {work})"

    def contribution(self, body: Body, index: int, columns: int | str) -> str:
        """What a tile adds to a reduction over columns."""
        source = self.region.values[self.region.values[index].args[0]]
        axis = body.axes[1]
        rows = "ROWS" if self.row_axis.varies(source.dim) else "1"
        x = f"tl.broadcast_to({body.argument(index)}, ({rows}, {columns}))"
        missing = [g for g in axis.groups if not g.varies(source.dim)]
        masks = [axis.mask] if axis.mask else []
        masks += [f"({axis.index_of(g)} == 0)" for g in missing]
        return (
            f"tl.where({' & '.join(masks)}, {x}, {self.neutral(index)})" if masks else x
        )

    def combined(self, index: int, acc: str, x: str) -> str:
        reduction = self.region.values[index]
        return expr.combine(reduction.mode, acc, x, expr.work_type(reduction.compute))

    def folded(self, index: int, tile: str, axis: str = "1") -> str:
        """A tile of a reduction folded along an axis, in the work type."""
        reduction = self.region.values[index]
        return expr.fold(reduction.mode, tile, axis, expr.work_type(reduction.compute))

    def result(self, index: int, folded: str) -> str:
        """A reduction's result from what was folded."""
        reduction = self.region.values[index]
        return expr.from_work(f"({folded})", reduction.compute, reduction.dtype)

    def store(self, body: Body, value: int) -> None:
        for operand in self.region.outputs_of.get(value, ()):
            body.store(value, operand)
