"""BOOLEAN buffers with eight elements a byte: unpacked beside a call that works on one element a byte.

Bits lie in the order of the elements in memory, the lowest bit of a byte first. It costs a copy each way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fuseplan.dtypes import BOOLEAN, UINT8
from fuseplan.errors import BindError
from fuseplan.ops.memory import view_cuda, view_host
from fuseplan.runtime.buffers import view_of
from fuseplan.runtime.dispatch.binding import Binder, Layout
from fuseplan.runtime.launch import Slot


@dataclass(frozen=True)
class Pair:
    """A packed buffer and the memory with one element a byte that stands for it in the call."""

    slot: Slot
    packed: Any
    spread: Any


class PackedBits:
    """The packed buffers of one pack.

    Args:
        buffers: one per slot, None for slots with a value of their own
        is_bound: for calls of a bound plan
    Raises:
        BindError: two outputs share memory, or autograd follows an output of a bound plan
    """

    def __init__(self, binder: Binder, buffers: Sequence[Any], stream: int, *, is_bound: bool) -> None:
        self.stream, self._index = stream, binder.program.device_index
        self._is_cuda = binder.program.device_kind == "cuda"
        self.pack: dict[int, Any] = {}
        self._pairs: list[Pair] = []
        for index, (slot, buffer) in enumerate(zip(binder.slots, buffers, strict=True)):
            if slot.value is None:
                self.pack[slot.uid] = buffer
            if slot.value is None and _is_packed(slot, binder.layouts[index], buffer):
                self._pairs.append(self._pair(slot, buffer))
                self.pack[slot.uid] = self._pairs[-1].spread
        if self._pairs and binder.writes is not None:
            _check_outputs(binder.slots, buffers)
            outputs = [b for s, b in zip(binder.slots, buffers, strict=True) if s.is_output]
            binder.writes.tell_autograd(outputs, is_bound)

    def __bool__(self) -> bool:
        """Whether any buffer is packed."""
        return bool(self._pairs)

    def _pair(self, slot: Slot, buffer: Any) -> Pair:
        view = view_of(buffer)
        if not self._is_cuda:
            packed = view_host(view.address, (slot.span_bytes // 8,), (1,), UINT8)
            return Pair(slot, packed, np.empty(slot.span_bytes, np.bool_))
        import torch

        packed = view_cuda(view.address, (slot.span_bytes // 8,), (1,), UINT8, self._index)
        return Pair(slot, packed, torch.empty(slot.span_bytes, dtype=torch.bool, device=packed.device))

    def run(self, call: Callable[[], object]) -> None:
        """Unpack the inputs, call, pack the outputs; in order on the stream."""
        with self._on_stream():
            for pair in self._pairs:
                if not pair.slot.is_output:
                    _spread(pair)
        call()
        with self._on_stream():
            for pair in self._pairs:
                if pair.slot.is_output:
                    _pack(pair)

    @contextlib.contextmanager
    def _on_stream(self) -> Any:
        if not self._is_cuda:
            yield
            return
        import torch

        where = torch.device("cuda", self._index)
        side = torch.cuda.ExternalStream(self.stream, where) if self.stream else torch.cuda.default_stream(where)
        with torch.cuda.device(where), torch.cuda.stream(side), torch.no_grad():
            yield


class BoundBits:
    """A bound call with packed buffers."""

    def __init__(self, bits: PackedBits, bound: Any, keep: object) -> None:
        self._bits, self._bound, self._keep = bits, bound, keep

    def __call__(self) -> None:
        self._bits.run(self._bound)

    def set_stream(self, stream: int, /) -> None:
        """Launch on this stream from now on."""
        self._bound.set_stream(stream)
        self._bits.stream = stream


def _is_packed(slot: Slot, layout: Layout | None, buffer: Any) -> bool:
    """Whether a buffer of bytes has an eighth of the elements of a dense BOOLEAN tensor, in whole bytes a row."""
    if slot.dtype is not BOOLEAN or slot.place == "host" or layout is None:
        return False
    try:
        view = view_of(buffer)
    except BindError:  # the dispatcher has the words for it
        return False
    is_dense = prod(layout[0]) == slot.span_bytes and view.run_bytes in (0, view.nbytes)
    is_whole = all(extent % 8 == 0 for extent, stride in zip(*layout, strict=True) if stride == 1 and extent > 1)
    return view.dtype == "UINT8" and is_dense and is_whole and 8 * (view.nbytes or 0) == slot.span_bytes


def _spread(pair: Pair) -> None:
    if isinstance(pair.packed, np.ndarray):
        pair.spread[:] = np.unpackbits(pair.packed, bitorder="little")
        return
    import torch

    places = torch.arange(8, dtype=torch.uint8, device=pair.packed.device)
    pair.spread.view(-1, 8).copy_((pair.packed[:, None] >> places) & 1)


def _pack(pair: Pair) -> None:
    if isinstance(pair.packed, np.ndarray):
        pair.packed[:] = np.packbits(pair.spread, bitorder="little")
        return
    import torch

    places = torch.arange(8, dtype=torch.uint8, device=pair.packed.device)
    pair.packed.copy_((pair.spread.view(-1, 8).to(torch.uint8) << places).sum(-1, dtype=torch.uint8))


def _check_outputs(slots: Sequence[Slot], buffers: Sequence[Any]) -> None:
    """The results of packed outputs are stored after the call, so outputs must not share memory."""
    taken: list[tuple[int, int, Slot]] = []
    for slot, buffer in zip(slots, buffers, strict=True):
        if slot.is_output:
            view = view_of(buffer)
            end = view.address + (view.nbytes or slot.span_bytes)
            for start, stop, other in taken:
                if view.address < stop and start < end:
                    raise BindError(
                        f"the buffers of outputs '{other.name}' and '{slot.name}' overlap", fix="pass one buffer each"
                    )
            taken.append((view.address, end, slot))
