"""The functions of floats that generated C has of its own: measured errors, special values, vector code."""

from __future__ import annotations

import math
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseplan.codegen.c_helpers import HELPERS, prelude
from fuseplan.dtypes import BFLOAT16
from fuseplan.engines.cpu_c.engine import FLAGS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import is_x86
from fuseplan.runtime.toolchain import KERNEL_FLAGS, find_compiler, has_compiler
from tests.kernels.cpu_c_harness import RegionBuilder, run_region

Array = np.ndarray[Any, Any]
IS_GCC = has_compiler() and "clang" not in find_compiler().version.lower()
pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")

# table: largest error allowed, in units of the last place
BOUNDS = {
    "exp": 1.1,
    "exp_down": 1.1,
    "log": 1.0,
    "log1p": 1.4,
    "tanh": 1.4,
    "erf": 1.1,
    "sin": 0.6,
    "cos": 0.6,
    "tan": 0.6,
}
SIGMOID_BOUND = 2.5
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, 3.4028235e38,
           -3.4028235e38, 88.72283, 88.72284, -87.33655, -103.97207, -103.97209, -104.5, 200.0, -200.0, 0.625, 0.93,
           0.70710678, 1.4142135, 2.4e38, -0.99999994, 4.0, 9.1, 1e5, 1e10, 3e38, 16367173.0, 5.0e-324]  # fmt: skip


def exact(op: str, x: Array) -> Array:
    """The function in float64."""
    with np.errstate(all="ignore"):
        if op == "erf":
            return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)
        if op == "sigmoid":
            return np.asarray(np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))))
        return np.asarray(np.exp(-np.abs(x)) if op == "exp_down" else getattr(np, op)(x))


def region_of(op: str, size: int) -> Region:
    b = RegionBuilder()
    x = b.load((size,))
    if op == "exp_down":  # what the kernel calls for it
        b.store(b.op("exp", b.op("neg", b.op("abs", x))))
        return b.region()
    if op != "sigmoid":
        b.store(b.op(op, x))
        return b.region()
    one, e = b.const(1.0, 1), b.op("exp", b.op("neg", b.op("abs", x)))  # as the op of this name is written
    b.store(b.op("div", b.op("select", b.op("ge", x, b.const(0.0, 1)), one, e), b.op("add", one, e)))
    return b.region()


def ulps(actual: Array, expected: Array) -> Array:
    """Errors in units of the last place of the float nearest to `expected`; inf where one alone is no number."""
    with np.errstate(all="ignore"):
        near = expected.astype(np.float32)
        size = np.spacing(np.minimum(np.abs(near), np.float32(3e38))).astype(np.float64)
        wrong = np.abs(actual.astype(np.float64) - expected) / np.maximum(size, 2.0**-149)
    same = (actual == near) | (np.isnan(actual) & np.isnan(near))
    return np.where(np.isfinite(near) & np.isfinite(actual), wrong, np.where(same, 0.0, np.inf))


def worst(op: str, x: Array) -> tuple[float, float]:
    """The largest error over these arguments, and where it is."""
    (y,) = run_region(region_of(op, x.size), [x])
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = x.astype(np.float64)
    found = ulps(y, exact(op, wide))
    k = int(found.argmax())
    return float(found[k]), float(x[k])


def all_exponents(seed: int, each: int) -> Array:
    """Random mantissas of both signs at every exponent, those of infinities and denormal numbers among them."""
    rng = np.random.default_rng(seed)
    high = np.arange(512, dtype=np.uint32)[:, None] << 23
    return np.asarray((high | rng.integers(0, 1 << 23, (512, each), np.uint32)).view(np.float32).ravel())


def around(low: float, high: float, seed: int, size: int) -> Array:
    return np.random.default_rng(seed).uniform(low, high, size).astype(np.float32)


@pytest.mark.parametrize("op", [*BOUNDS, "sigmoid"])
def test_errors_stay_below_their_bounds_at_all_exponents(op: str) -> None:
    size = 5_000 if op == "erf" else 40_000
    x = np.concatenate([all_exponents(1, 100), around(-105, 90, 2, size), around(-2, 2, 3, size),
                        around(0.4, 1.6, 4, size), np.array(SPECIAL, np.float32)])  # fmt: skip
    error, place = worst(op, x)
    bound = BOUNDS.get(op, SIGMOID_BOUND)
    assert error <= bound, f"{op}({place!r}) is wrong by {error:.3f} ulp, allowed are {bound}"


@pytest.mark.full
@pytest.mark.parametrize("op", [*BOUNDS, "sigmoid"])
def test_errors_stay_below_their_bounds_over_all_floats(op: str) -> None:
    step = 4099 if op == "erf" else 257
    for first in range(0, 1 << 32, 1 << 28):
        x = np.arange(first, first + (1 << 28), step, np.uint64).astype(np.uint32).view(np.float32)
        error, place = worst(op, np.asarray(x))
        assert error <= BOUNDS.get(op, SIGMOID_BOUND), f"{op}({place!r}) is wrong by {error:.3f} ulp"


@pytest.mark.parametrize("op", ["log1p", "tanh", "erf", "sin", "tan"])
def test_the_sign_of_zero_is_kept(op: str) -> None:
    (y,) = run_region(region_of(op, 40), [np.full(40, -0.0, np.float32)])
    assert np.signbit(y).all()


def test_quarter_turns_are_those_of_pi() -> None:
    """By Machin's formula in whole numbers, apart from how they were written down."""

    def arctan_of_inverse(n: int, one: int) -> int:
        total, term, k = 0, one // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // (n * n), k + 1
        return total

    one = 1 << 400
    pi = 4 * (4 * arctan_of_inverse(5, one) - arctan_of_inverse(239, one))
    names = ("quarters_1", "quarters_2", "quarters_3", "angle_left")
    pieces = [[float.fromhex(x) for x in re.findall(r"0x1[^,\s)]*p[+-]?\d+", HELPERS[name])[:4]] for name in names]
    for k in range(4):
        turns = Fraction(2 * one, pi) * Fraction(2) ** (32 * k) % 4
        assert abs(sum(Fraction(piece[k]) for piece in pieces) - turns) < Fraction(2) ** -130
        for piece in pieces[:3]:
            assert Fraction(piece[k]).numerator < 1 << 29  # times the 24 bits of a float it is exact


def compiled(flags: tuple[str, ...], body: str, folder: Path) -> str:
    """What gcc says about its loops."""
    file = folder / "loops.c"
    file.write_text(prelude(body) + body)
    done = subprocess.run(
        [find_compiler().path, *KERNEL_FLAGS, *FLAGS, *flags, "-c", str(file), "-o", str(folder / "loops.o")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    return done.stderr


LOOPS = {
    **{op: f"y[i] = {op}_f32(x[i])" for op in BOUNDS},
    "bfloat": "z[i] = bfloat_from_float(bfloat_to_float(z[i]) * x[i])",
    "half": "z[i] = half_from_float(half_to_float(z[i]) * x[i])",
    "round": "y[i] = bfloat_round(x[i]) + half_round(x[i])",
    "stored": "z[i] = bfloat_bits(bfloat_round(x[i]))",
    "int8": "y[i] = (float)int8_from((double)x[i])",
}


@pytest.mark.skipif(not is_x86() or not IS_GCC, reason="asks gcc for x86 code")
@pytest.mark.parametrize(("march", "width"), [("x86-64-v4", 64), ("x86-64-v3", 32)])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_become_vector_code(name: str, march: str, width: int, tmp_path: Path) -> None:
    body = f"""\
void loop(const float *restrict x, float *restrict y, uint16_t *restrict z, int64_t n);
void loop(const float *restrict x, float *restrict y, uint16_t *restrict z, int64_t n) {{
  (void)y, (void)z;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {LOOPS[name]};
}}
"""
    said = compiled((f"-march={march}", "-fopt-info-vec"), body, tmp_path)
    assert f"loop vectorized using {width} byte vectors" in said


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_floats_are_rounded_to_bfloat16_at_all_exponents() -> None:
    """To nearest, ties to even, in a store and in between; what is no number stays none."""
    high = all_exponents(6, 40).view(np.uint32) & 0xFFFF0000
    x = np.concatenate([high | low for low in (0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    wide = x.view(np.uint32).astype(np.uint64)
    rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    expected = np.where(np.isnan(x), np.uint16(0xFFFF), rounded)
    b = RegionBuilder()
    half = b.op("cast", b.load((x.size,)), dtype=BFLOAT16)
    b.store(half)
    b.store(b.op("cast", half))
    stored, between = run_region(b.region(), [x])
    np.testing.assert_array_equal(stored.view(np.uint16), expected)
    np.testing.assert_array_equal(between.view(np.uint32), expected.astype(np.uint32) << 16)
