"""Every pair of source and narrower type at its edge values, on every plan of a CPU and in the judge's runs.

The oracle is plain Python: exact fractions, rounding to nearest even, and the overflow rule of each type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.ops.evaluate import run_declared, run_judge

D = cudnn.data_type


@dataclass(frozen=True)
class FloatType:
    """A narrow float type: fraction bits, least exponent of a normal number, largest value, and what lies beyond."""

    array: Any
    fraction: int
    least: int
    largest: Fraction
    overflow: float

    def round(self, x: float | int) -> float:
        """The nearest value, ties to even."""
        if x != x:
            return math.nan
        if abs(x) == math.inf:
            return math.copysign(self.overflow, x)
        exact = Fraction(x)
        if exact == 0:
            return 0.0
        exponent = max(_exponent(abs(exact)), self.least)
        step = Fraction(2) ** (exponent - self.fraction)
        near = round(exact / step) * step
        return math.copysign(self.overflow, x) if abs(near) > self.largest else float(near)


def _exponent(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def _largest(fraction: int, exponent: int) -> Fraction:
    return (2 - Fraction(1, 2**fraction)) * 2**exponent


FLOATS = {
    "HALF": FloatType(np.float16, 10, -14, _largest(10, 15), math.inf),
    "BFLOAT16": FloatType(ml_dtypes.bfloat16, 7, -126, _largest(7, 127), math.inf),
    "FP8_E4M3": FloatType(ml_dtypes.float8_e4m3fn, 3, -6, Fraction(448), 448.0),
    "FP8_E5M2": FloatType(ml_dtypes.float8_e5m2, 2, -14, Fraction(57344), 57344.0),
}
INTS = {"INT8": np.int8, "UINT8": np.uint8, "INT32": np.int32, "INT64": np.int64}
SOURCES: dict[str, tuple[Any, str]] = {  # array type and compute type
    "DOUBLE": (np.float64, "DOUBLE"),
    "FLOAT": (np.float32, "FLOAT"),
    "HALF": (np.float16, "FLOAT"),
    "BFLOAT16": (ml_dtypes.bfloat16, "FLOAT"),
    "INT64": (np.int64, "INT64"),
    "INT32": (np.int32, "INT32"),
    "INT8": (np.int8, "INT32"),
    "UINT8": (np.uint8, "INT32"),
}
TARGETS = [*FLOATS, "FP8_E8M0", "INT8", "UINT8", "INT32", "BOOLEAN"]


def edge_fractions() -> list[Fraction]:
    """Limits of all types, half-way points beside them, and numbers a little off both."""
    points = {Fraction(0), Fraction(10) ** 39, Fraction(10) ** 300, Fraction(1, 3), Fraction(2) ** 63}
    for t in FLOATS.values():
        top = Fraction(2) ** (_exponent(t.largest) - t.fraction)
        low = Fraction(2) ** (t.least - t.fraction)
        points |= {t.largest, t.largest + top / 2, t.largest + top, low, low / 2, low * 3 / 2, Fraction(2) ** t.least}
        for k in (-3, 0, 5):
            unit = Fraction(2) ** (k - t.fraction)
            points |= {Fraction(2) ** k + unit / 2, Fraction(2) ** k + unit * 3 / 2}
    for name, kind in INTS.items():
        limits = np.iinfo(kind)
        points |= {Fraction(n) + f for n in (int(limits.max), abs(int(limits.min))) for f in (0, Fraction(1, 2))}
        points |= {Fraction(n) for n in (2, 3, 5)} if name == "INT8" else set()
    for k in (24, 25, 53, 54, 60, 62):
        points |= {Fraction(2) ** k + Fraction(2) ** j for j in (0, k - 11, k - 8)}
        points |= {Fraction(2) ** k + Fraction(2) ** (k - 8) + 1, Fraction(2) ** k - 1}
    points |= {Fraction(2) ** -127, Fraction(2) ** -128, Fraction(2) ** 127, Fraction(2) ** -140, Fraction(3, 4)}
    return sorted(points)


def edges(source: str) -> Any:
    """Values of a source type at and next to the edges of every type, of both signs."""
    kind = SOURCES[source][0]
    found: set[float | int] = set()
    for point in edge_fractions():
        for sign in (1, -1):
            if source in INTS:
                limits = np.iinfo(kind)
                whole = math.floor(point) * sign
                found |= {min(max(whole + d, int(limits.min)), int(limits.max)) for d in (-1, 0, 1)}
            else:
                with np.errstate(all="ignore"):
                    wide = np.array([sign * float(point)]).astype(kind)
                    near = (wide, np.nextafter(wide, kind(np.inf)), np.nextafter(wide, kind(-np.inf)))
                found |= {float(v[0]) for v in near}
    values = sorted(x for x in found if x == x)
    with_nan = values if source in INTS else [*values, math.inf, -math.inf, math.nan, -0.0]
    return np.array(with_nan, dtype=np.int64 if source in INTS else np.float64).astype(kind)


def expected(x: float | int, target: str) -> float | int:
    """The oracle."""
    if target in FLOATS:
        return FLOATS[target].round(x)
    if target == "BOOLEAN":
        return int(x != 0)
    if target == "FP8_E8M0":
        return _power_of_two(x)
    limits = np.iinfo(INTS[target])
    if x != x:
        return 0
    if abs(x) == math.inf:
        return int(limits.max if x > 0 else limits.min)
    return min(max(round(Fraction(x)), int(limits.min)), int(limits.max))


def _power_of_two(x: float | int) -> float:
    if x != x or x < 0:
        return math.nan
    if x == math.inf or Fraction(x) >= Fraction(2) ** 127:
        return 2.0**127
    if Fraction(x) <= Fraction(2) ** -127:
        return 2.0**-127
    low = Fraction(2) ** _exponent(Fraction(x))
    return float(low if Fraction(x) - low < 2 * low - Fraction(x) else 2 * low)


def is_a_tie(x: Any, target: str) -> bool:
    """Half-way between two powers of two, where nothing says which is even."""
    return (
        target == "FP8_E8M0"
        and math.isfinite(x)
        and x > 0
        and Fraction(x) / Fraction(2) ** _exponent(Fraction(x)) == Fraction(3, 2)
    )


def wrong(values: Any, got: Any, target: str) -> list[str]:
    """What differs from the oracle."""
    bad = []
    plain = values.tolist() if values.dtype.kind in "iu" else values.astype(np.float64).tolist()
    seen = got.astype(np.int64).tolist() if got.dtype.kind in "iub" else got.astype(np.float64).tolist()
    for x, y in zip(plain, seen, strict=True):
        want = expected(x, target)
        if not (y == want or (want != want and y != y)) and not is_a_tie(x, target):
            bad.append(f"{x!r}: {y!r}, not {want!r}")
    return bad


def array_of(target: str) -> Any:
    if target in FLOATS:
        return FLOATS[target].array
    return {"FP8_E8M0": ml_dtypes.float8_e8m0fnu, "BOOLEAN": np.bool_}.get(target) or INTS[target]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_edges_of_a_type_are_stored_in_a_narrow_one_by_every_plan(source: str, target: str) -> None:
    values = edges(source)
    compute = D[SOURCES[source][1]]
    g = cudnn.pygraph(device="cpu", io_data_type=D[source], compute_data_type=compute)
    x = g.tensor(dim=[len(values)])
    y = g.identity(x, compute_data_type=compute).set_output(True).set_data_type(D[target])
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    bad: dict[str, list[str]] = {}
    for k in range(g.get_execution_plan_count()):
        out = np.zeros(len(values), array_of(target))
        g.build_plan_at_index(k)
        work = np.empty(max(1, g.get_workspace_size_plan_at_index(k)), np.uint8)
        g.execute_plan_at_index({x: values, y: out}, work, k)
        if found := wrong(values, out, target):
            bad[g.get_plan_name_at_index(k)] = found
    assert bad == {}


@pytest.mark.parametrize("target", ["INT8", "UINT8", "INT32", "BOOLEAN"])
@pytest.mark.parametrize("source", SOURCES)
def test_edges_of_a_type_become_integers_in_the_judge_as_in_the_declared_run(source: str, target: str) -> None:
    values = edges(source)
    compute = D[SOURCES[source][1]]
    g = cudnn.pygraph(device="cpu", io_data_type=D[source], compute_data_type=compute)
    x = g.tensor(dim=[len(values)])
    y = g.identity(x, compute_data_type=compute).set_output(True).set_data_type(D[target])
    g.validate()
    graph = g.validated() if hasattr(g, "validated") else g._draft.validated()
    for run in (run_judge, run_declared):
        with np.errstate(all="ignore"):
            got = run(graph, {x.get_uid(): values})[y.get_uid()]
        assert wrong(values, np.asarray(got), target) == []
