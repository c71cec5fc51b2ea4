"""Expression table for Triton: one IR primitive to one Triton expression, and the casts between types.

A value of type BOOLEAN is held as ``tl.int1`` and stored as a byte; HALF and BFLOAT16 arithmetic runs
in float32 with a rounding after each primitive, that of BOOLEAN and 8-bit integers in int32.
Transcendental functions come from libdevice (1 to 2 ulp over their whole range; Triton's own exp and
log use approximations whose error grows with |x|).
"""

from __future__ import annotations

import math

from fuseplan.dtypes import (
    BFLOAT16,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    FP8_E4M3,
    FP8_E5M2,
    HALF,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)

# table
VALUE_TYPES: dict[DType, str] = {
    FLOAT: "tl.float32", DOUBLE: "tl.float64", HALF: "tl.float16", BFLOAT16: "tl.bfloat16",
    INT8: "tl.int8", UINT8: "tl.uint8", INT32: "tl.int32", INT64: "tl.int64", BOOLEAN: "tl.int1",
    FP8_E4M3: "tl.float8e4nv", FP8_E5M2: "tl.float8e5",
}  # fmt: skip

# table: name of the element type in a kernel signature
SIGNATURE_TYPES: dict[DType, str] = {
    FLOAT: "fp32", DOUBLE: "fp64", HALF: "fp16", BFLOAT16: "bf16",
    INT8: "i8", UINT8: "u8", INT32: "i32", INT64: "i64", BOOLEAN: "u8",
    FP8_E4M3: "fp8e4nv", FP8_E5M2: "fp8e5",
}  # fmt: skip

#: Types that are only stored: arithmetic on them starts by widening.
FP8_TYPES = frozenset({FP8_E4M3, FP8_E5M2})

#: Types in which a primitive may be computed.
COMPUTE_TYPES = frozenset(
    {FLOAT, DOUBLE, HALF, BFLOAT16, INT32, INT64, INT8, UINT8, BOOLEAN}
)

# table: primitives on a float work type; {t} is "32" or "64"
FLOAT_EXPRESSIONS: dict[str, str] = {
    "neg": "({0} * -1.0)",  # unary minus is 0 - x in Triton and loses the sign of zero
    "abs": "tl.abs({0})",
    "exp": "libdevice.exp({0})",
    "log": "libdevice.log({0})",
    "log1p": "libdevice.log1p({0})",
    "sin": "libdevice.sin({0})",
    "cos": "libdevice.cos({0})",
    "tan": "libdevice.tan({0})",
    "tanh": "libdevice.tanh({0})",
    "erf": "libdevice.erf({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "max": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "min": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    "mod": "libdevice.fmod({0}, {1})",
    "pow": "libdevice.pow({0}, {1})",
}
PRECISE_32: dict[str, str] = {
    "div": "tl.div_rn({0}, {1})",
    "sqrt": "tl.sqrt_rn({0})",
    "tanh": "float_tanh({0})",
}
#: Functions of float32 that have an expression of their own where their argument is a rounded result.
OF_ROUNDED_32: dict[str, str] = {"exp": "exp_of_rounded({0})"}
ROUNDED = frozenset({"add", "sub", "mul", "div"})
#: Functions of float32 that have an expression of their own where 1 is added to them.
PLUS_ONE_32: dict[str, str] = {
    "tanh": "one_plus_tanh({0})",
    "erf": "one_plus_erf({0})",
}
PRECISE_64: dict[str, str] = {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})"}

# table: primitives on an integer work type
INTEGER_EXPRESSIONS: dict[str, str] = {
    "neg": "(0 - {0})",
    "abs": "tl.where({0} < 0, 0 - {0}, {0})",
    "floor": "{0}",
    "ceil": "{0}",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} // {1})",  # truncates, as C does
    "mod": "({0} % {1})",
    "max": "tl.where({0} > {1}, {0}, {1})",
    "min": "tl.where({0} < {1}, {0}, {1})",
}

# table: results are tl.int1
COMPARISONS: dict[str, str] = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
}

_INT_RANGE: dict[DType, tuple[int, int]] = {
    INT8: (-128, 127), UINT8: (0, 255), INT32: (-(2**31), 2**31 - 1), INT64: (-(2**63), 2**63 - 1)
}  # fmt: skip


def work_type(compute: DType) -> DType:
    """The type in which primitives of a compute type are evaluated."""
    if compute in (HALF, BFLOAT16):
        return FLOAT
    return INT32 if compute in (INT8, UINT8, BOOLEAN) else compute


def expression_gap(op: str, compute: DType) -> str:
    """Why an elementwise primitive has no expression in this compute type; empty if it has one."""
    if compute not in COMPUTE_TYPES:
        return f"compute type {compute} of '{op}' has no Triton arithmetic here"
    if op in ("cast", "select", "not_", "and_", "or_") or op in COMPARISONS:
        return ""
    known = (
        op in FLOAT_EXPRESSIONS or op in PRECISE_32
        if compute.is_float
        else op in INTEGER_EXPRESSIONS
    )
    return "" if known else f"'{op}' in compute type {compute} has no Triton expression"


def coerce(x: str, source: DType, target: DType) -> str:
    """Convert an expression between value types: nearest-even, saturating for integers and 8-bit floats."""
    if source is target:
        return x
    if source in FP8_TYPES:
        if target in (FLOAT, HALF, BFLOAT16):
            return f"{x}.to({VALUE_TYPES[target]})"
        return coerce(f"{x}.to(tl.float32)", FLOAT, target)
    if target in FP8_TYPES:
        return f"clip({coerce(x, source, FLOAT)}, {target.max_finite!r}).to({VALUE_TYPES[target]})"
    if target is BOOLEAN:
        return f"({x} != 0)"
    if target.is_float or source is BOOLEAN:
        return f"{x}.to({VALUE_TYPES[target]})"
    low, high = _INT_RANGE[target]
    work = VALUE_TYPES[INT64 if target is INT64 else INT32]
    if source.is_float:
        wide = x if source in (FLOAT, DOUBLE) else f"{x}.to(tl.float32)"
        # `high + 1` is a power of two: exact in every float type, and the first value out of range;
        # a narrow type clips at `high` itself, which is exact too.
        high_float = float(high) if high < 2**24 else float(high + 1)
        rounded = f"saturate_float({wide}, {work}, {low}, {high}, {float(low)!r}, {high_float!r})"
        return (
            rounded
            if VALUE_TYPES[target] == work
            else f"{rounded}.to({VALUE_TYPES[target]})"
        )
    source_low, source_high = _INT_RANGE[source]
    if low <= source_low and high >= source_high:
        return f"{x}.to({VALUE_TYPES[target]})"
    wide_type = VALUE_TYPES[source if source in (INT32, INT64) else INT32]
    wide = f"{x}.to({wide_type})"
    return f"tl.minimum(tl.maximum({wide}, {low}), {high}).to({VALUE_TYPES[target]})"


def to_work(x: str, source: DType, compute: DType) -> str:
    """An argument converted to the compute type, held in its work type."""
    if compute is BOOLEAN or compute.is_float:
        return coerce(coerce(x, source, compute), compute, work_type(compute))
    return coerce(x, source, work_type(compute))


def from_work(x: str, compute: DType, target: DType) -> str:
    """A result of the work type rounded to the compute type and then to the value's type."""
    if compute.is_float:
        return coerce(coerce(x, work_type(compute), compute), compute, target)
    return coerce(x, work_type(compute), target)


def primitive(op: str, args: list[str], compute: DType) -> tuple[str, DType]:
    """Expression of a primitive on arguments in the work type, and the type of its result."""
    work = work_type(compute)
    if op in COMPARISONS:
        return f"({args[0]} {COMPARISONS[op]} {args[1]})", BOOLEAN
    if op == "not_":
        return f"({args[0]} == 0)", BOOLEAN
    if op in ("and_", "or_"):
        return (
            f"(({args[0]} != 0) {'&' if op == 'and_' else '|'} ({args[1]} != 0))",
            BOOLEAN,
        )
    if op == "select":
        return f"tl.where(({args[0]} != 0), {args[1]}, {args[2]})", work
    if op == "cast":
        return args[0], work
    if not work.is_float:
        return INTEGER_EXPRESSIONS[op].format(*args), work
    precise = PRECISE_32 if work is FLOAT else PRECISE_64
    return (precise.get(op) or FLOAT_EXPRESSIONS[op]).format(*args), work


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant of a value type."""
    if dtype is BOOLEAN:
        return f"tl.full((), {int(bool(value))}, tl.int1)"
    if not dtype.is_float:
        low, high = _INT_RANGE[dtype]
        whole = (
            0
            if isinstance(value, float) and math.isnan(value)
            else round(max(low, min(high, value)))
        )
        return f"tl.full((), {whole}, {VALUE_TYPES[dtype]})"
    if dtype in FP8_TYPES:
        return coerce(literal(value, FLOAT), FLOAT, dtype)
    number = float(value)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    full = f"tl.full((), {text}, {VALUE_TYPES[work_type(dtype)]})"
    return coerce(full, work_type(dtype), dtype)


def zero(dtype: DType) -> str:
    """What a masked load gives."""
    return "0.0" if dtype.is_float else "0"


def neutral(mode: str, work: DType) -> str:
    """The element that a reduction of this mode ignores."""
    if mode == "add":
        return "0.0" if work.is_float else "0"
    if mode == "mul":
        return "1.0" if work.is_float else "1"
    if work.is_float:
        return 'float("-inf")' if mode == "max" else 'float("inf")'
    return str(_INT_RANGE[work][0 if mode == "max" else 1])


def combine(mode: str, acc: str, x: str, work: DType) -> str:
    """Elementwise step of a reduction; the accumulator is the second argument of the NaN rule."""
    if mode in ("max", "min") and work.is_float:
        return f"tl.{mode}imum({x}, {acc}, propagate_nan=tl.PropagateNan.ALL)"
    return primitive(mode, [x, acc], work)[0]


def fold(mode: str, x: str, axis: str, work: DType) -> str:
    """Reduction of a tile along an axis that stays as extent 1."""
    if mode == "add":
        return f"tl.sum({x}, {axis}, keep_dims=True)"
    if mode == "mul":
        return f"tl.reduce({x}, {axis}, multiply, keep_dims=True)"
    return (
        f"fold_{mode}({x}, {axis})"
        if work.is_float
        else f"tl.{mode}({x}, {axis}, keep_dims=True)"
    )
