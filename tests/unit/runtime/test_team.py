"""How many threads host kernels use: the order of those who may say it."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from fuseplan import settings
from fuseplan.runtime import team


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No setting, no PyTorch, five cores."""
    for name in ("FUSEPLAN_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    return monkeypatch


def test_order_is_handle_own_variable_openmp_variable_torch_cores(environment: pytest.MonkeyPatch) -> None:
    assert team.number() == 5 and team.follows_torch()
    environment.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 4))
    assert team.number() == 4 and team.follows_torch()
    for name, value in (("OMP_NUM_THREADS", "3,1"), ("FUSEPLAN_NUM_THREADS", "2")):
        environment.setenv(name, value)
        environment.setattr(settings, "_current", None)
        assert team.number() == int(value[0]) and not team.follows_torch()
    assert team.number(7) == 7 and not team.follows_torch(7)


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1.5", " "])
def test_unreadable_number_counts_as_unset(environment: pytest.MonkeyPatch, text: str) -> None:
    environment.setenv("FUSEPLAN_NUM_THREADS", text)
    environment.setenv("OMP_NUM_THREADS", text)
    assert settings.Settings.from_environment().num_threads == 0 and team.number() == 5


def test_number_has_a_limit(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FUSEPLAN_NUM_THREADS", "100000")
    assert team.number() == team.MOST_THREADS


def test_without_a_compiler_there_is_no_team(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(settings, "_current", settings.Settings(compiler="no-such-compiler"))
    team.library.cache_clear()
    try:
        assert team.library() is None and team.address() == 0
    finally:
        team.library.cache_clear()
