"""Knobs as users see them: a type, a range, and values by type or by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from fuseplan.api import enums
from fuseplan.api.arguments import to_int
from fuseplan.errors import ArgumentError


class knob:  # noqa: N801 - the API's own name
    """One choice of an engine and its range; read-only."""

    __slots__ = ("_max_value", "_min_value", "_stride", "_type")

    def __init__(
        self,
        knob_type: enums.knob_type | str = enums.knob_type.NOT_SET,
        max_value: int | None = None,
        min_value: int | None = None,
        stride: int | None = None,
    ) -> None:
        self._type = knob_type
        self._max_value, self._min_value, self._stride = max_value or 0, min_value or 0, stride or 1

    @property
    def type(self) -> enums.knob_type | str:
        """The API's knob type; the name of a knob that the API has no type for."""
        return self._type

    @property
    def max_value(self) -> int:
        return self._max_value

    @property
    def min_value(self) -> int:
        return self._min_value

    @property
    def stride(self) -> int:
        return self._stride

    def __repr__(self) -> str:
        name = self._type if isinstance(self._type, str) else self._type.name
        return json.dumps(
            {"type": name, "max_value": self.max_value, "min_value": self.min_value, "stride": self.stride}
        )


def by_type(knobs: Mapping[str, int]) -> dict[enums.knob_type | str, int]:
    """Knob values by the API's types; a knob that the API has no type for keeps its name."""
    known = enums.knob_type.__members__
    return {known.get(name, name): value for name, value in knobs.items()}


def by_name(knobs: Mapping[object, int] | None) -> dict[str, int]:
    """Knob values by name, from types or names. Raises ArgumentError."""
    named: dict[str, int] = {}
    if knobs is not None and not isinstance(knobs, Mapping):
        raise ArgumentError(f"knobs must be a dict, not {knobs!r}", fix="pass {knob_type.STAGES: 3}")
    for key, value in (knobs or {}).items():
        name = key.name if isinstance(key, enums.knob_type) else key
        if not isinstance(name, str):
            raise ArgumentError(
                f"knobs are named by a knob_type or a str, not {key!r}", fix="pass {knob_type.STAGES: 3}"
            )
        named[name] = to_int(value, f"knob {name!r}")
    return named


def ranges(choices: Iterable[Mapping[str, int]]) -> list[knob]:
    """The range that each knob has over a list of choices."""
    values: dict[str, set[int]] = {}
    for choice in choices:
        for name, value in choice.items():
            values.setdefault(name, set()).add(value)
    known = enums.knob_type.__members__
    return [knob(known.get(name, name), max(found), min(found), 1) for name, found in sorted(values.items())]
