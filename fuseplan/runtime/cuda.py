"""The CUDA driver through ctypes: devices, contexts, loading of cubins, launches. Needs no toolkit.

Nothing is loaded before it is asked for; every failure is a `DeviceError` with the driver's own words.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import finalize

from fuseplan.errors import DeviceError
from fuseplan.runtime import forks

_ATTRIBUTES = {  # numbers of CUdevice_attribute
    "clock_khz": 13, "sm_count": 16, "memory_clock_khz": 36, "bus_bits": 37, "l2_bytes": 38, "major": 75, "minor": 76,
    "shared_bytes": 97,
}  # fmt: skip
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_WITHOUT_ASKING = 48 << 10
_ADVICE = {
    1: "an argument of the launch is out of range; check grid, block and shared memory",
    2: "free memory on the device or use smaller tensors",
    100: "no CUDA device is visible; check CUDA_VISIBLE_DEVICES and nvidia-smi",
    200: "the compiled kernel is damaged; clear the cache folder",
    209: "the kernel was compiled for another architecture; build the plan on this device",
    400: "the stream or handle belongs to another device or was destroyed",
    700: "a kernel read or wrote outside its buffers; run under compute-sanitizer to find it",
    701: "the kernel needs more registers or shared memory than a block may have; use a smaller tile",
    719: "a kernel failed; the context cannot be used any more, restart the process",
    803: "the driver is older than the CUDA runtime in this process; update the driver",
    900: "the stream is being captured and this call cannot be captured; run once before the capture",
}
_lock = forks.Lock()
_driver: Driver | None = None
_library_name = "libcuda.so.1"


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("num_attributes", ctypes.c_uint),
    ]  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Driver:
    """One loaded driver library with what was loaded through it."""

    def __init__(self, name: str) -> None:
        try:
            self.library = ctypes.CDLL(name)
        except OSError as problem:
            raise DeviceError(
                f"the CUDA driver cannot be loaded: {problem}",
                fix='install the NVIDIA driver, or use device="cpu"',
            ) from problem
        self.contexts: dict[int, int] = {}
        self.functions: dict[tuple[str, str, int], int] = {}
        self.shared: dict[int, int] = {}
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, function: str, *args: Any) -> None:
        """Call a driver function. Raises DeviceError if it is missing or does not return success."""
        entry = self.entry(function)
        entry.restype = ctypes.c_int
        code = entry(*args)
        if code:
            raise self.error(code, function)

    def error(self, code: int, what: str) -> DeviceError:
        """A DeviceError in the driver's words."""
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            entry = getattr(self.library, function, None)
            if entry is not None and entry(code, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        return DeviceError(
            f"{what} failed with CUDA error {code}: {': '.join(words) or 'unknown'}",
            fix=_ADVICE.get(code, "see the CUDA driver's documentation of this error"),
        )

    def address(self, function: str) -> int:
        """Address of a driver function. Raises DeviceError if it is missing."""
        return ctypes.cast(self.entry(function), ctypes.c_void_p).value or 0

    def entry(self, function: str) -> Any:
        """A driver function. Raises DeviceError if it is missing."""
        try:
            return getattr(self.library, function)
        except AttributeError as problem:
            raise DeviceError(
                f"the CUDA driver has no function '{function}'", fix="update the driver to CUDA 12 or newer"
            ) from problem


def set_library(name: str | None) -> None:
    """Use another driver library from now on (tests bring their own); None is the system's."""
    global _driver, _library_name
    with _lock:
        _driver, _library_name = None, name or "libcuda.so.1"


def driver() -> Driver:
    """The driver, loaded and initialised at first use. Raises DeviceError."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = Driver(_library_name)
        return _driver


def is_available() -> bool:
    """Whether there is a driver with at least one device."""
    try:
        return device_count() > 0
    except DeviceError:
        return False


def device_count() -> int:
    """Number of devices. Raises DeviceError without a driver."""
    count = ctypes.c_int()
    driver().call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def list_devices() -> list[dict[str, int | str]]:
    """Facts of each device: index, name, major, minor, sm_count and so on. Raises DeviceError."""
    found: list[dict[str, int | str]] = []
    for index in range(device_count()):
        device, name, value = _device_handle(index), ctypes.create_string_buffer(256), ctypes.c_int()
        driver().call("cuDeviceGetName", name, 256, device)
        facts: dict[str, int | str] = {"index": index, "name": name.value.decode(errors="replace")}
        for label, attribute in _ATTRIBUTES.items():
            driver().call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            facts[label] = value.value
        found.append(facts)
    return found


def primary_context(index: int) -> int:
    """The device's primary context, the one that PyTorch and the runtime use; retained once."""
    d = driver()
    with _lock:
        if index not in d.contexts:
            context = ctypes.c_void_p()
            d.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device_handle(index))
            d.contexts[index] = context.value or 0
        return d.contexts[index]


class current:  # noqa: N801 - used as a statement
    """``with current(index):`` makes the device's primary context current and puts the former one back."""

    def __init__(self, index: int) -> None:
        self.mine, self.former = primary_context(index), ctypes.c_void_p()

    def __enter__(self) -> None:
        driver().call("cuCtxGetCurrent", ctypes.byref(self.former))
        if self.former.value != self.mine:
            driver().call("cuCtxSetCurrent", ctypes.c_void_p(self.mine))

    def __exit__(self, *_: object) -> None:
        if self.former.value and self.former.value != self.mine:
            driver().call("cuCtxSetCurrent", self.former)


def load_cubin(data: bytes, symbol: str, shared_bytes: int = 0, device_index: int = 0, key: str = "") -> int:
    """A kernel ready to launch; loaded once per content, symbol and device, and never lazily.

    Args:
        shared_bytes: dynamic shared memory of its launches; over 48 KiB the function is told
        key: digest of the data, if known
    Raises:
        DeviceError: the device cannot run the file, or has no such kernel
    """
    d = driver()
    ident = (key or hashlib.sha256(data).hexdigest(), symbol, device_index)
    with _lock:
        if ident not in d.functions:
            with current(device_index):
                d.functions[ident] = _load(d, data, symbol)
        function = d.functions[ident]
        if shared_bytes > max(_SHARED_WITHOUT_ASKING, d.shared.get(function, 0)):
            with current(device_index):
                d.call("cuFuncSetAttribute", ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, shared_bytes)
            d.shared[function] = shared_bytes
        return function


def _load(d: Driver, data: bytes, symbol: str) -> int:
    library, kernel, function, null = (ctypes.c_void_p() for _ in range(4))
    d.call("cuLibraryLoadData", ctypes.byref(library), data, null, null, 0, null, null, 0)
    try:
        d.call("cuLibraryGetKernel", ctypes.byref(kernel), library, symbol.encode())
        # a kernel may load at its first launch, which a stream capture does not allow; its function is loaded now
        d.call("cuKernelGetFunction", ctypes.byref(function), kernel)
    except DeviceError:
        d.call("cuLibraryUnload", library)
        raise
    return function.value or 0


class Table:
    """Memory of a device that holds some bytes while this object lives. Raises DeviceError if there is none left.

    It is given back when the next one is made: a collection of garbage may come while a stream is captured.
    """

    _unused: list[tuple[ctypes.c_uint64, int]] = []

    def __init__(self, data: bytes, device_index: int) -> None:
        while self._unused:
            old, index = self._unused.pop()
            with current(index):
                driver().call("cuMemFree_v2", old)
        address, size = ctypes.c_uint64(), ctypes.c_size_t(len(data))
        with current(device_index):
            driver().call("cuMemAlloc_v2", ctypes.byref(address), size)
            finalize(self, self._unused.append, (address, device_index)).atexit = False
            driver().call("cuMemcpyHtoD_v2", address, data, size)
        self.address = address.value


def launch(
    function: int, grid: Sequence[int], block: Sequence[int], shared_bytes: int, stream: int, params: Sequence[int],
    attributes: Sequence[tuple[int, ...]] = (),
) -> None:  # fmt: skip
    """Launch a kernel on the current context; `params` are addresses of its arguments in host memory."""
    listed = (LaunchAttribute * len(attributes))(
        *(LaunchAttribute(number, 0, (ctypes.c_uint * 16)(*values)) for number, *values in attributes)
    )
    config = LaunchConfig(
        (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_bytes, stream,
        ctypes.addressof(listed) if attributes else None, len(attributes),
    )  # fmt: skip
    array = (ctypes.c_void_p * max(1, len(params)))(*params)
    driver().call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(function), array, ctypes.c_void_p())


def encode_tensor_map(
    numbers: Sequence[int], address: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int],
    steps: Sequence[int],
) -> tuple[int, bytes]:  # fmt: skip
    """The driver's answer to cuTensorMapEncodeTiled: its code and the 128 bytes of the map.

    Args:
        numbers: of the type, interleave, swizzle, promotion and fill
        strides: in bytes, of all axes but the innermost
    """
    memory = ctypes.create_string_buffer(128 + 64)
    at = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    rank = len(dims)
    wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    entry = driver().entry("cuTensorMapEncodeTiled")
    entry.restype = ctypes.c_int
    code = entry(
        ctypes.c_void_p(at), numbers[0], ctypes.c_uint(rank), ctypes.c_void_p(address), wide(*dims), wide(*strides),
        narrow(*box), narrow(*steps), *numbers[1:],
    )  # fmt: skip
    return code, ctypes.string_at(at, 128)


def memset32(address: int, value: int, words: int, stream: int) -> None:
    """Fill 32-bit words of device memory, in order on the stream."""
    word, count = ctypes.c_uint(value & 0xFFFFFFFF), ctypes.c_size_t(words)
    driver().call("cuMemsetD32Async", ctypes.c_uint64(address), word, count, ctypes.c_void_p(stream))


def synchronize(stream: int, device_index: int = 0) -> None:
    """Wait until all work on the stream is done; raises what its kernels failed with."""
    with current(device_index):
        driver().call("cuStreamSynchronize", ctypes.c_void_p(stream))


def _device_handle(index: int) -> ctypes.c_int:
    device = ctypes.c_int()
    driver().call("cuDeviceGet", ctypes.byref(device), index)
    return device
