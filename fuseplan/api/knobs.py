"""Choosing among plans: knobs as users see them, and filters by name and notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from operator import attrgetter

from fuseplan.api import enums
from fuseplan.api.datatypes import to_int, to_list
from fuseplan.errors import ArgumentError
from fuseplan.plan.rank import Entry

Filter = Callable[[Entry], str]  # the reason for barring an entry, empty to keep it


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

    type = property(attrgetter("_type"), doc="A knob_type; the name of a knob that the API has no type for.")
    max_value = property(attrgetter("_max_value"))
    min_value = property(attrgetter("_min_value"))
    stride = property(attrgetter("_stride"))

    def __repr__(self) -> str:
        name = self._type if isinstance(self._type, str) else self._type.name
        fields = ("max_value", "min_value", "stride")
        return json.dumps({"type": name, **{field: getattr(self, field) for field in fields}})


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


def bar_names(parts: Iterable[str]) -> Filter:
    """Bar plans whose name contains any of these strings."""
    wanted = tuple(to_list(parts, "engine names", f"pass a list: [{parts!r}]"))
    for part in wanted:
        if not isinstance(part, str):
            raise ArgumentError(f"engine names must be a list of str, not {part!r}", fix=f"pass [{str(part)!r}]")

    def reason(entry: Entry) -> str:
        hit = next((part for part in wanted if part in entry.name), None)
        return f"its name contains {hit!r}" if hit is not None else ""

    return reason


def by_notes(field: str, notes: Iterable[Enum], *, wanted: bool) -> Filter:
    """Bar plans that lack any of these notes, or those that have any; `field` names the notes' field of an entry."""
    found = tuple(to_list(notes, "notes", "pass a list of members of a note enum"))
    for note in found:
        if not isinstance(note, Enum):
            raise ArgumentError(f"notes must be members of a note enum, not {note!r}", fix="pass a list of members")
    names = {note.name for note in found}

    def reason(entry: Entry) -> str:
        there = set(getattr(entry, field))
        wrong = names - there if wanted else names & there
        return f"it {'lacks' if wanted else 'has'} the note {min(wrong)}" if wrong else ""

    return reason
