"""Reductions in two steps: programs write what they found of a reduction to scratch, a second kernel folds that.

The order in which parts are added is fixed, so results have the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.engines.triton.body import Body, needed_for
from fuseplan.ir.region import Operand, Region, Role, Value

_ALIGNMENT = 16


@dataclass(frozen=True)
class Partials:
    """Scratch for what programs found: for each reduction a matrix with a row per part and a column per result.

    Args:
        reductions: in order
        results: axes that a result has positions along, slow to fast
        parts: how many rows
    """

    region: Region
    reductions: tuple[int, ...]
    results: tuple[MergedAxis, ...]
    parts: int

    @property
    def width(self) -> int:
        return prod(g.extent for g in self.results)

    def _bytes(self, index: int) -> int:
        size = (
            expr.work_type(self.region.values[index].compute).itemsize
            * self.width
            * self.parts
        )
        return -(-size // _ALIGNMENT) * _ALIGNMENT

    def offset(self, index: int) -> int:
        """Where the matrix of a reduction starts, in bytes."""
        return sum(
            self._bytes(i) for i in self.reductions[: self.reductions.index(index)]
        )

    @property
    def scratch_bytes(self) -> int:
        return sum(self._bytes(i) for i in self.reductions)

    def pointer(self, body: Body, index: int) -> str:
        """The matrix of a reduction, as a parameter."""
        work = expr.work_type(self.region.values[index].compute)
        return body.params.scratch(self.offset(index), expr.SIGNATURE_TYPES[work])

    def folding(self, stored: Sequence[int]) -> Region:
        """What is left to do, as a region over the matrices: their sums along the parts, and what follows from them.

        Args:
            stored: values whose stores are left; they depend on no tile but through the reductions
        """
        region = self.region
        values: list[Value] = []
        operands = list(region.operands)
        loads: list[tuple[int, int]] = []
        moved: dict[int, int] = {}
        for index in needed_for(region, stored, frozenset(self.reductions)):
            value = region.values[index]
            if index in self.reductions:
                operand = self._matrix(index)
                loads.append((len(values), len(operands)))
                operands.append(operand)
                values.append(
                    Value("load", (), operand.dim, operand.dtype, operand.dtype)
                )
                value = replace(value, args=(len(values) - 1,))
            elif value.op == "count":
                total = prod(region.values[value.args[0]].dim[a] for a in value.axes)
                value = replace(value, op="const", args=(), attrs=(("value", total),))
            else:
                if value.op == "load":
                    loads.append((len(values), region.operand_of[index]))
                value = replace(value, args=tuple(moved[a] for a in value.args))
            moved[index] = len(values)
            values.append(value)
        stores = tuple((moved[v], k) for v, k in region.stores if v in stored)
        return Region(
            region.graph,
            tuple(values),
            tuple(operands),
            tuple(loads),
            stores,
            region.cost,
        )

    def _matrix(self, index: int) -> Operand:
        """The partial results of a reduction as an operand: parts lie along the first axis that it reduces."""
        region = self.region
        value, work = region.values[index], expr.work_type(region.values[index].compute)
        dim, stride, step = [1] * len(region.domain), [0] * len(region.domain), 1
        for axis in (a for g in reversed(self.results) for a in reversed(g.axes)):
            dim[axis], stride[axis], step = (
                region.domain[axis],
                step,
                step * region.domain[axis],
            )
        over = next(a for a in value.axes if region.domain[a] > 1)
        dim[over], stride[over] = self.parts, self.width
        offset = self.offset(index) // work.itemsize
        return Operand(
            -1 - index, tuple(dim), tuple(stride), work, Role.SCRATCH, offset
        )
