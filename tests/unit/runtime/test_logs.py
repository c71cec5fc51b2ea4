"""The log goes where the settings say, and a fault is reported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.runtime import logs


def use_log(level: int, file: str) -> None:
    """Settings with this log and nothing else."""
    settings.use(settings.Settings(log_level=level, log_file=file))


def test_log_needs_both_a_level_and_a_file(tmp_path: Path) -> None:
    target = tmp_path / "log.txt"
    use_log(0, str(target))
    logs.info("silent")
    assert not target.exists()
    use_log(1, "")
    logs.info("silent")
    use_log(1, str(target))
    logs.info("said")
    logs.info("again")
    assert target.read_text() == "[fuseplan] said\n[fuseplan] again\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_log_goes_to_a_standard_stream(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    use_log(10, name)
    logs.info("hello")
    captured = capsys.readouterr()
    assert getattr(captured, name.removeprefix("std")) == "[fuseplan] hello\n"


def test_once_reports_each_key_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "log.txt"
    use_log(1, str(target))
    assert logs.once("a", "first")
    assert not logs.once("a", "first again")
    assert logs.once("b", "second")
    assert target.read_text() == "[fuseplan] first\n[fuseplan] second\n"
    assert [r.message for r in caplog.records] == ["first", "second"]


def test_log_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    use_log(1, str(tmp_path / "no" / "such" / "folder"))
    logs.info("lost")
