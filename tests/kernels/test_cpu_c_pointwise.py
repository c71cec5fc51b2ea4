"""Pointwise kernels of `cpu_c`: primitives, conversions, special values, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from fuseplan.dtypes import (
    BFLOAT16,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    HALF,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
    dtype_of,
)
from fuseplan.ir.region import BINARY, UNARY, Role
from fuseplan.ops.arrays import numpy_dtype
from tests.kernels.cpu_c_harness import RegionBuilder, interpret, near, random_array, run_region

STORAGE_TYPES = (FLOAT, DOUBLE, HALF, BFLOAT16, INT8, UINT8, INT32, INT64, BOOLEAN)
EXACT = ("neg", "abs", "sqrt", "floor", "ceil", "not_", "add", "sub", "mul", "div", "max", "min", "mod",
         "eq", "ne", "gt", "ge", "lt", "le", "and_", "or_")  # fmt: skip
INEXACT = tuple(sorted((UNARY | BINARY) - set(EXACT)))
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.25, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 1e-30]


def all_primitives(ops: tuple[str, ...], compute: DType, dim: tuple[int, ...]) -> RegionBuilder:
    """One region that applies each op to the same two inputs and stores every result."""
    b = RegionBuilder(compute)
    x, y = b.load(dim, compute), b.load(dim, compute)
    for op in ops:
        b.store(b.op(op, *((x,) if op in UNARY else (x, y))))
    return b


def test_every_primitive_is_covered() -> None:
    assert set(EXACT) | set(INEXACT) == UNARY | BINARY


def test_exact_primitives_agree_bit_for_bit_on_special_values() -> None:
    region = all_primitives(EXACT, FLOAT, (len(SPECIAL), len(SPECIAL))).region()
    x, y = (np.ascontiguousarray(a, np.float32) for a in np.meshgrid(SPECIAL, SPECIAL))
    actual = run_region(region, [x, y])
    for op, a, e in zip(EXACT, actual, interpret(region, [x, y]), strict=True):
        numbers = ~np.isnan(e)
        assert (np.isnan(a) == np.isnan(e)).all(), op
        # IEEE leaves the sign of a zero remainder and of NaN aside; everything else is compared as bits
        same = (a == e) if op in ("max", "min", "mod") else (a.view(np.uint32) == e.view(np.uint32))
        assert same[numbers].all(), op


@pytest.mark.parametrize("compute", [FLOAT, DOUBLE, HALF, BFLOAT16, INT8, INT32, INT64], ids=str)
def test_primitives_match_numpy(compute: DType) -> None:
    ops = EXACT if not compute.is_float else (*EXACT, *INEXACT)
    if not compute.is_float:
        ops = tuple(op for op in ops if op != "sqrt")
    region = all_primitives(ops, compute, (7, 9)).region()
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, region.operands[0], 0.05, 2.0), random_array(rng, region.operands[1], 0.05, 2.0)]
    expected = interpret(region, inputs, exact=compute in (FLOAT, DOUBLE))
    for op, a, e in zip(ops, run_region(region, inputs), expected, strict=True):
        try:
            near(a, e, compute, scale=4.0)
        except AssertionError as problem:
            raise AssertionError(f"{op} in {compute}: {problem}") from None


def test_functions_on_integers_are_rounded_to_nearest() -> None:
    ops = ("exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "erf")
    b = RegionBuilder(INT32)
    x = b.load((8,), INT32)
    for op in ops:
        b.store(b.op(op, x))
    y = np.array([0, 1, 2, 3, 7, 30, -1, -4], np.int32)
    for op, a in zip(ops, run_region(b.region(), [y]), strict=True):
        with np.errstate(all="ignore"):
            wide = interpret(_in_double(op), [y.astype(np.float64)])[0]
            expected = np.clip(np.rint(np.where(np.isnan(wide), 0, wide)), -(2.0**31), 2.0**31 - 1)
        np.testing.assert_array_equal(a, expected.astype(np.int64), err_msg=op)


def _in_double(op: str):  # type: ignore[no-untyped-def]
    b = RegionBuilder(DOUBLE)
    b.store(b.op(op, b.load((8,), DOUBLE)))
    return b.region()


def edge_values(t: DType) -> np.ndarray:
    """Values at and around the limits and ties of every other type, as far as `t` can hold them."""
    wide = [0, 1, -1, 0.5, 1.5, 2.5, -0.5, -2.5, 126.5, 127, 127.5, 128, -128, -128.5, -129, 254.5, 255, 255.5, 300]
    wide += [65503, 65504, 65519, 65520, 65535, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53 + 1]
    wide += [2.0**63, -(2.0**63), 1e300, -1e300, np.inf, -np.inf, np.nan, 5.96e-8, 2.98e-8, 2.99e-8, 1e-40, 9.2e-41]
    wide += [1 + 2**-8, 1 + 2**-8 + 2**-40, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 2**-11 + 2**-30, 1 + 3 * 2**-11]
    wide += [1 + 2**-24, 1 + 2**-24 + 2**-50, 3.39e38, 3.4028235677973366e38, 3.3961775292304957e38]
    if t.is_float:
        with np.errstate(all="ignore"):
            return (
                np.array(wide, np.float64).astype(np.float32 if t is not DOUBLE else np.float64).astype(numpy_dtype(t))
            )
    if t is BOOLEAN:
        return np.array([False, True])
    info = np.iinfo(numpy_dtype(t))
    near_limits = [info.min, info.min + 1, info.max, info.max - 1]
    odd = [
        2**53 + 1,
        2**54 + 2,
        2**62 + 2**54 + 1,
        -(2**62) - 2**54 - 1,
        (257 << 40) + 1,
        (257 << 40),
        -(257 << 40) - 1,
    ]
    whole = [int(v) for v in [*wide, *odd] if np.isfinite(v) and info.min <= v <= info.max and abs(v) < 2**63]
    return np.array([*whole, *near_limits], numpy_dtype(t))


def rounded(x: np.ndarray, t: DType) -> list[float | int]:
    """Python's own exact arithmetic: nearest even, saturating integers, NaN to 0."""
    made: list[float | int] = []
    for v in x.tolist() if x.dtype.kind in "iub" else x.astype(np.float64).tolist():
        if t is BOOLEAN:
            made.append(int(v != 0))
        elif t.is_float:
            made.append(_to_float(v, t))
        elif v != v:
            made.append(0)
        else:
            high = 2 ** (t.bits - (t.kind == "int")) - 1
            low = 0 if t.kind == "uint" else -high - 1
            made.append(high if v > high else low if v < low else round(v))
    return made


def _to_float(v: float | int, t: DType) -> float:
    """Round an exact number to a float type with integer arithmetic."""
    if isinstance(v, float) and not np.isfinite(v):
        return v
    top, bottom = v.as_integer_ratio()
    exponent_floor = {"HALF": -14, "DOUBLE": -1022}.get(t.name, -126)
    if top == 0:
        return 0.0
    exponent = abs(top).bit_length() - bottom.bit_length()
    if abs(top) * 2 ** max(0, -exponent) < bottom * 2 ** max(0, exponent):
        exponent -= 1
    step = max(exponent, exponent_floor) - t.mantissa_bits
    scaled = abs(top) * 2 ** max(0, -step), bottom * 2 ** max(0, step)
    whole, rest = divmod(*scaled)
    whole += 2 * rest > scaled[1] or (2 * rest == scaled[1] and whole % 2)
    limit = int(t.max_finite)
    made = whole * 2**step if step >= 0 else whole / 2**-step if step > -1000 else float(v)
    return float(np.copysign(np.inf if made > limit else made, v))


@pytest.mark.parametrize("source", STORAGE_TYPES, ids=str)
def test_conversions_round_once(source: DType) -> None:
    x = edge_values(source)
    b = RegionBuilder(source)
    loaded = b.load(x.shape, source)
    for t in STORAGE_TYPES:
        b.store(b.op("cast", loaded, dtype=t))
    for t, a in zip(STORAGE_TYPES, run_region(b.region(), [x]), strict=True):
        expected = np.array(rounded(x, t), np.float64 if t.is_float else object)
        got = a.astype(np.float64) if t.is_float else np.array(a.tolist(), object).astype(int).astype(object)
        same = (got == expected) | ((got != got) & (expected != expected))
        assert same.all(), f"{source} to {t}: {x[~same]} gave {got[~same]}, not {expected[~same]}"


def test_integer_arithmetic_wraps_and_division_never_traps() -> None:
    for t in (INT32, INT64):
        info = np.iinfo(numpy_dtype(t))
        edge = np.array([0, 1, -1, 7, -7, info.max, info.min, 46341], numpy_dtype(t))
        x, y = (np.ascontiguousarray(a) for a in np.meshgrid(edge, edge))
        ops = ("add", "sub", "mul", "neg", "abs", "div", "mod")
        region = all_primitives(ops, t, x.shape).region()
        for op, a in zip(ops, run_region(region, [x, y]), strict=True):
            for p, q, got in zip(x.ravel().tolist(), y.ravel().tolist(), a.ravel().tolist(), strict=True):
                quotient = 0 if q == 0 else abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
                exact = {"add": p + q, "sub": p - q, "mul": p * q, "neg": -p, "abs": abs(p), "div": quotient,
                         "mod": 0 if q == 0 else p - q * quotient}[op]  # fmt: skip
                wrapped = (exact - info.min) % 2**t.bits + info.min
                assert got == wrapped, (op, p, q, got)


def test_values_round_to_their_type_before_use() -> None:
    b = RegionBuilder(FLOAT)
    x, y = b.load((33,)), b.load((33,))
    s = b.op("add", x, y, dtype=HALF)
    b.store(b.op("sub", s, y))
    b.store(s)
    region = b.region()
    rng = np.random.default_rng(3)
    inputs = [random_array(rng, o) for o in region.operands[:2]]
    difference, total = run_region(region, inputs)
    half = (inputs[0] + inputs[1]).astype(np.float16)
    np.testing.assert_array_equal(total, half)
    np.testing.assert_array_equal(difference, half.astype(np.float32) - inputs[1])


@pytest.mark.parametrize("compute", [HALF, BFLOAT16], ids=str)
def test_every_step_of_a_half_computation_is_rounded(compute: DType) -> None:
    b = RegionBuilder(compute)
    x, y = b.load((200,), compute), b.load((200,), compute)
    v = b.op("sub", b.op("mul", b.op("add", x, y), x), b.op("div", y, x))
    b.store(b.op("add", b.op("sqrt", b.op("abs", v)), v, dtype=FLOAT))
    region = b.region()
    rng = np.random.default_rng(8)
    inputs = [random_array(rng, o) for o in region.operands[:2]]
    np.testing.assert_array_equal(run_region(region, inputs)[0], interpret(region, inputs)[0])


LAYOUTS = {
    "row-major": ((3, 4, 5, 6), (120, 30, 6, 1)),
    "channels-last": ((3, 4, 5, 6), (120, 1, 24, 4)),
    "transposed": ((3, 4, 5, 6), (1, 3, 12, 60)),
    "gaps": ((3, 4, 5, 6), (400, 90, 16, 2)),
    "zero-stride": ((3, 4, 5, 6), (0, 6, 0, 1)),
    "all-zero": ((3, 4, 5, 6), (0, 0, 0, 0)),
    "row": ((1, 1, 1, 6), (6, 6, 6, 1)),
    "channel": ((1, 4, 1, 1), (4, 1, 4, 4)),
    "inner-two": ((1, 1, 5, 6), (30, 30, 6, 1)),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("y", ["row-major", "channels-last", "gaps"])
@pytest.mark.parametrize("x", list(LAYOUTS))
def test_layouts_and_broadcasts_match_numpy(x: str, y: str) -> None:
    b = RegionBuilder()
    big = b.load(LAYOUTS[y][0], stride=LAYOUTS[y][1])
    small = b.load(LAYOUTS[x][0], stride=LAYOUTS[x][1])
    b.store(b.op("sub", big, small), LAYOUTS[y][1])
    b.store(b.op("mul", small, small), None if 0 in LAYOUTS[x][1] else LAYOUTS[x][1])
    region = b.region()
    rng = np.random.default_rng(4)
    inputs = [random_array(rng, o) for o in region.operands[:2]]
    for a, e in zip(run_region(region, inputs), interpret(region, inputs), strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("dim", [(1,), (1, 1, 1), (5, 1), (1, 7), (129,), (2, 1, 3, 1, 4, 1, 2)], ids=str)
def test_odd_extents_match_numpy(dim: tuple[int, ...]) -> None:
    b = RegionBuilder()
    b.store(b.op("add", b.load(dim), b.load((1,) * len(dim))))
    region = b.region()
    rng = np.random.default_rng(5)
    inputs = [random_array(rng, o) for o in region.operands[:2]]
    np.testing.assert_array_equal(run_region(region, inputs)[0], inputs[0] + inputs[1])


def test_index_count_select_and_host_scalar_match_numpy() -> None:
    b = RegionBuilder()
    x, c = b.load((3, 5, 7)), b.load((1, 1, 1), BFLOAT16, role=Role.SCALAR)
    for axis in range(3):
        b.store(b.op("index", x, axis=axis, dtype=INT32))
    b.store(b.op("select", b.op("lt", b.op("index", x, axis=2), c), x, b.const(-1.5, 3)))
    b.store(b.op("count", x, dim=(1, 1, 1), axes=(0, 2)))
    region = b.region()
    rng = np.random.default_rng(6)
    inputs = [random_array(rng, region.operands[0]), np.full((1, 1, 1), 3.0, numpy_dtype(BFLOAT16))]
    for a, e in zip(run_region(region, inputs), interpret(region, inputs), strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("name", [t.name for t in STORAGE_TYPES])
def test_constants_and_host_scalars_have_the_value_of_their_type(name: str) -> None:
    t = dtype_of(name)
    values = [0.1, -0.0, 1e-45, 3.0, -200.7, float("inf"), float("nan"), 1e39, 2.0**-24 * 1.5, 2.5]
    b = RegionBuilder(DOUBLE)
    scalar = b.load((1, 1), t, role=Role.SCALAR)
    for v in values:
        b.store(b.op("cast", b.const(v, 2, t), dim=(1, 1), dtype=t, compute=t))
    b.store(b.op("cast", scalar, dtype=t, compute=t))
    held = np.ones((1, 1), numpy_dtype(t))
    *constants, same = run_region(b.region(), [held])
    assert same.item() == held.item()
    for v, a in zip(values, constants, strict=True):
        want = rounded(np.array([v]), t)[0]
        got = float(a.item()) if t.is_float else int(a.item())
        assert got == want or (got != got and want != want), (t, v, got, want)


def test_long_chain_with_stores_in_the_middle_matches_numpy() -> None:
    b = RegionBuilder()
    x, y = b.load((4, 50)), b.load((1, 50), HALF)
    v = x
    for k in range(12):
        v = b.op(("mul", "add", "max", "sub")[k % 4], v, y if k % 2 else x)
        if k % 5 == 3:
            b.store(v)
    b.store(b.op("tanh", v))
    region = b.region()
    rng = np.random.default_rng(7)
    inputs = [random_array(rng, o, -1.0, 1.0) for o in region.operands[:2]]
    expected = interpret(region, inputs)
    actual = run_region(region, inputs)
    for a, e in zip(actual[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(a, e)
    near(actual[-1], np.tanh(interpret_last_argument(region, inputs)), FLOAT)


def interpret_last_argument(region, inputs):  # type: ignore[no-untyped-def]
    """The argument of the region's last value, in float64."""
    from dataclasses import replace

    last = region.values[-1].args[0]
    stores = ((last, region.stores[-1][1]),)
    return interpret(replace(region, stores=stores), inputs)[0].astype(np.float64)
