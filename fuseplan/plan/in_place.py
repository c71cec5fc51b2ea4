"""Which inputs of a plan are done with, element by element, when an output is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseplan.codegen.axes import effective_stride
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import Operand, Region


class Reads:
    """Where the regions of a plan, in launch order, read its inputs."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        self._last: dict[int, int] = {}
        self._writer: dict[int, int] = {}
        for k, region in enumerate(regions):
            for o in region.operands:
                if o.role.is_written:
                    self._writer.setdefault(o.uid, k)
                else:
                    self._last[o.uid] = k

    def is_later(self, uid: int, output: int) -> bool:
        """Whether an input is still read once elements of an output are written, which must not lie in its buffer.

        It may where the region that writes it is the input's last reader and reads, for each element of the output,
        the input at this very place only: kernels store after the loads of the same element, and after the reductions
        of the same row. Factors of a product, windows of a convolution and what is repeated along an axis are read at
        others.
        """
        last, writer = self._last.get(uid, -1), self._writer.get(output, len(self._regions))
        return last > writer or (last == writer and uid not in _read_in_place(self._regions[writer], output))


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
