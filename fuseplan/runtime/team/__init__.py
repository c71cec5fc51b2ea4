"""How many threads host kernels use, and the team that runs them."""

from __future__ import annotations

import functools
import importlib.resources
import os
import sys

from fuseplan import settings

#: a launch with less work than this, in microseconds, stays on the calling thread
SERIAL_US = 50.0
MOST_THREADS = 256


def number(asked: int = 0) -> int:
    """Threads that a plan may use, the calling one among them.

    The first that is given counts: `asked` (of the handle), the settings, PyTorch's number where it is loaded, and
    the cores that this process may use.
    """
    count = asked or settings.current().num_threads or _of_torch() or _cores()
    return max(1, min(count, MOST_THREADS))


def _of_torch() -> int:
    torch = sys.modules.get("torch")
    ask = getattr(torch, "get_num_threads", None)  # absent while another thread imports it
    return int(ask()) if ask is not None else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def team_size(limit: int, num_tasks: int, work_us: float, room: int) -> int:
    """Threads for one launch: none that would have less than half of `SERIAL_US` to do, or no memory of its own."""
    if work_us < SERIAL_US:
        return 1
    return max(1, min(limit, num_tasks, int(2 * work_us / SERIAL_US), room or limit))


@functools.cache
def header() -> str:
    """C text that says how a kernel draws its tasks (task.h)."""
    return importlib.resources.files("fuseplan.runtime.team").joinpath("task.h").read_text(encoding="utf-8")
