"""Compiled files that are given: while a plan file is loaded, no tool-chain runs and all files come from there.

A file is asked for by what it was compiled from, its origin: a digest of source and flags, without the tools and the
machine. So one that was made elsewhere is found, and one that was made from another source is not.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.runtime.launch import Artifact

_given: ContextVar[Mapping[str, Artifact] | None] = ContextVar("given", default=None)


@contextlib.contextmanager
def only(files: Mapping[str, Artifact]) -> Iterator[None]:
    """Inside of this block, in this thread, these are all files that there are, by origin."""
    token = _given.set(files)
    try:
        yield
    finally:
        _given.reset(token)


def is_given() -> bool:
    """Whether files are given; an engine then needs no tool-chain, and remembers nothing of what it builds."""
    return _given.get() is not None


def find(origin: str, label: str) -> Artifact | None:
    """The given file of this origin; None where the tool-chain is to be asked.

    Raises:
        cudnnGraphNotSupportedError: files are given, and this one is not among them
    """
    files = _given.get()
    if files is None:
        return None
    if origin not in files:
        raise cudnnGraphNotSupportedError(
            f"the plan holds no compiled file for {label} as this release writes it",
            fix="build the graph here, or load the plan with the release that wrote it",
        )
    return files[origin]


def digest_of(*parts: str) -> str:
    """Digest of texts in order, for instance of what a file is compiled from."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
