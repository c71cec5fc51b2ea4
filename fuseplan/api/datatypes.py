"""Plain arguments as values: numbers and lists, element types and enums."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Any

from fuseplan.api import enums
from fuseplan.dtypes import ALL_TYPES, DType
from fuseplan.errors import ArgumentError
from fuseplan.ops.array_facts import dtype_of_array

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
        with suppress(AttributeError):
            return tuple(v.__index__() for v in value)
    raise ArgumentError(f"{what} must be a list of int, not {value!r}", fix="pass a list such as [1, 2, 3]")


def to_text(value: object, what: str) -> str:
    """A str as it is. Raises ArgumentError."""
    if not isinstance(value, str):
        raise ArgumentError(f"{what} must be a str, not {value!r}", fix="pass a str: name='...'")
    return value


def to_dtype(value: object, what: str) -> DType | None:
    """The element type that a data_type member or a torch dtype means; None when it is left open.

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
    return _known.setdefault(value, dtype_of_array(value, f"{what}:"))


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
