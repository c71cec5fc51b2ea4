"""Pointwise ops of one input."""

from __future__ import annotations

import math
from typing import Any

from fuseplan.ir.graph import DraftNode
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.pointwise import OUT, ExactRow, FloatRow, define, primitive
from fuseplan.ops.pointwise_samples import Domain
from fuseplan.ops.schema import Array, Attr, FragmentBuilder, reject

_IN = ("input",)
_POSITIVE = Domain(low=0.05, high=4.0)
_ANGLE = Domain(low=-1.4, high=1.4, huge=0.0)
_SLOPE = Domain(low=-1.4, high=1.4, huge=0.0, operands="bounded")
_TRUTH = Domain(is_logical=True)
_STEPS = Domain(is_continuous=False)


def sigmoid_reference(xp: ArrayNamespace, x: Array) -> Array:
    """1 / (1 + e^-x), with no exponential of a positive number."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small / (1 + small), 1 / (1 + small))


def emit_sigmoid(b: FragmentBuilder, x: int) -> int:
    """The same over primitives."""
    e = b.emit("exp", b.emit("neg", b.emit("abs", x)))
    one = b.const(1.0)
    top = b.emit("select", b.emit("ge", x, b.const(0.0)), one, e)
    return b.emit("div", top, b.emit("add", one, e))


def _elu(xp: ArrayNamespace, x: Array) -> Array:
    return xp.where(x > 0, x, xp.expm1(xp.minimum(x, xp.zeros_like(x))))


def _emit_elu(b: FragmentBuilder, x: int) -> int:
    # e^x - 1 = 2 t / (1 - t) with t = tanh(x / 2): no cancellation near 0, no overflow where it is not selected
    t = b.emit("tanh", b.emit("mul", x, b.const(0.5)))
    minus = b.emit("div", b.emit("add", t, t), b.emit("sub", b.const(1.0), t))
    return b.emit("select", b.emit("gt", x, b.const(0.0)), x, minus)


def _gelu(xp: ArrayNamespace, x: Array) -> Array:
    return 0.5 * x * (1 + xp.erf(x / math.sqrt(2.0)))


def _emit_gelu(b: FragmentBuilder, x: int) -> int:
    phi = b.emit(
        "add", b.emit("erf", b.emit("mul", x, b.const(math.sqrt(0.5)))), b.const(1.0)
    )
    return b.emit("mul", b.emit("mul", x, b.const(0.5)), phi)


def _gelu_approx_tanh(xp: ArrayNamespace, x: Array) -> Array:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + xp.tanh(inner))


def _emit_gelu_approx_tanh(b: FragmentBuilder, x: int) -> int:
    poly = b.emit(
        "add", b.emit("mul", b.emit("mul", x, x), b.const(0.044715)), b.const(1.0)
    )
    inner = b.emit("mul", b.emit("mul", x, poly), b.const(math.sqrt(2.0 / math.pi)))
    return b.emit(
        "mul",
        b.emit("mul", x, b.const(0.5)),
        b.emit("add", b.emit("tanh", inner), b.const(1.0)),
    )


def _softplus(xp: ArrayNamespace, x: Array) -> Array:
    return xp.logaddexp(x, xp.zeros_like(x))


def _emit_softplus(b: FragmentBuilder, x: int) -> int:
    tail = b.emit("log1p", b.emit("exp", b.emit("neg", b.emit("abs", x))))
    return b.emit("add", b.emit("max", x, b.const(0.0)), tail)


def _swish(xp: ArrayNamespace, x: Array, *, swish_beta: float | None) -> Array:
    return x * sigmoid_reference(xp, x if swish_beta is None else swish_beta * x)


def _emit_swish(b: FragmentBuilder, x: int, *, swish_beta: float | None) -> int:
    inner = x if swish_beta is None else b.emit("mul", x, b.const(swish_beta))
    return b.emit("mul", x, emit_sigmoid(b, inner))


def _relu(
    xp: ArrayNamespace, x: Array, *, negative_slope: float | None, lower_clip: float | None, upper_clip: float | None
) -> Array:  # fmt: skip
    low, slope, zeros = lower_clip or 0, negative_slope or 0, xp.zeros_like(x)
    if xp.is_integer(x):  # a float beside it would take integers through a float type
        low, slope = int(low), int(slope)
        upper_clip = None if upper_clip is None else int(upper_clip)
    if slope:
        below = slope * (x - low) + low if low else slope * x
    else:  # 0 * (-inf - low) would be NaN
        below = xp.where(x == x, zeros + low, x)
    above = x if upper_clip is None else xp.minimum(x, zeros + upper_clip)
    return xp.where(x > low, above, below)


def _emit_relu(
    b: FragmentBuilder, x: int, *, negative_slope: float | None, lower_clip: float | None, upper_clip: float | None
) -> int:  # fmt: skip
    low = b.const(lower_clip or 0.0)
    if not negative_slope and upper_clip is None:
        return b.emit("max", x, low)
    above = x if upper_clip is None else b.emit("min", x, b.const(upper_clip))
    if not negative_slope:
        below = b.emit("max", x, low)  # low, or NaN, where it is selected
    elif lower_clip:
        below = b.emit(
            "add", b.emit("mul", b.emit("sub", x, low), b.const(negative_slope)), low
        )
    else:
        below = b.emit("mul", x, b.const(negative_slope))
    return b.emit("select", b.emit("gt", x, low), above, below)


def _check_relu(node: DraftNode) -> None:
    if node.compute is not None and not node.compute.is_float:
        for name in ("negative_slope", "lower_clip", "upper_clip"):
            value = node.attrs.get(name)
            if isinstance(value, float) and not value.is_integer():
                raise reject(
                    node,
                    f"{name} is {value} in {node.compute.name} arithmetic",
                    "set compute_data_type to FLOAT",
                )


def _leaky_relu(xp: ArrayNamespace, x: Array, *, negative_slope: float) -> Array:
    return xp.where(x > 0, x, negative_slope * x)


def _emit_leaky_relu(b: FragmentBuilder, x: int, *, negative_slope: float) -> int:
    return b.emit(
        "select",
        b.emit("gt", x, b.const(0.0)),
        x,
        b.emit("mul", x, b.const(negative_slope)),
    )


def _check_gen_index(node: DraftNode) -> None:
    x, out, axis = node.inputs["input"], node.outputs[OUT], node.attrs["axis"]
    rank = len(x.need_dim())
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise reject(
            node,
            f"axis {axis} is not an axis of a tensor of rank {rank}",
            f"give an axis from 0 to {rank - 1}",
        )
    if out.dim is not None and out.dim != x.dim:
        raise reject(
            node,
            f"output {out.name!r} has dims {list(out.dim)}, the input {list(x.need_dim())}",
            "make them equal",
        )


def _gen_index(xp: ArrayNamespace, x: Array, *, axis: int) -> Array:
    rank = len(x.shape)
    along = [x.shape[i] if i == axis % rank else 1 for i in range(rank)]
    return xp.broadcast_to(
        xp.reshape(xp.positions(x.shape[axis], x, x.dtype), tuple(along)), x.shape
    )


def _emit_gen_index(b: FragmentBuilder, x: int, *, axis: int, rank: int) -> int:
    along, dim = axis % rank + b.rank - rank, b.values[x].dim
    if dim[along] == 1:  # loops may walk the axis all the same, for other values
        return b.emit("cast", b.const(0.0), dim=dim)
    return b.emit("index", dim=dim, axis=along)


def _of(name: str) -> Any:
    """The reference of an op that is a function of the namespace."""
    return lambda xp, x: getattr(xp, name)(x)


_SLOPES = Domain(
    attr_sets=(
        {"negative_slope": 0.01},
        {"negative_slope": 0.25},
        {"negative_slope": -1.5},
    ),
    bad_attrs=({"negative_slope": None},),
)
_RELUS = Domain(
    attr_sets=(
        {"negative_slope": None, "lower_clip": None, "upper_clip": None},
        {"negative_slope": None, "lower_clip": -0.5, "upper_clip": 0.75},
        {"negative_slope": 0.125, "lower_clip": 0.5, "upper_clip": 1.0},
        {"negative_slope": 0.1, "lower_clip": None, "upper_clip": None},
        {"negative_slope": None, "lower_clip": None, "upper_clip": 0.0},
        {"negative_slope": None, "lower_clip": -1.0, "upper_clip": 2.0},
        {"negative_slope": 2.0, "lower_clip": 1.0, "upper_clip": 3.0},
    )
)
_BETAS = Domain(
    attr_sets=({"swish_beta": None}, {"swish_beta": 1.702}, {"swish_beta": -0.5})
)
_AXES = Domain(
    attr_sets=({"axis": 0}, {"axis": 1}, {"axis": 2}), huge=0.0, bad_attrs=({"axis": None}, {"axis": 3}),
    draw_attrs=lambda rng, rank: {"axis": rng.randrange(-rank, rank)},
)  # fmt: skip

define(  # table
    (
        ExactRow("abs", _IN, _of("abs"), primitive("abs"), "Absolute value."),
        ExactRow("neg", _IN, lambda xp, x: -x, primitive("neg"), "Negative."),
        ExactRow("ceil", _IN, _of("ceil"), primitive("ceil"), "Smallest integer that is not less.", domain=_STEPS),
        ExactRow("floor", _IN, _of("floor"), primitive("floor"), "Largest integer that is not more.", domain=_STEPS),
        FloatRow("cos", _IN, _of("cos"), primitive("cos"), "Cosine of radians.", 8, domain=_ANGLE),
        FloatRow("sin", _IN, _of("sin"), primitive("sin"), "Sine of radians.", 8, domain=_ANGLE),
        FloatRow("tan", _IN, _of("tan"), primitive("tan"), "Tangent of radians.", 8, domain=_SLOPE),
        FloatRow("erf", _IN, _of("erf"), primitive("erf"), "Error function.", 8),
        FloatRow(
            "exp", _IN, _of("exp"), primitive("exp"), "e to the power of x.", 4, domain=Domain(operands="bounded"),
        ),
        FloatRow("log", _IN, _of("log"), primitive("log"), "Natural logarithm.", 4, domain=_POSITIVE),
        FloatRow("tanh", _IN, _of("tanh"), primitive("tanh"), "Hyperbolic tangent.", 8),
        FloatRow("sqrt", _IN, _of("sqrt"), primitive("sqrt"), "Square root.", is_exact=True, domain=_POSITIVE),
        FloatRow(
            "rsqrt", _IN, lambda xp, x: 1 / xp.sqrt(x), lambda b, x: b.emit("div", b.const(1.0), b.emit("sqrt", x)),
            "One over the square root.", 2, domain=_POSITIVE,
        ),
        FloatRow(
            "reciprocal", _IN, lambda xp, x: 1 / x, lambda b, x: b.emit("div", b.const(1.0), x),
            "One over x.", is_exact=True, domain=Domain(operands="positive"),
        ),
        ExactRow("identity", _IN, lambda xp, x: x, primitive("cast"), "Copy, and conversion to the output's type."),
        ExactRow("logical_not", _IN, lambda xp, x: x == 0, primitive("not_"), "1 where x is 0, else 0.", domain=_TRUTH),
        FloatRow("sigmoid", _IN, sigmoid_reference, emit_sigmoid, "1 / (1 + e^-x).", 6),
        FloatRow("elu", _IN, _elu, _emit_elu, "x where positive, else e^x - 1.", 8),
        FloatRow("gelu", _IN, _gelu, _emit_gelu, "x/2 (1 + erf(x / sqrt 2)).", 12),
        FloatRow(
            "gelu_approx_tanh", _IN, _gelu_approx_tanh, _emit_gelu_approx_tanh,
            "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).", 14,
        ),
        FloatRow("softplus", _IN, _softplus, _emit_softplus, "ln(1 + e^x).", 8),
        FloatRow(
            "swish", _IN, _swish, _emit_swish, "x sigmoid(beta x); beta is 1 unless given.", 8,
            domain=_BETAS, attrs=(Attr("swish_beta", "float"),),
        ),
        ExactRow(
            "relu", _IN, _relu, _emit_relu,
            "x clipped from below (0 unless given) and above, with an optional slope below.", 2,
            domain=_RELUS, check=_check_relu,
            attrs=(Attr("negative_slope", "float"), Attr("lower_clip", "float"), Attr("upper_clip", "float")),
        ),
        FloatRow(
            "leaky_relu", _IN, _leaky_relu, _emit_leaky_relu, "x where positive, else negative_slope x.", 2,
            is_exact=True, attrs=(Attr("negative_slope", "float", is_required=True),), domain=_SLOPES,
        ),
        ExactRow(
            "gen_index", _IN, _gen_index, _emit_gen_index,
            "Each element's own index along an axis; input values are ignored.", 0, domain=_AXES,
            check=_check_gen_index, needs_rank=True, attrs=(Attr("axis", "int", is_required=True),),
        ),
    )
)  # fmt: skip
