"""Loop axes of a region: which axes are walked, in which order, and which are merged into one loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.ir.region import ANCHORS, Operand, Region, Role


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """One loop: the region's axes it walks, from slow to fast, and their extent together.

    Args:
        trips: iterations if they are not `extent`: a kernel shared by all extents keeps one loop per axis, and
            where axes could be merged the fastest one's loop is given all of their positions at launch
    """

    members: tuple[int, ...]
    extent: int
    trips: int = 0

    @property
    def count(self) -> int:
        """Iterations of the loop."""
        return self.trips or self.extent


def effective_stride(operand: Operand) -> tuple[int, ...]:
    """Strides with 0 where the extent is 1, so that broadcast axes do not move."""
    return tuple([s if d != 1 else 0 for d, s in zip(operand.dim, operand.stride, strict=True)])


def reduced_axes(region: Region, value: int) -> tuple[int, ...]:
    """Axes over which a reduction really reduces: extent of its argument above 1."""
    v = region.values[value]
    dim = region.values[v.args[0]].dim
    return tuple(sorted([a for a in v.axes if dim[a] != 1]))


def element_operands(region: Region) -> list[int]:
    """Operands that are read or written element by element; those that only anchors read are left out."""
    kept = []
    for value, operand in region.loads:
        users = region.users[value]
        only_anchor = users and all(region.values[u].op in ANCHORS for u in users)
        if not only_anchor and region.operands[operand].role is Role.IN:
            kept.append(operand)
    return kept + [operand for _, operand in region.stores]


def plain_axes(domain: Sequence[int], axes: Iterable[int], keep: Sequence[int] = ()) -> list[LoopAxis]:
    """One loop per axis in the order given, without those of extent 1 unless they are in `keep`."""
    return [LoopAxis((a,), domain[a]) for a in axes if domain[a] != 1 or a in keep]


def merged_axes(region: Region, axes: Sequence[int]) -> list[LoopAxis]:
    """Loops over `axes`, the slowest first, in the order of the operand that moves most data over them."""
    domain = region.domain
    axes = [a for a in axes if domain[a] != 1]
    if not axes:
        return []
    operands = [region.operands[k] for k in element_operands(region)]
    strides = [effective_stride(o) for o in operands]
    if len(axes) > 1:
        axes = _ordered(axes, operands, strides, by_extent=not region.graph.is_dynamic)
    groups = [[axes[0]]]
    for slow, fast in zip(axes, axes[1:], strict=False):
        if _can_merge(region, strides, slow, fast):
            groups[-1].append(fast)
        else:
            groups.append([fast])
    if region.graph.is_dynamic:
        return [axis for g in groups for axis in _merged_at_launch(g, domain)]
    return [LoopAxis(tuple(g), prod([domain[a] for a in g])) for g in groups]


def _merged_at_launch(group: Sequence[int], domain: Sequence[int]) -> list[LoopAxis]:
    """A loop per axis, all but the fastest with one iteration."""
    slow = [LoopAxis((a,), domain[a], 1) for a in group[:-1]]
    return [*slow, LoopAxis((group[-1],), domain[group[-1]], prod([domain[a] for a in group]))]


def _ordered(axes: list[int], operands: list[Operand], strides: list[tuple[int, ...]], *, by_extent: bool) -> list[int]:
    """Axes as the largest operand lies in memory; without extents the one that moves along most axes."""
    best, guide = -1.0, strides[0] if strides else ()
    for o, s in zip(operands, strides, strict=True):
        moved = [o.dim[a] for a in axes if s[a]]
        size = (prod(moved) if by_extent else len(moved)) + (0.5 if o.role is Role.OUT else 0.0)
        if size > best:
            best, guide = size, s
    if not guide:
        return axes
    return sorted(axes, key=lambda a: -guide[a] if guide[a] else float("-inf"))


def _can_merge(region: Region, strides: list[tuple[int, ...]], slow: int, fast: int) -> bool:
    extent = region.domain[fast]
    for s in strides:
        if s[slow] != s[fast] * extent:
            return False
    for v in region.values:
        if (v.dim[slow] == 1) != (v.dim[fast] == 1):
            return False
        if v.op == "index" and v.axis in (slow, fast):
            return False
    return True
