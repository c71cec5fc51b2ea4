"""What a caller binds, seen as address, bytes, type and place. Knows frameworks only by their protocols."""

from __future__ import annotations

import array
import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fuseplan.dtypes import ALL_TYPES, BY_ARRAY_NAME, DType
from fuseplan.errors import BindError


class View(NamedTuple):
    """A buffer as the dispatcher sees it.

    Args:
        address: of the first element
        nbytes: bytes from the first to past the last element; None if unknown
        dtype: name of an API type, another library's name for a type we lack, or None if unknown
        place: ``"cpu"``, ``"cuda"``, ``"managed"`` (both), another device's name, or ``""`` if unknown
        device_index: ordinal when place is ``"cuda"``, -1 if unknown
        readonly: it must not be written
        contiguous: elements lie without gaps in row-major order
        run_bytes: bytes in a row from the first element on, to the first gap or the end; 0 if unknown
        keep: object that keeps the memory alive
        layout: dims and strides in elements (-1 for a stride that is no whole number of them); None if unknown
    """

    address: int
    nbytes: int | None = None
    dtype: str | None = None
    place: str = ""
    device_index: int = 0
    readonly: bool = False
    contiguous: bool = True
    run_bytes: int = 0
    keep: object = None
    layout: tuple[tuple[int, ...], tuple[int, ...]] | None = None


# table: (DLPack type code, bits) by type
DL_TYPES: dict[str, tuple[int, int]] = {
    "FLOAT": (2, 32), "DOUBLE": (2, 64), "HALF": (2, 16), "BFLOAT16": (4, 16), "INT8": (0, 8), "UINT8": (1, 8),
    "INT32": (0, 32), "INT64": (0, 64), "BOOLEAN": (6, 8), "FP8_E4M3": (10, 8), "FP8_E5M2": (12, 8),
    "FP8_E8M0": (14, 8), "FP4_E2M1": (17, 4), "INT4": (0, 4),
}  # fmt: skip
_DL_NAMES = {code: name for name, code in DL_TYPES.items()}
_DL_PLACES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "managed"}
_FORMATS = {"f": "FLOAT", "d": "DOUBLE", "e": "HALF", "b": "INT8", "B": "UINT8", "?": "BOOLEAN", "i": "INT32",
            "l": "INT64", "q": "INT64"}  # fmt: skip
#: types without a Python counterpart in many libraries: their bytes may come as unsigned bytes
_AS_UINT8 = ("BOOLEAN", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FP8_E5M3", "FP4_E2M1", "INT4")


def accepted_types(t: DType) -> tuple[str, ...]:
    """Names of buffer types that may be bound to a tensor of type `t`."""
    if t.name in _AS_UINT8:
        return (t.name, "UINT8")
    grouped = {"INT8x4": ("INT8",), "INT8x32": ("INT8",), "UINT8x4": ("UINT8",), "FAST_FLOAT_FOR_FP8": ("FLOAT",)}
    return (t.name, *grouped.get(t.name, ()))


def view_of(buffer: Any) -> View:
    """See a buffer as address, bytes, type and place.

    Args:
        buffer: int address, object with ``data_ptr()``, ``__cuda_array_interface__``, numpy array,
            DLPack object, or anything with the buffer protocol
    Raises:
        BindError: it is none of these, or it has no plain memory
    """
    if isinstance(buffer, (int, np.integer)) and not isinstance(buffer, bool):
        if not 0 <= int(buffer) < 1 << 64:
            raise BindError(f"{buffer} is not an address", fix="pass the unsigned address of the first element")
        return View(int(buffer))
    if hasattr(buffer, "data_ptr"):
        return _of_torch(buffer)
    if isinstance(buffer, np.ndarray):
        return _of_numpy(buffer)
    if hasattr(type(buffer), "__cuda_array_interface__"):
        return _of_interface(buffer.__cuda_array_interface__, "cuda")
    if isinstance(buffer, (bytes, bytearray, memoryview, array.array)):
        return _of_python(buffer)
    if hasattr(type(buffer), "__dlpack__"):
        return _of_dlpack(buffer)
    # a numpy scalar has this interface too, but over a copy that is gone at once
    if not isinstance(buffer, np.generic) and isinstance(getattr(buffer, "__array_interface__", None), dict):
        return _of_interface(buffer.__array_interface__, "cpu", keep=buffer)
    raise BindError(
        f"an object of type {type(buffer).__name__} is not a buffer",
        fix="pass a tensor, an array, a DLPack object or an integer address",
    )


def span_bytes(dim: Sequence[int], stride: Sequence[int], bits: int, unit: int = 0) -> int:
    """Bytes from the first element to past the farthest one; 0 for no elements.

    Elements before the first one (negative strides) do not count: a kernel never goes there.

    Args:
        unit: bits that a stride of 1 stands for, 0: those of an element
    """
    if 0 in dim:
        return 0
    last = sum((d - 1) * s for d, s in zip(dim, stride, strict=True) if s > 0)
    return (last * (unit or bits) + bits + 7) // 8


def is_row_major(dim: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements lie without gaps, last axis fastest."""
    expected = 1
    for d, s in zip(reversed(dim), reversed(stride), strict=True):
        if d != 1 and s != expected:
            return False
        expected *= d
    return True


def run_length(dim: Sequence[int], stride: Sequence[int], width: int = 1) -> int:
    """How much lies in a row from the first element on, to the first gap or the end; 0 where elements overlap.

    Args:
        stride, width: steps between elements and the size of one, in the same unit
    """
    run = width
    for step, extent in sorted((s, d) for d, s in zip(dim, stride, strict=True) if d > 1 and s):
        if step > run:
            break
        if step < run:
            return 0
        run *= extent
    return run


def _dense(dim: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps, last axis fastest."""
    return tuple(math.prod(dim[i + 1 :]) for i in range(len(dim)))


def _strided(
    address: int, dim: Sequence[int], steps: Sequence[int], bits: int, dtype: str | None, place: str = "cpu",
    index: int = 0, **more: Any,
) -> View:  # fmt: skip
    """Elements of so many bits, and along each axis so many bits from one to the next."""
    width = max(1, bits)
    layout = tuple(dim), tuple(-1 if s % width else s // width for s in steps)
    nbytes, run = span_bytes(dim, steps, bits, 1), run_length(dim, steps, bits) // 8
    return View(
        address, nbytes, dtype, place, index, contiguous=is_row_major(*layout), run_bytes=run, layout=layout, **more
    )


def _bits(stride: Sequence[int], unit: int = 8) -> list[int]:
    """Strides in bits, from strides in bytes or in elements of `unit` bits."""
    return [unit * s for s in stride]


def _of_torch(t: Any) -> View:
    """A torch tensor, or another object with ``data_ptr()`` and possibly torch's attributes."""
    is_plain = str(getattr(t, "layout", "")) in ("", "torch.strided")
    if not is_plain or getattr(t, "is_sparse", False) or getattr(t, "is_quantized", False):
        raise BindError("a sparse or quantised tensor has no plain memory", fix="pass a dense tensor")
    if callable(getattr(t, "is_neg", None)) and t.is_neg():
        raise BindError("the tensor is a lazily negated view", fix="pass t.resolve_neg()")
    if str(getattr(t, "device", "")).startswith("meta"):
        raise BindError("the tensor is on the meta device and has no memory", fix="pass a tensor with data")
    address = int(t.data_ptr())
    dtype, device = getattr(t, "dtype", None), getattr(t, "device", None)
    if dtype is None or device is None:
        return View(address)
    name, place = _api_name(str(dtype).removeprefix("torch.")), str(getattr(device, "type", device))
    index = getattr(device, "index", 0) or 0
    dim, stride = getattr(t, "shape", None), getattr(t, "stride", None)
    if dim is None or not callable(stride) or not hasattr(t, "element_size"):
        return View(address, None, name, place, index)
    bits = 8 * t.element_size()
    return _strided(address, dim, _bits(stride(), bits), bits, name, place, index)


def _api_name(name: str) -> str:
    """The API's name of a type of another library, that library's own where there is none."""
    return BY_ARRAY_NAME[name].name if name in BY_ARRAY_NAME else name


def _of_numpy(a: np.ndarray[Any, Any]) -> View:
    readonly = not a.flags.writeable
    return _strided(a.ctypes.data, a.shape, _bits(a.strides), 8 * a.itemsize, _numpy_name(a.dtype), readonly=readonly)


def _numpy_name(t: np.dtype[Any]) -> str:
    return _api_name(t.name) if t.isnative else t.str  # a swapped byte order is no type of ours


def _of_interface(facts: dict[str, Any], place: str, keep: object = None) -> View:
    """The array interface of numpy or of CUDA arrays."""
    address, readonly = facts["data"]
    try:
        dtype: Any = np.dtype(facts["typestr"])
    except TypeError as problem:
        raise BindError(
            f"the array interface names an unknown type {facts['typestr']!r}",
            fix="pass an array of a plain number type",
        ) from problem
    dim = tuple(facts["shape"])
    bits = 8 * dtype.itemsize
    steps = _bits(facts["strides"]) if facts.get("strides") else _bits(_dense(dim), bits)
    name = None if dtype.kind == "V" else _numpy_name(dtype)
    index = -1 if place == "cuda" else 0  # this protocol does not name the device
    return _strided(int(address or 0), dim, steps, bits, name, place, index, readonly=bool(readonly), keep=keep)


def _of_python(buffer: Any) -> View:
    view = memoryview(buffer)
    owner = view.obj if isinstance(buffer, memoryview) else buffer
    if not view.c_contiguous:
        raise BindError("a memoryview with gaps has no plain memory", fix="pass a contiguous one")
    raw = np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, np.uint8)
    # plain bytes have no element type, so there is none to compare with
    untyped = isinstance(owner, (bytes, bytearray)) and view.format == "B"
    dtype = None if untyped else _format_name(view.format, view.itemsize)
    # a held memoryview keeps a bytearray from moving
    steps, bits = _bits(view.strides or ()), 8 * view.itemsize
    return _strided(raw.ctypes.data, view.shape or (), steps, bits, dtype, readonly=view.readonly, keep=view)


def _format_name(code: str, itemsize: int) -> str:
    name = _FORMATS.get(code.lstrip("@=<"), code)
    return name if name not in ALL_TYPES or ALL_TYPES[name].bits == 8 * itemsize else f"{code}{8 * itemsize}"


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


def _of_dlpack(buffer: Any) -> View:
    """Any DLPack object; the capsule is kept as long as the memory is used, and never consumed."""
    on_gpu = int(buffer.__dlpack_device__()[0]) == 2
    # -1: no synchronisation; the caller orders its work on the stream it passes
    stream: dict[str, Any] = {"stream": -1} if on_gpu else {}
    try:
        try:
            capsule = buffer.__dlpack__(max_version=(1, 1), **stream)
        except TypeError:
            capsule = buffer.__dlpack__(**stream)
    except (BufferError, RuntimeError, ValueError) as problem:
        raise BindError(
            f"a {type(buffer).__name__} does not give its memory by DLPack: {problem}",
            fix="pass an array that exports its memory, or an integer address",
        ) from problem
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    readonly = False
    if '"dltensor_versioned"' in repr(capsule):
        versioned = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BindError(f"DLPack version {versioned.major} is not known here", fix="pass the object's address")
        tensor, readonly = versioned.tensor, bool(versioned.flags & 1)
    else:
        tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    dim = tuple(tensor.shape[i] for i in range(tensor.ndim))
    stride = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _dense(dim)
    bits = tensor.bits * tensor.lanes
    address = (tensor.data or 0) + tensor.byte_offset
    name = _DL_NAMES.get((tensor.code, tensor.bits), "") if tensor.lanes == 1 else ""
    name = name or f"dlpack({tensor.code}, {tensor.bits}, {tensor.lanes})"
    place = _DL_PLACES.get(tensor.device_type, f"dlpack device {tensor.device_type}")
    steps = _bits(stride, bits)
    return _strided(address, dim, steps, bits, name, place, tensor.device_id, readonly=readonly, keep=capsule)


def encode_scalar(value: float | int | bool, t: DType) -> bytes:
    """A number in the bytes of type `t`, rounded once.

    Raises:
        BindError: `t` cannot hold it (a fraction or an overflow of an integer type)
    """
    if t.kind == "bool":
        return bytes([bool(value)])
    if not t.is_float:
        if not t.holds(value):
            raise BindError(f"the value {value} does not fit the type {t.name}", fix=f"pass a whole number of {t.name}")
        return int(value).to_bytes(t.itemsize, "little", signed=t.kind == "int")
    with np.errstate(over="ignore", invalid="ignore"):
        if t.bits >= 16 and t.name != "BFLOAT16":
            data: bytes = np.float64(value).astype(np.dtype(t.numpy_name)).tobytes()
            return data
        return _encode_narrow(float(value), t)


def _encode_narrow(value: float, t: DType) -> bytes:
    """Through float32 rounded to odd, so that the second rounding is the only one that counts."""
    single = np.float32(value)
    if np.isfinite(single) and float(single) != value:
        bits = int(single.view(np.uint32))
        if abs(float(single)) > abs(value):
            bits -= 1
        single = np.uint32(bits | 1).view(np.float32)
    if not t.numpy_name:
        raise BindError(f"a Python number cannot be stored as {t.name}", fix="pass a buffer with its bytes")
    data: bytes = np.asarray(single).astype(getattr(ml_dtypes, t.numpy_name)).tobytes()
    return data
