"""Plain arguments of calls: one int, a list. What is wrong with one is said in the caller's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuseplan.errors import ArgumentError


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
