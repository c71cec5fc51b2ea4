"""Regions with reductions over one set of axes: a program owns some rows, columns are what is reduced.

Persistent if a whole row fits the tile: every value is computed once and kept. Otherwise looped: one
pass over the columns per level of reductions, and what a pass needs is computed again in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.body import Body, TileAxis, extends_over
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.layout import (
    Group,
    by_stride,
    has_group,
    index_cast,
    is_adjacent,
    largest_operand,
    merge,
    reduced_axes,
)
from fuseplan.engines.triton.source import finish_shared
from fuseplan.ir.region import Region, Role


def split_axes(region: Region) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Groups of the kept axes and of the reduced axes."""
    rank = len(region.domain)
    reduced = frozenset().union(*(reduced_axes(region, region.values[i]) for i in region.reductions))
    guide = largest_operand(region, Role.IN)
    kept = by_stride((a for a in range(rank) if a not in reduced), guide)
    gone = by_stride(sorted(reduced), guide)
    return merge(region, kept, region.domain), merge(region, gone, region.domain)


def emit_rows(region: Region, knobs: Mapping[str, int]) -> Emitted:
    """One kernel; `ROWS` rows per program, `BLOCK` columns per step."""
    return _Rows(region, knobs).emit()


class _Rows:
    """Writes one rows kernel."""

    def __init__(self, region: Region, knobs: Mapping[str, int]) -> None:
        self.region, self.knobs = region, knobs
        kept, reduced = split_axes(region)
        self.rows, self.columns = prod(g.extent for g in kept), prod(g.extent for g in reduced)
        self.cast, is_shared = index_cast(region), region.graph.is_dynamic
        self.is_persistent = self.columns <= knobs["BLOCK"] and not is_shared
        row_mask = "row_inside" if is_shared or self.rows % knobs["ROWS"] else ""
        column_mask = "column_inside" if is_shared or self.columns % knobs["BLOCK"] else ""
        self.row_axis = TileAxis("row", kept, mask=row_mask, first="(pid == 0)")
        self.column_axis = TileAxis("col", reduced, mask=column_mask)
        self.params, self.out = ParamList(region, "i64" if self.cast else "i32"), LineWriter("    ")
        axes = [self.row_axis, self.column_axis]
        self.body = Body(region, axes, self.params, self.out, origin="tl.zeros((1, 1), tl.int32)")
        self.is_tile = self._find_tiles()

    def emit(self) -> Emitted:
        self._row_index()
        if self.is_persistent:
            self._column_index("tl.arange(0, BLOCK)[None, :]")
            for value in range(len(self.region.values)):
                self._define(value)
        else:
            self._passes()
        for value in self.region.outputs_of:  # after all loads: an output may lie in the buffer of an input
            if self.is_persistent or not self.is_tile[value]:
                self._store(value)
        constants = ("ROWS", "BLOCK")
        source, ordered = finish_shared("rows", self.params, self.out, constants)
        chosen = tuple((c, self.knobs[c]) for c in constants)
        grid = -(-self.rows // self.knobs["ROWS"])
        return Emitted((Kernel("rows", source, ordered, chosen, grid, self.knobs["num_warps"]),))

    def _find_tiles(self) -> list[bool]:
        """For each value whether it has a value of its own per column."""
        return [extends_over(value.dim, self.column_axis) for value in self.region.values]

    def _row_index(self) -> None:
        out, body = self.out, self.body
        out.line("pid = tl.program_id(0)")
        if not self.row_axis.groups:
            return
        out.line(f"row = (pid{self.cast} * ROWS + tl.arange(0, ROWS))[:, None]")
        if self.row_axis.mask:
            groups = self.row_axis.groups
            out.line(f"row_inside = row < {self._count(groups, 'n_rows', self.rows)}")
        body.split_index(self.row_axis)

    def _column_index(self, positions: str) -> None:
        self.out.line(f"col = {positions}{self.cast}")
        if self.column_axis.mask:
            self.out.line(f"column_inside = col < {self._column_count()}")
        self.body.split_index(self.column_axis)

    def _column_count(self) -> str:
        return self._count(self.column_axis.groups, "n_columns", self.columns)

    def _count(self, groups: Sequence[Group], name: str, total: int) -> str:
        """Positions along a tile axis."""
        if len(groups) == 1:
            return self.body.extent(groups[0])
        is_vector = bool(groups) and is_adjacent(self.region, groups[-1].axes[-1])
        return self.params.number(name, total, is_vector=is_vector)

    def _define(self, value: int) -> None:
        if self.region.values[value].op == "reduce":
            self._reduce_tile(value)
        else:
            self.body.define(value)

    def _contribution(self, value: int) -> tuple[str, str, str]:
        """What one step adds to a reduction, its neutral element, and its work type."""
        reduction = self.region.values[value]
        arg = reduction.args[0]
        source = self.region.values[arg]
        work = expr.work_type(reduction.compute)
        nothing = expr.neutral(reduction.mode, work)
        rows = "ROWS" if extends_over(source.dim, self.row_axis) else "1"
        x = f"tl.broadcast_to({expr.to_work(f'v{arg}', source.dtype, reduction.compute)}, ({rows}, BLOCK))"
        missing = [g for g in self.column_axis.groups if not has_group(source.dim, g)]
        masks = [self.column_axis.mask] if self.column_axis.mask else []
        masks += [f"({self.column_axis.index_of(g)} == 0)" for g in missing]
        return (f"tl.where({' & '.join(masks)}, {x}, {nothing})" if masks else x), nothing, expr.VALUE_TYPES[work]

    def _reduce_tile(self, value: int) -> None:
        """A reduction of a tile that holds whole rows."""
        reduction = self.region.values[value]
        if not self.is_tile[reduction.args[0]]:
            self._copy_reduced(value)
            return
        x, _, _ = self._contribution(value)
        self.out.line(f"t{value} = {x}")
        self._finish_reduction(value, f"t{value}")

    def _copy_reduced(self, value: int) -> None:
        """A reduction over axes that its argument does not extend over: one element each."""
        reduction = self.region.values[value]
        arg = reduction.args[0]
        x = expr.to_work(f"v{arg}", self.region.values[arg].dtype, reduction.compute)
        self.out.line(f"v{value} = {expr.from_work(x, reduction.compute, reduction.dtype)}")

    def _finish_reduction(self, value: int, tile: str) -> None:
        reduction = self.region.values[value]
        work = expr.work_type(reduction.compute)
        folded = expr.fold(reduction.mode, tile, "1", work)
        self.out.line(f"v{value} = {expr.from_work(f'({folded})', reduction.compute, reduction.dtype)}")

    # looped form

    def _levels(self) -> list[int]:
        """For each value the pass in which it can be computed; a reduction's result is one later."""
        levels: list[int] = []
        for value in self.region.values:
            level = max((levels[a] for a in value.args), default=0) if value.op != "count" else 0
            levels.append(level + 1 if value.op == "reduce" and self.is_tile[value.args[0]] else level)
        return levels

    def _passes(self) -> None:
        values, levels = self.region.values, self._levels()
        tiles = [i for i in self.region.outputs_of if self.is_tile[i]]
        walks = [levels[i] - 1 for i in self.region.reductions if self.is_tile[values[i].args[0]]]
        last = max(walks + [levels[i] for i in tiles], default=0)
        for level in range(max(levels) + 1):
            for value in range(len(values)):
                is_done = values[value].op == "reduce" and self.is_tile[values[value].args[0]]
                if not self.is_tile[value] and levels[value] == level and not is_done:
                    self._define(value)
            sums = [i for i in self.region.reductions if self.is_tile[values[i].args[0]] and levels[i] == level + 1]
            stored = tiles if level == last else []
            if sums or stored:
                self._one_pass(sums, stored)

    def _store(self, value: int) -> None:
        for operand in self.region.outputs_of.get(value, ()):
            self.body.store(value, operand)

    def _one_pass(self, sums: list[int], stored: list[int]) -> None:
        needed = self._needed([self.region.values[i].args[0] for i in sums] + stored)
        for i in sums:
            _, nothing, type_ = self._contribution(i)
            has_rows = extends_over(self.region.values[i].dim, self.row_axis)
            self.out.line(f"a{i} = tl.full(({'ROWS' if has_rows else 1}, BLOCK), {nothing}, {type_})")
        with self.out.indent(f"for start in range(0, {self._column_count()}, BLOCK):"):
            self._column_index("start + tl.arange(0, BLOCK)[None, :]")
            for value in needed:
                self.body.define(value)
            for i in sums:
                reduction = self.region.values[i]
                x, _, _ = self._contribution(i)
                work = expr.work_type(reduction.compute)
                self.out.line(f"t{i} = {x}")
                self.out.line(f"a{i} = {expr.combine(reduction.mode, f'a{i}', f't{i}', work)}")
            for value in stored:
                self._store(value)
        for i in sums:
            self._finish_reduction(i, f"a{i}")

    def _needed(self, sinks: list[int]) -> list[int]:
        """Tile values that these need, in order."""
        found: set[int] = set()
        todo = [s for s in sinks if self.is_tile[s]]
        while todo:
            value = todo.pop()
            if value not in found:
                found.add(value)
                if self.region.values[value].op not in ("count", "reduce"):
                    todo += [a for a in self.region.values[value].args if self.is_tile[a]]
        return sorted(found)


def tile_shape(region: Region) -> tuple[int, int, bool]:
    """Rows, columns, and whether neighbouring rows (rather than columns) are adjacent in memory."""
    kept, reduced = split_axes(region)
    rows, columns = prod(g.extent for g in kept), prod(g.extent for g in reduced)
    guide = largest_operand(region, Role.IN)
    adjacent = False
    if guide is not None and kept:
        axis = kept[-1].axes[-1]
        adjacent = guide.dim[axis] > 1 and guide.stride[axis] == 1
    return rows, columns, adjacent
