"""Which inputs of a plan are done with, element by element, when an output is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseplan.codegen.axes import effective_stride
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import Operand, Region


def still_read(regions: Sequence[Region]) -> frozenset[tuple[int, int]]:
    """Uids (output, input) where the output must not lie in the input's buffer.

    It may where the region that writes it is the input's last reader and reads, for each element of the output, the
    input at this very place only: kernels store after the loads of the same element, and after the reductions of the
    same row. Factors of a product, windows of a convolution and what is repeated along an axis are read at others.
    """
    readers: dict[int, list[int]] = {}
    writers: dict[int, int] = {}
    for k, region in enumerate(regions):
        for o in region.operands:
            if o.role.is_written:
                writers.setdefault(o.uid, k)
            else:
                readers.setdefault(o.uid, []).append(k)
    return frozenset(
        (output, uid)
        for output, writer in writers.items()
        for uid, places in readers.items()
        if max(places) > writer or (max(places) == writer and uid not in _read_in_place(regions[writer], output))
    )


def _read_in_place(region: Region, output: int) -> set[int]:
    """Tensors that a region reads only at the place that it writes."""
    if not region.values:  # computed as a whole before anything is written
        return {o.uid for o in region.operands}
    windows = {_window(o) for o in _written(region, output)}
    elsewhere = {
        region.operands[k].uid
        for value, k in region.loads
        if windows != {_window(region.operands[k])}
        or region.operands[k].dim != region.domain
        or _reaches_anchor(region, value)
    }
    return {o.uid for o in region.operands} - elsewhere


def _written(region: Region, uid: int) -> Iterable[Operand]:
    return (o for o in region.operands if o.uid == uid and o.role.is_written)


def _window(o: Operand) -> tuple[object, ...]:
    return o.dim, effective_stride(o), o.offset, o.dtype.bits


def _reaches_anchor(region: Region, value: int) -> bool:
    pending, seen = [value], set[int]()
    while pending:
        i = pending.pop()
        if region.values[i].op in ANCHORS:
            return True
        if i not in seen:
            seen.add(i)
            pending.extend(region.users[i])
    return False
