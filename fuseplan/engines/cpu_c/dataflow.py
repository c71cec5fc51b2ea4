"""Which values of a region need which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import Region, Value


def reads(value: Value) -> tuple[int, ...]:
    """Arguments whose elements a value reads; counting and indexing need only their dims."""
    return () if value.op in ("count", "index") else value.args


def depends_on(region: Region, roots: Iterable[int]) -> list[bool]:
    """For each value, whether it is one of `roots` or is computed from one."""
    found = [False] * len(region.values)
    for r in roots:
        found[r] = True
    for i, v in enumerate(region.values):
        if not found[i]:
            found[i] = any(found[a] for a in reads(v))
    return found


def needed_for(region: Region, roots: Iterable[int], stop: Sequence[bool]) -> list[int]:
    """Values to compute for `roots`, in order, not looking behind values where `stop` is true."""
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        i = pending.pop()
        if i not in seen and not stop[i]:
            seen.add(i)
            pending.extend(reads(region.values[i]))
    return sorted(seen)


def live_values(region: Region) -> list[int]:
    """Values that a store needs."""
    return needed_for(
        region, [i for i, _ in region.stores], [False] * len(region.values)
    )


def element_values(region: Region) -> list[int]:
    """Values that stores need without what is computed in front of anchors; anchors themselves are left out."""
    return needed_for(
        region, [i for i, _ in region.stores], [v.op in ANCHORS for v in region.values]
    )
