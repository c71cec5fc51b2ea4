"""Pointwise ops of two and three inputs."""

from __future__ import annotations

from typing import Any

from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.pointwise import Pointwise, define
from fuseplan.ops.pointwise_samples import Domain
from fuseplan.ops.schema import Array, FragmentBuilder

_AB = ("a", "b")
_TWO = ("input0", "input1")
_CMP = ("input", "comparison")
_TRUTH = Domain(is_logical=True)


def _emit(op: str) -> Any:
    """The emit function of an op that is itself a primitive."""
    return lambda b, *args: b.emit(op, *args)


def _emit_add_square(b: FragmentBuilder, x: int, y: int) -> int:
    return b.emit("add", x, b.emit("mul", y, y))


def _select(xp: ArrayNamespace, x: Array, y: Array, mask: Array) -> Array:
    return xp.where(mask != 0, x, y)


def _divisor(port: str) -> Domain:
    """Second operand away from 0, where quotients say nothing."""
    return Domain(ranges={port: (0.3, 3.0)})


define(  # table
    (
        Pointwise("add", _AB, lambda xp, a, b: a + b, _emit("add"), "a + b.", is_exact=True),
        Pointwise("sub", _AB, lambda xp, a, b: a - b, _emit("sub"), "a - b.", is_exact=True),
        Pointwise("mul", _AB, lambda xp, a, b: a * b, _emit("mul"), "a b.", is_exact=True),
        Pointwise(
            "div", _AB, lambda xp, a, b: xp.divide(a, b), _emit("div"),
            "a / b; in integer arithmetic truncated towards zero.", is_exact=True, domain=_divisor("b"),
        ),
        Pointwise("add_square", _AB, lambda xp, a, b: a + b * b, _emit_add_square, "a + b b.", 2, is_exact=True),
        Pointwise("max", _TWO, lambda xp, a, b: xp.maximum(a, b), _emit("max"), "The larger; NaN wins.", is_exact=True),
        Pointwise(
            "min", _TWO, lambda xp, a, b: xp.minimum(a, b), _emit("min"),
            "The smaller; NaN wins.", is_exact=True,
        ),
        Pointwise(
            "mod", _TWO, lambda xp, a, b: xp.fmod(a, b), _emit("mod"),
            "Remainder of input0 / input1 with the sign of input0.", 8, domain=_divisor("input1"),
        ),
        Pointwise(
            "pow", _TWO, lambda xp, a, b: xp.pow(a, b), _emit("pow"), "input0 to the power of input1.", 16,
            is_float_only=True, domain=Domain(low=0.1, high=3.0, huge=0.0, ranges={"input1": (-3.0, 3.0)}),
        ),
        Pointwise("bias", ("input", "bias"), lambda xp, a, b: a + b, _emit("add"), "input + bias.", is_exact=True),
        Pointwise(
            "scale", ("input", "scale"), lambda xp, a, b: a * b, _emit("mul"),
            "input times scale.", is_exact=True,
        ),
        Pointwise(
            "cmp_eq", _CMP, lambda xp, a, b: a == b, _emit("eq"),
            "1 where equal, else 0.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "cmp_neq", _CMP, lambda xp, a, b: a != b, _emit("ne"),
            "1 where not equal.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "cmp_gt", _CMP, lambda xp, a, b: a > b, _emit("gt"),
            "1 where input is more.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "cmp_ge", _CMP, lambda xp, a, b: a >= b, _emit("ge"),
            "1 where not less.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "cmp_lt", _CMP, lambda xp, a, b: a < b, _emit("lt"),
            "1 where input is less.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "cmp_le", _CMP, lambda xp, a, b: a <= b, _emit("le"),
            "1 where not more.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "logical_and", _AB, lambda xp, a, b: (a != 0) & (b != 0), _emit("and_"),
            "1 where both are not 0.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "logical_or", _AB, lambda xp, a, b: (a != 0) | (b != 0), _emit("or_"),
            "1 where one is not 0.", is_exact=True, domain=_TRUTH,
        ),
        Pointwise(
            "binary_select", ("input0", "input1", "mask"), _select, lambda b, x, y, mask: b.emit("select", mask, x, y),
            "input0 where mask is not 0, else input1.", is_exact=True, domain=_TRUTH,
        ),
    )
)  # fmt: skip
