"""Whole rows that fit the registers of a multiprocessor as they were loaded, but not as float32.

After each reduction what follows is computed from the loaded rows again, one part of the columns after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.engines.triton.body import Body, needed_for
from fuseplan.engines.triton.rows.tiles import RowsSchedule
from fuseplan.engines.triton.rows.whole import WholeRows

_WIDENED = 32768  # elements that fit as float32
_THREAD_ELEMENTS = (
    16  # of a part: what is made of more is in registers at the same time
)


def is_held(schedule: RowsSchedule, knobs: Mapping[str, int]) -> bool:
    """Whether the rows of a program are too long to be kept as float32."""
    return schedule.columns * knobs["ROWS"] > _WIDENED


class HeldRows(WholeRows):
    """Writes one kernel of ``kernels/whole_rows.py``."""

    last_fold = -1

    def _width_of_parts(self) -> int:
        return min(
            super()._width_of_parts(), _THREAD_ELEMENTS * 32 * self.knobs["num_warps"]
        )

    def _kept_for_all_rows(self) -> list[int]:
        return []

    def _define(self, bodies: list[Body], indices: list[int]) -> None:
        for place, here in self._in_order(indices):
            made = [
                self._body_again(b, name, place)
                for b, name in zip(bodies, self.part_names, strict=True)
            ]
            self._define_place(
                made if place else bodies, here, self._tiles_of(here, place)
            )

    def _body_again(self, body: Body, name: str, place: int) -> Body:
        return self.body_in(self.main, body.axes[1], f"{name}_{place}")

    def _tiles_of(self, here: list[int], place: int) -> list[int]:
        """The tiles among these values, after those of earlier places that they are made from; loads first."""
        per_row = frozenset(i for i, is_tile in enumerate(self.is_tile) if not is_tile)
        roots = [i for i in here if i not in per_row]
        roots += [
            a
            for i in here
            for a in self.region.values[i].args
            if place and a not in per_row
        ]
        needed = needed_for(self.region, roots, per_row) if place else roots
        return sorted(
            set(needed) - per_row, key=lambda i: (self.region.values[i].op != "load", i)
        )

    def _define_place(
        self, bodies: list[Body], here: list[int], tiles: list[int]
    ) -> None:
        """What a row has one of, then tiles, part by part, each added to the reductions at once."""
        folds = [i for i in here if i in self.loops]
        loads = [i for i in tiles if self.region.values[i].op == "load"]
        for index in here:
            if index not in folds and not self.is_tile[index]:
                self._define_one(bodies, index)
        earlier = {i: self.bodies_of.get(i, []) for i in loads if not self.is_fixed[i]}
        if not any(earlier.values()):
            for index in loads:
                self._define_one(bodies, index)
            tiles = tiles[len(loads) :]
        for k, body in enumerate(bodies):
            for index in tiles:
                if earlier.get(index):
                    held = earlier[index][k].name(index)
                    body.out.line(
                        f"{body.name(index)} = again({held}, v{self.last_fold})"
                    )
                else:
                    body.define(index)
            for index in folds:
                self._accumulate(body, index, is_first=k == 0)
        for index in folds:
            self._end_fold(bodies[0], index)
            self.last_fold = index
        self.bodies_of.update(dict.fromkeys((*tiles, *folds), bodies))
