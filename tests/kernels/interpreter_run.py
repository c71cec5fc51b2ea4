"""Runs test files under Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_interpreted(*arguments: str) -> int:
    """How many tests passed under pytest with these arguments; fails if one failed or was skipped."""
    env = dict(os.environ, TRITON_INTERPRET="1", PYTEST_ADDOPTS="", OMP_NUM_THREADS="1")
    for name in [n for n in env if n.startswith("PYTEST_XDIST")]:
        del env[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and "skipped" not in done.stdout, done.stdout[-2000:]
    return int(passed.group(1))
