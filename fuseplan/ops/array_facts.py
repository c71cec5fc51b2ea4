"""What an array of another library says about itself: dims, strides, element type, and whether it is in host memory."""

from __future__ import annotations

from typing import Any

from fuseplan.dtypes import BY_ARRAY_NAME, DType
from fuseplan.errors import (
    ArgumentError,
    InvalidGraphError,
    cudnnGraphNotSupportedError,
)
from fuseplan.ir.graph import packed_stride

_HOST_DEVICES = frozenset({1, 3})  # DLPack: kDLCPU, kDLCUDAHost


def dtype_of_array(array_dtype: object, what: str) -> DType:
    """The element type of an array's dtype (NumPy, ml_dtypes, PyTorch, JAX), by its text; `what` begins the message.

    Raises:
        cudnnGraphNotSupportedError: the dtype has no counterpart
    """
    found = BY_ARRAY_NAME.get(str(array_dtype).removeprefix("torch."))
    if found is None:
        raise cudnnGraphNotSupportedError(
            f"{what} {array_dtype} has no counterpart among the data types",
            fix="convert it to float64, float32, float16, bfloat16, int8, uint8, int32, int64, bool or an fp8 type",
        )
    return found


def is_array(value: object) -> bool:
    """Whether an object can be wrapped as a graph tensor (it exports DLPack or an array interface)."""
    kind = type(value)
    return (
        hasattr(kind, "__dlpack__")
        or hasattr(kind, "__cuda_array_interface__")
        or hasattr(kind, "__array_interface__")
    )


def describe(
    array: Any, what: str
) -> tuple[tuple[int, ...], tuple[int, ...], DType, bool]:
    """Dims, strides in elements and type of an array, and whether it lies in host memory; no dims count as [1].

    Raises:
        ArgumentError: the object says nothing about dims or element type
        cudnnGraphNotSupportedError: its element type has no counterpart
    """
    shape, array_dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or array_dtype is None:
        raise ArgumentError(
            f"{what}: a {type(array).__name__} has no shape and dtype",
            fix="pass an array that exports DLPack",
        )
    dim = tuple(int(d) for d in shape)
    dtype = dtype_of_array(array_dtype, f"{what}: element type")
    stride = _strides(array, dim, what)
    return dim or (1,), stride or (1,), dtype, _is_host(array)


def _strides(array: Any, dim: tuple[int, ...], what: str) -> tuple[int, ...]:
    in_elements = getattr(array, "stride", None)
    if callable(in_elements):
        return tuple(int(s) for s in in_elements())
    in_bytes = getattr(array, "strides", None)
    if in_bytes is not None and not callable(in_bytes):
        size = int(array.dtype.itemsize)
        if any(int(s) % size for s in in_bytes):
            raise InvalidGraphError(
                f"{what}: strides of {list(in_bytes)} bytes are no multiples of its element size {size}",
                fix="pass a copy of the array",
            )
        return tuple(int(s) // size for s in in_bytes)
    return packed_stride(dim)


def _is_host(array: Any) -> bool:
    where = getattr(array, "__dlpack_device__", None)
    if where is not None:
        return int(where()[0]) in _HOST_DEVICES
    return not hasattr(type(array), "__cuda_array_interface__")
