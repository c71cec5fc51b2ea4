"""Plain arguments as values: numbers and lists, element types and enums, and what an array says about itself."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from fuseplan.api import enums
from fuseplan.dtypes import ALL_TYPES, BY_ARRAY_NAME, DType
from fuseplan.errors import ArgumentError, InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import packed_stride

_HOST_DEVICES = frozenset({1, 3})  # DLPack: kDLCPU, kDLCUDAHost

_known: dict[object, DType | None] = {
    None: None,
    enums.data_type.NOT_SET: None,
    **{member: ALL_TYPES[member.name] for member in enums.data_type if member.name in ALL_TYPES},
    **{dtype: dtype for dtype in ALL_TYPES.values()},
}


def to_int(value: object, what: str, fix: str = "pass an int") -> int:
    """An int, an IntEnum, a NumPy integer or the like as an int. Raises ArgumentError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{what} must be an int, not {value!r}", fix=fix)
    return int(value.__index__())


def to_list(value: object, what: str, fix: str = "pass a list") -> list[Any]:
    """Any iterable but text as a list. Raises ArgumentError."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ArgumentError(f"{what} must be a list, not {value!r}", fix=fix)
    return list(value)


def to_ints(value: object, what: str) -> tuple[int, ...]:
    """A list, tuple, torch size or the like as a tuple of int. Raises ArgumentError."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        try:
            return tuple(v.__index__() for v in value)
        except AttributeError:
            pass
    raise ArgumentError(f"{what} must be a list of int, not {value!r}", fix="pass a list such as [1, 2, 3]")


def to_text(value: object, what: str) -> str:
    """A str as it is. Raises ArgumentError."""
    if not isinstance(value, str):
        raise ArgumentError(f"{what} must be a str, not {value!r}", fix="pass name='...'")
    return value


def to_dtype(value: object, what: str) -> DType | None:
    """The element type that an argument means; None when it is left open.

    Args:
        value: a data_type member, a torch dtype, or None
        what: names the argument in messages
    Raises:
        cudnnGraphNotSupportedError: a torch dtype that has no counterpart
        ArgumentError: anything else
    """
    try:
        return _known[value]
    except (KeyError, TypeError):  # a value without a hash is no type either
        if not is_torch_dtype(value):
            raise ArgumentError(
                f"{what} must be a data_type or a torch dtype, not {value!r} ({type(value).__name__})",
                fix="pass a member of data_type, for instance data_type.FLOAT",
            ) from None
    return _known.setdefault(value, dtype_of_array(value, what))


def is_torch_dtype(value: object) -> bool:
    """Whether this is a dtype of PyTorch, told by its class so that PyTorch need not be imported."""
    kind = type(value)
    return kind.__name__ == "dtype" and kind.__module__.partition(".")[0] == "torch"


def is_data_type(value: object) -> bool:
    """Whether an argument is meant as a data type."""
    return isinstance(value, (enums.data_type, DType)) or is_torch_dtype(value)


def to_member(dtype: DType | None) -> enums.data_type:
    """The API's member for a type; NOT_SET for None."""
    return enums.data_type.NOT_SET if dtype is None else enums.data_type[dtype.name]


def dtype_of_array(array_dtype: object, what: str) -> DType:
    """The element type of an array's dtype (NumPy, ml_dtypes, PyTorch, JAX), by its text.

    Raises:
        cudnnGraphNotSupportedError: the dtype has no counterpart
    """
    found = BY_ARRAY_NAME.get(str(array_dtype).removeprefix("torch."))
    if found is None:
        raise cudnnGraphNotSupportedError(
            f"{what}: {array_dtype} has no counterpart among the data types",
            fix="use one of float64, float32, float16, bfloat16, int8, uint8, int32, int64, bool or an fp8 type",
        )
    return found


def to_enum(value: object, kind: type[Enum], what: str) -> str | None:
    """The name of an enum argument's member, None when it is left open. Raises ArgumentError."""
    if value is None:
        return None
    if isinstance(value, kind):
        return value.name
    if isinstance(value, str) and value in kind.__members__:
        return value
    names = ", ".join(m.name for m in kind)
    raise ArgumentError(
        f"{what} must be a member of {kind.__name__}, not {value!r}", fix=f"pass {kind.__name__}.<one of {names}>"
    )


def is_array(value: object) -> bool:
    """Whether an object can be wrapped as a graph tensor (it exports DLPack or an array interface)."""
    kind = type(value)
    return (
        hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "__array_interface__")
    )


def describe(array: Any, what: str) -> tuple[tuple[int, ...], tuple[int, ...], DType, bool]:
    """Dims, strides in elements and type of an array, and whether it lies in host memory; no dims count as [1].

    Raises:
        ArgumentError: the object says nothing about dims or element type
        cudnnGraphNotSupportedError: its element type has no counterpart
    """
    shape, array_dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or array_dtype is None:
        raise ArgumentError(
            f"{what}: a {type(array).__name__} has no shape and dtype", fix="pass an array that exports DLPack"
        )
    dim = tuple(int(d) for d in shape)
    dtype = dtype_of_array(array_dtype, what)
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
