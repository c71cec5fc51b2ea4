"""Whole rows at once: every value is computed once and kept, so what a row holds is read and written once.

A row is one tile, or several beside each other whose width is a power of two (5120 = 5 x 1024). Sums over the rows stay
with a program while it takes one block of rows after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.engines.triton.knobs import power_of_two
from fuseplan.engines.triton.rows.partials import Partials
from fuseplan.engines.triton.rows.shifted import VECTOR_BYTES, Shift, shift_of
from fuseplan.engines.triton.rows.tiles import RowsSchedule, RowTiles
from fuseplan.engines.triton.source import Entry, Function, kernel_text, tuple_text

_LEAST_WIDTH = 512


def width_of_parts(columns: int, most: int) -> int:
    """A power of two: the largest of which at most so many parts cover a row with an eighth to spare, or the least."""
    whole = power_of_two(columns)
    narrower = [
        whole >> k for k in range(1, most.bit_length()) if whole >> k >= _LEAST_WIDTH
    ]
    widths = [whole, *(width for width in narrower if -(-columns // width) <= most)]
    spare = {width: -columns % width for width in widths}
    return next(
        (w for w in widths if 8 * spare[w] <= columns),
        min(widths, key=lambda w: spare[w]),
    )


class WholeRows(RowTiles):
    """Writes one kernel of ``kernels/whole_rows.py``."""

    def __init__(
        self,
        schedule: RowsSchedule,
        knobs: Mapping[str, int],
        *,
        is_aligned: bool = True,
    ) -> None:
        """`is_aligned`: addresses of operands are multiples of 16."""
        super().__init__(schedule, knobs)
        self.shift = shift_of(schedule) if is_aligned and knobs["ROWS"] == 1 else None
        self.covered = schedule.columns + (VECTOR_BYTES if self.shift else 0)
        self.blocks = -(-schedule.rows // knobs["ROWS"])
        most = knobs["PER_SM"] * schedule.device.sm_count
        rounds = -(-self.blocks // most) if knobs["num_stages"] else 1
        self.programs = -(-self.blocks // rounds)
        self.width = self._width_of_parts()
        parts = -(-self.covered // self.width)
        self.part_names = (
            [f"_{chr(ord('a') + k)}" for k in range(parts)] if parts > 1 else [""]
        )
        self.bodies_of: dict[int, list[Body]] = {}
        self.columns_first = Function(self.params, "column_values", "column_params")
        self.sums_first = Function(self.params, "first_sums", "sum_params")
        self.main = Function(self.params, "row_values")
        self.end = Function(self.params, "store_sums", "end_params")
        values = self.region.values
        self.partials = Partials(
            self.region, tuple(sorted(schedule.across)), schedule.reduced, self.programs
        )
        self.late = self._dependents(schedule.across)
        self.is_fixed = [
            self.is_tile[i] and not self.row_axis.varies(v.dim)
            for i, v in enumerate(values)
        ]
        changing = self._dependents(self.loops | schedule.across)
        self.is_fixed = [
            fixed and i not in changing for i, fixed in enumerate(self.is_fixed)
        ]
        may_keep = knobs["num_stages"] and not self.shift
        self.kept = self._kept_for_all_rows() if may_keep else []

    def _width_of_parts(self) -> int:
        return width_of_parts(self.covered, self.knobs["PARTS"])

    def _dependents(self, of: frozenset[int] | set[int]) -> set[int]:
        found = set(of)
        for i, v in enumerate(self.region.values):
            if any(a in found for a in v.args):
                found.add(i)
        return found

    def _kept_for_all_rows(self) -> list[int]:
        """Values without a row that are read by others, or stored."""
        values = self.region.values
        read = {
            a
            for i, v in enumerate(values)
            if not self.is_fixed[i] and v.op != "count"
            for a in v.args
        }
        return [
            i
            for i, fixed in enumerate(self.is_fixed)
            if fixed and (i in read or i in self.region.outputs_of)
        ]

    @property
    def folded_stores(self) -> list[int]:
        """Stored values that the folding kernel makes."""
        return [i for i in self.region.outputs_of if i in self.late]

    def kernel(self) -> Kernel:
        bodies = self._bodies(self.columns_first)
        needed = needed_for(self.region, self.kept)
        self._define(bodies, needed)
        names = [b.name(i) for i in self.kept for b in bodies]
        self.columns_first.out.line(f"return {tuple_text(names)}")
        self._write_rows(names)
        self._write_sums()
        n_rows = self.num_rows(self.params)
        functions = [self.columns_first, self.sums_first, self.main, self.end]
        entry = Entry(
            "whole_rows", "rows_in_turn",
            [*(f.params.names for f in functions), n_rows],
            (("ROWS", self.knobs["ROWS"]), ("STAGES", self.knobs["num_stages"])),
        )  # fmt: skip
        text = kernel_text(entry, functions, self.params)
        return Kernel(
            "whole_rows",
            text.source,
            text.params,
            text.constants,
            self.programs,
            self.knobs["num_warps"],
        )

    def _bodies(self, function: Function, shift: Shift | None = None) -> list[Body]:
        """A body for each part of the columns, with their positions defined."""
        made = []
        if shift:
            stride = self.body_in(function).stride(shift.operand, shift.rows)
            function.out.line(f"shift = row * {stride} % {shift.vector}")
        for k, name in enumerate(self.part_names):
            column, first = f"col{name}", k * self.width
            is_over = first + self.width > self.schedule.columns
            mask = f"{column}_inside" if is_over or (shift and not k) else ""
            axis = TileAxis(
                column, self.schedule.reduced, mask=mask, is_shifted=bool(shift)
            )
            body = self.body_in(function, axis, name)
            start = f" + {first}" if first else ""
            start += " - shift" if shift else ""
            function.out.line(f"{column} = tl.arange(0, {self.width})[None, :]{start}")
            inside = (
                [f"({column} < {self.num_columns(function.params)})"] if is_over else []
            )
            inside += [f"({column} >= 0)"] if shift and not k else []
            if inside:
                function.out.line(f"{mask} = {' & '.join(inside)}")
            body.split_index(axis)
            made.append(body)
        return made

    def _in_order(self, indices: list[int]) -> list[tuple[int, list[int]]]:
        """Values by the number of reductions that they wait for, so that those of one level follow each other.

        Loads of rows come first, so that all of them are under way before the first reduction. What has no row is
        loaded where it is first read, as late as can be: registers are short.
        """
        places = self._places()

        def when(index: int) -> tuple[int, float]:
            if self.region.values[index].op != "load":
                return places[index], index
            return places[index], min(
                self.region.users[index], default=index
            ) - 0.5 if places[index] else -1

        return [
            (p, list(g))
            for p, g in groupby(sorted(indices, key=when), key=places.__getitem__)
        ]

    def _define(self, bodies: list[Body], indices: list[int]) -> None:
        for _, here in self._in_order(indices):
            for index in here:
                self._define_one(bodies, index)

    def _define_one(self, bodies: list[Body], index: int) -> None:
        self.bodies_of[index] = bodies
        if index in self.loops:
            for body in bodies:
                self._accumulate(body, index, is_first=body is bodies[0])
            self._end_fold(bodies[0], index)
        elif index in self.schedule.across:
            self._add(bodies, index)
        elif self.is_tile[index]:
            for body in bodies:
                body.define(index)
        else:
            self.define_per_row(bodies[0], index)

    def _places(self) -> list[int]:
        """For each value the level at which it is computed."""
        places = [level - (i in self.loops) for i, level in enumerate(self.levels())]
        for i in range(len(places) - 1, -1, -1):
            if self.is_fixed[i]:
                places[i] = min(
                    (places[user] for user in self.region.users[i]), default=places[i]
                )
        return places

    def _add(self, bodies: list[Body], index: int) -> None:
        """Add the rows of this block to the accumulators of a sum over rows."""
        for body, name in zip(bodies, self.part_names, strict=True):
            x = body.argument(index)
            x = (
                f"tl.where({self.row_axis.mask}, {x}, {self.neutral(index)})"
                if self.row_axis.mask
                else x
            )
            body.out.line(
                f"a{index}{name} = {self.combined(index, f'a{index}{name}', f'({x})')}"
            )

    def _accumulate(self, body: Body, index: int, *, is_first: bool) -> None:
        """Add a part of the columns to a reduction."""
        x = f"({self.contribution(body, index, self.width)})"
        body.out.line(
            f"t{index} = {x if is_first else self.combined(index, f't{index}', x)}"
        )

    def _end_fold(self, body: Body, index: int) -> None:
        body.out.line(
            f"v{index} = {self.result(index, self.folded(index, f't{index}'))}"
        )
        if index in self.divisors:
            body.define_factors(index)

    def _write_rows(self, known: list[str]) -> None:
        out, across = self.main.out, self.schedule.across
        bodies = self._bodies(self.main, self.shift)
        bodies[0].split_index(self.row_axis)
        if known:
            out.line(f"{tuple_text(known)} = known")
        stored = [i for i in self.region.outputs_of if i not in self.late]
        names = self._accumulators()
        if names:
            out.line(f"{tuple_text(names)} = sums")
        needed = needed_for(self.region, [*stored, *across], frozenset(self.kept))
        self._define(bodies, [i for i in needed if i not in self.kept])
        for (
            value
        ) in stored:  # after all loads: an output may lie in the buffer of an input
            made = bodies if value in self.kept else self.bodies_of[value]
            for body in made if self.is_tile[value] else made[:1]:
                self.store(body, value)
        out.line(f"return {tuple_text(names)}")

    def _accumulators(self) -> list[str]:
        return [
            f"a{i}{name}"
            for i in sorted(self.schedule.across)
            for name in self.part_names
        ]

    def _write_sums(self) -> None:
        across = sorted(self.schedule.across)
        starts = [
            self.accumulator(i, self.width) for i in across for _ in self.part_names
        ]
        self.sums_first.out.line(f"return {tuple_text(starts)}")
        out = self.end.out
        if not across:
            out.line("return")
            return
        out.line(f"{tuple_text(self._accumulators())} = sums")
        bodies = self._bodies(self.end)
        for index in across:
            pointer = self.partials.pointer(bodies[0], index)
            for body, name in zip(bodies, self.part_names, strict=True):
                axis = body.axes[1]
                total = (
                    self.folded(index, f"a{index}{name}", "0")
                    if self.knobs["ROWS"] > 1
                    else f"a{index}{name}"
                )
                mask = f", mask={axis.mask}" if axis.mask else ""
                n = self.num_columns(self.end.params)
                out.line(
                    f"tl.store({pointer} + program * {n} + {axis.index}, {total}{mask})"
                )
