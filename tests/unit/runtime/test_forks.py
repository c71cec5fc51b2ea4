"""What a forked child finds: free locks, values computed once; and that the package has no other locks."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fuseplan
from fuseplan import settings
from fuseplan.runtime import artifacts, forks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
#: what holds a lock that a forked child could not open
LOCKING = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "Queue", "SimpleQueue"}


def in_child(work: Callable[[], None]) -> int:
    """Exit status of a forked child that does `work`; a child that hangs is ended by a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            work()
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def while_held(lock: forks.Lock, look: Callable[[], int]) -> int:
    """What `look` gives while another thread holds the lock."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        return look()
    finally:
        done.set()
        thread.join()


@needs_fork
def test_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    lock = forks.Lock()

    def take() -> None:
        with lock:
            os._exit(0)

    assert while_held(lock, lambda: in_child(take)) == 0


@needs_fork
def test_fork_inside_of_the_block_leaves_the_block_in_both() -> None:
    lock = forks.Lock()

    def leave() -> None:
        os._exit(0)

    with lock:
        assert in_child(leave) == 0
    with lock:
        pass


@needs_fork
def test_fork_waits_while_something_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_FORK_WAIT_S", 60.0)
    finished: list[float] = []

    def load() -> None:
        with forks.loading:
            time.sleep(0.3)
            finished.append(time.monotonic())

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        os._exit(0 if finished else 1)
    status = os.waitpid(child, 0)[1]
    thread.join()
    assert status == 0


@needs_fork
def test_fork_goes_on_when_the_wait_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_FORK_WAIT_S", 0.05)

    def take() -> None:
        with forks.loading:
            os._exit(0)

    assert while_held(forks.loading, lambda: in_child(take)) == 0
    assert while_held(forks.Lock(), lambda: in_child(take)) == 0  # and the next fork does not find it taken


_HOLDER = """
import os, sys, time
from pathlib import Path
from fuseplan import settings
from fuseplan.runtime import artifacts
settings.use(settings.Settings(cache_dir=Path(sys.argv[1])))
with artifacts._lock("0123456789abcdef"):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


@needs_fork
def test_child_does_not_keep_the_lock_of_a_cache_entry_that_its_killed_parent_held() -> None:
    folder = settings.current().cache_dir
    root = Path(fuseplan.__file__).parents[1]
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    started = time.monotonic()
    with artifacts._lock("0123456789abcdef"):
        waited = time.monotonic() - started
        had = len(artifacts._held)
    os.kill(child, signal.SIGKILL)
    holder.stdout.close()
    assert had == 1 and waited < 5


def test_cached_property_is_computed_once_and_read_from_the_class() -> None:
    calls: list[int] = []

    class Holder:
        @forks.cached_property
        def value(self) -> int:
            """What it is."""
            calls.append(1)
            return 7

    holder = Holder()
    assert [holder.value, holder.value, len(calls)] == [7, 7, 1]
    assert Holder.value.__doc__ == "What it is."


def test_package_has_no_lock_that_a_fork_leaves_closed() -> None:
    root = Path(fuseplan.__file__).parent
    bad = []
    for path in sorted(root.rglob("*.py")):
        if path == Path(forks.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner, name = node.value.id, node.attr
            elif isinstance(node, ast.ImportFrom):
                owner, name = node.module or "", ",".join(a.name for a in node.names)
            else:
                continue
            names = set(name.split(","))
            locks = owner in ("threading", "queue", "multiprocessing") and names & LOCKING
            if locks or (owner == "functools" and "cached_property" in names):
                bad.append(f"{path.relative_to(root)}:{node.lineno}: {owner}.{name}")
    assert bad == []
