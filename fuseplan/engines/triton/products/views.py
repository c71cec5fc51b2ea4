"""Operands that the copy engine moves by tiles: which can be, and how a kernel's body says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.codegen.axes import MergedAxis
from fuseplan.codegen.triton_expr import FP8_TYPES, coerce
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.kernel import TileView
from fuseplan.engines.triton.source import Function
from fuseplan.ir.region import Operand, Region, Role

_TYPES = FP8_TYPES | {HALF, BFLOAT16, FLOAT}
_ALIGN = 16  # bytes, of addresses and strides
_MAX_RANK, _MAX_SIDE, _LIMIT = 5, 256, 2**31


@dataclass(frozen=True)
class MappedTile:
    """A tile of an operand: its view, the batch axes of the view, and whether its columns come first in memory."""

    view: TileView
    batch: tuple[MergedAxis, ...]
    is_transposed: bool


def mapped_tile(operand: Operand, axes: Sequence[TileAxis], sides: tuple[int, int]) -> MappedTile | None:
    """How the copy engine moves tiles of these sides over the last two of three axes; None if it cannot."""
    batch, *inner = axes
    size = operand.dtype.itemsize
    if operand.role is Role.SCALAR or operand.dtype not in _TYPES or operand.offset * size % _ALIGN:
        return None
    extents, strides = [a.groups[0].extent for a in inner], [a.groups[0].stride(operand) for a in inner]
    if any(e > 1 and not a.varies(operand.dim) for e, a in zip(extents, inner, strict=True)):
        return None
    fast = 1 if strides[1] == 1 else 0
    if strides[fast] != 1 or extents[fast] == 1:
        return None
    slow = 1 - fast
    if extents[slow] == 1:  # never walked; any stride that may be encoded
        strides[slow] = -(-extents[fast] * size // _ALIGN) * _ALIGN // size
    groups = tuple([g for g in batch.groups if g.varies(operand.dim)])
    steps = [*(g.stride(operand) for g in groups), strides[slow]]
    dims = (*(g.extent for g in groups), extents[slow], extents[fast])
    is_encodable = all(0 < s and s * size % _ALIGN == 0 and s * size < _LIMIT for s in steps)
    if not is_encodable or len(dims) > _MAX_RANK or max(dims) >= _LIMIT or max(sides) > _MAX_SIDE:
        return None
    if sides[fast] * size < _ALIGN:
        return None
    tile = (*(1 for _ in groups), sides[slow], sides[fast])
    return MappedTile(TileView(operand.dtype, dims, (*steps, 1), tile), groups, fast == 0)


class TileBody(Body):
    """A body whose whole tiles come and go through tensor maps where they can.

    Args:
        corner: names of the first positions of the tile along its two axes
        sides: extents of the tile
        shape: the same as text
        is_mapped: whether tensor maps are used at all
    """

    def __init__(
        self,
        region: Region,
        axes: Sequence[TileAxis],
        function: Function,
        *,
        corner: tuple[str, str],
        sides: tuple[int, int],
        shape: str,
        is_mapped: bool,
    ) -> None:
        super().__init__(region, axes, function)
        self.corner, self.sides, self.shape, self.is_mapped = corner, sides, shape, is_mapped

    def tile_of(self, operand: int) -> MappedTile | None:
        """The operand's tile if a tensor map moves it."""
        return mapped_tile(self.region.operands[operand], self.axes, self.sides) if self.is_mapped else None

    def _place(self, operand: int, tile: MappedTile) -> tuple[str, str]:
        """The map, and the position of the tile in it."""
        batch = [f"{self.axes[0].index_of(g)}.to(tl.int32)" for g in tile.batch]
        inner = self.corner[::-1] if tile.is_transposed else self.corner
        return self.params.tile_map(operand, tile.view), ", ".join([*batch, *inner])

    def load(self, value: int) -> str:
        operand = self.region.operand_of[value]
        tile = self.tile_of(operand)
        if tile is None:
            return super().load(value)
        name, place = self._place(operand, tile)
        loaded = f"{name}.load([{place}])"
        if tile.batch:
            sides = self.shape.split(", ")
            loaded = f"tl.reshape({loaded}, ({', '.join(sides[::-1] if tile.is_transposed else sides)}))"
        return f"tl.trans({loaded})" if tile.is_transposed else loaded

    def store(self, value: int, operand: int) -> None:
        target = self.region.operands[operand]
        tile = self.tile_of(operand) if self._is_whole(target) else None
        if tile is None:
            super().store(value, operand)
            return
        name, place = self._place(operand, tile)
        stored = (
            f"tl.broadcast_to({coerce(f'v{value}', self.region.values[value].dtype, target.dtype)}, ({self.shape}))"
        )
        stored = f"tl.trans({stored})" if tile.is_transposed else stored
        sides = ", ".join(map(str, tile.view.tile))
        self.out.line(f"{name}.store([{place}], {f'tl.reshape({stored}, ({sides}))' if tile.batch else stored})")

    def _is_whole(self, target: Operand) -> bool:
        """Whether every program stores a tile of its own."""
        return all(g.extent == 1 or g.varies(target.dim) for axis in self.axes for g in axis.groups)
