"""Handles (a device and a stream), facts about their devices, and which device a graph is for."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
from dataclasses import replace
from operator import attrgetter
from typing import Any

from fuseplan.engines.registry import engines_for
from fuseplan.errors import ArgumentError, DeviceError
from fuseplan.runtime import team
from fuseplan.runtime.device import Device, cpu_device, cuda_devices, device_of

CPU_ORDINAL = -1
_serials = itertools.count(1)
_per_thread = threading.local()


class DeviceInfo:
    """Facts about one CUDA device, by its ordinal; -1 is the CPU."""

    __slots__ = (
        "_device", "compute_capability", "device_name", "l2_cache_bytes", "ordinal",
        "oversized_shared_memory_per_block", "shared_memory_per_block_optin", "sm_count", "sm_version",
    )  # fmt: skip

    def __init__(self, ordinal: int) -> None:
        device = self._device = device_at(ordinal)
        self.ordinal, self.device_name, self.l2_cache_bytes = ordinal, device.name, device.l2_bytes
        self.sm_count = device.sm_count  # multiprocessors, or cores of a CPU
        self.sm_version, self.compute_capability = device.sm_version, divmod(device.sm_version, 10)
        self.shared_memory_per_block_optin = self.oversized_shared_memory_per_block = device.shared_bytes

    def __repr__(self) -> str:
        return f"DeviceInfo({self._device}, {self._device.name!r}, {self._device.arch})"


class Handle:
    """A device and the stream that graphs are run on; one thread uses it at a time.

    Args:
        backend_handle: an integer that stands for the handle; None once it is destroyed
        ordinal: CUDA device, -1 for the CPU; None for the current device
        stream: address of a CUDA stream; None for the default stream
        num_threads: threads that plans made with it may use on the CPU; None: see `create_handle`
    """

    __slots__ = ("_num_threads", "_ordinal", "backend_handle", "stream")

    def __init__(self, backend_handle: int, ordinal: int | None = None, stream: int | None = None,
                 num_threads: int | None = None) -> None:  # fmt: skip
        self.backend_handle: int | None = backend_handle
        self.stream: int | None = _address(stream or 0)
        self._ordinal = current_ordinal() if ordinal is None else ordinal
        self._num_threads = _thread_count(num_threads, self._ordinal)

    ordinal = property(attrgetter("_ordinal"), doc="The CUDA device's ordinal, -1 for the CPU.")

    @property
    def device(self) -> DeviceInfo:
        return DeviceInfo(self._ordinal)

    @property
    def target(self) -> Device:
        """The device as the planner sees it."""
        device = device_at(self._ordinal)
        return replace(device, num_threads=self._num_threads) if self._num_threads else device

    @property
    def num_threads(self) -> int:
        """Threads that a plan made with this handle may use on the CPU, the calling one among them; 1 on a GPU."""
        return team.number(self._num_threads) if self._ordinal == CPU_ORDINAL else 1

    def __repr__(self) -> str:
        place = "cpu" if self._ordinal == CPU_ORDINAL else f"cuda:{self._ordinal}"
        state = "destroyed" if self.backend_handle is None else f"stream {self.stream:#x}"
        return f"Handle({place}, {state})"


handle = Handle  # the API has both names


def device_at(ordinal: int) -> Device:
    """The device with this ordinal. Raises DeviceError if there is none."""
    return cpu_device() if ordinal == CPU_ORDINAL else device_of(f"cuda:{ordinal}")


def ordinal_of(device: Device) -> int:
    """The ordinal of a device, -1 for the CPU."""
    return CPU_ORDINAL if device.kind == "cpu" else device.index


def create_handle(device: str | None = None, num_threads: int | None = None) -> Handle:
    """A handle on the default stream. Finds the engines of its device, so that the first plan does not wait for that.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; None is the current CUDA device, without one the CPU
        num_threads: threads that plans may use on the CPU; without it the first of these that is there says how
            many: FUSEPLAN_NUM_THREADS, OMP_NUM_THREADS, PyTorch's setting, the cores of this process
    Raises:
        ArgumentError: a number of threads that is none, or one for a GPU
        DeviceError: there is no such device
    """
    if device is not None and not isinstance(device, str):
        raise ArgumentError(f"device must be a str, not {device!r}", fix='pass "cpu", "cuda" or "cuda:1"')
    ordinal = None if device is None else ordinal_of(device_of(device))
    made = Handle(next(_serials), ordinal, num_threads=num_threads)
    engines_for(made.target.kind)
    return made


def _thread_count(number: object, ordinal: int) -> int:
    """The number of threads a handle was asked for, 0 if it was not. Raises ArgumentError."""
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= team.MOST_THREADS:
        raise ArgumentError(
            f"num_threads must be an int from 1 to {team.MOST_THREADS}, not {number!r}",
            fix="leave it out for all cores",
        )
    if ordinal != CPU_ORDINAL:
        raise ArgumentError(
            f"num_threads={number} is for the CPU, the handle is for cuda:{ordinal}", fix="leave it out"
        )
    return number


def destroy_handle(handle: Handle) -> None:
    """Give a handle up; doing it twice is harmless."""
    _need(handle).backend_handle = None


def set_stream(handle: Handle, stream: int) -> None:
    """Run what follows on this stream, given by address."""
    check_handle(handle)
    handle.stream = _address(stream)


def get_stream(handle: Handle) -> int:
    """Address of the stream; 0 is the default stream."""
    check_handle(handle)
    return handle.stream or 0


def _address(stream: object) -> int:
    """The address of a stream. Raises ArgumentError."""
    if isinstance(stream, bool) or not hasattr(stream, "__index__") or not 0 <= stream.__index__() < 1 << 64:
        raise ArgumentError(
            f"stream must be the address of a stream, not {stream!r}", fix="pass torch_stream.cuda_stream"
        )
    return int(stream.__index__())


def check_handle(handle: object, *, is_optional: bool = False) -> Handle | None:
    """The handle, if it is one (else ArgumentError) and still alive (else DeviceError)."""
    if handle is None and is_optional:
        return None
    checked = _need(handle)
    if checked.backend_handle is None:
        raise DeviceError("the handle was destroyed", fix="make another with create_handle()")
    return checked


def _need(handle: object) -> Handle:
    if not isinstance(handle, Handle):
        raise ArgumentError(
            f"a Handle is needed, not {handle!r} ({type(handle).__name__})",
            fix="make one with create_handle(), or wrap an address: Handle(backend_handle, ordinal, stream)",
        )
    return handle


def default_handle(device: Device) -> Handle:
    """This thread's own handle for a device, made at first use."""
    held: dict[tuple[str, int], Handle] = _per_thread.__dict__.setdefault("handles", {})
    handle = held.get((device.kind, device.index))
    if handle is None or handle.backend_handle is None:
        handle = held[device.kind, device.index] = Handle(next(_serials), ordinal_of(device))
    return handle


def get_default_handle(stream: Any = None) -> Handle:
    """This thread's handle for the current device, on a stream if one is given (an address or a torch stream)."""
    handle = default_handle(device_at(current_ordinal()))
    if stream is not None:
        set_stream(handle, getattr(stream, "cuda_stream", stream))
    return handle


def destroy_default_handle() -> None:
    """Destroy this thread's default handles."""
    for handle in _per_thread.__dict__.pop("handles", {}).values():
        destroy_handle(handle)


def current_ordinal() -> int:
    """Ordinal of the current CUDA device, -1 if no CUDA device can be used."""
    if not _can_use_cuda():
        return CPU_ORDINAL
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


def _can_use_cuda() -> bool:
    """Whether there is a GPU and something that can compile for it or compute on it."""
    return bool(cuda_devices()) and bool(importlib.util.find_spec("triton") or importlib.util.find_spec("torch"))


def resolve_device(
    handle: Handle | None, named: str | None, facts: Device | None, sm_count: int | None, sm_version: int | None
) -> Device:
    """The device of a graph: that of its handle, of facts, of a name, or what the machine has."""
    if handle is not None:
        device = handle.target
    elif facts is not None:
        device = facts
    elif named is not None:
        device = create_handle(named).target
    else:
        device = device_at(current_ordinal())
    if device.kind == "cuda" and sm_version:
        device = replace(device, arch=f"sm_{sm_version}")
    if sm_count:
        device = replace(device, sm_count=sm_count)
    return device
