"""Which plans a user wants left out: by name, notes or workspace. Indices never shift."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from fuseplan.api.arguments import to_list
from fuseplan.errors import ArgumentError

if TYPE_CHECKING:
    from fuseplan.plan.rank import Entry

Filter = Callable[["Entry"], str]  # the reason for barring an entry, empty to keep it


def bar_names(parts: Iterable[str]) -> Filter:
    """Bar plans whose name contains any of these strings."""
    if isinstance(parts, str):
        raise ArgumentError(f"engine names must be a list of str, not {parts!r}", fix=f"pass [{parts!r}]")
    wanted = tuple(to_list(parts, "engine names"))
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
