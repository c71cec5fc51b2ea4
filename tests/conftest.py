"""One cache of compiled kernels per test run, shared by its workers and removed at its end."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

_made: str = ""


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a cache of its own, and check the IR after every pass; what is started here inherits both."""
    global _made
    os.environ["FUSEPLAN_VERIFY"] = "1"
    if not hasattr(config, "workerinput") and not os.environ.get("FUSEPLAN_CACHE_DIR"):
        _made = tempfile.mkdtemp(prefix="fuseplan-tests-")
        os.environ["FUSEPLAN_CACHE_DIR"] = _made


def pytest_unconfigure() -> None:
    """Remove the cache that this process made."""
    if _made:
        os.environ.pop("FUSEPLAN_CACHE_DIR", None)
        shutil.rmtree(_made, ignore_errors=True)
