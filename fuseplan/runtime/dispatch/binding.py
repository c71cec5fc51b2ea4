"""From a variant pack to checked addresses: the rules and messages that both dispatchers share.

The native dispatcher decides the plain cases itself and asks a `Binder` in every other one, so a
refusal has the same words whoever runs the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fuseplan.errors import BindError, MisalignedError
from fuseplan.runtime import buffers
from fuseplan.runtime.launch import Program, Slot

Normalise = Callable[[Any], dict[int, Any]]
Layout = tuple[tuple[int, ...], tuple[int, ...]]
#: addresses below this are never mapped: a small integer is no address, but a value that was meant as a number
_FIRST_PAGE = 4096
_UPPER_HALF = 1 << 63  # of the kernel's


def label_of(slot: Slot) -> str:
    """How messages name the tensor of a slot."""
    return f"tensor '{slot.name}' (uid {slot.uid})"


class Writes(Protocol):
    """What a call writes, beside its other buffers (``calls.c`` has the same checks).

    Args:
        layouts: for each slot dims and strides in elements, None where they are not compared with a buffer's
    """

    layouts: Sequence[Layout | None]

    def check(self, addresses: Sequence[int], workspace: int, workspace_bytes: int) -> None: ...  # overlaps of all

    def overlap(self, output: int, other: int, distance: int) -> None: ...  # of two slots, -1: the workspace

    def tell_autograd(self, outputs: Sequence[Any], is_bound: bool) -> object: ...  # the function that counts


@dataclass(eq=False)
class Binder:
    """Finds, checks and resolves the buffers of one program.

    Args:
        keys: for each slot the objects under which a pack may have its buffer, in order
        defaults: for each slot a buffer that is used when the pack has none, or None
        normalise: turns any legal pack into a dict from uid to buffer, or raises; called only for
            packs that are not a plain dict, lack a tensor, or have an unknown name or one of `inner_keys`
        runs: for each slot the bytes in a row from its first element on; 0 or absent: not checked
        inner_keys: what names a tensor without a slot; a pack that has one is for `normalise` to judge
        writes: what is known of the slots' dims and strides; None: nothing, and buffers may overlap
    """

    program: Program
    keys: Sequence[Sequence[object]]
    defaults: Sequence[object | None]
    normalise: Normalise
    runs: Sequence[int] = ()
    inner_keys: Iterable[object] = ()
    writes: Writes | None = None

    def __post_init__(self) -> None:
        self.slots = self.program.slots
        self.keys, self.defaults = tuple(map(tuple, self.keys)), tuple(self.defaults)
        self.accepted = tuple(buffers.accepted_types(s.dtype) for s in self.slots)
        self.layouts = self.writes.layouts if self.writes is not None else (None,) * len(self.slots)
        own = (group for slot, group in zip(self.slots, self.keys, strict=True) if slot.value is None)
        self.known_keys = frozenset(itertools.chain(*own, self.inner_keys))

    def collect(self, pack: object) -> tuple[Any, ...]:
        """One buffer per slot, None for slots with a value of their own.

        Raises:
            BindError: a tensor has no buffer; whatever `normalise` raises
        """
        found = self._look_up(pack)
        if found is not None:
            return found
        named = self.normalise(pack)
        bound: list[Any] = []
        for slot, default in zip(self.slots, self.defaults, strict=True):
            buffer = named.get(slot.uid) if slot.value is None else None
            if buffer is None and slot.value is None and (buffer := default) is None:
                raise BindError(
                    f"{label_of(slot)} has no buffer in the variant pack",
                    asked=f"{'output' if slot.is_output else 'input'} of {slot.span_bytes} bytes, {slot.dtype.name}",
                    fix=f"add an entry {slot.uid}: buffer (or the tensor or its name as key)",
                )
            bound.append(buffer)
        return tuple(bound)

    def _look_up(self, pack: object) -> tuple[Any, ...] | None:
        """The quick way for a plain dict with all tensors; None where `normalise` must look."""
        if type(pack) is not dict:
            return None
        bound: list[Any] = []
        hits = 0
        for slot, keys, default in zip(self.slots, self.keys, self.defaults, strict=True):
            buffer = None
            if slot.value is None:
                buffer = next((pack[k] for k in keys if pack.get(k) is not None), None)
                hits += buffer is not None
                buffer = default if buffer is None else buffer
                if buffer is None:
                    return None
            bound.append(buffer)
        if hits != len(pack):
            known = [k in self.known_keys for k in pack]
            if sum(known) != hits or any(isinstance(k, str) and not ok for k, ok in zip(pack, known, strict=True)):
                return None  # possibly two buffers for one tensor, or a tensor or name that has no slot
        return tuple(bound)

    def resolve(self, index: int, buffer: Any) -> tuple[int | bytes, object]:
        """Address of a slot's buffer, or the bytes of a host scalar, and what keeps it alive.

        Raises:
            BindError: type, device, size or address do not fit; MisalignedError: only the alignment
        """
        slot = self.slots[index]
        if slot.place == "host":
            if isinstance(buffer, (float, bool, np.generic)):
                return self._encode(slot, buffer), None
            if isinstance(buffer, int) and 0 < buffer < _FIRST_PAGE:
                raise BindError(
                    f"{label_of(slot)} got the integer {buffer}, which would be read as an address",
                    fix=f"pass {float(buffer)} for the number, or an array of one element",
                )
        view = _see(buffer, label_of(slot))
        self._check(index, slot, view)
        return view.address, (buffer, view.keep)

    def _encode(self, slot: Slot, number: Any) -> bytes:
        try:
            data = buffers.encode_scalar(number.item() if isinstance(number, np.generic) else number, slot.dtype)
        except (BindError, TypeError) as problem:
            wrong = problem.wrong if isinstance(problem, BindError) else f"{number!r} is not a real number"
            raise BindError(f"{label_of(slot)}: {wrong}", fix="pass an array of one element") from problem
        if len(data) < slot.span_bytes:
            raise BindError(
                f"{label_of(slot)} needs {slot.span_bytes} bytes, a number gives {len(data)}",
                fix="pass an array with all elements",
            )
        return data

    def _check(self, index: int, slot: Slot, view: buffers.View) -> None:
        label = label_of(slot)
        if view.dtype is not None and view.dtype not in self.accepted[index]:
            raise BindError(
                f"{label} has type {slot.dtype.name}, its buffer has {view.dtype}",
                fix=f"convert the buffer to {' or '.join(self.accepted[index])}",
            )
        self._check_place(slot, view)
        if slot.is_output and view.readonly:
            raise BindError(f"{label} is an output, its buffer is read-only", fix="pass a writable buffer")
        if view.nbytes is not None and view.nbytes < slot.span_bytes:
            raise BindError(
                f"{label} spans {slot.span_bytes} bytes by its dims and strides, its buffer has {view.nbytes}",
                fix="pass a larger buffer, or declare the tensor with the buffer's dims and strides",
            )
        # a buffer of the tensor's own span has the tensor's gaps; the C side sends no other here
        if view.run_bytes and view.nbytes != slot.span_bytes and self.runs and self.runs[index] > view.run_bytes:
            raise BindError(
                f"{label} has {self.runs[index]} bytes in a row by its dims and strides, its buffer has a gap after "
                f"{view.run_bytes}",
                fix="pass a contiguous buffer, or declare the tensor with the buffer's strides",
            )
        self._check_strides(index, view)
        if view.address % slot.alignment:
            raise MisalignedError(f"{label} has address {view.address:#x}, not a multiple of {slot.alignment}")

    def _check_strides(self, index: int, view: buffers.View) -> None:
        declared = self.layouts[index]
        if declared is None or view.dtype is None or view.layout is None or view.layout[0] != declared[0]:
            return
        if any(d > 1 and s != t for d, s, t in zip(*view.layout, declared[1], strict=True)):
            raise BindError(
                f"{label_of(self.slots[index])} has strides {list(declared[1])}, its buffer of the same dims "
                f"{list(declared[0])} has {list(view.layout[1])}",
                fix="declare the tensor with the buffer's strides, or pass a buffer with the declared ones",
            )

    def _check_place(self, slot: Slot, view: buffers.View) -> None:
        wanted = "cuda" if slot.place == "cuda" else "cpu"
        if there := _elsewhere(view, wanted, slot.device_index):
            here = _device(wanted, slot.device_index)
            why = " (a host scalar)" if slot.place == "host" else ""
            raise BindError(
                f"{label_of(slot)} must be on {here}{why}, its buffer is on {there}",
                fix=f"move the buffer to {here}, or build the graph for {there}",
            )

    def resolve_workspace(self, workspace: Any) -> tuple[int, object]:
        """Address of the workspace and what keeps it alive. Raises BindError if it does not fit."""
        p, need = self.program, self.program.workspace_bytes
        if need == 0:
            return 0, None
        here = _device(p.device_kind, p.device_index)
        fix = f"pass a contiguous buffer of {need} bytes on {here} (graph.get_workspace_size())"
        if workspace is None:
            raise BindError(f"this plan needs a workspace of {need} bytes, there is none", fix=fix)
        view = _see(workspace, "the workspace", fix)
        if not view.contiguous:
            raise BindError("the workspace is not contiguous", fix=fix)
        if view.readonly:
            raise BindError("the workspace is read-only", fix=fix)
        if view.nbytes is not None and view.nbytes < need:
            raise BindError(f"the workspace has {view.nbytes} bytes, this plan needs {need}", fix=fix)
        if there := _elsewhere(view, p.device_kind, p.device_index):
            raise BindError(f"the workspace is on {there}, this plan runs on {here}", fix=fix)
        skipped = -view.address % p.workspace_alignment
        if skipped > p.workspace_slack:
            raise MisalignedError(
                f"the workspace has address {view.address:#x}, not a multiple of {p.workspace_alignment}"
            )
        return view.address + skipped, (workspace, view.keep)


def _see(buffer: Any, what: str, fix: str = "") -> buffers.View:
    """A buffer with an address that can be one; without `fix` the advice is for a tensor."""
    try:
        view = buffers.view_of(buffer)
    except BindError as problem:
        raise BindError(f"{what}: {problem.wrong}", fix=fix or problem.fix) from problem
    if view.address == 0:
        raise BindError(f"{what} has a null address", fix=fix or "pass a buffer that has memory")
    if not _FIRST_PAGE <= view.address < _UPPER_HALF:
        raise BindError(f"{what} is the integer {view.address}, which is no address", fix=fix or "pass a buffer")
    return view


def _elsewhere(view: buffers.View, kind: str, index: int) -> str:
    """The device of a buffer that is on another one than asked, else nothing."""
    if view.place in ("", "managed") or (view.place == kind and (kind == "cpu" or view.device_index in (-1, index))):
        return ""
    return _device(view.place, view.device_index)


def _device(kind: str, index: int) -> str:
    return f"cuda:{index}" if kind == "cuda" else kind
