"""Elementwise regions, and those whose reductions run over everything.

One flat position runs over the domain, merged to as few axes as the operands allow. Reductions add up with atomics;
what still has to be computed from them runs in a second, tiny kernel.

Kernels for all extents have the constant MERGED beside INDEX_BITS: where all axes can be walked as one at the extents
at hand (whatever is packed), positions are not divided. Equal texts and constants share a compiled kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order
from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.atomic import AtomicReductions, atomic_reductions, atomic_support
from fuseplan.engines.triton.body import Body, TileAxis, loads_first
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.knobs import complete_knobs, listed, power_of_two
from fuseplan.engines.triton.layout import is_adjacent
from fuseplan.engines.triton.rows.passes import RowPasses
from fuseplan.engines.triton.rows.tiles import RowsSchedule
from fuseplan.engines.triton.source import Entry, Function, kernel_text
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_LEAST_COLUMNS = 64  # of a tile: along fewer neighbours a flat position is divided instead
_FEW_ELEMENTS = 1024  # for each multiprocessor: tiles are smaller, so that there are more programs


@dataclass(frozen=True)
class PointwiseSchedule:
    """How a region is walked.

    Args:
        groups: its axes, slow to fast
        merged: whether a kernel for all extents has one axis here; None if the values do not allow it at any extents
        rows: the last axis as columns and the others as rows, if positions are walked by tiles of those
    """

    region: Region
    device: Device
    groups: tuple[MergedAxis, ...]
    merged: bool | None
    reductions: AtomicReductions
    rows: RowsSchedule | None = None


class PointwiseForm:
    """`BLOCK` positions per program."""

    name = "pointwise"

    def match(self, region: Region, device: Device) -> PointwiseSchedule | Support:
        if region.anchors:
            return NOT_THIS
        if region.reductions and not (region.graph.is_dynamic and atomic_support(region).is_supported):
            return NOT_THIS
        groups = merge_in_memory_order(region, range(len(region.domain)))
        rows = None
        if not region.graph.is_dynamic and len(groups) > 1 and groups[-1].extent >= _LEAST_COLUMNS:
            rows = RowsSchedule(region, device, groups[:-1], groups[-1:], rows_adjacent=False)
        return PointwiseSchedule(region, device, groups, _merged(region, groups), atomic_reductions(region), rows)

    def configs(self, schedule: PointwiseSchedule) -> KnobSpace:
        region, device = schedule.region, schedule.device
        if schedule.rows is not None:
            return listed(_tiles(schedule.rows))
        if region.reductions:  # one atomic per program: fewer, larger ones
            return listed([_config(4096, 8), _config(8192, 8), _config(2048, 4)])
        is_small = prod(region.domain) < 512 * device.sm_count and not region.graph.is_dynamic
        blocks = [
            _config(1024, 4),
            _config(2048, 8),
            _config(2048, 4),
            _config(4096, 8),
            _config(512, 4),
            _config(256, 4),
        ]
        return listed([blocks[-1], *blocks] if is_small else blocks)

    def estimate_us(self, schedule: PointwiseSchedule, config: Config) -> float:
        launches = 1 + len(schedule.region.reductions)
        return estimate_us(schedule.region, schedule.device, launches, schedule.device.peak_gflops)

    def notes(self, schedule: PointwiseSchedule, config: Config) -> frozenset[str]:
        return frozenset() if schedule.reductions.is_deterministic else frozenset({"NONDETERMINISTIC"})

    def emit(self, schedule: PointwiseSchedule, config: Config) -> Emitted:
        knobs = complete_knobs(self.configs(schedule), config)
        if schedule.rows is not None:
            return Emitted((RowPasses(schedule.rows, knobs).kernel(),))
        region, total = schedule.region, prod(schedule.region.domain)
        params = ParamList(region)
        elements = Function(params, "elements")
        tile = TileAxis("i", schedule.groups, mask="inside", first="(pid == 0)")
        _write_elements(schedule, Body(region, [tile], elements), tile)
        last = schedule.groups[-1].axes[-1] if schedule.groups else 0
        is_one = len(schedule.groups) == 1
        name = f"n{last}" if is_one else "n"
        params.number(name, total, is_vector=bool(schedule.groups) and is_adjacent(region, last))
        constants = (("BLOCK", knobs["BLOCK"]), ("MERGED", int(bool(schedule.merged))))
        entry = Entry("pointwise", "block_of_elements", [elements.params.names, name], constants)
        text = kernel_text(entry, [elements], params)
        grid = -(-total // knobs["BLOCK"])
        return schedule.reductions.around(
            Kernel("pointwise", text.source, text.params, text.constants, grid, knobs["num_warps"])
        )


def _config(block: int, num_warps: int) -> dict[str, int]:
    return {"BLOCK": block, "num_warps": num_warps}


def _tiles(rows: RowsSchedule) -> list[dict[str, int]]:
    """Tiles of rows and columns, the default first."""
    found = []
    tiles = [(2, 1024, 4), (1, 1024, 4), (4, 512, 4), (4, 1024, 8), (8, 256, 4), (1, 2048, 4)]
    if rows.rows * rows.columns < _FEW_ELEMENTS * rows.device.sm_count:
        tiles.insert(0, tiles.pop(1))
    for lanes, block, warps in tiles:
        width = min(block, power_of_two(rows.columns))
        height = min(lanes * (block // width), power_of_two(rows.rows))
        split = power_of_two(-(-rows.columns // width))
        found.append({"ROWS": height, "BLOCK": width, "SPLIT": split, "num_stages": 1, "num_warps": warps})
    return found


def _write_elements(schedule: PointwiseSchedule, body: Body, tile: TileAxis) -> None:
    region, reductions = schedule.region, schedule.reductions
    body.split_index(tile, may_be_merged=schedule.merged is not None)
    for index in loads_first(region, range(len(region.values))):
        value = region.values[index]
        if value.op == "reduce":
            seen = [tile] if tile.varies(region.values[value.args[0]].dim) else []
            reductions.add(index, body, seen, ["BLOCK"])
        elif index not in reductions.dependent:
            body.define(index)
    for index, operand in region.stores:  # after all loads: an output may lie in the buffer of an input
        if index not in reductions.dependent and region.values[index].op != "reduce":
            body.store(index, operand)


def _merged(region: Region, groups: tuple[MergedAxis, ...]) -> bool | None:
    if not region.graph.is_dynamic or len(groups) < 2 or any(v.op == "index" for v in region.values):
        return None
    for dim in (*(v.dim for v in region.values), *(o.dim for o in region.operands)):
        if len({g.varies(dim) for g in groups}) > 1:
            return None
    return all(g.count == 1 for g in groups[:-1])
