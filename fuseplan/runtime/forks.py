"""What a fork in a busy process leaves usable. A lock that another thread of the parent held stays closed in the
child for ever, so every lock of the package is a `Lock` of this module, which is free in a child.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_FORK_WAIT_S = 10.0  # a fork goes on after this long: it may itself be what the holder waits for
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_forking = threading.local()


class Lock:
    """A re-entrant lock for `with` that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # forked inside the block: the child's lock is a new one
            self._lock.release()


#: Held while a module is imported or a library loaded for the first time. A fork waits for it: the import system
#: and the loader have locks of their own that nobody opens in a child.
loading = Lock()


class cached_property(Generic[T]):  # noqa: N801 - stands where functools.cached_property would
    """A property that is computed once per object, without the lock that Python holds for it before 3.12."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    def __get__(self, instance: object, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self.name] = self.compute(instance)
        return value


def _before() -> None:
    _forking.waited = loading._lock.acquire(timeout=_FORK_WAIT_S)


def _in_parent() -> None:
    if _forking.waited:
        loading._lock.release()


def _in_child() -> None:
    for lock in list(_locks):
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
