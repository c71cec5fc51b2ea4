"""`fuseplan tour`: each section at tiny sizes, the formulas, and failure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import fuseplan
from fuseplan.cli.main import app
from fuseplan.cli.tour import command, formulas, kernels, lifecycle
from fuseplan.cli.tour.stage import Outcome, Stage, TourError
from fuseplan.errors import ToolchainError


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr("fuseplan.cli.tour.stage.SECONDS_PER_TIMING", 0.0)
    return Stage("cpu", "tiny", Console(force_terminal=False), None)


ALONE: list[command.Section] = [
    kernels.conv_fusion,
    kernels.matmul_epilogue,
    kernels.causal_attention,
    lifecycle.save_and_load,
    lifecycle.dynamic_shapes,
]


@pytest.mark.parametrize("section", ALONE)
def test_tour_section_matches_judge_and_formula(stage: Stage, section: command.Section) -> None:
    found = section(stage)
    assert found.error is not None and found.error <= stage.tolerance


@pytest.mark.parametrize("section", [kernels.autotuning, lifecycle.repeated_calls])
def test_tour_section_that_needs_another_matches(stage: Stage, section: command.Section) -> None:
    with pytest.raises(TourError, match="section 2"):
        section(stage)
    kernels.conv_fusion(stage)
    found = section(stage)
    assert found.error is not None and found.error <= stage.tolerance


def test_tour_environment_names_the_device(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.environment(stage).note == "cpu, FLOAT"


def test_tour_autotuning_lists_a_plan_that_needs_a_missing_compiler_and_goes_on(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.conv_fusion(stage)
    right = fuseplan.pygraph.get_workspace_size_plan_at_index

    def no_compiler(graph: fuseplan.pygraph, index: int) -> int:
        if index == 0:
            raise ToolchainError("there is no C compiler")
        return right(graph, index)

    monkeypatch.setattr(fuseplan.pygraph, "get_workspace_size_plan_at_index", no_compiler)
    found = kernels.autotuning(stage)
    assert found.error is not None and found.error <= stage.tolerance
    assert "plan 0                 cannot run: there is no C compiler" in capsys.readouterr().out


def test_tour_wrong_result_fails_its_section(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    right = formulas.matmul
    monkeypatch.setattr(formulas, "matmul", lambda a, b: right(a, b) + 1e-3)
    with pytest.raises(TourError, match="error .* is over"):
        lifecycle.save_and_load(stage)


def test_tour_exits_with_one_if_a_section_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(stage: Stage) -> Outcome:
        raise ValueError("on purpose")

    def good(stage: Stage) -> Outcome:
        return Outcome(note="fine")

    monkeypatch.setattr(command, "SECTIONS", (("good", good), ("bad", bad)))
    done = CliRunner().invoke(app, ["tour", "--device", "cpu", "--size", "tiny"])
    assert done.exit_code == 1
    assert "failed: bad" in done.output and "1 of 2 sections" in done.output
    monkeypatch.setattr(command, "SECTIONS", (("good", good),))
    assert CliRunner().invoke(app, ["tour", "--device", "cpu", "--size", "tiny"]).exit_code == 0


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
