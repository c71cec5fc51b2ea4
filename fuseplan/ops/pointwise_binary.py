"""Pointwise ops of two and three inputs."""

from __future__ import annotations

from functools import partial

from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.pointwise import ExactRow, FloatRow, Pointwise, define, primitive
from fuseplan.ops.pointwise_samples import Domain
from fuseplan.ops.schema import Array, FragmentBuilder

_AB = ("a", "b")
_TWO = ("input0", "input1")
_CMP = ("input", "comparison")
_Truth = partial(ExactRow, domain=Domain(is_logical=True))


def _emit_add_square(b: FragmentBuilder, x: int, y: int) -> int:
    return b.emit("add", x, b.emit("mul", y, y))


def _select(xp: ArrayNamespace, x: Array, y: Array, mask: Array) -> Array:
    return xp.where(mask != 0, x, y)


def _divisor(port: str, *, is_continuous: bool = True) -> Domain:
    """Second operand away from 0, where quotients say nothing."""
    return Domain(
        ranges={port: (0.3, 3.0)}, operands="bounded", is_continuous=is_continuous
    )


_PRODUCT = Domain(operands="bounded")


define(  # table
    (
        ExactRow("add", _AB, lambda xp, a, b: a + b, primitive("add"), "a + b."),
        ExactRow("sub", _AB, lambda xp, a, b: a - b, primitive("sub"), "a - b."),
        ExactRow(
            "mul",
            _AB,
            lambda xp, a, b: a * b,
            primitive("mul"),
            "a b.",
            domain=_PRODUCT,
        ),
        ExactRow(
            "div",
            _AB,
            lambda xp, a, b: xp.divide(a, b),
            primitive("div"),
            "a / b; in integer arithmetic truncated towards zero.",
            domain=_divisor("b"),
        ),
        ExactRow(
            "add_square",
            _AB,
            lambda xp, a, b: a + b * b,
            _emit_add_square,
            "a + b b.",
            2,
            domain=_PRODUCT,
        ),
        ExactRow(
            "max",
            _TWO,
            lambda xp, a, b: xp.maximum(a, b),
            primitive("max"),
            "The larger; NaN wins.",
        ),
        ExactRow(
            "min",
            _TWO,
            lambda xp, a, b: xp.minimum(a, b),
            primitive("min"),
            "The smaller; NaN wins.",
        ),
        Pointwise(
            "mod",
            _TWO,
            lambda xp, a, b: xp.fmod(a, b),
            primitive("mod"),
            "Remainder of input0 / input1 with the sign of input0.",
            8,
            domain=_divisor("input1", is_continuous=False),
        ),
        FloatRow(
            "pow",
            _TWO,
            lambda xp, a, b: xp.pow(a, b),
            primitive("pow"),
            "input0 to the power of input1.",
            16,
            domain=Domain(
                low=0.1,
                high=3.0,
                huge=0.0,
                ranges={"input1": (-3.0, 3.0)},
                operands="bounded",
            ),
        ),
        ExactRow(
            "bias",
            ("input", "bias"),
            lambda xp, a, b: a + b,
            primitive("add"),
            "input + bias.",
        ),
        ExactRow(
            "scale",
            ("input", "scale"),
            lambda xp, a, b: a * b,
            primitive("mul"),
            "input times scale.",
            domain=_PRODUCT,
        ),
        _Truth(
            "cmp_eq",
            _CMP,
            lambda xp, a, b: a == b,
            primitive("eq"),
            "1 where equal, else 0.",
        ),
        _Truth(
            "cmp_neq",
            _CMP,
            lambda xp, a, b: a != b,
            primitive("ne"),
            "1 where not equal.",
        ),
        _Truth(
            "cmp_gt",
            _CMP,
            lambda xp, a, b: a > b,
            primitive("gt"),
            "1 where input is more.",
        ),
        _Truth(
            "cmp_ge",
            _CMP,
            lambda xp, a, b: a >= b,
            primitive("ge"),
            "1 where not less.",
        ),
        _Truth(
            "cmp_lt",
            _CMP,
            lambda xp, a, b: a < b,
            primitive("lt"),
            "1 where input is less.",
        ),
        _Truth(
            "cmp_le",
            _CMP,
            lambda xp, a, b: a <= b,
            primitive("le"),
            "1 where not more.",
        ),
        _Truth(
            "logical_and",
            _AB,
            lambda xp, a, b: (a != 0) & (b != 0),
            primitive("and_"),
            "1 where both are not 0.",
        ),
        _Truth(
            "logical_or",
            _AB,
            lambda xp, a, b: (a != 0) | (b != 0),
            primitive("or_"),
            "1 where one is not 0.",
        ),
        _Truth(
            "binary_select",
            ("input0", "input1", "mask"),
            _select,
            lambda b, x, y, mask: b.emit("select", mask, x, y),
            "input0 where mask is not 0, else input1.",
        ),
    )
)
