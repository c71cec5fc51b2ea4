"""A region that is one product, as cuBLASLt describes it.

The library counts rows fastest: a matrix with neighbours in a row is to it the transpose. So D = A B by rows is asked
for as D' = B' A', its A being our B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuseplan.codegen.axes import merge
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.base import Support, no
from fuseplan.ir.region import Operand, Region, Role, Value

#: numbers of cudaDataType
TYPES = {FLOAT: 0, HALF: 2, BFLOAT16: 14}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix as the library sees it.

    Args:
        operand: number of the region's operand
        rows, columns: as it lies, columns of `rows` neighbours
        leading: elements from a column to the next
        batch_stride: elements from a matrix to the next, 0 if all are one
        is_turned: whether the product takes its transpose
    """

    operand: int
    dtype: DType
    rows: int
    columns: int
    leading: int
    batch_stride: int
    is_turned: bool


@dataclass(frozen=True, slots=True)
class Product:
    """D = A B in the library's order of matrices."""

    a: Matrix
    b: Matrix
    d: Matrix
    batch: int


def product_of(region: Region) -> Product | Support:
    """The product that a region is, or why it is none that the library computes."""
    if region.graph.is_dynamic:
        return no("its extents are not known")
    if len(region.anchors) != 1 or len(region.stores) != 1:
        return no("it is not one product with one result")
    anchor = region.values[region.anchors[0]]
    value, stored = region.stores[0]
    if reason := _values_gap(region, anchor, value):
        return no(reason, at=value)
    numbers = [region.operand_of[a] for a in anchor.args]
    operands = [region.operands[n] for n in (*numbers, stored)]
    if reason := next((r for r in map(_operand_gap, operands) if r), "") or _types_gap(
        operands
    ):
        return no(reason, at=region.anchors[0])
    batch_axes = merge(region, range(len(region.domain) - 2))
    if len(batch_axes) > 1:
        return no("its batches do not lie at equal distances", at=region.anchors[0])
    strides = [batch_axes[0].stride(o) if batch_axes else 0 for o in operands]
    return _ordered(
        [*numbers, stored], operands, strides, batch_axes[0].extent if batch_axes else 1
    )


def _values_gap(region: Region, anchor: Value, stored: int) -> str:
    if anchor.op != "matmul" or anchor.compute not in (
        FLOAT,
        region.values[anchor.args[0]].dtype,
    ):
        return "it is not a product whose sums may be FLOAT"
    if any(region.values[a].op != "load" for a in anchor.args):
        return "its factors are computed"
    last = region.values[stored]
    behind = [v for v in region.values if v.op != "load" and v is not anchor]
    if behind and (behind != [last] or last.op != "cast" or anchor.dtype is not FLOAT):
        return "something is computed from its result"
    return ""


def _operand_gap(operand: Operand) -> str:
    if operand.dtype not in TYPES:
        return f"it has a matrix of type {operand.dtype}"
    if (
        operand.role not in (Role.IN, Role.OUT)
        or operand.rows is not None
        or operand.init is not None
    ):
        return "it has a matrix that is no plain tensor"
    return ""


def _types_gap(operands: list[Operand]) -> str:
    a, b, d = (o.dtype for o in operands)
    return (
        ""
        if a is b and d in (a, FLOAT)
        else f"its matrices have types {a}, {b} and {d}"
    )


def _ordered(
    numbers: list[int], operands: list[Operand], strides: list[int], batch: int
) -> Product | Support:
    """The product by columns: as it is, or of a result by rows the transposed one."""
    a, b, d = (
        _lying(n, o, s) for n, o, s in zip(numbers, operands, strides, strict=True)
    )
    if a is None or b is None or d is None:
        return no(
            "a matrix has neighbours neither in its rows nor in its columns, or rows that overlap"
        )
    if d.is_turned:
        return Product(_asked(b, not b.is_turned), _asked(a, not a.is_turned), d, batch)
    return Product(a, b, d, batch)


def _asked(matrix: Matrix, is_turned: bool) -> Matrix:
    return replace(matrix, is_turned=is_turned)


def _lying(number: int, operand: Operand, batch_stride: int) -> Matrix | None:
    """A matrix as the library sees it, turned where it lies by rows."""
    (rows, columns), (down, across) = operand.dim[-2:], operand.stride[-2:]
    for extent, lines, step, leading, is_turned in (
        (columns, rows, across, down, True), (rows, columns, down, across, False),
    ):  # fmt: skip
        leading = leading if lines > 1 else extent
        if (step == 1 or extent == 1) and leading >= extent:
            return Matrix(
                number, operand.dtype, extent, lines, leading, batch_stride, is_turned
            )
    return None
