"""What a kernel needs to know of how its operands lie in memory."""

from __future__ import annotations

from math import prod

from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import Operand, Region, Role

_LIMIT_32 = 2**31 - 2**17  # tiles reach past the end before they are masked
_VECTOR_BYTES = 16


def index_bits(region: Region) -> int:
    """Bits of positions and offsets: 64 where 32 do not reach everything."""
    spans = (span_elements(o.dim, o.stride) for o in region.operands if o.role is not Role.SCALAR)
    return 64 if prod(region.domain) >= _LIMIT_32 or any(span >= _LIMIT_32 for span in spans) else 32


def num_non_unit(operand: Operand) -> int:
    """Axes that an operand extends over."""
    return sum(d > 1 for d in operand.dim)


def bulk_operands(region: Region) -> list[Operand]:
    """Operands whose loads and stores are worth vectors: those that extend over two axes, or over the most."""
    tensors = [o for o in region.operands if o.role is not Role.SCALAR]
    least = min(2, max((num_non_unit(o) for o in tensors), default=0))
    return [o for o in tensors if num_non_unit(o) >= max(1, least)]


def vector_length(region: Region) -> int:
    """Elements of the longest vector that a bulk operand is read or written in."""
    return max((_VECTOR_BYTES // o.dtype.itemsize for o in bulk_operands(region)), default=1)


def is_adjacent(region: Region, axis: int) -> bool:
    """Whether some bulk operand has neighbours of an axis of the domain next to each other in memory."""
    return any(o.dim[axis] > 1 and o.stride[axis] == 1 for o in bulk_operands(region))


def reduced_axes(region: Region, index: int) -> frozenset[int]:
    """Axes of the domain that a reduction runs over, whether its argument extends over them or not."""
    return frozenset(a for a in region.values[index].axes if region.domain[a] > 1)
