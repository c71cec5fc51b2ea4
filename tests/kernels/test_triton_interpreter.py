"""Starts the numeric tests of `triton_*interpreted.py` in processes with Triton's interpreter on.

The interpreter is chosen when Triton is imported, so it needs a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("torch", reason="torch is not installed; Triton's interpreter keeps its buffers in it")

_ROOT = Path(__file__).parents[2]


def run_part(marker: str) -> None:
    """Run one half of the interpreted tests; all must pass and some must run."""
    env = dict(os.environ, TRITON_INTERPRET="1", PYTEST_ADDOPTS="", OMP_NUM_THREADS="1")
    for name in [n for n in env if n.startswith("PYTEST_XDIST")]:
        del env[name]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marker]
    done = subprocess.run(
        [*command, "tests/kernels/triton_interpreted.py", "tests/kernels/triton_in_place_interpreted.py"],
        cwd=_ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) > 50 and "skipped" not in done.stdout, done.stdout[-2000:]


def test_interpreted_kernels_match_float64() -> None:
    run_part("not full")


@pytest.mark.full
def test_interpreted_samples_of_all_ops_are_right() -> None:
    run_part("full")
