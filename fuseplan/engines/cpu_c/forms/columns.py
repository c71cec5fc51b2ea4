"""Columns: reductions that close a region and leave the fastest axis alone, added up in the order of memory."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order
from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.cpu_c.elements import (
    GlobalReductions,
    element_stores,
    global_reductions,
    most_tasks,
    reductions_refusal,
    write_elements,
)
from fuseplan.engines.cpu_c.estimate import expected_us, work_us
from fuseplan.engines.cpu_c.forms.rows import inner_axes
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.cpu_c.tiling import Tiling, rows_of, stores_vary, write_positions
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


@dataclass(frozen=True)
class ColumnSchedule:
    """How a region is reduced in the order of memory; the last of `axes` is the fastest."""

    region: Region
    axes: tuple[MergedAxis, ...]
    reduces: tuple[int, ...]
    tiling: Tiling
    work_us: float
    expected_us: float


class ColumnsForm:
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
        if any(a in inner_axes(region) for a in axes[-1].axes):
            return NOT_THIS
        work = work_us(region)
        tiling = Tiling(rows_of(axes[:-1]), axes[-1].count)
        if stores_vary(region, [i for i, _ in element_stores(region, reduces)], axes):
            tiling = tiling.divided(work, most=most_tasks(region, reduces))
        return ColumnSchedule(
            region,
            axes,
            reduces,
            tiling,
            work,
            expected_us(region, device, tiling.num_tasks),
        )

    def configs(self, schedule: ColumnSchedule) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: ColumnSchedule, config: Config) -> float:
        return schedule.expected_us

    def notes(self, schedule: ColumnSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: ColumnSchedule, config: Config) -> Source:
        holes, axes = Holes(schedule.region), schedule.axes
        labels = range(len(axes))
        write_positions(holes, schedule.tiling, axes[:-1], labels[:-1])
        sums = GlobalReductions(holes, axes, labels, schedule.reduces, schedule.tiling)
        frame = Frame(holes, axes, [*(f"at->i{k}" for k in labels[:-1]), "j"])
        write_elements(frame, "for (int64_t j = first; j < past; ++j) {", sums, {})
        sums.write_begin()
        head = (
            "const struct args *p",
            "const struct position *at",
            "int64_t first",
            "int64_t past",
        )
        holes.function("void", "add_row", head, frame.writer)
        sums.write_finish()
        return assemble(
            "columns", "reduction", holes, schedule.tiling.num_tasks, schedule.work_us
        )
