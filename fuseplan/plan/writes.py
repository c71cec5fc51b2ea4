"""What a call writes must not be part of its other buffers, and autograd must know of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuseplan.errors import BindError
from fuseplan.plan.in_place import Reads
from fuseplan.runtime.dispatch.binding import Layout
from fuseplan.runtime.launch import Slot

_FIX = "pass buffers that do not overlap, or exactly the input's buffer where the output has its dims and strides"
_SOMEWHERE = 1 << 40
_MOST_WORK = 1_000_000  # for one exact answer


class Writes:
    """The outputs of one program beside its other buffers.

    Args:
        layouts: dims and strides of each slot, None where they are not known
        reads: where the program reads its inputs
    """

    def __init__(self, slots: Sequence[Slot], layouts: Sequence[Layout | None], reads: Reads) -> None:
        self.slots, self._reads = slots, reads
        self.layouts = [k if s.dtype.bits >= 8 else None for k, s in zip(layouts, slots, strict=True)]

    def check(self, addresses: Sequence[int], workspace: int, workspace_bytes: int) -> None:
        """Refuse buffers that overlap, as ``check_overlaps`` of calls.c. Raises BindError."""
        spans = [None if s.value is not None else (a, a + s.span_bytes)
                 for s, a in zip(self.slots, addresses, strict=True)]  # fmt: skip
        for i, one in enumerate(spans):
            if one is None:
                continue
            if workspace_bytes and one[0] < workspace + workspace_bytes and workspace < one[1]:
                self.overlap(i, -1, 0)
            for j, other in enumerate(spans if self.slots[i].is_output else ()):
                is_output = self.slots[j].is_output
                if j == i or other is None or (is_output and j < i) or one[0] >= other[1] or other[0] >= one[1]:
                    continue
                self.overlap(i, j, other[0] - one[0])

    def overlap(self, output: int, other: int, distance: int) -> None:
        """Refuse two buffers that have an element in common.

        Args:
            other: a slot, or -1 for the workspace
            distance: bytes from the output's address to the other's
        Raises:
            BindError: they have, or nobody can tell
        """
        slot = self.slots[output]
        if other < 0:
            raise BindError(f"the workspace overlaps the buffer of tensor '{slot.name}' (uid {slot.uid})", fix=_FIX)
        is_in_place = distance == 0 and self._lie_alike(output, other) and not self.slots[other].is_output
        if is_in_place and not self._reads.is_later(self.slots[other].uid, slot.uid):
            return
        if self._are_apart(output, other, distance):
            return
        role = "output" if self.slots[other].is_output else "input"
        both = (
            f"the buffer of output '{slot.name}' (uid {slot.uid}) overlaps that of {role} '{self.slots[other].name}' "
            f"(uid {self.slots[other].uid})"
        )
        if is_in_place:
            raise BindError(f"{both}, which this plan still reads at other places", fix="pass another output buffer")
        raise BindError(f"{both}, and not element by element", fix=_FIX)

    def tell_autograd(self, outputs: Sequence[Any], is_bound: bool) -> Callable[[Sequence[Any]], object] | None:
        """Count a write to each of PyTorch's tensors, so that autograd refuses a gradient that needs its old values.

        Returns:
            PyTorch's function that counts, if there are any; the native dispatcher calls it without this method

        Raises:
            BindError: autograd follows one, and the plan is bound: its calls could tell it nothing
        """
        tensors = [b for b in outputs if hasattr(type(b), "_version") and hasattr(type(b), "requires_grad")]
        if is_bound and any(t.requires_grad for t in tensors):
            raise BindError(
                "an output of a bound plan requires a gradient, and bound calls tell autograd nothing",
                fix="pass tensor.detach(), or call execute, which counts the write",
            )
        if not tensors:
            return None
        _counter()(tensors)
        return _counter()

    def _lie_alike(self, first: int, second: int) -> bool:
        """Whether two slots have equal places of equal elements."""
        one, other = ((self.slots[i].dtype.bits, _mapping(self.layouts[i], self.slots[i])) for i in (first, second))
        return one == other

    def _are_apart(self, first: int, second: int, distance: int) -> bool:
        one, other = self.layouts[first], self.layouts[second]
        if one is None or other is None:
            return False
        try:
            return not np.shares_memory(
                np.asarray(_Elements(one, self.slots[first], _SOMEWHERE)),
                np.asarray(_Elements(other, self.slots[second], _SOMEWHERE + distance)),
                max_work=_MOST_WORK,
            )
        except np.exceptions.TooHardError:
            return False


class _Elements:
    """Memory of a layout for numpy's arithmetic on addresses; nothing is ever read there."""

    def __init__(self, layout: Layout, slot: Slot, address: int) -> None:
        size = slot.dtype.itemsize
        self.__array_interface__ = {
            "version": 3, "shape": layout[0], "strides": tuple(s * size for s in layout[1]),
            "typestr": f"|V{size}", "data": (address, False),
        }  # fmt: skip


def _mapping(layout: Layout | None, slot: Slot) -> object:
    """Where elements lie, in order: extents and strides of the axes longer than 1, merged where they are one."""
    if layout is None:
        return slot.span_bytes
    merged: list[tuple[int, int]] = []
    for extent, stride in zip(*layout, strict=True):
        if extent > 1 and merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        elif extent > 1:
            merged.append((extent, stride))
    return tuple(merged)


@functools.cache
def _counter() -> Callable[[Sequence[Any]], object]:
    """PyTorch's function that counts writes."""
    torch = sys.modules["torch"]
    count: Callable[[Any], object] = torch.autograd.graph.increment_version
    try:
        torch._C._increment_version([])
        at_once: Callable[[Sequence[Any]], object] = torch._C._increment_version
        return at_once
    except (AttributeError, TypeError):  # older: one tensor at a time
        return lambda tensors: [count(t) for t in tensors]
