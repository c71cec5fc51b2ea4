"""Which element type an argument means: API members, framework dtypes by their text, and back."""

from __future__ import annotations

from enum import Enum

from fuseplan.api import enums
from fuseplan.dtypes import ALL_TYPES, BY_ARRAY_NAME, DType
from fuseplan.errors import ArgumentError, cudnnGraphNotSupportedError

_known: dict[object, DType | None] = {
    None: None,
    enums.data_type.NOT_SET: None,
    **{member: ALL_TYPES[member.name] for member in enums.data_type if member.name in ALL_TYPES},
    **{dtype: dtype for dtype in ALL_TYPES.values()},
}


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
    found = BY_ARRAY_NAME.get(str(value).removeprefix("torch."))
    if found is None:
        raise cudnnGraphNotSupportedError(
            f"{what}: {value} has no counterpart among the data types",
            fix="use one of float64, float32, float16, bfloat16, int8, uint8, int32, int64, bool or an fp8 type",
        )
    return _known.setdefault(value, found)


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
            f"{what}: element type {array_dtype} has no counterpart among the data types",
            fix="convert the array to a supported type first",
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
