"""The team of threads that runs host kernels: how many there are, and the C that hands them the tasks.

It is PyTorch's OpenMP threads where PyTorch is loaded, and threads of our own otherwise (``team.c``); one per
process, whatever dispatcher calls it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, device, logs, toolchain

#: a launch with less work than this, in microseconds, stays on the calling thread
SERIAL_US = 50.0
MOST_THREADS = 256
UNITS = ("pool.c", "openmp.c", "team.c")
_FOLDER = importlib.resources.files("fuseplan.runtime.team")


class Launch(ctypes.Structure):
    """``struct fp_launch`` of team.h."""

    _fields_ = [
        ("kernel", ctypes.c_void_p), ("block", ctypes.c_void_p), ("num_tasks", ctypes.c_int64),
        ("scratch", ctypes.c_void_p), ("thread_bytes", ctypes.c_int64), ("num_threads", ctypes.c_int32),
        ("follows_torch", ctypes.c_int32),
    ]  # fmt: skip


def number(asked: int = 0) -> int:
    """Threads that a plan may use, the calling one among them.

    The first that is given counts: `asked` (of the handle), the settings, PyTorch's number where it is loaded, and
    the cores that this process may use.
    """
    count = asked or settings.current().num_threads or _of_torch() or _cores()
    return max(1, min(count, MOST_THREADS))


def follows_torch(asked: int = 0) -> bool:
    """Whether nobody said a number, so that a lower one that PyTorch gets later holds here too."""
    return not asked and not settings.current().num_threads


def _of_torch() -> int:
    torch = sys.modules.get("torch")
    ask = getattr(torch, "get_num_threads", None)  # absent while another thread imports it
    return int(ask()) if ask is not None else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def size_of(limit: int, num_tasks: int, work_us: float, room: int) -> int:
    """Threads for one launch: none that would have less than half of `SERIAL_US` to do, or no memory of its own."""
    if work_us < SERIAL_US:
        return 1
    return max(1, min(limit, num_tasks, int(2 * work_us / SERIAL_US), room or limit))


@functools.cache
def header() -> str:
    """C text that says how a kernel draws its tasks."""
    return _FOLDER.joinpath("task.h").read_text(encoding="utf-8")


def headers() -> str:
    """C text of what the team is called with."""
    return header() + join(_FOLDER, ("team.h",), {"task.h": ""})


def source() -> str:
    """C source of the team, one translation unit."""
    return "#define _GNU_SOURCE\n" + join(_FOLDER, ("team.h", *UNITS), {"task.h": header(), "team.h": ""})


def join(folder: Any, names: Sequence[str], included: Mapping[str, str]) -> str:
    """The text of C files in a row, with these texts in place of what they include."""
    parts = []
    for name in names:
        text = folder.joinpath(name).read_text(encoding="utf-8")
        for header_name, there in included.items():
            text = text.replace(f'#include "{header_name}"\n', there + "\n")
        parts.append(f'#line 1 "{name}"\n{text}')
    return "\n".join(parts)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled team, one per process; None where there is no compiler, and kernels stay on the calling thread."""
    march = "x86-64-v2" if device.is_x86() else "native"
    try:
        artifact = toolchain.compile_shared(
            source(), ("-std=gnu11", "-O2", "-pthread", "-ldl"), march=march, label="the team of threads",
            symbol="fp_team_run",
        )  # fmt: skip
        loaded = artifacts.load_shared(artifact)
    except ToolchainError as problem:
        logs.once("team", f"kernels run on one thread: {problem}")
        return None
    loaded.fp_team_run.argtypes = [ctypes.POINTER(Launch)]
    return loaded


def address() -> int:
    """Of ``fp_team_run``; 0 if there is no team."""
    team = library()
    return ctypes.cast(team.fp_team_run, ctypes.c_void_p).value or 0 if team is not None else 0
