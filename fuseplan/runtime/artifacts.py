"""Compiled files on disk: named by content, locked per key, published by rename, bounded in size.

A file is its data and a trailer with the SHA-256 of its key and its data, so a file under another
key's name is damaged. ELF loaders ignore what follows the last section, so a shared object with a
trailer can be loaded as it is, and an entry is one file that appears in one rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import folders, forks, logs
from fuseplan.runtime.device import require_features
from fuseplan.runtime.launch import Artifact

try:
    import fcntl
except ImportError:  # no such locks here: two processes may compile the same kernel, both rightly
    fcntl = None  # type: ignore[assignment]

_MARK = b"\nfuseplan-sha256:"
_TRAILER = len(_MARK) + 64
_KEY = re.compile(r"[0-9A-Za-z_.-]{8,200}")
_LOCK_WAIT_S = 120.0
_STALE_S = 3600.0
_memory_lock = forks.Lock()
_loaded: dict[str, ctypes.CDLL] = {}
_held: set[int] = set()  # open lock files
_sizes: dict[Path, int] = {}  # what we believe each cache folder holds
_num_hits = 0


@dataclass(frozen=True)
class CacheStats:
    """What the cache holds, and how often this process found in it what it looked for."""

    folder: Path
    entries: int
    bytes: int
    hits: int


def path_of(key: str, suffix: str) -> Path:
    """Where the entry lies in the cache folder, whether or not it is there."""
    if not _KEY.fullmatch(key) or "/" in suffix:
        raise ValueError(f"not a cache key: {key!r} with suffix {suffix!r}")
    return _root() / key[:2] / f"{key}{suffix}"


def get(key: str, suffix: str) -> bytes | None:
    """Data of an entry, or None; a damaged entry is reported once, removed and counts as missing."""
    found = _find(key, suffix)
    return found[1] if found else None


def publish(key: str, suffix: str, data: bytes) -> Path:
    """Store an entry so that it appears whole or not at all.

    Returns:
        its path; a private folder of the process if the cache folder cannot be written
    Raises:
        ToolchainError: there is no such folder either, or it is full
    """
    path = path_of(key, suffix)
    try:
        _write(path, data)
        _trim(_root(), keep=path)
    except OSError as problem:
        logs.once(
            f"cache-unwritable:{_root()}",
            f"cache folder {_root()} cannot be written ({problem}); compiled kernels last as long as this process",
        )
        path = _write_private(key, suffix, data)
    return path


def remove(key: str, suffix: str) -> None:
    """Take an entry out of the cache, if it is there."""
    for path in _places(key, suffix):
        with contextlib.suppress(OSError):
            path.unlink()


def obtain(key: str, suffix: str, build: Callable[[Path], None]) -> tuple[Path, bytes]:
    """Path and data of the entry, built by ``build(temporary path)`` if it is not there.

    Look, lock, look again: of several processes one builds, the others wait for its result.
    """
    if found := _find(key, suffix):
        return found
    with _lock(key):
        if found := _find(key, suffix):
            return found
        with folders.scratch("fuseplan-build-") as folder:
            target = folder / f"built{suffix}"
            build(target)
            data = target.read_bytes()
        return publish(key, suffix, data), data


def stats() -> CacheStats:
    """What the cache holds now."""
    files = list(_entries(_root()))
    return CacheStats(_root(), len(files), sum(size for _, size, _ in files), _num_hits)


def clear() -> None:
    """Remove all entries; kernels that are loaded stay loaded."""
    private = folders.private_ones.get((os.getpid(), folders.cache()))
    for path in [entry[0] for entry in _entries(_root())] + (list(private.iterdir()) if private else []):
        with contextlib.suppress(OSError):
            path.unlink()
    _sizes.pop(_root(), None)


def shared_path(artifact: Artifact) -> Path:
    """A file of the cache with exactly the bytes of `artifact`.

    An entry under the artifact's key is used only if its bytes are the same. Others go under the
    hash of their bytes: an artifact from a file must not replace what a key means on this machine.
    """
    found = _find(artifact.key, ".so")
    if found and found[1] == artifact.data:
        return found[0]
    digest = hashlib.sha256(artifact.data).hexdigest()
    found = _find(digest, ".so")
    return found[0] if found else publish(digest, ".so", artifact.data)


def load_shared(artifact: Artifact) -> ctypes.CDLL:
    """Load a host shared object, once per process.

    Raises:
        cudnnGraphNotSupportedError: it was built for CPU features that this machine lacks
        ToolchainError: the loader refuses it
    """
    digest = hashlib.sha256(artifact.data).hexdigest()
    with _memory_lock:
        library = _loaded.get(digest)
        if library is None:
            require_features(artifact.arch, what=f"compiled kernel {artifact.key[:12]}")
            library = _loaded[digest] = _load(artifact)
        return library


def _load(artifact: Artifact) -> ctypes.CDLL:
    """From the cache folder; from the private one where nothing can be executed from the cache folder."""
    problems: list[Exception] = []
    digest = hashlib.sha256(artifact.data).hexdigest()
    for is_shared in (True, False):
        try:
            path = shared_path(artifact) if is_shared else _write_private(digest, ".so", artifact.data)
            with forks.loading:
                library = ctypes.CDLL(str(path))
        except (OSError, ToolchainError) as problem:
            problems.append(problem)
            continue
        if problems:
            where = f"nothing can be executed from cache folder {_root()} ({problems[0]})"
            logs.once(f"cache-not-executable:{_root()}", f"{where}; kernels are loaded from {path.parent}")
        return library
    raise ToolchainError(
        f"compiled kernel {artifact.key[:12]} cannot be loaded: {problems[0]}",
        fix="remove the cache folder, or set FUSEPLAN_CACHE_DIR to a folder that allows execution",
    ) from problems[0]


def symbol_address(artifact: Artifact, symbol: str) -> int:
    """Address of a function in a host shared object. Raises ToolchainError if it is not there."""
    try:
        function = getattr(load_shared(artifact), symbol)
    except AttributeError as problem:
        raise ToolchainError(
            f"compiled kernel {artifact.key[:12]} has no function '{symbol}'",
            fix="the function must not be static and must have the name given in its launch",
        ) from problem
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _root() -> Path:
    return folders.cache() / "artifacts"


def _places(key: str, suffix: str) -> list[Path]:
    """Where an entry may lie, in order."""
    private = folders.private_ones.get((os.getpid(), folders.cache()))
    return [path_of(key, suffix), *([private / f"{key}{suffix}"] if private else [])]


def _write_private(key: str, suffix: str, data: bytes) -> Path:
    path = folders.private() / f"{key}{suffix}"
    try:
        _write(path, data)
    except OSError as problem:
        raise ToolchainError(
            f"{path.parent} cannot be written: {problem}", fix="free space, or set TMPDIR or FUSEPLAN_CACHE_DIR"
        ) from problem
    return path


def _trailer_of(name: str, data: bytes) -> bytes:
    """What ends a file: it says which key the data belong to."""
    return _MARK + hashlib.sha256(name.encode() + b"\0" + data).hexdigest().encode()


def _find(key: str, suffix: str) -> tuple[Path, bytes] | None:
    global _num_hits
    for path in _places(key, suffix):
        try:
            raw = path.read_bytes()
        except OSError:
            continue
        data, trailer = raw[:-_TRAILER], raw[-_TRAILER:]
        if trailer == _trailer_of(path.name, data):
            with contextlib.suppress(OSError):
                os.utime(path)  # trimming removes what was used longest ago
            _num_hits += 1
            return path, data
        logs.once(f"cache-damaged:{path}", f"cache entry {path} is damaged; it is removed and built again")
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.write(_trailer_of(path.name, data))
        os.chmod(name, 0o755)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    root = path.parent.parent
    if root in _sizes:
        _sizes[root] += len(data) + _TRAILER


def _entries(root: Path) -> Iterator[tuple[Path, int, float]]:
    for path in root.glob("??/*"):
        with contextlib.suppress(OSError):
            info = path.stat()
            if not path.name.startswith(".tmp-"):
                yield path, info.st_size, info.st_mtime
            elif time.time() - info.st_mtime > _STALE_S:  # its writer was killed
                path.unlink()


def _trim(root: Path, keep: Path) -> None:
    """Remove what was used longest ago until the cache fits its limit; never the newest entry."""
    limit = settings.current().cache_limit_bytes
    if root in _sizes and _sizes[root] <= limit:
        return
    files = sorted(_entries(root), key=lambda entry: entry[2])
    total = sum(size for _, size, _ in files)
    for path, size, _ in files:
        if total <= limit:
            break
        if path != keep:
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
    _sizes[root] = total


@contextlib.contextmanager
def _lock(key: str) -> Iterator[None]:
    """Hold the lock of a key between processes and threads; without one where locks do not work.

    Locks only save work, they never decide what is right: a lock that cannot be had in time is ignored.
    """
    path = _root().parent / "locks" / key
    handle = _acquire(path) if fcntl else -1
    try:
        yield
    finally:
        if handle >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            _held.discard(handle)
            os.close(handle)


def _close_inherited() -> None:
    """In a forked child: the parent's lock files, which would stay locked after the parent's death."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def _acquire(path: Path) -> int:
    give_up = time.monotonic() + _LOCK_WAIT_S
    while time.monotonic() < give_up:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return -1
        pause = 0.0
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                _held.add(handle)
                return handle
        except BlockingIOError:
            pause = 0.005
        except FileNotFoundError:  # its holder has removed the file: another may lie there
            pass
        except OSError:
            give_up = 0.0
        os.close(handle)
        time.sleep(pause)
    return -1
