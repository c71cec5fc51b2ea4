"""`fuseplan tour`: each section at tiny sizes, the formulas, and failure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fuseplan
from fuseplan.cli.tour import (
    attention,
    autotuning,
    command,
    convolution,
    dynamic_shapes,
    environment,
    formulas,
    matmul_epilogue,
    repeated_calls,
    saving,
)
from fuseplan.cli.tour.setting import Outcome, Setting, TourError
from fuseplan.errors import ToolchainError
from tests.unit.cli.invoke import invoke


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr("fuseplan.cli.tour.setting.SECONDS_PER_TIMING", 0.0)
    return Setting("cpu", "tiny", Console(force_terminal=False), None)


PROGRAMS = [convolution, autotuning, matmul_epilogue, attention, saving, dynamic_shapes, repeated_calls]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.rpartition(".")[2])
def test_tour_program_matches_judge_and_formula(setting: Setting, program: Any) -> None:
    found = program.run(setting)
    assert found.error is not None and found.error <= setting.tolerance


def test_tour_runs_every_program_of_its_folder_and_each_is_short() -> None:
    folder = Path(command.__file__).parent
    files = {p.stem for p in folder.glob("*.py")} - {"__init__", "command", "formulas", "setting"}
    assert {program.__module__.rpartition(".")[2] for _, program in command.PROGRAMS} == files
    assert len(command.PROGRAMS) == 8
    assert max(len((folder / f"{name}.py").read_text().splitlines()) for name in files) < 60


def test_tour_environment_names_the_device(setting: Setting) -> None:
    assert environment.run(setting).note == "cpu, FLOAT"


def test_tour_autotuning_lists_a_plan_that_needs_a_missing_compiler_and_goes_on(
    setting: Setting, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fuseplan.pygraph.get_workspace_size_plan_at_index

    def no_compiler(graph: fuseplan.pygraph, index: int) -> int:
        if index == 0:
            raise ToolchainError("there is no C compiler")
        return right(graph, index)

    monkeypatch.setattr(fuseplan.pygraph, "get_workspace_size_plan_at_index", no_compiler)
    found = autotuning.run(setting)
    assert found.error is not None and found.error <= setting.tolerance
    assert "plan 0                 cannot run: there is no C compiler" in capsys.readouterr().out


def test_tour_wrong_result_fails_its_program(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    right = formulas.matmul
    monkeypatch.setattr(formulas, "matmul", lambda a, b: right(a, b) + 1e-3)
    with pytest.raises(TourError, match="error .* is over"):
        saving.run(setting)


def test_tour_exits_with_one_if_a_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(at: Setting) -> Outcome:
        raise ValueError("on purpose")

    def good(at: Setting) -> Outcome:
        return Outcome(note="fine")

    monkeypatch.setattr(command, "PROGRAMS", (("good", good), ("bad", bad)))
    done = invoke("tour", "--device", "cpu", "--size", "tiny")
    assert done.exit_code == 1
    assert "failed: bad" in done.output and "1 of 2 sections" in done.output
    monkeypatch.setattr(command, "PROGRAMS", (("good", good),))
    assert invoke("tour", "--device", "cpu", "--size", "tiny").exit_code == 0


def test_formulas_match_plain_loops() -> None:
    rng = np.random.default_rng(1)
    x, w, b = rng.standard_normal((1, 2, 4, 3)), rng.standard_normal((2, 2, 3, 3)), rng.standard_normal((1, 2, 1, 1))
    y = formulas.conv_bias_relu(x, w, b, pad=1)
    for k in range(2):
        for p in range(4):
            for q in range(3):
                total = float(b[0, k, 0, 0])
                for c in range(2):
                    for r in range(3):
                        for s in range(3):
                            if 0 <= p + r - 1 < 4 and 0 <= q + s - 1 < 3:
                                total += float(x[0, c, p + r - 1, q + s - 1] * w[k, c, r, s])
                assert math.isclose(y[0, k, p, q], max(total, 0.0), abs_tol=1e-12)
    query, key, value = (rng.standard_normal((1, 1, 3, 2)) for _ in range(3))
    o = formulas.causal_attention(query, key, value, 0.5)
    for i in range(3):
        weights = [math.exp(0.5 * float(query[0, 0, i] @ key[0, 0, j])) for j in range(i + 1)]
        for d in range(2):
            want = sum(weight * float(value[0, 0, j, d]) for j, weight in enumerate(weights)) / sum(weights)
            assert math.isclose(o[0, 0, i, d], want, rel_tol=1e-12)
