"""Layer norm and RMS norm, forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from fuseplan.dtypes import FLOAT
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import DraftNode
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.draws import Draw, Draws, Pool
from fuseplan.ops.schema import (
    Array,
    Attr,
    Call,
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    Sample,
    register,
    reject,
)
from fuseplan.ops.shapes import (
    Dims,
    broadcasts_to,
    check_scalar,
    keep_order,
    need_stride,
    same_stride,
    set_dim,
)

X, SCALE, BIAS, EPS = "input", "scale", "bias", "eps"
Y, MEAN, INV = "y", "mean", "inv_std"
PHASE = "phase"
_API = {EPS: "epsilon", Y: "Y", INV: "inv_var", PHASE: "norm_forward_phase"}


def normalised_axes(x: Dims, scale: Dims | None, stats: Dims | None) -> tuple[int, ...]:
    """Axes over which statistics are taken.

    They follow from scale; without one, from the dims of the statistics; without either it is every axis but the first.
    """
    if scale is not None:
        return tuple(i for i, extent in enumerate(scale) if extent != 1)
    if stats is not None:
        return tuple(i for i, (d, s) in enumerate(zip(x, stats, strict=True)) if d != s)
    return tuple(range(1, len(x)))


def _check_operands(node: DraftNode, x: Dims) -> None:
    phase = node.attrs.get(PHASE)
    if phase not in ("TRAINING", "INFERENCE"):
        raise reject(node, f"{_API[PHASE]} is {phase}", "pass TRAINING or INFERENCE")
    for port in (SCALE, BIAS):
        tensor = node.inputs.get(port)
        if tensor is None:
            continue
        dim = tensor.need_dim()
        if len(dim) != len(x) or not broadcasts_to(dim, x):
            raise reject(
                node,
                f"{port} ({tensor.name!r}) has dims {list(dim)}, the input {list(x)}",
                "give it the input's rank, and 1 or the input's extent on each axis",
            )
    check_scalar(node, EPS)


def _user_stats(node: DraftNode, x: Dims) -> Dims | None:
    """Dims that the user gave to a statistic, checked against the input and each other."""
    found: Dims | None = None
    for port in (MEAN, INV):
        tensor = node.outputs.get(port)
        if tensor is None or tensor.dim is None:
            continue
        if len(tensor.dim) != len(x) or not broadcasts_to(tensor.dim, x):
            raise reject(
                node,
                f"output {_API.get(port, port)!r} ({tensor.name!r}) has dims {list(tensor.dim)}, the input {list(x)}",
                "statistics have the input's dims, with 1 on the normalised axes",
            )
        if found is not None and tensor.dim != found:
            raise reject(
                node,
                f"mean has dims {list(found)}, inv_var {list(tensor.dim)}",
                "give both the same dims",
            )
        found = tensor.dim
    return found


def _infer(node: DraftNode) -> None:
    source = node.inputs[X]
    x = source.need_dim()
    _check_operands(node, x)
    scale = node.inputs[SCALE].need_dim() if SCALE in node.inputs else None
    user = _user_stats(node, x)
    if scale is None and BIAS in node.inputs and node.op == "layernorm":
        raise reject(node, "bias is given without scale", "pass a scale of ones")
    if (
        scale is None
        and user is None
        and node.op == "rmsnorm"
        and sum(d != 1 for d in x[1:]) > 1
    ):
        raise reject(
            node,
            f"without scale and inv_var dims, the normalised axes of an input of dims {list(x)} are not known",
            "pass a scale, or set the dims of inv_var",
        )
    axes = normalised_axes(x, scale, user)
    like = need_stride(source)
    set_dim(node, Y, x, lambda dim: same_stride(dim, like))
    stats = tuple(1 if i in axes else d for i, d in enumerate(x))
    for port in (MEAN, INV):
        set_dim(node, port, stats, lambda dim: keep_order(dim, like))


def _axes(view: NodeView) -> tuple[int, ...]:
    scale, stats = view.input(SCALE), view.output(INV) or view.output(MEAN)
    return normalised_axes(
        view.need(X).dim, scale.dim if scale else None, stats.dim if stats else None
    )


def average(xp: ArrayNamespace, x: Array, axes: tuple[int, ...]) -> Array:
    """Mean over `axes`, which stay as 1."""
    if not axes:
        return x
    return xp.sum(x, axis=axes, keepdims=True, dtype=x.dtype) / prod(
        x.shape[a] for a in axes
    )


def _finish(
    xp: ArrayNamespace, view: NodeView, arrays: dict[str, Array], centred: Array
) -> dict[str, Array]:
    """Y and inv_var from the input with its mean taken off (or not)."""
    eps = xp.reshape(arrays[EPS], (1,) * len(centred.shape))
    inv = 1 / xp.sqrt(average(xp, centred * centred, _axes(view)) + eps)
    y = centred * inv
    if SCALE in arrays:
        y = y * arrays[SCALE]
    if BIAS in arrays:
        y = y + arrays[BIAS]
    return {Y: y, INV: inv}


def _layernorm(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    mean = average(xp, arrays[X], _axes(view))
    return {**_finish(xp, view, arrays, arrays[X] - mean), MEAN: mean}


def _rmsnorm(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    return _finish(xp, view, arrays, arrays[X])


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    x, lead = args[X], b.rank - len(view.need(X).dim)
    axes = tuple(a + lead for a in _axes(view))

    def mean_of(value: int) -> int:
        return (
            b.emit("div", b.reduce("add", value, axes), b.count(value, axes))
            if axes
            else b.emit("cast", value)
        )

    made: dict[str, int] = {}
    if view.node.op == "layernorm":
        made[MEAN] = mean_of(x)
        x = b.emit("sub", x, made[MEAN])
    shifted = b.emit("add", mean_of(b.emit("mul", x, x)), args[EPS])
    made[INV] = b.emit("div", b.const(1.0), b.emit("sqrt", shifted))
    y = b.emit("mul", x, made[INV])
    if SCALE in args:
        y = b.emit("mul", y, args[SCALE])
    if BIAS in args:
        y = b.emit("add", y, args[BIAS])
    return {**made, Y: y}


def _cost(view: NodeView) -> Cost:
    return Cost(8.0 * view.need(X).numel, view.in_bytes, view.out_bytes)


def _results(bound: Mapping[str, Any]) -> tuple[str, ...]:
    phase = bound.get(_API[PHASE])
    return (MEAN, _API[INV]) if getattr(phase, "name", phase) == "TRAINING" else ()


_EPS_RANGE = {X: (-2.0, 2.0), SCALE: (-1.5, 1.5), BIAS: (-1.0, 1.0), EPS: (1e-5, 1e-3)}


def _sample(id: str, x: tuple[Any, ...], scale: Dims | None, **more: Any) -> Sample:
    """A case; inputs are positive where a runner ignores `ranges`, so that variance plus epsilon stays positive."""
    kind = x[1]
    ins: dict[str, tuple[Any, ...]] = {X: x}
    if scale is not None:
        ins[SCALE] = (scale, kind)
        if more.pop("bias", True):
            ins[BIAS] = (scale, kind)
    ins[EPS] = ((1,) * len(x[0]), "FLOAT")
    phase = more.pop("phase", "TRAINING")
    absent = () if phase == "TRAINING" else (MEAN, INV)
    known = {"low": 0.1, "high": 2.0, "ranges": _EPS_RANGE, **more}
    return Sample(id, ins, {PHASE: phase}, absent=absent, **known)


def _samples() -> Iterable[Sample]:
    bad = InvalidGraphError
    yield _sample("rows", ((6, 33, 1, 1), "FLOAT"), (1, 33, 1, 1))
    yield _sample("three-axes", ((2, 5, 7), "FLOAT"), (1, 1, 7))
    yield _sample("image", ((3, 4, 5, 2), "FLOAT", (40, 1, 8, 4)), (1, 4, 5, 2))
    yield _sample("inference", ((4, 9), "FLOAT"), (1, 9), phase="INFERENCE")
    yield _sample(
        "inference-no-bias",
        ((2, 3, 9), "FLOAT"),
        (1, 1, 9),
        phase="INFERENCE",
        bias=False,
    )
    yield _sample("half", ((4, 17), "HALF"), (1, 17), types={Y: "HALF"})
    yield _sample("bf16", ((4, 3, 8), "BFLOAT16"), (1, 1, 8), types={Y: "BFLOAT16"})
    yield _sample("zero-stride", ((4, 9), "FLOAT", (0, 1)), (1, 9))
    yield _sample("one-element", ((5, 1), "FLOAT"), (1, 1))
    yield _sample("no-scale", ((6, 8, 1), "FLOAT"), None)
    yield _sample(
        "no-scale-user-stats", ((2, 3, 8), "FLOAT"), None, outputs={INV: (2, 3, 1)}
    )
    yield _sample(
        "far-from-zero",
        ((3, 21), "FLOAT"),
        (1, 21),
        ranges={**_EPS_RANGE, X: (100.0, 101.0)},
    )
    yield _sample(
        "phase-not-set", ((4, 9), "FLOAT"), (1, 9), phase="NOT_SET", fails=bad
    )
    yield _sample("phase-missing", ((4, 9), "FLOAT"), (1, 9), phase=None, fails=bad)
    yield _sample("scale-extent", ((4, 9), "FLOAT"), (1, 8), fails=bad)
    yield _sample("scale-rank", ((4, 9), "FLOAT"), (9,), fails=bad)
    yield _sample(
        "stats-dims", ((4, 9), "FLOAT"), (1, 9), outputs={INV: (1, 9)}, fails=bad
    )
    yield _sample(
        "output-dims", ((4, 9), "FLOAT"), (1, 9), outputs={Y: (4, 8)}, fails=bad
    )
    no_eps = {X: ((4, 9), "FLOAT"), SCALE: ((1, 9), "FLOAT")}
    yield Sample("epsilon-missing", no_eps, {PHASE: "TRAINING"}, fails=bad)
    yield Sample(
        "epsilon-not-scalar",
        {**no_eps, EPS: ((1, 9), "FLOAT")},
        {PHASE: "TRAINING"},
        fails=bad,
    )


def _layernorm_samples() -> Iterable[Sample]:
    yield from _samples()
    yield _sample("no-scale-all-axes", ((3, 4, 5), "FLOAT"), None)
    biased = {X: ((4, 9), "FLOAT"), BIAS: ((1, 9), "FLOAT"), EPS: ((1, 1), "FLOAT")}
    yield Sample(
        "bias-without-scale", biased, {PHASE: "TRAINING"}, fails=InvalidGraphError
    )
    yield _sample(
        "stats-differ",
        ((2, 3, 8), "FLOAT"),
        None,
        outputs={MEAN: (2, 3, 1), INV: (2, 1, 1)},
        fails=InvalidGraphError,
    )


def _without_mean(sample: Sample) -> Sample:
    return replace(sample, absent=tuple(p for p in sample.absent if p != MEAN))


def _rmsnorm_samples() -> Iterable[Sample]:
    yield from map(_without_mean, _samples())
    yield _without_mean(
        _sample(
            "no-scale-unknown-axes", ((3, 4, 5), "FLOAT"), None, fails=InvalidGraphError
        )
    )


def _draw(pool: Pool, stats: tuple[str, ...]) -> Draw | None:
    """Over the last axes, or over one, of three elements at least."""
    rng, x = pool.rng, pool.like()
    dim = x.need_dim()
    if len(dim) < 2:
        return None
    axes = (
        range(rng.randrange(1, len(dim)), len(dim))
        if rng.random() < 0.8
        else [rng.randrange(1, len(dim))]
    )
    scale = tuple(d if i in axes else 1 for i, d in enumerate(dim))
    if prod(scale) < 3:
        return None
    phase = rng.choice(("TRAINING", "INFERENCE"))
    inputs = {X: x, SCALE: pool.input(scale), EPS: pool.scalar(len(dim), 0.1, FLOAT)}
    if rng.random() < 0.5:
        inputs[BIAS] = pool.input(scale)
    return Draw(
        inputs,
        dict.fromkeys((Y, *(stats if phase == "TRAINING" else ()))),
        {PHASE: phase},
    )


_ATTRS = (Attr(PHASE, "enum:norm_forward_phase", is_required=True),)
_INPUTS = (
    Port(X),
    Port(SCALE, is_optional=True),
    Port(BIAS, is_optional=True),
    Port(EPS),
)
_INV_PORT = Port(INV, is_optional=True)
_DOC = """
Shapes:
    scale, bias: the input's rank, 1 on every axis that is not normalised
    statistics: the input's dims, 1 on every normalised axis
Args:
    norm_forward_phase: TRAINING gives the statistics, INFERENCE gives None in their place
    epsilon: tensor of one element, added to the mean square before the root; must be given
"""


def _call(doc: str, results: Callable[[Mapping[str, Any]], tuple[str, ...]]) -> Call:
    return Call(
        positional=(X, SCALE, BIAS, _API[EPS], _API[PHASE]),
        classic=(_API[PHASE], X, SCALE, BIAS, _API[EPS], "compute_data_type", "name"),
        doc=doc + _DOC,
        names=_API,
        labels={MEAN: "MEAN", INV: "INV_VARIANCE"},
        returns_list=True,
        results=results,
    )


LAYERNORM = register(
    OpSchema(
        name="layernorm",
        family="norm",
        inputs=_INPUTS,
        outputs=(Port(Y), Port(MEAN, is_optional=True), _INV_PORT),
        infer=_infer,
        reference=_layernorm,
        cost=_cost,
        decompose=_decompose,
        samples=_layernorm_samples,
        draws=Draws(lambda pool: _draw(pool, (MEAN, INV)), weight=2.5),
        call=_call(
            "Take off the mean and divide by the standard deviation over the axes where scale is not 1.\n",
            _results,
        ),
        attrs=_ATTRS,
    )
)

RMSNORM = register(
    OpSchema(
        name="rmsnorm",
        family="norm",
        inputs=_INPUTS,
        outputs=(Port(Y), _INV_PORT),
        infer=_infer,
        reference=_rmsnorm,
        cost=_cost,
        decompose=_decompose,
        samples=_rmsnorm_samples,
        draws=Draws(lambda pool: _draw(pool, (INV,)), weight=2.5),
        call=_call(
            "Divide by the root mean square over the axes where scale is not 1.\n",
            lambda bound: tuple(p for p in _results(bound) if p != MEAN),
        ),
        attrs=_ATTRS,
    )
)
