"""The dispatcher: checks a variant pack and runs a program, in C or, without a compiler, in Python.

Both forms behave alike; `make_dispatcher` chooses by `Settings.dispatcher`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from fuseplan import settings
from fuseplan.errors import ArgumentError, ToolchainError
from fuseplan.runtime import logs
from fuseplan.runtime.dispatch import native, twin
from fuseplan.runtime.dispatch.binding import Binder, Normalise, Writes
from fuseplan.runtime.dispatch.layout import make_frame
from fuseplan.runtime.launch import Program

#: what both do; the native one is of a type of its own
Dispatcher = twin.Dispatcher


def make_dispatcher(
    program: Program,
    keys: Sequence[Sequence[object]],
    defaults: Sequence[object | None],
    normalise: Normalise,
    runs: Sequence[int] = (),
    inner_keys: Iterable[object] = (),
    writes: Writes | None = None,
) -> Dispatcher:
    """A dispatcher for `program`, native where a compiler and Python's headers are there; arguments as of `Binder`.

    Raises:
        ToolchainError: the setting is "native" and the dispatcher cannot be compiled
    """
    if not len(keys) == len(defaults) == len(program.slots):
        raise ArgumentError(f"{len(program.slots)} slots, {len(keys)} lists of keys, {len(defaults)} defaults")
    choice = settings.current().dispatcher
    if choice not in ("auto", "native", "python"):
        raise ArgumentError(f"dispatcher '{choice}' is not known", fix='use "auto", "native" or "python"')
    binder, frame = Binder(program, keys, defaults, normalise, runs, inner_keys, writes), make_frame(program)
    if choice != "python":
        try:
            return cast(Dispatcher, native.make(binder, frame))
        except ToolchainError as problem:
            if choice == "native":
                raise
            logs.once("dispatcher", f"calls go through the slower Python dispatcher: {problem}")
    return twin.Dispatcher(binder, frame)
