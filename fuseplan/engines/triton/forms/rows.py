"""Regions with reductions over one set of axes: a program owns some rows, columns are what is reduced.

Persistent if a whole row fits the tile: every value is computed once and kept. Otherwise looped: one pass over the
columns per level of reductions, and what a pass needs is computed again in it. Kernels for all extents are looped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis, element_operands, memory_order, merge
from fuseplan.engines.base import Config, KnobSpace, Support, no
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.knobs import complete_knobs, listed, power_of_two
from fuseplan.engines.triton.layout import is_adjacent, num_non_unit, reduced_axes
from fuseplan.engines.triton.source import Entry, Function, kernel_text, tuple_text
from fuseplan.ir.region import Operand, Region, Role
from fuseplan.runtime.device import Device

_PERSISTENT_COLUMNS = 16384  # more would not fit the registers of a block
# table: rows and columns of a tile, for kernels that run at any extents; the first loses least over 64 to 16384 columns
_DYNAMIC_ROW_TILES = ((2, 512), (1, 2048), (4, 256), (8, 128), (16, 64), (1, 4096))
_DYNAMIC_COLUMN_TILES = ((64, 64), (32, 64), (64, 32))


@dataclass(frozen=True)
class RowsSchedule:
    """How a region is walked.

    Args:
        kept: axes of the rows, slow to fast
        reduced: axes of the columns, slow to fast
        rows_adjacent: neighbouring rows (rather than columns) are adjacent in memory
    """

    region: Region
    device: Device
    kept: tuple[MergedAxis, ...]
    reduced: tuple[MergedAxis, ...]
    rows_adjacent: bool

    @property
    def rows(self) -> int:
        return prod(g.extent for g in self.kept)

    @property
    def columns(self) -> int:
        return prod(g.extent for g in self.reduced)


class RowsForm:
    """`ROWS` rows per program, `BLOCK` columns per step."""

    name = "rows"

    def match(self, region: Region, device: Device) -> RowsSchedule | Support:
        if region.anchors or not region.reductions:
            return NOT_THIS
        axes = {i: reduced_axes(region, i) for i in region.reductions}
        reduced = axes[region.reductions[0]]
        other = next((i for i, found in axes.items() if found != reduced), -1)
        if other >= 0:
            sets = sorted(sorted(s) for s in set(axes.values()))
            return no(f"reductions over different axes in one region: {sets}", at=other)
        inputs = [o for o in element_operands(region) if o.role is Role.IN]
        kept_axes = [a for a in range(len(region.domain)) if a not in reduced]
        kept = merge(region, memory_order(region, kept_axes, inputs))
        columns = merge(region, memory_order(region, sorted(reduced), inputs))
        return RowsSchedule(region, device, kept, columns, _rows_adjacent(region, kept, inputs))

    def configs(self, schedule: RowsSchedule) -> KnobSpace:
        if schedule.region.graph.is_dynamic:
            tiles = _DYNAMIC_COLUMN_TILES if schedule.rows_adjacent else _DYNAMIC_ROW_TILES
            return listed([_config(*tile) for tile in tiles])
        configs = [_config(*tile) for tile in _tiles(schedule)]
        doubled = {**configs[0], "num_warps": min(16, 2 * configs[0]["num_warps"])}
        return listed([*configs, doubled])

    def estimate_us(self, schedule: RowsSchedule, config: Config) -> float:
        return estimate_us(schedule.region, schedule.device, 1, schedule.device.peak_gflops)

    def notes(self, schedule: RowsSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: RowsSchedule, config: Config) -> Emitted:
        return _Rows(schedule, complete_knobs(self.configs(schedule), config)).emit()


def _rows_adjacent(region: Region, kept: Sequence[MergedAxis], inputs: Sequence[Operand]) -> bool:
    if not kept or not inputs:
        return False
    size = num_non_unit if region.graph.is_dynamic else _num_elements
    return kept[-1].stride(max(inputs, key=size)) == 1


def _num_elements(operand: Operand) -> int:
    return prod(operand.dim)


def _config(rows: int, columns: int) -> dict[str, int]:
    elements = rows * columns
    return {"ROWS": rows, "BLOCK": columns, "num_warps": 4 if elements <= 4096 else 8 if elements <= 8192 else 16}


def _tiles(schedule: RowsSchedule) -> list[tuple[int, int]]:
    """Rows and columns of a tile, the default first."""
    rows, whole = schedule.rows, power_of_two(schedule.columns)
    if schedule.rows_adjacent and rows >= 16:
        lanes, step = min(power_of_two(rows), 64), min(whole, 64)
        return [(lanes, step), (min(lanes, 32), step), (lanes, min(whole, 32))]
    if whole > _PERSISTENT_COLUMNS:
        return [(1, 4096), (1, 8192), (1, 2048)]
    packed = max(1, min(power_of_two(rows), 2048 // whole, max(1, rows // schedule.device.sm_count)))
    packed = 1 << (packed.bit_length() - 1)
    tiles = [(packed, whole), (1, whole)]
    if 2 * packed * whole <= _PERSISTENT_COLUMNS:
        tiles.append((min(2 * packed, power_of_two(rows)), whole))
    if whole > 4096:
        tiles.append((1, 2048))  # looped: fewer registers, rows are read again from the L2
    return tiles


class _Rows:
    """Writes one rows kernel."""

    def __init__(self, schedule: RowsSchedule, knobs: dict[str, int]) -> None:
        self.schedule, self.region, self.knobs = schedule, schedule.region, knobs
        is_dynamic = self.region.graph.is_dynamic
        self.is_persistent = schedule.columns <= knobs["BLOCK"] and not is_dynamic
        row_mask = "row_inside" if is_dynamic or schedule.rows % knobs["ROWS"] else ""
        column_mask = "column_inside" if is_dynamic or schedule.columns % knobs["BLOCK"] else ""
        self.row_axis = TileAxis("row", schedule.kept, mask=row_mask, first="(pid == 0)")
        self.column_axis = TileAxis("col", schedule.reduced, mask=column_mask)
        self.params = ParamList(self.region)
        self.main = Function(self.params, "row_values")
        self.functions = [self.main]
        self.body = self._body_in(self.main)
        self.is_tile = [self.column_axis.varies(v.dim) for v in self.region.values]
        self.loops = {i for i in self.region.reductions if self.is_tile[self.region.values[i].args[0]]}

    def _body_in(self, function: Function) -> Body:
        return Body(self.region, [self.row_axis, self.column_axis], function, origin="tl.zeros((1, 1), tl.int32)")

    def emit(self) -> Emitted:
        schedule, knobs = self.schedule, self.knobs
        self.body.split_index(self.row_axis)
        if self.is_persistent:
            self._whole_rows()
        else:
            self._passes()
        for value in self.region.outputs_of:  # after all loads: an output may lie in the buffer of an input
            if self.is_persistent or not self.is_tile[value]:
                self._store(self.body, value)
        n_rows = self._count(schedule.kept, "n_rows", schedule.rows)
        n_columns = self._count(schedule.reduced, "n_columns", schedule.columns)
        constants = tuple((c, knobs[c]) for c in ("ROWS", "BLOCK"))
        entry = Entry("rows", "block_of_rows", [self.main.params.names, n_rows, n_columns], constants)
        text = kernel_text(entry, self.functions, self.params)
        grid = -(-schedule.rows // knobs["ROWS"])
        return Emitted((Kernel("rows", text.source, text.params, text.constants, grid, knobs["num_warps"]),))

    def _count(self, groups: Sequence[MergedAxis], name: str, total: int) -> str:
        """Parameter holding the positions along a tile axis."""
        last = groups[-1].axes[-1] if groups else 0
        name = f"n{last}" if len(groups) == 1 else name
        return self.params.number(name, total, is_vector=bool(groups) and is_adjacent(self.region, last))

    def _whole_rows(self) -> None:
        self.main.out.line("col = tl.arange(0, BLOCK)[None, :]")
        if self.column_axis.mask:
            self.main.out.line("column_inside = col < n_columns")
        self.body.split_index(self.column_axis)
        for index in range(len(self.region.values)):
            if index in self.loops:
                self.main.out.line(f"t{index} = {self._contribution(self.body, index)}")
                self._fold(index, f"t{index}")
            else:
                self._define_per_row(index)

    def _define_per_row(self, index: int) -> None:
        """A value that needs no pass; a reduction over axes that its argument lacks has one element each."""
        value = self.region.values[index]
        if value.op == "reduce":
            result = expr.from_work(self.body.argument(index), value.compute, value.dtype)
            self.main.out.line(f"v{index} = {result}")
        else:
            self.body.define(index)

    def _neutral(self, index: int) -> str:
        reduction = self.region.values[index]
        return expr.neutral(reduction.mode, expr.work_type(reduction.compute))

    def _contribution(self, body: Body, index: int) -> str:
        """What one step adds to a reduction."""
        source = self.region.values[self.region.values[index].args[0]]
        rows = "ROWS" if self.row_axis.varies(source.dim) else "1"
        x = f"tl.broadcast_to({body.argument(index)}, ({rows}, BLOCK))"
        missing = [g for g in self.column_axis.groups if not g.varies(source.dim)]
        masks = [self.column_axis.mask] if self.column_axis.mask else []
        masks += [f"({self.column_axis.index_of(g)} == 0)" for g in missing]
        return f"tl.where({' & '.join(masks)}, {x}, {self._neutral(index)})" if masks else x

    def _fold(self, index: int, tile: str) -> None:
        reduction = self.region.values[index]
        folded = expr.fold(reduction.mode, tile, "1", expr.work_type(reduction.compute))
        self.main.out.line(f"v{index} = {expr.from_work(f'({folded})', reduction.compute, reduction.dtype)}")

    def _store(self, body: Body, value: int) -> None:
        for operand in self.region.outputs_of.get(value, ()):
            body.store(value, operand)

    # looped

    def _levels(self) -> list[int]:
        """For each value the pass in which it can be computed; a reduction's result is one later."""
        levels: list[int] = []
        for index, value in enumerate(self.region.values):
            level = max((levels[a] for a in value.args), default=0) if value.op != "count" else 0
            levels.append(level + 1 if index in self.loops else level)
        return levels

    def _passes(self) -> None:
        values, levels = self.region.values, self._levels()
        tiles = [i for i in self.region.outputs_of if self.is_tile[i]]
        last = max([levels[i] - 1 for i in self.loops] + [levels[i] for i in tiles], default=0)
        for level in range(max(levels) + 1):
            for index in range(len(values)):
                if not self.is_tile[index] and levels[index] == level and index not in self.loops:
                    self._define_per_row(index)
            sums = sorted(i for i in self.loops if levels[i] == level + 1)
            stored = tiles if level == last else []
            if sums or stored:
                self._one_pass(level, sums, stored)

    def _one_pass(self, level: int, sums: list[int], stored: list[int]) -> None:
        """A step function for the columns, and the call of the loop over them."""
        roots = [i for i in [*(self.region.values[i].args[0] for i in sums), *stored] if self.is_tile[i]]
        per_row = frozenset(i for i, v in enumerate(self.region.values) if not self.is_tile[i] and v.op != "const")
        needed = needed_for(self.region, roots, per_row)
        known = [f"v{i}" for i in needed if i in per_row]
        step = Function(self.params, "column_step", name=f"column_step{level}")
        self.functions.append(step)
        body = self._body_in(step)
        self._write_step(body, [i for i in needed if i not in per_row], sums, stored, known)
        out, starts = self.main.out, []
        for i in sums:
            work = expr.VALUE_TYPES[expr.work_type(self.region.values[i].compute)]
            rows = "ROWS" if self.row_axis.varies(self.region.values[i].dim) else "1"
            starts.append(f"tl.full(({rows}, BLOCK), {self._neutral(i)}, {work})")
        passed = [tuple_text(x) for x in (self.main.params.adopt(step.params), known, starts)]
        loop = (
            f"over_columns({step.name}, {', '.join(passed)}, pid, row, row_inside, n_columns, ROWS, BLOCK, INDEX_BITS)"
        )
        out.line(f"{tuple_text([f'a{i}' for i in sums])} = {loop}" if sums else loop)
        for i in sums:
            self._fold(i, f"a{i}")

    def _write_step(self, body: Body, needed: list[int], sums: list[int], stored: list[int], known: list[str]) -> None:
        out, accumulators = body.out, [f"a{i}" for i in sums]
        if known:
            out.line(f"{tuple_text(known)} = known")
        if sums:
            out.line(f"{tuple_text(accumulators)} = sums")
        body.split_index(self.row_axis)
        body.split_index(self.column_axis)
        for index in needed:
            body.define(index)
        for i in sums:
            reduction = self.region.values[i]
            out.line(f"t{i} = {self._contribution(body, i)}")
            combined = expr.combine(reduction.mode, f"a{i}", f"t{i}", expr.work_type(reduction.compute))
            out.line(f"a{i} = {combined}")
        for index in stored:
            self._store(body, index)
        out.line(f"return {tuple_text(accumulators)}")
