"""The few C functions that generated kernels call; a kernel carries only those that it names."""

from __future__ import annotations

import importlib.resources
import re

from fuseplan.runtime import team

_BITS = """\
static inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}"""

_DOUBLE_ODD = """\
/* int64 to double; what does not fit sets the last bit, so that a later rounding sees it */
static inline double double_odd(int64_t x) {
  if (x > -(INT64_C(1) << 53) && x < (INT64_C(1) << 53)) return (double)x;
  return (double)((x >> 11) | ((x & 0x7ff) != 0)) * 2048.0;
}"""

_FLOAT_ODD = """\
/* double to float, rounding to odd: truncated, with the last bit set if anything was cut off */
static inline float float_odd(double x) {
  const float near = (float)x;
  const float odd = float_of((bits_of(near) - (fabs((double)near) > fabs(x))) | 1u);
  return (double)near == x || x != x ? near : odd;
}"""

# without branches, and not by the compiler's own half type: loops over these become vector code
_HALF_TO_FLOAT = """\
static inline float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  const uint32_t finite = bits_of(float_of(rest) * 0x1p112f); /* also right for subnormals */
  return float_of(sign | (rest >= 0x0f800000 ? rest | 0x7f800000 : finite));
}"""

_HALF_FROM_FLOAT = """\
static inline uint16_t half_from_float(float x) {
  const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
  const uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000; /* subnormal */
  const uint32_t normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  const uint32_t large = rest > 0x7f800000 ? 0x7e00 : 0x7c00; /* 65520 and more */
  return (uint16_t)(sign | (rest >= 0x477ff000 ? large : rest < 0x38800000 ? small : normal));
}"""

_BFLOAT_FROM_FLOAT = """\
static inline uint16_t bfloat_from_float(float x) {
  const uint32_t u = bits_of(x), rounded = u + 0x7fff + (u >> 16 & 1), no_number = x != x ? 0xffffffffu : 0;
  return (uint16_t)((rounded | no_number) >> 16);
}"""

# rounded where it is, as 32 bits, so that no vector is narrowed and widened again
_BFLOAT_ROUND = """\
static inline float bfloat_round(float x) {
  const uint32_t u = bits_of(x), rounded = u + 0x7fff + (u >> 16 & 1), no_number = x != x ? 0xffffffffu : 0;
  return float_of((rounded | no_number) & 0xffff0000u);
}"""


# two neighbours at once, as 32 bits: vectors of them need no lanes moved
_PAIR = """\
static inline float bfloat_of_pair(const uint16_t *x, int second) {
  uint32_t both;
  memcpy(&both, x, sizeof both);
  return float_of(second ? both & 0xffff0000u : both << 16);
}"""

_STORE_PAIR = """\
static inline void store_pair(uint16_t *x, uint32_t first, uint32_t second) {
  const uint32_t both = first >> 16 | second;
  memcpy(x, &both, sizeof both);
}"""


def _pair(kind: str, ctype: str) -> dict[str, str]:
    """max and min of one type; NaN comes through from either side, which a constant on the right is not."""
    made = {}
    for name, beyond, within in (("max", ">", "<="), ("min", "<", ">=")):
        lines = [f"return a {beyond} b ? a : b;"]
        if kind[0] == "f":
            quick = (
                f"if (__builtin_constant_p(b) && b == b) return a {within} b ? b : a;"
            )
            lines = [
                quick,
                f"const {ctype} one = b {beyond} a ? b : a;",
                "return b != b ? b : one;",
            ]
        head = f"static inline {ctype} {name}_{kind}({ctype} a, {ctype} b) {{"
        made[f"{name}_{kind}"] = "\n  ".join([head, *lines]) + "\n}"
    return made


def _reducer(mode: str, kind: str, ctype: str) -> str:
    start = "-INFINITY" if mode == "max" else "INFINITY"
    return (
        f"#pragma omp declare reduction(reduce_{mode}_{kind} : {ctype} : omp_out = {mode}_{kind}(omp_in, omp_out)) \\\n"
        f"    initializer(omp_priv = {start})"
    )


def _madd(kind: str, suffix: str) -> str:
    return (
        f"#ifdef FP_FAST_FMA{suffix.upper()}\n"
        f"#define MADD_{kind}(x, y, sum) fma{suffix}(x, y, sum)\n"
        f"#else\n"
        f"#define MADD_{kind}(x, y, sum) ((x) * (y) + (sum))\n"
        f"#endif"
    )


def _whole(bits: int) -> dict[str, str]:
    """Arithmetic that wraps and never traps: x / 0 and x % 0 are 0; the smallest number has itself as -x and x / -1."""
    t = f"int{bits}_t"
    return {
        f"abs_i{bits}": f"static inline {t} abs_i{bits}({t} x) {{ return x < 0 ? ({t})(0 - (u{t})x) : x; }}",
        f"div_i{bits}": f"static inline {t} div_i{bits}({t} x, {t} y) {{\n"
        f"  return y == 0 ? 0 : y == -1 ? ({t})(0 - (u{t})x) : x / y;\n}}",
        f"mod_i{bits}": f"static inline {t} mod_i{bits}({t} x, {t} y) {{ return y == 0 || y == -1 ? 0 : x % y; }}",
    }


def _to_integer(name: str, low: str, high: str, top: str) -> str:
    """Nearest even, saturating, NaN to 0; `top` is the first double that is too large."""
    return (
        f"static inline {name}_t {name}_from(double x) {{\n"
        f"  const double near = rint(x) + 0.0; /* no -0: cc takes (float)(int)near for trunc(near) */\n"
        f"  return near != near ? 0 : near <= (double){low} ? {low} : near >= {top} ? {high} : ({name}_t)near;\n}}"
    )


def _clamp(name: str, low: str, high: str) -> str:
    return (
        f"static inline {name}_t {name}_clamp(int64_t x) {{\n"
        f"  return x < {low} ? {low} : x > {high} ? {high} : ({name}_t)x;\n}}"
    )


def _float_math() -> dict[str, str]:
    """The functions of ``kernels/float_math.h`` by name."""
    text = (
        importlib.resources.files("fuseplan.codegen") / "kernels/float_math.h"
    ).read_text(encoding="utf-8")
    parts = text.rstrip().split("\n\n")[1:]
    return {
        re.findall(r"^static inline \w+ (\w+)\(", part, re.MULTILINE)[0]: part
        for part in parts
    }


# table: every helper after those that it calls
HELPERS: dict[str, str] = {
    "bits_of": _BITS,
    "float_of": "",
    "double_odd": _DOUBLE_ODD,
    "float_odd": _FLOAT_ODD,
    "half_to_float": _HALF_TO_FLOAT,
    "half_from_float": _HALF_FROM_FLOAT,
    "half_round": "static inline float half_round(float x) { return half_to_float(half_from_float(x)); }",
    "bfloat_to_float": "static inline float bfloat_to_float(uint16_t h) { return float_of((uint32_t)h << 16); }",
    "bfloat_from_float": _BFLOAT_FROM_FLOAT,
    "bfloat_bits": "static inline uint16_t bfloat_bits(float x) { return (uint16_t)(bits_of(x) >> 16); }",
    "bfloat_round": _BFLOAT_ROUND,
    "bfloat_of_pair": _PAIR,
    "store_pair": _STORE_PAIR,
    **_pair("f32", "float"),
    **_pair("f64", "double"),
    **_pair("i32", "int32_t"),
    **_pair("i64", "int64_t"),
    **{f"reduce_{m}_f32": _reducer(m, "f32", "float") for m in ("max", "min")},
    **{f"reduce_{m}_f64": _reducer(m, "f64", "double") for m in ("max", "min")},
    "MADD_F32": _madd("F32", "f"),
    "MADD_F64": _madd("F64", ""),
    **_float_math(),
    **_whole(32),
    **_whole(64),
    "int8_from": _to_integer("int8", "INT8_MIN", "INT8_MAX", "127.0"),
    "uint8_from": _to_integer("uint8", "0", "UINT8_MAX", "255.0"),
    "int32_from": _to_integer("int32", "INT32_MIN", "INT32_MAX", "2147483647.0"),
    "int64_from": _to_integer("int64", "INT64_MIN", "INT64_MAX", "0x1p63"),
    "int8_clamp": _clamp("int8", "INT8_MIN", "INT8_MAX"),
    "uint8_clamp": _clamp("uint8", "0", "UINT8_MAX"),
    "int32_clamp": _clamp("int32", "INT32_MIN", "INT32_MAX"),
}

_NAME = re.compile(r"\b(?:" + "|".join(HELPERS) + r")\b")
_ORDER = {name: k for k, name in enumerate(HELPERS)}
_CALLS = {
    name: frozenset(_NAME.findall(text)) - {name} for name, text in HELPERS.items()
}
_HEADERS = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"


def prelude(body: str) -> str:
    """Headers, how tasks are drawn, and the helpers that `body` names, callees first."""
    found = set(_NAME.findall(body))
    pending = list(found)
    while pending:
        for name in _CALLS[pending.pop()] - found:
            found.add(name)
            pending.append(name)
    if "float_of" in found:  # the two live in one text
        found.add("bits_of")
    named = [
        "\n" + HELPERS[n] + "\n"
        for n in sorted(found, key=_ORDER.__getitem__)
        if HELPERS[n]
    ]
    return "".join([_HEADERS, "\n", team.header(), *named])
