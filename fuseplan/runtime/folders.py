"""Folders to write to, whatever the machine lacks: the cache, a private one of the process, one to build in."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import forks

_lock = forks.Lock()
private_ones: dict[tuple[int, Path], Path] = {}  # by process (a forked child does not share it) and cache folder


def cache() -> Path:
    """The cache folder of the settings, whether or not it is there."""
    return settings.current().cache_dir


def private() -> Path:
    """A folder that only this process uses; it goes away with the process. Raises ToolchainError."""
    with _lock:
        key = (os.getpid(), cache())
        if key not in private_ones:
            try:
                with forks.loading:  # the temp module has locks of its own
                    folder = Path(tempfile.mkdtemp(prefix="fuseplan-"))
            except OSError as problem:
                raise _nowhere(problem) from problem
            private_ones[key] = folder
            atexit.register(_remove, folder, os.getpid())
        return private_ones[key]


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder that lasts as long as the block: in the temp folder, else in the cache folder. Raises ToolchainError."""
    try:
        with forks.loading:
            made = tempfile.mkdtemp(prefix=prefix)
    except OSError:
        try:
            cache().mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=f".tmp-{prefix}", dir=cache())
        except OSError as problem:
            raise _nowhere(problem) from problem
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _nowhere(problem: OSError) -> ToolchainError:
    wrong = f"there is no folder to write compiled files to: {problem}"
    return ToolchainError(wrong, fix="set TMPDIR or FUSEPLAN_CACHE_DIR to a folder that can be written")


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
