"""Settings from the environment: what cannot be read is reported once and counts as unset."""

from __future__ import annotations

import os
import pwd
from dataclasses import fields
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from fuseplan import settings
from fuseplan.settings import Settings

READ: dict[str, tuple[str, str, object]] = {
    "FUSEPLAN_CACHE_DIR": ("/some/folder", "cache_dir", Path("/some/folder")),
    "FUSEPLAN_CACHE_LIMIT_MB": (" 3 ", "cache_limit_bytes", 3 << 20),
    "FUSEPLAN_CC": ("clang", "compiler", "clang"),
    "FUSEPLAN_NUM_THREADS": ("3", "num_threads", 3),
    "OMP_NUM_THREADS": ("4,2", "num_threads", 4),
    "FUSEPLAN_DISPATCHER": ("Python", "dispatcher", "python"),
    "CUDNN_FRONTEND_LOG_INFO": ("2", "log_level", 2),
    "CUDNN_FRONTEND_LOG_FILE": ("stderr", "log_file", "stderr"),
    "CUDNN_CUDA_GRAPH_RETENTION": ("none", "cuda_graph_retention", "none"),
    "FUSEPLAN_VERIFY": ("1", "verify", True),
}
NOT_READ = {
    "FUSEPLAN_CACHE_DIR": ["~nobody-of-this-name/x"],
    "FUSEPLAN_CACHE_LIMIT_MB": ["\u00b2", "-1", "1.5", "1_0", "9" * 5000, "many", "\udcff"],
    "FUSEPLAN_NUM_THREADS": ["\u00b2", "-1", "all"],
    "OMP_NUM_THREADS": ["\u00b2", ",", "all"],
    "FUSEPLAN_DISPATCHER": ["rust", "\u00b2"],
    "CUDNN_FRONTEND_LOG_INFO": ["\u00b2", "-1", "on"],
    "CUDNN_CUDA_GRAPH_RETENTION": ["sometimes"],
}


@pytest.mark.parametrize("variable", READ)
def test_variable_is_read_into_its_field(variable: str, caplog: pytest.LogCaptureFixture) -> None:
    text, name, value = READ[variable]
    made = Settings.from_environment({variable: text})
    assert getattr(made, name) == value
    others = [f.name for f in fields(Settings) if f.name != name]
    assert all(getattr(made, n) == getattr(Settings(), n) for n in others)
    assert caplog.records == []


def test_every_variable_is_tried_here() -> None:
    assert set(settings._VARIABLES) == set(READ)


@pytest.mark.parametrize(("variable", "text"), [(v, t) for v, texts in NOT_READ.items() for t in texts])
def test_value_that_cannot_be_read_counts_as_unset(variable: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Settings.from_environment({variable: text}) == Settings()
    assert [variable in r.getMessage() for r in caplog.records] == [True]


def test_all_that_cannot_be_read_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert Settings.from_environment({v: texts[0] for v, texts in NOT_READ.items()}) == Settings()
    assert len(caplog.records) == 1 and all(v in caplog.records[0].getMessage() for v in NOT_READ)


def test_empty_values_are_unset() -> None:
    assert Settings.from_environment(dict.fromkeys(READ, "")) == Settings()


@pytest.mark.parametrize("problem", [KeyError("uid"), RuntimeError("no home"), OSError("no list of users")])
def test_user_without_a_home_gets_a_folder_that_nobody_can_write(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise problem

    monkeypatch.setattr(platformdirs, "user_cache_dir", fail)
    assert Settings().cache_dir == settings.NO_HOME


def test_home_that_stays_a_tilde_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Any:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert Settings().cache_dir == settings.NO_HOME
    with pytest.raises(OSError):
        os.makedirs(settings.NO_HOME)
