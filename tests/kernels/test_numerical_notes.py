"""Numerical notes of plans, and the filters that go by them; a GPU is a value here, none is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.engines.base import config
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.ir.graph import packed_stride
from tests.kernels import triton_cases

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("torch", reason="torch is not installed; the array engine needs it for CUDA memory")

FLOAT, HALF, BF16 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.BFLOAT16
Note = cudnn.numerical_note


def begin(io: Any, compute: Any = FLOAT) -> Any:
    """A graph planned for an H100-like device that is not here."""
    facts = cudnn.create_device_properties(-1)
    facts.device = triton_cases.device()
    assert asdict(facts.device)["arch"] == "sm_90"
    return cudnn.pygraph(
        io_data_type=io, intermediate_data_type=FLOAT, compute_data_type=compute, device_property=facts
    )


def matmul(
    io: Any, compute: Any = FLOAT, closing: str = "", kept: tuple[int, ...] = (1, 1, 1), mode: Any = None
) -> Any:
    """A product, and what closes it."""
    g = begin(io, compute)
    y = g.matmul(A=g.tensor(dim=[2, 128, 64], name="a"), B=g.tensor(dim=[2, 64, 96], name="b"))
    y.set_output(True)
    if closing:
        top = g.reduction(input=y, mode=getattr(cudnn.reduction_mode, closing), compute_data_type=FLOAT)
        top.set_output(True).set_data_type(FLOAT).set_dim(list(kept)).set_stride(packed_stride(kept))
    return g


def reduction(dim: tuple[int, ...], kept: tuple[int, ...], mode: str) -> Any:
    g = begin(FLOAT)
    top = g.reduction(input=g.tensor(dim=list(dim), name="x"), mode=getattr(cudnn.reduction_mode, mode))
    top.set_output(True).set_dim(list(kept)).set_stride(packed_stride(kept))
    return g


NOTES: dict[str, tuple[Callable[[], Any], set[str]]] = {  # table
    "half-matmul": (lambda: matmul(HALF), {"TENSOR_CORE"}),
    "bfloat16-matmul": (lambda: matmul(BF16), {"TENSOR_CORE"}),
    "float-matmul": (lambda: matmul(FLOAT), set()),
    "float-matmul-in-half": (lambda: matmul(FLOAT, HALF), {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}),
    "matmul-with-sum": (lambda: matmul(HALF, closing="ADD"), {"TENSOR_CORE", "NONDETERMINISTIC"}),
    "matmul-with-mean": (lambda: matmul(HALF, closing="AVG"), {"TENSOR_CORE", "NONDETERMINISTIC"}),
    "matmul-with-column-sums": (
        lambda: matmul(FLOAT, closing="ADD", kept=(1, 1, 96)), {"NONDETERMINISTIC"}
    ),
    "matmul-with-largest": (lambda: matmul(HALF, closing="AMAX"), {"TENSOR_CORE"}),
    "row-sums": (lambda: reduction((64, 64), (64, 1), "ADD"), set()),
    "large-sum": (lambda: reduction((1024, 1024), (1, 1), "ADD"), set()),  # parts are added in a fixed order
    "small-sum": (lambda: reduction((16, 16), (1, 1), "ADD"), set()),
    "large-maximum": (lambda: reduction((1024, 1024), (1, 1), "MAX"), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_notes_say_how_a_plan_computes(name: str) -> None:
    make, want = NOTES[name]
    g = make()
    g.create_execution_plans()
    entries = [e for e in g.plans if e.engine_name == "triton"]
    assert entries and all(set(e.numeric_notes) == want for e in entries)
    general = [e for e in g.plans if e.engine_name == "array"]
    assert [e.numeric_notes for e in general] == [()]


def barred(g: Any) -> dict[str, bool]:
    """Engine name -> whether all of its plans are barred; the plans of an engine have one fate here."""
    found: dict[str, set[bool]] = {}
    for e in g.plans:
        found.setdefault(e.engine_name, set()).add(bool(e.barred))
    assert all(len(fates) == 1 for fates in found.values())
    return {name: fates.pop() for name, fates in found.items()}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("make", "choose", "want"),
    [
        ("matmul-with-sum", lambda g: g.deselect_numeric_notes([Note.NONDETERMINISTIC]), (True, False)),
        ("matmul-with-largest", lambda g: g.deselect_numeric_notes([Note.NONDETERMINISTIC]), (False, False)),
        ("matmul-with-sum", lambda g: g.select_numeric_notes([Note.NONDETERMINISTIC]), (False, True)),
        ("matmul-with-largest", lambda g: g.select_numeric_notes([Note.NONDETERMINISTIC]), (True, True)),
        ("half-matmul", lambda g: g.select_numeric_notes([Note.TENSOR_CORE]), (False, True)),
        ("half-matmul", lambda g: g.deselect_numeric_notes([Note.TENSOR_CORE]), (True, False)),
        ("float-matmul", lambda g: g.deselect_numeric_notes([Note.TENSOR_CORE]), (False, False)),
        ("large-sum", lambda g: g.deselect_numeric_notes([Note.NONDETERMINISTIC]), (False, False)),
    ],
)
def test_filters_by_numerical_notes_bar_the_right_plans(
    make: str, choose: Callable[[Any], Any], want: tuple[bool, bool], when: str
) -> None:
    g = NOTES[make][0]()
    if when == "before":
        choose(g)
    g.create_execution_plans()
    if when == "after":
        choose(g)
    assert barred(g) == dict(zip(("triton", "array"), want, strict=True))


def test_notes_need_no_build_and_hold_for_every_config() -> None:
    region = triton_cases.matmul_gelu_amax(2, 64, 64, 64, triton_cases.FLOAT)
    device = triton_cases.device()
    for chosen in (*ENGINE.knobs(region, device).configs(), config(BLOCK_M=16)):
        assert ENGINE.notes(region, device, chosen) == frozenset()
