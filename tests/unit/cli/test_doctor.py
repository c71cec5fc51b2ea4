"""`fuseplan doctor`: what it finds, and what it says is lost."""

from __future__ import annotations

import pytest

import fuseplan
from fuseplan import settings
from fuseplan.cli import doctor
from tests.unit.cli.invoke import invoke


def test_doctor_reports_every_subject() -> None:
    done = invoke("doctor")
    assert done.exit_code == 0, done.output
    subjects = {f.subject for f in doctor.findings()}
    assert {"Python", "numpy", "torch", "C compiler", "Python headers", "dispatcher", "kernel cache", "CPU"} <= subjects
    assert "engines for cpu" in subjects
    assert ("engines for cuda" in subjects) == ("GPU" not in subjects)  # the row says that there is none


def test_version_is_that_of_the_package() -> None:
    done = invoke("--version")
    assert done.exit_code == 0 and done.output == f"fuseplan {fuseplan.__version__}\n"


def test_doctor_without_compiler_says_what_is_lost() -> None:
    before = settings.current()
    settings.use(settings.Settings(compiler="/nowhere/cc", cache_dir=before.cache_dir, dispatcher="python"))
    try:
        found = {f.subject: f for f in doctor.findings()}
    finally:
        settings.use(before)
    assert "generated C kernels" in found["C compiler"].lost
    assert found["dispatcher"].found == "Python, as the settings say" and found["dispatcher"].lost


def test_doctor_without_torch_says_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "torch" else real(name))
    found = {f.subject: f for f in doctor.findings()}
    assert found["torch"].found == "not installed"
    assert "PyTorch tensors" in found["torch"].lost
