"""Layer norm and RMS norm, backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import DraftNode
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.draws import Draw, Draws, Pool
from fuseplan.ops.norm import average, normalised_axes
from fuseplan.ops.schema import (
    Array,
    Attr,
    Call,
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    Sample,
    api_name,
    register,
    reject,
)
from fuseplan.ops.shapes import Dims, broadcasts_to, need_stride, same_stride, set_dim

GRAD, X, SCALE, MEAN, INV = "grad", "input", "scale", "mean", "inv_std"
DX, DSCALE, DBIAS = "dx", "dscale", "dbias"
HAS_DBIAS = "has_dbias"
_API = {INV: "inv_variance", DX: "DX", DSCALE: "DScale", DBIAS: "DBias"}


def _check_operand(node: DraftNode, port: str, dim: Dims, why: str) -> None:
    tensor = node.inputs[port]
    if tensor.need_dim() != dim:
        raise reject(
            node,
            f"{api_name(node, port)} ({tensor.name!r}) has dims {list(tensor.need_dim())}, not {list(dim)}",
            why,
        )


def _infer(node: DraftNode) -> None:
    source = node.inputs[X]
    x, scale = source.need_dim(), node.inputs.get(SCALE)
    _check_operand(node, GRAD, x, "the gradient has the dims of the input")
    if scale is None and node.attrs.get(HAS_DBIAS):
        raise reject(node, "has_dbias is set without scale", "pass a scale of ones")
    stats = node.inputs[INV].need_dim()
    for given in (stats, scale.need_dim() if scale else x):
        if len(given) != len(x) or not broadcasts_to(given, x):
            raise reject(
                node,
                f"dims {list(given)} do not repeat to those of the input, {list(x)}",
                "scale and statistics have the input's rank, and 1 or the input's extent on each axis",
            )
    axes = normalised_axes(x, scale.need_dim() if scale else None, stats)
    kept = tuple(1 if i in axes else d for i, d in enumerate(x))
    for port in (MEAN, INV):
        if port in node.inputs:
            _check_operand(node, port, kept, "statistics are 1 on the normalised axes")
    set_dim(node, DX, x, lambda dim: same_stride(dim, need_stride(source)))
    if scale is not None:
        like = need_stride(scale)
        for port in (DSCALE, DBIAS):
            set_dim(node, port, scale.need_dim(), lambda dim: same_stride(dim, like))


def _axes(view: NodeView) -> tuple[int, ...]:
    scale = view.input(SCALE)
    return normalised_axes(
        view.need(X).dim, scale.dim if scale else None, view.need(INV).dim
    )


def _other_axes(view: NodeView) -> tuple[int, ...]:
    """Axes over which the gradients of scale and bias are summed."""
    x, axes = view.need(X).dim, _axes(view)
    return tuple(i for i, d in enumerate(x) if d != 1 and i not in axes)


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    axes, others = _axes(view), _other_axes(view)
    grad, inv = arrays[GRAD], arrays[INV]
    centred = arrays[X] - arrays[MEAN] if MEAN in arrays else arrays[X]
    normed = centred * inv
    scaled = grad * arrays[SCALE] if SCALE in arrays else grad
    dx = scaled - normed * average(xp, scaled * normed, axes)
    if MEAN in arrays:
        dx = dx - average(xp, scaled, axes)

    def over_others(value: Array) -> Array:
        if not others:
            return value
        return xp.sum(value, axis=others, keepdims=True, dtype=value.dtype)

    return {
        DX: dx * inv,
        DSCALE: over_others(grad * normed),
        DBIAS: over_others(grad),
    }


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    lead = b.rank - len(view.need(X).dim)
    axes = tuple(a + lead for a in _axes(view))
    others = tuple(a + lead for a in _other_axes(view))
    grad = args[GRAD]

    def mean_of(value: int) -> int:
        if not axes:
            return value
        return b.emit("div", b.reduce("add", value, axes), b.count(value, axes))

    def over_others(value: int) -> int:
        return b.reduce("add", value, others) if others else b.emit("cast", value)

    centred = b.emit("sub", args[X], args[MEAN]) if MEAN in args else args[X]
    normed = b.emit("mul", centred, args[INV])
    scaled = b.emit("mul", grad, args[SCALE]) if SCALE in args else grad
    shared = b.emit("mul", normed, mean_of(b.emit("mul", scaled, normed)))
    dx = b.emit("sub", scaled, shared)
    if MEAN in args:
        dx = b.emit("sub", dx, mean_of(scaled))
    made = {DX: b.emit("mul", dx, args[INV])}
    if view.output(DSCALE):
        made[DSCALE] = over_others(b.emit("mul", grad, normed))
    if view.output(DBIAS):
        made[DBIAS] = over_others(grad)
    return made


def _cost(view: NodeView) -> Cost:
    return Cost(13.0 * view.need(X).numel, view.in_bytes, view.out_bytes)


_RANGES = {MEAN: (-0.5, 0.5), INV: (0.5, 2.0), SCALE: (-1.5, 1.5)}


def _sample(
    op: str,
    id: str,
    x: tuple[Any, ...],
    scale: Dims | None,
    stats: Dims,
    **more: Any,
) -> Sample:
    """A case: gradient, input and scale of one type, FLOAT statistics."""
    kind, has_dbias = x[1], more.pop(HAS_DBIAS, scale is not None)
    ins: dict[str, tuple[Any, ...]] = {GRAD: (x[0], kind), X: x}
    if scale is not None:
        ins[SCALE] = (scale, kind)
    if op == "layernorm_backward":
        ins[MEAN] = (stats, "FLOAT")
    ins[INV] = (stats, "FLOAT")
    absent: tuple[str, ...] = () if scale else (DSCALE, DBIAS)
    if op == "rmsnorm_backward":
        more["attrs"] = {HAS_DBIAS: has_dbias}
        absent = absent if has_dbias or not scale else (DBIAS,)
    return Sample(id, ins, absent=absent, **{"ranges": _RANGES, **more})


def _samples(op: str) -> Iterable[Sample]:
    bad = InvalidGraphError
    half = {DX: "HALF", DSCALE: "HALF", DBIAS: "FLOAT"}

    def sample(*args: Any, **more: Any) -> Sample:
        return _sample(op, *args, **more)

    yield sample("rows", ((6, 33, 1, 1), "FLOAT"), (1, 33, 1, 1), (6, 1, 1, 1))
    yield sample("three-axes", ((2, 5, 7), "FLOAT"), (1, 1, 7), (2, 5, 1))
    image = ((3, 4, 5, 2), "FLOAT", (40, 1, 8, 4))
    yield sample("image", image, (1, 4, 5, 2), (3, 1, 1, 1))
    yield sample("two-apart", image, (1, 4, 1, 2), (3, 1, 5, 1))
    yield sample("half", ((4, 17), "HALF"), (1, 17), (4, 1), types=half)
    bf16 = {DX: "BFLOAT16"}
    yield sample("bf16", ((4, 3, 8), "BFLOAT16"), (1, 1, 8), (4, 3, 1), types=bf16)
    yield sample("zero-stride", ((4, 9), "FLOAT", (0, 1)), (1, 9), (4, 1))
    yield sample("one-row", ((1, 9), "FLOAT"), (1, 9), (1, 1))
    yield sample("nothing-normalised", ((5, 1), "FLOAT"), (1, 1), (5, 1))
    yield sample("no-scale", ((6, 2, 8), "FLOAT"), None, (6, 2, 1))
    ranges = {**_RANGES, X: (100.0, 101.0), MEAN: (100.4, 100.6)}
    yield sample("far", ((3, 21), "FLOAT"), (1, 21), (3, 1), ranges=ranges)
    yield sample("stats-dims", ((4, 9), "FLOAT"), (1, 9), (1, 9), fails=bad)
    yield sample("stats-rank", ((4, 9), "FLOAT"), (1, 9), (4,), fails=bad)
    yield sample("scale-extent", ((4, 9), "FLOAT"), (1, 8), (4, 1), fails=bad)
    yield sample(
        "output-dims",
        ((4, 9), "FLOAT"),
        (1, 9),
        (4, 1),
        outputs={DSCALE: (9, 1)},
        fails=bad,
    )
    unlike = sample("grad-dims", ((4, 9), "FLOAT"), (1, 9), (4, 1), fails=bad)
    yield Sample(
        unlike.id,
        {**unlike.inputs, GRAD: ((9, 4), "FLOAT")},
        unlike.attrs,
        fails=bad,
    )


def _rmsnorm_samples() -> Iterable[Sample]:
    yield from _samples("rmsnorm_backward")
    rows: tuple[Any, ...] = ((4, 9), "FLOAT")
    known: dict[str, tuple[Dims | None, Any]] = {
        "no-dbias": ((1, 9), {HAS_DBIAS: False}),
        "dbias-without-scale": (None, {HAS_DBIAS: True, "fails": InvalidGraphError}),
        "has-dbias-missing": ((1, 9), {HAS_DBIAS: None, "fails": InvalidGraphError}),
    }
    for id, (scale, more) in known.items():
        yield _sample("rmsnorm_backward", id, rows, scale, (4, 1), **more)


def _draw(pool: Pool, op: str) -> Draw | None:
    """Over the last axes, of three elements at least."""
    rng, x = pool.rng, pool.like()
    dim = x.need_dim()
    if len(dim) < 2:
        return None
    first = rng.randrange(1, len(dim))
    if prod(dim[first:]) < 3:
        return None
    scale = (1,) * first + dim[first:]
    stats = tuple(1 if s != 1 else d for s, d in zip(scale, dim, strict=True))
    inputs = {GRAD: pool.input(dim), X: x}
    has_scale = rng.random() < 0.8
    has_dbias = has_scale and (op == "layernorm_backward" or rng.random() < 0.5)
    if has_scale:
        inputs[SCALE] = pool.input(scale)
    if op == "layernorm_backward":
        inputs[MEAN] = pool.input(stats)
    inputs[INV] = pool.positive(pool.input(stats))
    outputs = (DX, *(DSCALE,) * has_scale, *(DBIAS,) * has_dbias)
    attrs = {HAS_DBIAS: has_dbias} if op == "rmsnorm_backward" else {}
    return Draw(inputs, dict.fromkeys(outputs), attrs)


def _results(bound: Mapping[str, Any]) -> tuple[str, ...]:
    """What a call makes: the gradients of scale and bias only with a scale, the latter where it is asked for."""
    if bound.get(SCALE) is None:
        return ()
    has_dbias = bound.get(HAS_DBIAS, True)
    return (_API[DSCALE], _API[DBIAS]) if has_dbias else (_API[DSCALE],)


_DOC = """
Shapes:
    grad, DX: the input's dims
    scale, DScale, DBias: the input's rank, 1 on every axis that is not normalised
    statistics: the input's dims, 1 on every normalised axis; without scale they say which axes are normalised
"""
_DBIAS_DOC = """Args:
    has_dbias: whether the gradient of a bias is made as well; must be given
"""


def _register(
    op: str, inputs: Sequence[Port], attrs: tuple[Attr, ...], call: Call
) -> OpSchema:
    is_layer = op == "layernorm_backward"
    return register(
        OpSchema(
            name=op,
            family="norm",
            inputs=tuple(inputs),
            outputs=(
                Port(DX),
                Port(DSCALE, is_optional=True),
                Port(DBIAS, is_optional=True),
            ),
            infer=_infer,
            reference=_reference,
            cost=_cost,
            decompose=_decompose,
            samples=(lambda: _samples(op)) if is_layer else _rmsnorm_samples,
            draws=Draws(lambda pool: _draw(pool, op)),
            call=call,
            attrs=attrs,
        )
    )


def _call(doc: str, order: tuple[str, ...], labels: Mapping[str, str]) -> Call:
    return Call(
        positional=order,
        classic=(*order, "compute_data_type", "name"),
        doc=doc,
        names=_API,
        labels=labels,
        returns_list=True,
        results=_results,
    )


_OPTIONAL_SCALE = Port(SCALE, is_optional=True)

LAYERNORM_BACKWARD = _register(
    "layernorm_backward",
    (Port(GRAD), Port(X), _OPTIONAL_SCALE, Port(MEAN), Port(INV)),
    (),
    _call(
        "Gradients of layer norm by its input, scale and bias, from the statistics of its forward call.\n"
        + _DOC,
        (GRAD, X, SCALE, MEAN, _API[INV]),
        {DSCALE: "DSCALE", DBIAS: "DBIAS"},
    ),
)

RMSNORM_BACKWARD = _register(
    "rmsnorm_backward",
    (Port(GRAD), Port(X), _OPTIONAL_SCALE, Port(INV)),
    (Attr(HAS_DBIAS, "bool", is_required=True),),
    _call(
        "Gradients of RMS norm by its input, scale and bias, from the statistic of its forward call.\n"
        + _DOC
        + _DBIAS_DOC,
        (GRAD, X, SCALE, _API[INV], HAS_DBIAS),
        {DSCALE: "Dscale", DBIAS: "Dbias"},
    ),
)
