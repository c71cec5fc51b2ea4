"""Rows in passes: a program has some rows and walks their columns once per level of reductions, or a part of them once.

What a pass needs is computed again in it. A row whose columns several programs share has one level of reductions; a
second kernel folds what they found.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.engines.triton.body import Body, loads_first, needed_for
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.engines.triton.rows.partials import Partials
from fuseplan.engines.triton.rows.tiles import RowsSchedule, RowTiles
from fuseplan.engines.triton.source import Entry, Function, kernel_text, tuple_text

_CONSTANTS = "ROWS, BLOCK, STAGES, INDEX_BITS"


class RowPasses(RowTiles):
    """Writes one kernel of ``kernels/rows.py``.

    Args:
        partials: where partial results go, if programs share rows and there are reductions
    """

    def __init__(self, schedule: RowsSchedule, knobs: Mapping[str, int]) -> None:
        is_split = knobs["SPLIT"] > 1
        super().__init__(schedule, knobs, first_part="(part == 0)" if is_split else "")
        block, columns = knobs["BLOCK"], schedule.columns
        steps = -(-columns // block)
        self.per_part = -(-steps // knobs["SPLIT"]) * block
        self.parts = -(-columns // self.per_part)
        is_dynamic = self.region.graph.is_dynamic
        if is_dynamic or columns % block:
            self.column_axis = type(self.column_axis)(
                "col",
                schedule.reduced,
                mask="column_inside",
                first=self.column_axis.first,
            )
        self.is_split = is_split
        self.partials: Partials | None = None
        if is_split and self.loops:
            self.partials = Partials(
                self.region, tuple(sorted(self.loops)), schedule.kept, self.parts
            )
        self.main = Function(self.params, "row_values")
        self.functions = [self.main]
        self.body = self.body_in(self.main)

    @property
    def folded_stores(self) -> list[int]:
        """Stored values that the folding kernel makes: all that a row has one of."""
        return (
            [i for i in self.region.outputs_of if not self.is_tile[i]]
            if self.partials
            else []
        )

    def kernel(self) -> Kernel:
        schedule, knobs = self.schedule, self.knobs
        self.body.split_index(self.row_axis)
        self._passes()
        for value in (
            self.region.outputs_of
        ):  # after all loads: an output may lie in the buffer of an input
            if not self.is_tile[value] and value not in self.folded_stores:
                self.store(self.body, value)
        n_rows, n_columns = self.num_rows(self.params), self.num_columns(self.params)
        per_part = (
            self.params.number("per_part", self.per_part)
            if self.is_split
            else n_columns
        )
        is_block = self.per_part == knobs["BLOCK"] and not self.region.graph.is_dynamic
        stages = 0 if is_block else max(1, knobs["num_stages"])
        constants = (
            ("ROWS", knobs["ROWS"]), ("BLOCK", knobs["BLOCK"]), ("STAGES", stages),
            ("ROWS_FIRST", int(schedule.rows_adjacent)),
        )  # fmt: skip
        entry = Entry(
            "rows",
            "block_of_rows",
            [self.main.params.names, n_rows, n_columns, per_part],
            constants,
        )
        text = kernel_text(entry, self.functions, self.params)
        grid = -(-schedule.rows // knobs["ROWS"]) * self.parts
        return Kernel(
            "rows", text.source, text.params, text.constants, grid, knobs["num_warps"]
        )

    def _passes(self) -> None:
        values, levels = self.region.values, self.levels()
        tiles = [i for i in self.region.outputs_of if self.is_tile[i]]
        last = max(
            [levels[i] - 1 for i in self.loops] + [levels[i] for i in tiles], default=0
        )
        for level in range(1 if self.partials else max(levels) + 1):
            for index in range(len(values)):
                if (
                    not self.is_tile[index]
                    and levels[index] == level
                    and index not in self.loops
                ):
                    self.define_per_row(self.body, index)
            sums = sorted(i for i in self.loops if levels[i] == level + 1)
            stored = tiles if level == last else []
            if sums or stored:
                self._one_pass(level, sums, stored)

    def _one_pass(self, level: int, sums: list[int], stored: list[int]) -> None:
        """A step function for the columns, and the call of the loop over them."""
        roots = [
            i
            for i in [*(self.region.values[i].args[0] for i in sums), *stored]
            if self.is_tile[i]
        ]
        per_row = frozenset(
            i
            for i, v in enumerate(self.region.values)
            if not self.is_tile[i] and v.op != "const"
        )
        needed = needed_for(self.region, roots, per_row)
        known = [f"v{i}" for i in needed if i in per_row]
        for i in needed:
            known += [f"p{i}", f"r{i}"] if i in self.divisors else []
        step = Function(self.params, "column_step", name=f"column_step{level}")
        self.functions.append(step)
        body = self.body_in(step)
        self._write_step(
            body, [i for i in needed if i not in per_row], sums, stored, known
        )
        starts = [self.accumulator(i, "BLOCK") for i in sums]
        passed = [
            tuple_text(x) for x in (self.main.params.adopt(step.params), known, starts)
        ]
        loop = f"over_columns({step.name}, {', '.join(passed)}, pid, row, row_inside, columns, {_CONSTANTS})"
        self.main.out.line(
            f"{tuple_text([f'a{i}' for i in sums])} = {loop}" if sums else loop
        )
        for i in sums:
            if self.partials is None:
                self.main.out.line(f"v{i} = {self.result(i, self.folded(i, f'a{i}'))}")
                if i in self.divisors:
                    self.body.define_factors(i)
            else:
                self._store_partial(self.partials, i)

    def _store_partial(self, partials: Partials, index: int) -> None:
        out, body = self.main.out, self.body
        address = f"{partials.pointer(body, index)} + part * {self.num_rows(self.main.params)} + row"
        mask = f", mask={self.row_axis.mask}" if self.row_axis.mask else ""
        out.line(f"tl.store({address}, {self.folded(index, f'a{index}')}{mask})")

    def _write_step(
        self,
        body: Body,
        needed: list[int],
        sums: list[int],
        stored: list[int],
        known: list[str],
    ) -> None:
        out, accumulators = body.out, [f"a{i}" for i in sums]
        if known:
            out.line(f"{tuple_text(known)} = known")
        if sums:
            out.line(f"{tuple_text(accumulators)} = sums")
        body.split_index(self.row_axis)
        body.split_index(self.column_axis)
        for index in loads_first(self.region, needed):
            body.define(index)
        for i in sums:
            out.line(f"t{i} = {self.contribution(body, i, 'BLOCK')}")
            out.line(f"a{i} = {self.combined(i, f'a{i}', f't{i}')}")
        for index in stored:
            self.store(body, index)
        out.line(f"return {tuple_text(accumulators)}")
