"""The judge's conversions are right, and its verdict does not depend on those of the `array` engine."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan import dtypes
from fuseplan.ir.graph import Graph, TensorSpec
from fuseplan.ops import casts, judge_casts
from fuseplan.ops.arrays import numpy_namespace, torch_namespace
from fuseplan.ops.evaluate import Casts, run_declared, scalar_array
from fuseplan.ops.judge import judge
from tests.ops.test_narrowing import SOURCES, TARGETS, edges, wrong

D = cudnn.data_type
XP = numpy_namespace()
BOTH: tuple[Casts, Casts] = (casts, judge_casts)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_edges_of_a_type_are_rounded_once(source: str, target: str) -> None:
    values = edges(source)
    if source == "INT64" and dtypes.dtype_of(target).is_float:  # larger ones round to float64 first
        values = values[np.abs(values.astype(np.float64)) <= 2.0**53]
    with np.errstate(all="ignore"):
        assert wrong(values, judge_casts.narrow(XP, values, dtypes.dtype_of(target)), target) == []


def test_fp4_is_rounded_once_and_has_no_nan() -> None:
    given = np.array([0.25, 0.26, 0.75, 1.25, 2.5, 5.0, 7.0, np.inf, -3.4, np.nan])
    made = judge_casts.narrow(XP, given, dtypes.FP4_E2M1)
    assert made.tolist() == [0.0, 0.5, 1.0, 1.0, 2.0, 4.0, 6.0, 6.0, -3.0, 0.0]


def test_no_code_of_the_array_engine_takes_part() -> None:
    text = Path(judge_casts.__file__).read_text()
    imports = [n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    assert "fuseplan.ops.arrays" in imports and not any("casts" in str(module) for module in imports)


@pytest.mark.parametrize("target", ["HALF", "BFLOAT16", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FLOAT", "INT8", "BOOLEAN"])
def test_scalars_of_a_graph_are_the_same_over_pytorch(target: str) -> None:
    pytest.importorskip("torch")
    t = dtypes.dtype_of(target)
    for value in (2.7, 1e9, 1e-39) if t.is_float else (1, 100, 300):
        spec = TensorSpec(1, "s", (1,), (1,), t, value=value)
        over_numpy, over_torch = (
            [np.asarray(by.widen(xp, scalar_array(xp, spec, {}, by), dtypes.DOUBLE)).tolist() for by in BOTH]
            for xp in (XP, torch_namespace())
        )
        assert over_numpy == over_torch and over_numpy[0] == over_numpy[1]


def convert(source: str, target: str, compute: str) -> tuple[Graph, int, int]:
    """A graph that stores its input in another type, by way of a virtual tensor of that type; uids of both."""
    g = cudnn.pygraph(device="cpu", io_data_type=D[source], compute_data_type=D[compute])
    x = g.tensor(dim=[8])
    virtual = g.identity(x, compute_data_type=D[compute]).set_data_type(D[target])
    y = g.identity(virtual, compute_data_type=D[compute]).set_output(True).set_data_type(D[target])
    g.validate()
    return g._draft.validated(), x.get_uid(), y.get_uid()


Fault = Callable[[Any, Any], Any]  # of an argument and the right result


def changed(target: str, change: Fault) -> Callable[..., Any]:
    """`casts.narrow` with a fault for one type."""
    right = casts.narrow

    def narrow(xp: Any, x: Any, t: dtypes.DType) -> Any:
        made = right(xp, x, t)
        return made if t.name != target else np.asarray(change(np.asarray(x), made)).astype(made.dtype)

    return narrow


def truncated(x: Any, made: Any) -> Any:
    """Towards zero, in a coarser grid: by a fault of a quarter."""
    return made.astype(np.float64) * 0.75


FAULTS: dict[str, tuple[str, str, str, list[float], Fault]] = {  # source, target, compute, input, fault
    "FP8 does not saturate": ("FLOAT", "FP8_E4M3", "FLOAT", [1e3, -1e4, 500, 1], lambda x, y: np.where(
        np.abs(x) > 448, np.nan, y.astype(np.float64))),
    "FP8 saturates too low": ("FLOAT", "FP8_E5M2", "FLOAT", [1e5, -1e9, 57344, 1], lambda x, y: np.clip(
        y.astype(np.float64), -448, 448)),
    "FP8 is a quarter off": ("FLOAT", "FP8_E4M3", "FLOAT", [16, -32, 3, 1], truncated),
    "HALF overflows early": ("FLOAT", "HALF", "FLOAT", [6e4, -65504, 3e4, 1], lambda x, y: np.where(
        np.abs(x) > 32768, np.inf * np.sign(x), y.astype(np.float64))),
    "HALF is flushed": ("FLOAT", "HALF", "FLOAT", [2**-16, 2**-15, 1, 2], lambda x, y: np.where(
        np.abs(x) < 2**-14, 0.0, y.astype(np.float64))),
    "BFLOAT16 overflows early": ("FLOAT", "BFLOAT16", "FLOAT", [1e38, -2e38, 3e37, 1], lambda x, y: np.where(
        np.abs(x) > 5e37, np.inf * np.sign(x), y.astype(np.float64))),
    "BFLOAT16 is a quarter off": ("FLOAT", "BFLOAT16", "FLOAT", [3, -5, 1e10, 1], truncated),
    "integers wrap": ("INT32", "INT8", "INT32", [300, -200, 127, 1], lambda x, y: x.astype(np.int64).astype(np.int8)),
    "UINT8 has a sign": ("FLOAT", "UINT8", "FLOAT", [-3, 300, 255, 1], lambda x, y: x.astype(np.int64) & 255),
    "integers are cut off": ("FLOAT", "INT32", "FLOAT", [1.75, -2.75, 3.5, 1], lambda x, y: np.trunc(x)),
    "INT64's limit is its neighbour": ("FLOAT", "INT64", "FLOAT", [1e30, -1e30, 1, 2], lambda x, y: np.where(
        np.abs(x) > 2.0**62, -y, y)),
    "FP8_E8M0 of zero is NaN": ("FLOAT", "FP8_E8M0", "FLOAT", [0, 1, 2, 4], lambda x, y: np.where(
        x == 0, np.nan, y.astype(np.float64))),
    "FP8_E8M0 is twice too large": ("FLOAT", "FP8_E8M0", "FLOAT", [0.5, 1, 2, 2.0**60], lambda x, y: np.where(
        x > 1, 2.0**120, y.astype(np.float64))),
    "BOOLEAN is odd": ("INT32", "BOOLEAN", "INT32", [2, 3, 0, 256], lambda x, y: x.astype(np.int64) & 1),
    "BOOLEAN is positive": ("FLOAT", "BOOLEAN", "FLOAT", [-1, 0.25, 0, 1], lambda x, y: x > 0),
}  # fmt: skip


def check_that_the_judge_notices(monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any],
                                 case: tuple[Graph, int, int], values: Any) -> None:  # fmt: skip
    graph, x, _ = case
    with np.errstate(all="ignore"):
        honest = run_declared(graph, {x: values})
        assert judge(graph, {x: values}, honest).is_right
        monkeypatch.setattr(casts, name, fault)
        broken = run_declared(graph, {x: values})
        assert not judge(graph, {x: values}, broken).is_right
        assert judge(graph, {x: values}, honest).is_right


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_narrow_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, compute, given, fault = FAULTS[name]
    values = np.array([*given, 0.0, 1.0, 1.0, 2.0]).astype(SOURCES[source][0])
    case = convert(source, target, compute)
    check_that_the_judge_notices(monkeypatch, "narrow", changed(target, fault), case, values)


@pytest.mark.parametrize("compute", ["HALF", "BFLOAT16"])
def test_fault_of_narrow_in_a_compute_type_is_noticed(compute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([3, 5, -7, 1, 0.5, 2, 9, 100], np.float32)
    case = convert("FLOAT", "FLOAT", compute)
    check_that_the_judge_notices(monkeypatch, "narrow", changed(compute, truncated), case, values)


WIDENED: dict[str, tuple[str, str, Fault]] = {  # source, compute, fault
    "FP8_E4M3": ("FP8_E4M3", "FLOAT", lambda x, y: y * 0.75),
    "FP8_E8M0": ("FP8_E8M0", "FLOAT", lambda x, y: y * 2),
    "HALF": ("HALF", "FLOAT", lambda x, y: np.clip(y, -4, 4)),
    "BFLOAT16": ("BFLOAT16", "FLOAT", lambda x, y: np.where(np.abs(y) > 1e30, np.inf, y)),
    "INT32": ("INT64", "INT32", lambda x, y: x.astype(np.int32)),
    "BOOLEAN": ("UINT8", "BOOLEAN", lambda x, y: x & 1),
}


@pytest.mark.parametrize("name", WIDENED)
def test_fault_of_widen_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, compute, fault = WIDENED[name]
    right = casts.widen

    def widen(xp: Any, x: Any, t: dtypes.DType, *, judge: bool = False) -> Any:
        made = right(xp, x, t, judge=judge)
        is_input = x.dtype == values.dtype
        return np.asarray(fault(np.asarray(x), made)).astype(made.dtype) if is_input else made

    top = {"INT64": 2.0**40, "BFLOAT16": 1e38}.get(source, 64.0)
    kinds = {"FP8_E4M3": ml_dtypes.float8_e4m3fn, "FP8_E8M0": ml_dtypes.float8_e8m0fnu}
    values = np.array([1, 2, 4, 8, 16, 32, top, 2]).astype(kinds.get(source) or SOURCES[source][0])
    target = "FLOAT" if compute == "FLOAT" else compute
    check_that_the_judge_notices(monkeypatch, "widen", widen, convert(source, target, compute), values)
