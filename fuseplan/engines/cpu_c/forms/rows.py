"""Rows: pointwise chains, softmax, norms and other reductions over the same axes, in passes over each row.

Each pass walks the reduced axes once and computes what its reductions and stores need from the inputs, from the row's
scalars, and from values that a pass before kept in the memory of the thread because they cost more than a load. A
softmax is three passes: maximum, sum of exponentials that are kept, quotient. Pure pointwise is the case without
reductions: one pass over the fastest axis. Reductions over other axes that close the region, such as the gradient of a
norm's scale, are added up beside in the last pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order, reduced_axes
from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, Support
from fuseplan.engines.cpu_c.dataflow import depends_on, needed_for, reads
from fuseplan.engines.cpu_c.elements import most_tasks
from fuseplan.engines.cpu_c.estimate import expected_us, work_us
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.frame import Frame, Strides
from fuseplan.engines.cpu_c.passes import (
    Pass,
    axes_refusal,
    divide_reductions,
    keep_values,
    plan_row,
    sums_refusal,
)
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.cpu_c.sums import (
    Block,
    RowSums,
    add_into,
    beside_of,
    is_float_sum,
)
from fuseplan.engines.cpu_c.tiling import Tiling, rows_of, stores_vary, write_positions
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.device import Device

_LINE_BYTES = 64
_AHEAD_BYTES = (
    1 << 16
)  # of a row that is asked for while the one before is computed: both should stay in a core's cache


@dataclass(frozen=True)
class RowSchedule:
    """How a region is computed row by row.

    Args:
        axes: loops; the first `num_outer` lead to a row, the others are walked inside of it
        passes: in order
        scalars: values that are the same in the whole row, with the stage after which each is known
        sums: reductions over other axes than those of a row
    """

    region: Region
    family: str
    axes: tuple[MergedAxis, ...]
    num_outer: int
    passes: tuple[Pass, ...]
    scalars: tuple[tuple[int, int], ...]
    sums: tuple[int, ...]
    tiling: Tiling
    work_us: float
    expected_us: float

    @property
    def inner(self) -> tuple[int, ...]:
        """Numbers of the axes that a row consists of."""
        return tuple(range(self.num_outer, len(self.axes)))

    @property
    def ahead(self) -> int:
        """The operand that the next row is asked for in advance: the only one that rows read; several, or none, -1."""
        if len(self.passes) < 2 or len(self.inner) != 1 or not self.num_outer:
            return -1
        row, inside = self.axes[-2:]
        operands = self.region.operands
        found = [
            k
            for k, o in enumerate(operands)
            if o.role is Role.IN and row.stride(o) and inside.stride(o)
        ]
        size = sum([inside.extent * operands[k].dtype.itemsize for k in found])
        is_known = not self.region.graph.is_dynamic and size <= _AHEAD_BYTES
        return (
            found[0]
            if len(found) == 1 and is_known and inside.stride(operands[found[0]]) == 1
            else -1
        )

    @property
    def is_paired(self) -> bool:
        """Whether all that is read and written along a row is bfloat16 without gaps, which is taken in pairs."""
        if self.num_outer == len(self.axes) or len(self.inner) > 1 and self.sums:
            return False
        along = [
            (o.dtype, self.axes[-1].stride(o))
            for o in self.region.operands
            if o.role is not Role.SCALAR
        ]
        moving = {(dtype.name, stride) for dtype, stride in along if stride}
        kinds = {
            self.region.values[r].compute
            for r in self.sums
            if self.axes[-1].varies(self.region.values[r].dim)
        }
        return moving == {("BFLOAT16", 1)} and kinds <= {FLOAT}

    @property
    def divides_columns(self) -> bool:
        """Whether a task may cover a part of the fastest axis."""
        return self.family == "pointwise" and self.num_outer < len(self.axes)

    @property
    def is_scalar(self) -> list[bool]:
        """For each value, whether it is the same in the whole row."""
        inner = self.axes[self.num_outer :]
        dims = [v.dim for v in self.region.values]
        return [not any(axis.varies(dim) for axis in inner) for dim in dims]


class RowsForm(OneWayForm):
    """Loops over the kept axes around passes over the reduced ones."""

    name = "rows"

    def match(self, region: Region, device: Device) -> RowSchedule | Support:
        if region.anchors:
            return NOT_THIS
        over_row, sums = divide_reductions(region)
        inner = sorted({a for r in over_row for a in reduced_axes(region, r)})
        for fit in (
            axes_refusal(region, over_row, inner),
            sums_refusal(region, sums, inner),
        ):
            if not fit.is_supported:
                return fit
        rank = len(region.domain)
        if inner:
            rest = [a for a in range(rank) if a not in inner]
            outer = merge_in_memory_order(region, rest)
            axes = outer + merge_in_memory_order(region, inner)
        else:
            axes = merge_in_memory_order(region, range(rank))
            outer = axes[:-1]
        passes, scalars = plan_row(region, axes, len(outer), sums)
        work = work_us(region)
        tiling = Tiling(rows_of(outer), axes[-1].count if axes and not inner else 1)
        after = depends_on(region, sums)
        stored = [i for i, _ in region.stores if not after[i]]
        if stores_vary(region, stored, outer if inner else axes):
            most = most_tasks(region, sums)
            tiling = tiling.divided(work, most=most, rows_only=bool(inner))
        us = expected_us(region, device, tiling.num_tasks)
        schedule = RowSchedule(
            region, _family(region, inner), axes, len(outer), passes, scalars, sums, tiling, work, us
        )  # fmt: skip
        kept = keep_values(
            region,
            axes,
            len(outer),
            passes,
            schedule.is_scalar,
            is_paired=schedule.is_paired,
        )
        return replace(schedule, passes=kept)

    def emit(self, schedule: RowSchedule, config: Config) -> Source:
        holes = Holes(schedule.region)
        outer = schedule.axes[: schedule.num_outer]
        write_positions(holes, schedule.tiling, outer, range(len(outer)))
        index = [
            f"at->i{k}" if k < len(outer) else f"i{k}"
            for k in range(len(schedule.axes))
        ]
        holes.macro("HAS_SUMS", int(bool(schedule.sums)))
        sums = RowSums(
            holes,
            schedule.axes,
            schedule.sums,
            schedule.tiling,
            schedule.inner,
            has_buffers=True,
        )
        sums.is_paired = schedule.is_paired
        sums.write_flush()
        sums.write_finish()
        row = Row(Frame(holes, schedule.axes, index), schedule, sums)
        row.write()
        head = (
            "const struct args *p",
            "const struct position *at",
            "int64_t first",
            "int64_t past",
            "void *scratch",
        )
        holes.function("void", "compute_row", head, row.frame.writer)
        return assemble(
            "rows", schedule.family, holes, schedule.tiling.num_tasks, schedule.work_us
        )


def _family(region: Region, inner: Sequence[int]) -> str:
    """What kind of kernel it is, for its name."""
    real = [r for r in region.reductions if reduced_axes(region, r)]
    if not real:
        return "pointwise"
    after = depends_on(region, real)
    reuses = any(
        after[i] and any(v.dim[a] != 1 for a in inner)
        for i, v in enumerate(region.values)
    )
    return "norm" if reuses else "reduction"


class Row:
    """The body of `compute_row` while it is written."""

    def __init__(self, frame: Frame, schedule: RowSchedule, sums: RowSums) -> None:
        self.frame, self.schedule, self.sums = frame, schedule, sums
        self.region, self.w = frame.region, frame.writer
        self.is_scalar = schedule.is_scalar
        self.kept: set[int] = set()
        self.divided: set[int] = set()  # values whose divisor has its inverse

    def write(self) -> None:
        frame, region = self.frame, self.region
        self._write_kept_pointers()
        if self.sums.results:
            self.sums.write_pointers(frame)
        pending = list(self.schedule.scalars)
        for one in self.schedule.passes:
            for i, stage in pending:
                if stage <= one.stage:
                    frame.value(i)
            pending = [(i, stage) for i, stage in pending if stage > one.stage]
            self._write_pass(one)
            self.kept |= set(one.keeps)
        for i, _ in pending:
            frame.value(i)
        after = depends_on(region, self.schedule.sums)
        for i, operand in region.stores:
            if self.is_scalar[i] and not after[i]:
                frame.store(i, operand)

    def _write_kept_pointers(self) -> None:
        axes, inner = self.schedule.axes, self.schedule.inner
        extents = [axes[k].count for k in inner]
        for i in [i for one in self.schedule.passes for i in one.keeps]:
            ctype = c_expr.CARRIER[self.region.values[i].dtype.name]
            place = self.frame.holes.args.of_thread(f"k{i}", ctype, prod(extents))
            self.w.line(f"{ctype} *const k{i} = {place};")

    def _kept_element(self, value: int) -> str:
        axes, inner = self.schedule.axes, self.schedule.inner
        packed = packed_stride([axes[k].count for k in inner])
        outer = (0,) * (len(axes) - len(inner))
        moves = [
            s if axes[k].extent != 1 else 0 for k, s in zip(inner, packed, strict=True)
        ]
        return f"k{value}[{self.frame.own_offset(Strides('k', (*outer, *moves)))}]"

    def _write_pass(self, one: Pass) -> None:
        """Accumulators, the loops of a pass, and the values of its reductions."""
        w, frame = self.w, self.frame
        for r in one.reduces:
            acc = frame.accumulator(r)
            w.line(f"{acc.ctype} r{r} = {acc.init};")
        for i in self._needed(one):
            if self._has_one_divisor(i) and i not in self.divided:
                self.divided.add(i)
                frame.open_quotient(i)
        for k in one.loops[:-1]:
            frame.open_loop(k)
        in_row = tuple([r for r in one.sums if r in self.sums.in_row])
        last = one.loops[-1]
        bounds = ("0", frame.extent(last))
        if self.schedule.divides_columns:
            bounds = ("first", "past")

        def merge(r: int, text: str) -> None:
            if r in in_row:
                self.sums.update(frame, r, text)
            else:
                add_into(frame, r, f"r{r}", text)

        pairs = None
        if self.schedule.is_paired and last == len(frame.axes) - 1:
            pairs = tuple([k for _, k in one.stores if frame.strides(k).along[last]])
        beside = beside_of(self.region, self._needed(one))
        reduces = (*one.reduces, *in_row)
        # several sums, and what takes long, overlap by themselves
        is_lone = pairs is not None and len(reduces) == 1 and not one.keeps
        is_joined = is_lone and is_float_sum(frame, reduces[0])
        block = Block(
            frame.index[last], *bounds, reduces, beside, pairs, is_joined=is_joined
        )
        w.open("{")
        block.write(
            frame,
            lambda: self._write_element(one),
            merge,
            lambda: self._write_ahead(one),
        )
        w.close()
        for _ in one.loops[:-1]:
            w.close()
        for r in one.reduces:
            frame.finish(r, f"r{r}")

    def _write_ahead(self, one: Pass) -> None:
        """Ask for a part of the next row, so that memory works while this row is computed."""
        operand, passes = self.schedule.ahead, self.schedule.passes
        if operand < 0:
            return
        *outer, row, _ = self.frame.index
        index = [*outer, f"({row} + 1)", "b + i"]
        place = Frame(self.frame.holes, self.frame.axes, index).element(operand)
        at, num = passes.index(one), len(passes)
        step = _LINE_BYTES // self.region.operands[operand].dtype.itemsize
        head = f"for (int64_t i = {at} * SUM_BLOCK / {num}; i < {at + 1} * SUM_BLOCK / {num}; i += {step})"
        self.w.line(f"{head} ASK_FOR(&{place});")

    def _needed(self, one: Pass) -> list[int]:
        """Values that a pass computes for each element."""
        stop = [s or i in self.kept for i, s in enumerate(self.is_scalar)]
        return needed_for(self.region, one.roots(self.region), stop)

    def _has_one_divisor(self, value: int) -> bool:
        """Whether all elements of a row are divided by the same float."""
        v = self.region.values[value]
        return v.op == "div" and v.compute is FLOAT and self.is_scalar[v.args[1]]

    def _write_element(self, one: Pass) -> None:
        """What a pass does at one position."""
        w, frame, roots = self.w, self.frame, one.roots(self.region)
        needed = self._needed(one)
        used = {a for i in needed for a in reads(self.region.values[i])} | set(roots)
        for i in sorted(used & self.kept):
            frame.define(i, self._kept_element(i))
        for i in needed:
            if self._has_one_divisor(i):
                frame.quotient(i)
            else:
                frame.value(i)
        for i in one.keeps:
            w.line(f"{self._kept_element(i)} = v{i};")
        for r in one.sums:
            if r not in self.sums.in_row:
                self.sums.update(frame, r)
        for i, operand in one.stores:
            frame.store(i, operand)
