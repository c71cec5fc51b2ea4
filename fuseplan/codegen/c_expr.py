"""C text for values: types, conversions that round once, one expression per primitive, accumulators.

A value lives in a variable of its *carrier* type: half types are carried by floats that hold exactly
representable numbers. Expressions are made of identifiers and calls, so they nest without parentheses
being lost. Functions that the text calls are in `c_helpers` and are found there by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, HALF, INT32, INT64, DType

# table: C type in memory, and C type of a variable
STORAGE = {
    "FLOAT": "float", "DOUBLE": "double", "HALF": "uint16_t", "BFLOAT16": "uint16_t", "INT8": "int8_t",
    "UINT8": "uint8_t", "INT32": "int32_t", "INT64": "int64_t", "BOOLEAN": "uint8_t",
}  # fmt: skip
CARRIER = {**STORAGE, "HALF": "float", "BFLOAT16": "float"}

# table: where a compute type is evaluated. BOOLEAN arguments are 0 or 1 and are computed with as integers.
KIND = {
    "FLOAT": "f32", "HALF": "f32", "BFLOAT16": "f32", "DOUBLE": "f64", "INT8": "i32", "UINT8": "i32", "BOOLEAN": "i32",
    "INT32": "i32", "INT64": "i64",
}  # fmt: skip
KIND_TYPE = {"f32": FLOAT, "f64": DOUBLE, "i32": INT32, "i64": INT64}

_COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")
_THROUGH_DOUBLE = ("exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "erf")

# table: {f} is the suffix of libm's functions, {m} that of float_math.h where it has one, {T} the carrier, {k} the kind
_FLOAT_EXPR = {
    "neg": "-{0}", "abs": "fabs{f}({0})", "exp": "exp{m}({0})", "log": "log{m}({0})", "log1p": "log1p{m}({0})",
    "exp_down": "exp_down_f32({0})",
    "sqrt": "sqrt{f}({0})", "sin": "sin{m}({0})", "cos": "cos{m}({0})", "tan": "tan{m}({0})",
    "tanh": "tanh{m}({0})", "erf": "erf{m}({0})", "floor": "floor{f}({0})", "ceil": "ceil{f}({0})",
    "not_": "({T})({0} == 0)",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "max_{k}({0}, {1})", "min": "min_{k}({0}, {1})", "mod": "fmod{f}({0}, {1})", "pow": "pow{f}({0}, {1})",
    "eq": "({T})({0} == {1})", "ne": "({T})({0} != {1})", "gt": "({T})({0} > {1})", "ge": "({T})({0} >= {1})",
    "lt": "({T})({0} < {1})", "le": "({T})({0} <= {1})",
    "and_": "({T})({0} != 0 && {1} != 0)", "or_": "({T})({0} != 0 || {1} != 0)",
    "select": "{0} != 0 ? {1} : {2}",
}  # fmt: skip

# table: {U} is the unsigned carrier, so that arithmetic wraps around; {r} rounds a double to the kind
_INT_EXPR = {
    **{op: _FLOAT_EXPR[op] for op in ("not_", "max", "min", "and_", "or_", "select", *_COMPARISONS)},
    **{op: "{r}(" + op + "((double){0}))" for op in _THROUGH_DOUBLE},
    "neg": "({T})(0 - ({U}){0})", "abs": "abs_{k}({0})", "floor": "{0}", "ceil": "{0}",
    "add": "({T})(({U}){0} + ({U}){1})", "sub": "({T})(({U}){0} - ({U}){1})", "mul": "({T})(({U}){0} * ({U}){1})",
    "div": "div_{k}({0}, {1})", "mod": "mod_{k}({0}, {1})", "pow": "{r}(pow((double){0}, (double){1}))",
}  # fmt: skip

_WORDS = {
    "f32": {"f": "f", "m": "_f32", "T": "float", "k": "f32"},
    "f64": {"f": "", "m": "", "T": "double", "k": "f64"},
    "i32": {"T": "int32_t", "U": "uint32_t", "k": "i32", "r": "int32_from"},
    "i64": {"T": "int64_t", "U": "uint64_t", "k": "i64", "r": "int64_from"},
}


def _table(kind: str) -> dict[str, str]:
    """Expressions of one kind with only the arguments left open."""
    rows = _FLOAT_EXPR if kind[0] == "f" else _INT_EXPR
    words = _WORDS[kind]
    return {op: text.format("{0}", "{1}", "{2}", **words) for op, text in rows.items()}


EXPRESSIONS = {kind: _table(kind) for kind in _WORDS}

# ops whose result in a half type needs no rounding, because it is one of the arguments, 0, 1 or whole
_EXACT = frozenset(
    {
        "neg",
        "abs",
        "max",
        "min",
        "floor",
        "ceil",
        "select",
        "not_",
        "and_",
        "or_",
        *_COMPARISONS,
    }
)
_NARROW = {"INT8": "int8", "UINT8": "uint8", "INT32": "int32", "INT64": "int64"}
_SMALL = frozenset({"INT8", "UINT8", "BOOLEAN"})


@dataclass(frozen=True, slots=True)
class Accumulator:
    """How a reduction or a main loop adds up.

    Args:
        ctype: C type of the accumulator
        dtype: element type whose carrier the accumulator converts to
        init: neutral element
        update: new accumulator from ``{x}`` (carrier of the kind) and ``{a}``
        clause: reduction identifier for ``#pragma omp simd``
        result: element of the carrier from ``{a}``
    """

    ctype: str
    dtype: DType
    init: str
    update: str
    clause: str
    result: str = "{a}"


def _accumulators(kind: str) -> dict[str, Accumulator]:
    if kind[0] == "f":
        own = KIND_TYPE[kind]
        ctype = CARRIER[own.name]
        # sums of floats run in double: long float sums lose more digits than one rounding
        return {
            "add": Accumulator("double", DOUBLE, "0.0", "{a} + (double){x}", "+"),
            "mul": Accumulator("double", DOUBLE, "1.0", "{a} * (double){x}", "*"),
            "max": Accumulator(
                ctype,
                own,
                "-INFINITY",
                f"max_{kind}({{x}}, {{a}})",
                f"reduce_max_{kind}",
            ),
            "min": Accumulator(
                ctype,
                own,
                "INFINITY",
                f"min_{kind}({{x}}, {{a}})",
                f"reduce_min_{kind}",
            ),
        }
    own, words = KIND_TYPE[kind], _WORDS[kind]
    signed, unsigned, limit = words["T"], words["U"], own.name
    return {
        "add": Accumulator(unsigned, own, "0", f"{{a}} + ({unsigned}){{x}}", "+"),
        "mul": Accumulator(unsigned, own, "1", f"{{a}} * ({unsigned}){{x}}", "*"),
        "max": Accumulator(
            signed, own, f"{limit}_MIN", f"max_{kind}({{x}}, {{a}})", "max"
        ),
        "min": Accumulator(
            signed, own, f"{limit}_MAX", f"min_{kind}({{x}}, {{a}})", "min"
        ),
    }


ACCUMULATORS = {kind: _accumulators(kind) for kind in _WORDS}

# table: floats over a few elements, faster: sums as floats, which are then added up in double, and extremes as integers
BLOCK = {
    "add": Accumulator("float", FLOAT, "0.0f", "{a} + {x}", "+"),
    "max": Accumulator(
        "int32_t",
        FLOAT,
        "max_key(-INFINITY)",
        "max_i32({a}, max_key({x}))",
        "max",
        "of_max_key({a})",
    ),
    "min": Accumulator(
        "int32_t",
        FLOAT,
        "min_key(INFINITY)",
        "min_i32({a}, min_key({x}))",
        "min",
        "of_min_key({a})",
    ),
}

# table: a main loop's accumulator; {x} and {y} are the factors
MAIN_LOOP = {
    "f32": Accumulator("float", FLOAT, "0", "MADD_F32({x}, {y}, {a})", "+"),
    "f64": Accumulator("double", DOUBLE, "0", "MADD_F64({x}, {y}, {a})", "+"),
    "i32": Accumulator(
        "uint32_t", INT32, "0", "{a} + (uint32_t){x} * (uint32_t){y}", "+"
    ),
    "i64": Accumulator(
        "uint64_t", INT64, "0", "{a} + (uint64_t){x} * (uint64_t){y}", "+"
    ),
}


def convert(text: str, source: DType, target: DType) -> str:
    """`text`, a value of type `source`, as a value of type `target`, rounded once."""
    if source is target:
        return text
    name = target.name
    if target is FLOAT:
        return text if source in (HALF, BFLOAT16) else f"(float){text}"
    if target is DOUBLE:
        return f"(double){text}"
    if target is HALF:  # integers that a float cannot hold are infinite in HALF
        return f"half_round({_odd(text, source) if source is DOUBLE else _as_float(text, source)})"
    if target is BFLOAT16:
        exact = source.is_float and source is not DOUBLE or source.name in _SMALL
        return (
            f"bfloat_round({_as_float(text, source) if exact else _odd(text, source)})"
        )
    if target is BOOLEAN:
        return f"(uint8_t)({text} != 0)"
    if source.is_float:
        return (
            f"{_NARROW[name]}_from({text if source is DOUBLE else '(double)' + text})"
        )
    if source is BOOLEAN or (source.bits < target.bits and target.kind == "int"):
        return f"({CARRIER[name]}){text}"
    return f"{_NARROW[name]}_clamp({text})"


def _as_float(text: str, source: DType) -> str:
    return text if source in (FLOAT, HALF, BFLOAT16) else f"(float){text}"


def _odd(text: str, source: DType) -> str:
    """A float that a second rounding, to a half type, sees as the exact value."""
    wide = (
        f"double_odd({text})"
        if source is INT64
        else text
        if source is DOUBLE
        else f"(double){text}"
    )
    return f"float_odd({wide})"


def load(element: str, dtype: DType) -> str:
    """The value in a memory element."""
    if dtype is HALF:
        return f"half_to_float({element})"
    if dtype is BFLOAT16:
        return f"bfloat_to_float({element})"
    return f"(uint8_t)({element} != 0)" if dtype is BOOLEAN else element


def store(text: str, source: DType, target: DType) -> str:
    """What to write into an element of type `target`."""
    text = convert(text, source, target)
    inside = before_rounding(text, target)
    if target is HALF:
        return f"half_from_float({inside or text})"
    if target is BFLOAT16:
        return f"bfloat_from_float({inside})" if inside else f"bfloat_bits({text})"
    return text


def before_rounding(text: str, dtype: DType) -> str:
    """What a text rounds to a half type as the last thing that it does, else empty."""
    call = {HALF: "half_round(", BFLOAT16: "bfloat_round("}.get(dtype, " ")
    return (
        text[len(call) : -1] if text.startswith(call) and _ends_first_call(text) else ""
    )


def _ends_first_call(text: str) -> bool:
    """Whether the first parenthesis of a text is closed by its last character."""
    depth = 0
    for k, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and not depth:
            return k == len(text) - 1
    return False


def evaluate(op: str, args: list[str], types: list[DType], compute: DType) -> str:
    """The op on converted arguments, as a value of the carrier of the compute type's kind."""
    converted = [argument(a, t, compute) for a, t in zip(args, types, strict=True)]
    text = EXPRESSIONS[KIND[compute.name]][op].format(*converted)
    if compute in (HALF, BFLOAT16) and op not in _EXACT:
        return convert(f"({text})" if " " in text else text, FLOAT, compute)
    return text


def argument(text: str, source: DType, compute: DType) -> str:
    """An argument converted to the compute type, in the carrier of its kind, as an operand of any operator."""
    if source is compute and compute.bits >= 32:
        return text
    return convert(
        convert(text, source, compute), compute, KIND_TYPE[KIND[compute.name]]
    )


def result(text: str, compute: DType, dtype: DType) -> str:
    """A result of `evaluate`, in the carrier of the compute type's kind, rounded to `dtype`."""
    kind = compute if compute in (HALF, BFLOAT16) else KIND_TYPE[KIND[compute.name]]
    return convert(
        text if dtype is kind or " " not in text else f"({text})", kind, dtype
    )


def accumulated(text: str, acc: Accumulator, compute: DType, dtype: DType) -> str:
    """The value of an accumulator: rounded to the compute type, then to `dtype`."""
    if acc.ctype[0] == "u":
        text = f"({CARRIER[acc.dtype.name]}){text}"
    if compute not in (FLOAT, HALF, BFLOAT16, DOUBLE):
        return convert(
            text, acc.dtype, dtype
        )  # integer accumulators are as wide as their kind
    return convert(convert(text, acc.dtype, compute), compute, dtype)


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant of the type, rounded once."""
    if not dtype.is_float:
        whole = _whole(value, dtype)
        if dtype is INT64:
            return f"INT64_C({whole})" if whole > -(2**63) else "INT64_MIN"
        return str(whole) if whole > -(2**31) else "INT32_MIN"
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
    wide = _decimal(float(value))
    if dtype is DOUBLE:
        return wide
    if dtype is FLOAT:
        return f"{wide}f" if _fits_float(float(value)) else f"(float){wide}"
    return convert(wide, DOUBLE, dtype)


def _decimal(value: float) -> str:
    text = repr(value)
    return text if "." in text or "e" in text else text + ".0"


def _fits_float(value: float) -> bool:
    """Few enough digits that the decimal text and the double round to the same float."""
    mantissa, _ = math.frexp(value)
    return mantissa * 2**24 == int(mantissa * 2**24) and (
        value == 0 or 1e-37 < abs(value) < 3e38
    )


def _whole(value: float | int | bool, dtype: DType) -> int:
    if dtype is BOOLEAN:
        return int(value != 0)
    if value != value:
        return 0
    high = 2 ** (dtype.bits - (dtype.kind == "int")) - 1
    low = 0 if dtype.kind == "uint" else -high - 1
    if isinstance(value, float) and math.isinf(value):
        return high if value > 0 else low
    return int(min(max(round(value), low), high))


def is_storable(dtype: DType) -> bool:
    """Whether generated C reads and writes elements of this type."""
    return dtype.name in STORAGE


def is_computable(dtype: DType) -> bool:
    """Whether generated C evaluates in this type."""
    return dtype.name in KIND


__all__ = [
    "ACCUMULATORS",
    "Accumulator",
    "BLOCK",
    "CARRIER",
    "EXPRESSIONS",
    "KIND",
    "KIND_TYPE",
    "MAIN_LOOP",
    "STORAGE",
    "accumulated",
    "argument",
    "before_rounding",
    "convert",
    "evaluate",
    "is_computable",
    "is_storable",
    "literal",
    "load",
    "result",
    "store",
]
