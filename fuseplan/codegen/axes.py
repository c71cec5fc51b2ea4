"""Axes of a region as a kernel walks them: ordered as memory lies, merged where all operands and values allow it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import Operand, Region, Role


@dataclass(frozen=True, slots=True)
class MergedAxis:
    """Adjacent axes of the domain walked as one; the last is the fastest.

    Args:
        iterations: positions to walk if they are not `extent`: a kernel shared by all extents keeps one per axis,
            and where axes could be merged the fastest is given all of their positions at launch
    """

    axes: tuple[int, ...]
    extent: int
    iterations: int = 0

    @property
    def count(self) -> int:
        """Positions to walk."""
        return self.iterations or self.extent

    def varies(self, dim: Sequence[int]) -> bool:
        """Whether these dims extend over it (over all of its axes or none: that is how axes are merged)."""
        return any(dim[a] != 1 for a in self.axes)

    def stride(self, operand: Operand) -> int:
        """Elements between neighbours in an operand; 0 where the operand is repeated."""
        fastest = self.axes[-1]
        return operand.stride[fastest] if operand.dim[fastest] != 1 else 0


def effective_stride(operand: Operand) -> tuple[int, ...]:
    """Strides with 0 where the extent is 1, so that broadcast axes do not move."""
    return tuple(
        [s if d != 1 else 0 for d, s in zip(operand.dim, operand.stride, strict=True)]
    )


def reduced_axes(region: Region, value: int) -> tuple[int, ...]:
    """Axes over which a reduction really reduces: extent of its argument above 1."""
    v = region.values[value]
    dim = region.values[v.args[0]].dim
    return tuple(sorted([a for a in v.axes if dim[a] != 1]))


def element_operands(region: Region) -> list[Operand]:
    """Operands that are read or written element by element; those that only anchors read are left out."""
    kept = []
    for value, operand in region.loads:
        users = region.users[value]
        only_anchor = users and all(region.values[u].op in ANCHORS for u in users)
        if not only_anchor and region.operands[operand].role is not Role.SCALAR:
            kept.append(region.operands[operand])
    return kept + [region.operands[operand] for _, operand in region.stores]


def separate(
    domain: Sequence[int], axes: Iterable[int], keep: Sequence[int] = ()
) -> list[MergedAxis]:
    """Each axis on its own in the order given, without those of extent 1 unless they are in `keep`."""
    return [MergedAxis((a,), domain[a]) for a in axes if domain[a] != 1 or a in keep]


def memory_order(
    region: Region, axes: Sequence[int], operands: Sequence[Operand]
) -> list[int]:
    """Axes from slow to fast as the operand lies that moves most data over them.

    A kernel shared by all extents asks for the operand that moves along most axes. Axes that it repeats come first.
    """
    best, guide = -1.0, tuple[int, ...]()
    for o in operands:
        stride = effective_stride(o)
        moved = [o.dim[a] for a in axes if stride[a]]
        size = len(moved) if region.graph.is_dynamic else prod(moved)
        size_or_output = size + (0.5 if o.role is Role.OUT else 0.0)
        if size_or_output > best:
            best, guide = size_or_output, stride
    if not guide:
        return list(axes)
    return sorted(axes, key=lambda a: -guide[a] if guide[a] else float("-inf"))


def merge(
    region: Region, axes: Iterable[int], operands: Sequence[Operand] | None = None
) -> tuple[MergedAxis, ...]:
    """Axes of the domain, given from slow to fast, merged with their neighbours; those of extent 1 vanish.

    Args:
        operands: what is walked element by element; by default all operands
    """
    domain = region.domain
    walked = region.operands if operands is None else operands
    apart = {v.axis for v in region.values if v.op == "index"}
    groups: list[list[int]] = []
    for axis in axes:
        if domain[axis] == 1:
            continue
        if (
            groups
            and not apart & {axis, groups[-1][-1]}
            and _can_merge(region, walked, groups[-1][-1], axis)
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if region.graph.is_dynamic:
        return tuple([made for g in groups for made in _merged_at_launch(g, domain)])
    return tuple([MergedAxis(tuple(g), prod([domain[a] for a in g])) for g in groups])


def merge_in_memory_order(
    region: Region, axes: Iterable[int]
) -> tuple[MergedAxis, ...]:
    """Axes ordered and merged by the operands that are read or written element by element."""
    operands = element_operands(region)
    real = [a for a in axes if region.domain[a] != 1]
    return merge(region, memory_order(region, real, operands), operands)


def _merged_at_launch(axes: Sequence[int], domain: Sequence[int]) -> list[MergedAxis]:
    """One per axis, all but the fastest with one iteration."""
    slow = [MergedAxis((a,), domain[a], 1) for a in axes[:-1]]
    return [
        *slow,
        MergedAxis((axes[-1],), domain[axes[-1]], prod([domain[a] for a in axes])),
    ]


def _can_merge(
    region: Region, operands: Sequence[Operand], slow: int, fast: int
) -> bool:
    """Whether every operand and value walks two neighbouring axes as one."""
    if any((v.dim[slow] == 1) != (v.dim[fast] == 1) for v in region.values):
        return False
    strides = [(effective_stride(o), o.dim[fast]) for o in operands]
    return all(s[slow] == s[fast] * extent for s, extent in strides)
