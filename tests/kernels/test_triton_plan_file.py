"""A saved plan of Triton kernels: built again from its cubins, without Triton and without a GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fuseplan.engines.triton import compile as aot
from fuseplan.errors import PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.plan import plan_file
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import build_on
from tests.kernels import triton_cases as made
from tests.unit.plan.test_plan_file import edit

pytest.importorskip("triton")
GPU = made.device(90)


def graph() -> Graph:
    """Two regions: a row norm's sum and what follows from a matrix product."""
    m = GraphMaker(random.Random(0))
    x, w = m.input((64, 32), stride=(32, 1)), m.input((32, 48), stride=(48, 1))
    (p,) = m.node("matmul", {"A": x, "B": w})
    (y,) = m.node("exp", {"input": p})
    m.node("reduction", {"input": y}, {"y": (64, 1)}, mode="ADD")
    return m.finish()


@pytest.fixture(scope="module")
def saved() -> bytes:
    return plan_file.dump(build_on(graph(), "triton", GPU), "1.0")


def test_loaded_plan_is_the_saved_one_and_nothing_is_compiled(saved: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build_on(graph(), "triton", GPU).program

    def refuse(*args: Any) -> Any:
        raise AssertionError("a reload must not compile a kernel")

    monkeypatch.setattr(aot, "compile_fresh", refuse)
    monkeypatch.setattr(aot, "tool_versions", refuse)
    assert plan_file.load(saved, GPU).program == expected
    other = replace(GPU, name="another card", sm_count=GPU.sm_count * 2)
    loaded = plan_file.load(saved, other)
    assert loaded.program == expected and loaded.device == other


def test_facts_of_a_cubin_that_do_not_fit_its_launch_are_refused(saved: bytes) -> None:
    def shrink(manifest: Any) -> None:
        for artifact in manifest["artifacts"]:
            artifact["facts"] = artifact["facts"].replace('"num_warps": ', '"num_warps": 1')

    with pytest.raises(PlanFileError, match=r"launches\[\d\].block\[0\] is \d+, its graph gives"):
        plan_file.load(edit(saved, shrink), GPU)


def test_other_architecture_is_refused(saved: bytes) -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match="made for sm_90, not sm_80"):
        plan_file.load(saved, replace(GPU, arch="sm_80"))
