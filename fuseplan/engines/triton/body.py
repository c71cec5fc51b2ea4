"""The values of a region as lines of Triton: loads, primitives and stores on the tile of a program.

A tile has one or more `TileAxis`; each walks one or more merged axes of the region. What an operand or value lacks
is left to broadcasting; a store of something that does not extend over an axis is done by the first position along
it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.dtypes import BFLOAT16, BOOLEAN, FLOAT, INT32, DType
from fuseplan.engines.triton.layout import is_adjacent
from fuseplan.engines.triton.source import Function
from fuseplan.ir.region import Region, Role


@dataclass(frozen=True)
class TileAxis:
    """One axis of a program's tile.

    Args:
        index: name of the position along it
        groups: merged axes that it walks, slow to fast
        mask: condition that the position is inside, as a name; empty if it always is
        first: condition that this program is the first along the axis; empty if every program is
        is_shifted: where an operand extends along all axes, the address of the first position is a multiple of 16
    """

    index: str
    groups: tuple[MergedAxis, ...]
    mask: str = ""
    first: str = ""
    is_shifted: bool = False

    def index_of(self, group: MergedAxis) -> str:
        """Name of the position within a group."""
        return self.index if len(self.groups) == 1 else f"{self.index}{self.groups.index(group)}"

    def varies(self, dim: Sequence[int]) -> bool:
        """Whether dims extend over any group."""
        return any(g.varies(dim) for g in self.groups)


class Body:
    """Writes values of a region into a device function; remembers nothing but parameters."""

    def __init__(
        self, region: Region, axes: Sequence[TileAxis], function: Function, *, origin: str = "", part: str = "",
        divisors: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        """Where and how values are written.

        Args:
            origin: added to the address of a store that extends over no axis, to give it the tile's rank
            part: ends the names of what extends over the last axis, where several parts of that are written
            divisors: values that a tile is divided by, which have factors in their place (`define_factors`)
        """
        self.region, self.axes, self.origin = region, tuple(axes), origin
        self.params, self.out = function.params, function.out
        self._part, self._divisors = part, divisors

    def name(self, value: int) -> str:
        """Name of a value."""
        is_part = self._part and self.axes[-1].varies(self.region.values[value].dim)
        return f"v{value}{self._part}" if is_part else f"v{value}"

    def define_factors(self, value: int) -> None:
        """Two factors that make a division by this value."""
        self.out.line(f"p{value}, r{value} = factors_of_quotient({self.name(value)})")

    def split_index(self, axis: TileAxis, *, may_be_merged: bool = False) -> None:
        """Positions within each group of an axis, from the position along it.

        Args:
            may_be_merged: the last group has all positions where the constant MERGED says so
        """
        if len(axis.groups) < 2:
            return
        if may_be_merged:
            with self.out.indent("if MERGED:"):
                for number in range(len(axis.groups) - 1):
                    self.out.line(f"{axis.index}{number} = {axis.index} * 0")
                self.out.line(f"{axis.index}{len(axis.groups) - 1} = {axis.index}")
            with self.out.indent("else:"):
                self._divide(axis)
        else:
            self._divide(axis)

    def _divide(self, axis: TileAxis) -> None:
        rest = axis.index
        for number in range(len(axis.groups) - 1, 0, -1):
            extent = self.extent(axis.groups[number])
            self.out.line(f"{axis.index}{number} = {rest} % {extent}")
            left = f"{axis.index}_over{number}" if number > 1 else f"{axis.index}0"
            self.out.line(f"{left} = {rest} // {extent}")
            rest = left

    def extent(self, group: MergedAxis) -> str:
        """Parameter holding a group's extent."""
        axis = group.axes[-1]
        return self.params.number(f"n{axis}", group.count, is_vector=is_adjacent(self.region, axis))

    def stride(self, operand: int, group: MergedAxis) -> str:
        """Stride of an operand along a group: literal 0 or 1, else a parameter.

        Along a group of extent 1 (a matmul keeps it for its tile) outputs have the tile's shape: any stride will do.
        """
        spec = self.region.operands[operand]
        step = group.stride(spec) if group.extent > 1 else int(spec.role.is_written)
        return self.params.stride(f"s{operand}_{group.axes[-1]}", step, operand, is_walked=group.iterations != 1)

    def address(self, operand: int) -> tuple[str, list[TileAxis]]:
        """Expression of the operand's addresses, and the tile axes it extends over."""
        terms, seen = [self.params.operand(operand)], []
        for axis in self.axes:
            here = [(g, step) for g in axis.groups if (step := self.stride(operand, g)) != "0"]
            for group, step in here:
                index = axis.index_of(group)
                terms.append(index if step == "1" else f"{index} * {step}")
            if here:
                seen.append(axis)
        address = " + ".join(terms)
        if len(seen) == len(self.axes) and any(axis.is_shifted for axis in seen):
            address = f"tl.multiple_of({address}, [1, 16])"
        return address, seen

    def load(self, value: int) -> str:
        """Expression of a loaded value."""
        number = self.region.operand_of[value]
        operand = self.region.operands[number]
        if operand.role is Role.SCALAR:
            name = self.params.operand(number)
            if operand.dtype is BOOLEAN:
                return f"(tl.full((), {name}, tl.uint8) != 0)"
            return f"tl.full((), {name}, {expr.VALUE_TYPES[operand.dtype]})"
        address, seen = self.address(number)
        masks = [axis.mask for axis in seen if axis.mask]
        mask = f", mask={' & '.join(masks)}, other={expr.zero(operand.dtype)}" if masks else ""
        loaded = f"tl.load({address}{mask})"
        return f"({loaded} != 0)" if operand.dtype is BOOLEAN else loaded

    def define(self, value: int) -> None:
        """One line that gives a value its name; not for reductions that reduce, and anchors."""
        self.out.line(f"{self.name(value)} = {self._expression(value)}")

    def argument(self, value: int) -> str:
        """The argument of a reduction in its work type."""
        reduction = self.region.values[value]
        arg = reduction.args[0]
        return expr.to_work(self.name(arg), self.region.values[arg].dtype, reduction.compute)

    def _expression(self, index: int) -> str:
        value = self.region.values[index]
        if value.op == "load":
            return self.load(index)
        if value.op == "const":
            number = value.attr("value")
            assert isinstance(number, bool | int | float)
            return expr.literal(number, value.dtype)
        if value.op == "index":
            return self._position(index)
        if value.op == "count":
            return self._count(index)
        if value.op == "reduce":  # over axes that its argument lacks
            return expr.from_work(self.argument(index), value.compute, value.dtype)
        if value.op == "add" and (found := self._plus_one(index)):
            return found
        args = [self._work_argument(a, value.compute) for a in value.args]
        if value.op == "div" and value.args[1] in self._divisors:
            return expr.from_work(f"({args[0]} * p{value.args[1]} * r{value.args[1]})", value.compute, value.dtype)
        if value.op in expr.OF_ROUNDED_32 and value.compute is FLOAT and self._is_rounded(value.args[0]):
            return expr.from_work(expr.OF_ROUNDED_32[value.op].format(*args), FLOAT, value.dtype)
        result, kind = expr.primitive(value.op, args, value.compute)
        if kind is BOOLEAN:
            return expr.coerce(result, BOOLEAN, value.dtype)
        is_read_tile = max(value.dim, default=1) > 1 and bool(self.region.users[index])
        if is_read_tile and value.compute is FLOAT and value.dtype is BFLOAT16:
            return f"rounded_pairs({result})"  # what is stored alone is packed by the compiler
        return expr.from_work(result, value.compute, value.dtype)

    def _work_argument(self, index: int, compute: DType) -> str:
        return expr.to_work(self.name(index), self.region.values[index].dtype, compute)

    def _is_rounded(self, index: int) -> bool:
        """Whether a value is the rounded result of float32 arithmetic."""
        value = self.region.values[index]
        return value.op in expr.ROUNDED and value.compute is FLOAT and value.dtype is FLOAT

    def _plus_one(self, index: int) -> str:
        """Expression of 1 + f(x) where nothing else uses f(x), and there is one for the sum; else empty."""
        region = self.region
        for inner, other in (region.values[index].args, region.values[index].args[::-1]):
            value, one = region.values[inner], region.values[other]
            is_one = one.op == "const" and one.attr("value") == 1.0
            kinds = {value.dtype, value.compute, region.values[index].compute, region.values[index].dtype}
            if is_one and kinds == {FLOAT} and value.op in expr.PLUS_ONE_32 and region.users[inner] == (index,):
                if inner not in region.outputs_of:
                    return expr.PLUS_ONE_32[value.op].format(self._work_argument(value.args[0], FLOAT))
        return ""

    def _position(self, index: int) -> str:
        value = self.region.values[index]
        axis = value.axis
        for tile in self.axes:
            for group in tile.groups:
                if axis in group.axes and value.dim[axis] > 1:
                    return expr.coerce(f"({tile.index_of(group)}).to(tl.int32)", INT32, value.dtype)
        return expr.literal(0, value.dtype)

    def _count(self, index: int) -> str:
        value = self.region.values[index]
        total = prod(self.region.values[value.args[0]].dim[a] for a in value.axes)
        name = self.params.number(f"count{index}", total, "i32" if total < 2**31 else "i64")
        return f"tl.full((), {name}, {expr.VALUE_TYPES[value.dtype]})"

    def guards(self, dim: Sequence[int], seen: Sequence[TileAxis]) -> list[str]:
        """Conditions under which a position stands for one element of something with these dims."""
        found: list[str] = []
        for axis in self.axes:
            if axis not in seen:
                found += [axis.first] if axis.first else []
                continue
            found += [axis.mask] if axis.mask else []
            missing = [g for g in axis.groups if g.extent > 1 and not g.varies(dim)]
            found += [f"({axis.index_of(g)} == 0)" for g in missing]
        return found

    def store(self, value: int, operand: int) -> None:
        """Write a value to an output."""
        target = self.region.operands[operand]
        stored = expr.coerce(self.name(value), self.region.values[value].dtype, target.dtype)
        if target.dtype is BOOLEAN:
            stored = f"({stored}).to(tl.uint8)"
        address, seen = self.address(operand)
        if not seen and self.origin:
            address += f" + {self.origin}"
        guards = self.guards(target.dim, seen)
        mask = f", mask={' & '.join(guards)}" if guards else ""
        self.out.line(f"tl.store({address}, {stored}{mask})")


def loads_first(region: Region, indices: Iterable[int]) -> list[int]:
    """The values with loads moved to the front, so that all of them are under way before anything waits for one."""
    return sorted(indices, key=lambda i: region.values[i].op != "load")


def needed_for(region: Region, roots: Sequence[int], stops: frozenset[int] = frozenset()) -> list[int]:
    """Values that these need, themselves included, in order; nothing that only a stop needs."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            if index not in stops and region.values[index].op != "count":
                todo += region.values[index].args
    return sorted(found)
