"""Rows, columns and sums in parts against float64, every listed config; `test_triton_interpreter.py` starts it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tests.kernels.triton_cases as made
from fuseplan.dtypes import FLOAT, HALF, DType
from fuseplan.engines.base import Support
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.forms import rows as rows_form
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.engines.triton.rows import held, shifted
from fuseplan.ir.region import Region
from tests.kernels.triton_interpret import run_interpreted
from tests.ops.primitive_interpreter import evaluate

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
LIMIT = {FLOAT: 2e-6, HALF: 2e-3}  # of the norm of the difference, relative to that of the result


def sums(dim: tuple[int, ...], axes: tuple[int, ...], dtype: DType = FLOAT, mode: str = "add") -> Region:
    d = made.Draft(len(dim))
    d.store(d.op("reduce", d.load(dim, dtype), mode=mode, axes=axes, dtype=FLOAT))
    return d.region()


def norm_of_columns(rows: int, columns: int) -> Region:
    """The root of the sum of squares of each column, scaled by a row; and a tile that is stored beside it."""
    d = made.Draft(2)
    x, scale = d.load((rows, columns), FLOAT), d.load((1, columns), FLOAT)
    y = d.op("mul", x, scale)
    d.store(y)
    square = d.op("reduce", d.op("mul", y, y), mode="add", axes=(0,))
    d.store(d.op("mul", d.op("sqrt", d.op("div", square, d.op("count", y, axes=(0,)))), scale))
    return d.region()


def scaled_rows(rows: int, columns: int) -> Region:
    """Rows over their sums, times a value that all rows share and that is stored too."""
    d = made.Draft(2)
    x, scale = d.load((rows, columns), FLOAT), d.load((1, columns), FLOAT)
    shared = d.op("add", scale, scale)
    d.store(shared)
    d.store(d.op("mul", d.op("div", x, d.op("reduce", d.op("abs", x), mode="add", axes=(1,))), shared))
    return d.region()


def check(region: Region, form: str, limit: float) -> set[tuple[str, ...]]:
    """Run every listed config into poisoned outputs; the names of the kernels that ran."""
    found = ENGINE.match(region, made.device())
    assert not isinstance(found, Support), found.reason
    assert found[0].name == form
    ran = set()
    for config in found[0].configs(found[1]).configs():
        buffers = made.buffers_for(region, np.random.default_rng(5))
        loads = {v: made.view_of(region.operands[k], buffers[k]).astype(np.float64) for v, k in region.loads}
        want = evaluate(region.values, loads, lambda t: np.float64)
        emitted = found[0].emit(found[1], config)
        run_interpreted(region, emitted, buffers)
        for value, k in region.stores:
            got = made.view_of(region.operands[k], buffers[k]).astype(np.float64)
            error = np.linalg.norm(got - want[value]) / np.linalg.norm(want[value])
            assert error < limit, (config, k, error)
        ran.add(tuple(step.function for step in emitted.steps))  # type: ignore[union-attr]
    return ran


SUMS: dict[str, tuple[Callable[[], Region], set[tuple[str, ...]]]] = {  # table: region, kernels that some config has
    "columns": (lambda: sums((700, 130), (0,)), {("rows", "whole_rows")}),
    "columns-half": (lambda: sums((513, 64), (0,), HALF), {("rows", "whole_rows")}),
    "few-rows-of-columns": (lambda: sums((5, 900), (0,)), {("whole_rows",)}),
    "middle": (lambda: sums((3, 210, 70), (1,)), {("rows",)}),
    "both-ends": (lambda: sums((40, 30, 50), (0, 2)), {("whole_rows",)}),
    "long-rows": (lambda: sums((3, 40001), (1,)), {("rows", "whole_rows")}),
    "longest": (lambda: sums((3, 40001), (1,), mode="max"), {("rows", "whole_rows")}),
    "everything": (lambda: sums((7, 90, 65), (0, 1, 2)), {("rows", "whole_rows")}),
    "rows-in-parts": (lambda: sums((9, 1283), (1,)), {("whole_rows",)}),
    "norm-of-columns": (lambda: norm_of_columns(600, 70), {("rows", "whole_rows")}),
    "shared-by-rows": (lambda: scaled_rows(9, 70), {("whole_rows",)}),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_match_float64(name: str) -> None:
    make, kernels = SUMS[name]
    assert kernels <= check(make(), "rows", LIMIT[HALF] if "half" in name else LIMIT[FLOAT])


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "is_layer"),
    [
        (37, 40, FLOAT, True),
        (37, 40, FLOAT, False),
        (300, 96, HALF, True),
        (14, 1300, HALF, False),
        (1, 64, FLOAT, True),
    ],
)
def test_gradients_of_norms_match_float64(rows: int, columns: int, dtype: DType, is_layer: bool) -> None:
    region = made.norm_gradients(rows, columns, dtype, is_layer=is_layer)
    ran = check(region, "rows", LIMIT[dtype])
    assert {names[0] for names in ran} == {"whole_rows"} and all(len(names) == 2 or rows == 1 for names in ran)


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(10, 4099, HALF), (4, 5001, FLOAT)])
def test_rows_that_begin_anywhere_in_a_vector_match_float64(
    rows: int, columns: int, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shifted, "_LEAST_COLUMNS", 4000)
    region = made.softmax(rows, columns, dtype)
    check(region, "rows", LIMIT[dtype])
    found = made.emitted(region)
    assert found.unaligned is not None
    (kernel,), (plain,) = made.kernels(region), found.unaligned().steps
    assert isinstance(plain, Kernel)
    assert ("multiple_of" in kernel.source, "multiple_of" in plain.source) == (True, False)


def test_gradients_over_rows_that_fit_no_program_are_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_form, "_GRADIENT_COLUMNS", 64)
    ran = check(made.norm_gradients(90, 130, FLOAT), "apart", LIMIT[FLOAT])
    assert len(ran) == 1 and len(next(iter(ran))) >= 2


def test_sums_over_rows_and_columns_of_one_input_are_one_pass() -> None:
    d = made.Draft(3)
    x = d.load((4, 60, 50), FLOAT)
    d.store(d.op("reduce", x, mode="max", axes=(2,)))
    d.store(d.op("reduce", x, mode="add", axes=(0, 1)))
    region = d.region()
    main, folding = made.kernels(region)
    assert "store_sums" in main.source and [p.operand for p in folding.params if p.operand >= 0] == [2]
    check(region, "rows", LIMIT[FLOAT])


def test_long_rows_are_one_pass_or_several() -> None:
    assert check(made.softmax(1, 33001, HALF), "rows", LIMIT[HALF]) == {("whole_rows",), ("rows",)}


@pytest.mark.parametrize("make", [made.softmax, made.rms_norm, made.add_layer_norm_gelu])
def test_rows_held_as_loaded(make: Callable[[int, int, DType], Region], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_WIDENED", 64)
    region = make(5, 1300, HALF)
    assert any("again(" in kernel.source for kernel in made.kernels(region))
    assert check(region, "rows", LIMIT[HALF]) == {("whole_rows",)}
