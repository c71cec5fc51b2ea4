"""Axes of a region as a kernel walks them: ordered, and merged where every operand allows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import Operand, Region, Role, Value


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent axes of the domain walked as one; the last is the fastest.

    Args:
        trips: positions to walk if they are not `extent`: a kernel shared by all extents keeps a group per axis,
            and where axes could be merged the fastest is given all of their positions at launch
    """

    axes: tuple[int, ...]
    extent: int
    trips: int = 0

    @property
    def count(self) -> int:
        """Positions to walk."""
        return self.trips or self.extent


def stride_of(operand: Operand, group: Group) -> int:
    """Elements between neighbours of a group; 0 where the operand is repeated.

    A group of extent 1 (kept by a matmul for its tile) gives outputs the tile's shape: any stride will do.
    """
    if group.extent == 1:
        return 1 if operand.role is Role.OUT else 0
    axis = group.axes[-1]
    return operand.stride[axis] if operand.dim[axis] > 1 else 0


def has_group(dim: Sequence[int], group: Group) -> bool:
    """Whether these dims extend over the group (all of its axes or none: that is how groups are made)."""
    return any(dim[axis] > 1 for axis in group.axes)


def reduced_axes(region: Region, value: Value) -> frozenset[int]:
    """Axes of the domain that a reduction really runs over."""
    return frozenset(a for a in value.axes if region.domain[a] > 1)


def is_wide(region: Region, domain: Sequence[int]) -> bool:
    """Whether offsets need 64 bits."""
    limit = 2**31 - 2**17  # tiles reach past the end before they are masked
    spans = (span_elements(o.dim, o.stride) for o in region.operands if o.role is not Role.SCALAR)
    return prod(domain) >= limit or any(span >= limit for span in spans)


def index_cast(region: Region) -> str:
    """What gives positions their type: 64 bits where offsets need them; a shared kernel is told by its caller."""
    if region.graph.is_dynamic:
        return ".to(INDEX)"
    return ".to(tl.int64)" if is_wide(region, region.domain) else ""


def largest_operand(region: Region, first: Role) -> Operand | None:
    """The operand whose memory order a walk follows: the largest, of equals one with the role `first`.

    A shared kernel asks for the one that extends over most axes.
    """
    tensors = [o for o in region.operands if o.role is not Role.SCALAR]
    size = num_wide if region.graph.is_dynamic else _num_elements
    return max(tensors, key=lambda o: (size(o), o.role is first), default=None)


def num_wide(operand: Operand) -> int:
    """Axes that an operand extends over."""
    return sum(d > 1 for d in operand.dim)


def _num_elements(operand: Operand) -> int:
    return prod(operand.dim)


def bulk_operands(region: Region) -> list[Operand]:
    """Operands whose loads and stores are worth vectors: those that extend over two axes, or over the most."""
    tensors = [o for o in region.operands if o.role is not Role.SCALAR]
    least = min(2, max((num_wide(o) for o in tensors), default=0))
    return [o for o in tensors if num_wide(o) >= max(1, least)]


def is_adjacent(region: Region, axis: int) -> bool:
    """Whether some bulk operand has neighbours of an axis of the domain next to each other in memory."""
    return any(o.dim[axis] > 1 and o.stride[axis] == 1 for o in bulk_operands(region))


def by_stride(axes: Iterable[int], operand: Operand | None) -> list[int]:
    """Axes from slow to fast as an operand lies in memory; ties keep their order."""
    listed = list(axes)
    if operand is None:
        return listed
    stride = operand.stride
    return sorted(listed, key=lambda axis: -stride[axis])


def merge(region: Region, axes: Sequence[int], extents: Sequence[int]) -> tuple[Group, ...]:
    """Groups of the axes, given from slow to fast; axes of extent 1 vanish.

    Args:
        extents: of all axes of the domain
    """
    apart = {v.axis for v in region.values if v.op == "index"}
    groups: list[list[int]] = []
    for axis in axes:
        if extents[axis] == 1:
            continue
        if groups and not apart & {axis, groups[-1][-1]} and _fit(region, groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if region.graph.is_dynamic:
        return tuple(group for g in groups for group in _merged_at_launch(g, extents))
    return tuple(Group(tuple(g), prod(extents[a] for a in g)) for g in groups)


def _merged_at_launch(axes: Sequence[int], extents: Sequence[int]) -> list[Group]:
    slow = [Group((a,), extents[a], 1) for a in axes[:-1]]
    return [*slow, Group((axes[-1],), extents[axes[-1]], prod(extents[a] for a in axes))]


def _fit(region: Region, slow: int, fast: int) -> bool:
    """Whether two neighbouring axes can be walked as one by every operand and value."""
    dims = (*(v.dim for v in region.values), *(o.dim for o in region.operands))
    if any((dim[slow] > 1) != (dim[fast] > 1) for dim in dims):
        return False
    return all(o.dim[slow] == 1 or o.stride[slow] == o.stride[fast] * o.dim[fast] for o in region.operands)
