"""Reduction over the axes whose extent is 1 in the output."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from fuseplan.errors import InvalidGraphError, cudnnGraphNotSupportedError
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
from fuseplan.ops.shapes import channels_last

MODES = ("ADD", "MUL", "MIN", "MAX", "AMAX", "AVG", "NORM1", "NORM2", "MUL_NO_ZEROS")
_INPUT, _OUT = "input", "y"


def _infer(node: DraftNode) -> None:
    x, y, mode = (
        node.inputs[_INPUT].need_dim(),
        node.outputs[_OUT],
        node.attrs.get("mode"),
    )
    if mode not in MODES:
        raise reject(
            node, f"reduction mode is {mode}", f"choose one of {', '.join(MODES)}"
        )
    if "group_offset" in node.inputs:
        raise cudnnGraphNotSupportedError(
            f"node {node.name!r} (reduction): option 'group_offset' (grouped reduction) is not available",
            fix="leave group_offset out and reduce each group by itself",
        )
    if mode == "NORM2" and node.compute is not None and not node.compute.is_float:
        raise reject(
            node,
            f"NORM2 has no meaning in {node.compute.name}",
            "set compute_data_type to FLOAT",
        )
    if y.dim is None:
        raise reject(
            node,
            f"dims of output {y.name!r} are not set, so the reduced axes are not known",
            "call set_dim or pass out_dims",
        )
    if len(y.dim) != len(x) or any(
        e not in (1, d) for e, d in zip(y.dim, x, strict=True)
    ):
        raise reject(
            node,
            f"output {y.name!r} has dims {list(y.dim)}, the input {list(x)}",
            "each extent of the output is 1 (reduced) or the input's",
        )
    if y.stride is None:
        y.stride = channels_last(y.dim)


def _axes(view: NodeView) -> tuple[int, ...]:
    x, y = view.need(_INPUT), view.made(_OUT)
    return tuple(i for i, (d, e) in enumerate(zip(x.dim, y.dim, strict=True)) if d != e)


def _reduce(xp: ArrayNamespace, mode: str, x: Array, axes: tuple[int, ...]) -> Array:
    if mode in ("AMAX", "NORM1"):
        x = xp.abs(x)
    elif mode == "NORM2":
        x = x * x
    elif mode == "MUL_NO_ZEROS":
        x = xp.where(x == 0, xp.ones_like(x), x)
    if axes:
        if mode in ("MUL", "MUL_NO_ZEROS"):
            x = xp.prod(x, axis=axes, keepdims=True, dtype=x.dtype)
        elif mode == "MIN":
            x = xp.min(x, axis=axes, keepdims=True)
        elif mode in ("MAX", "AMAX"):
            x = xp.max(x, axis=axes, keepdims=True)
        else:
            x = xp.sum(x, axis=axes, keepdims=True, dtype=x.dtype)
    return xp.sqrt(x) if mode == "NORM2" else x


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    x, axes = arrays[_INPUT], _axes(view)
    y = _reduce(xp, str(view.attr("mode")), x, axes)
    if view.attr("mode") == "AVG":
        y = xp.divide(y, xp.full_like(y, prod(x.shape[axis] for axis in axes)))
    return {_OUT: y}


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    x, mode = args[_INPUT], str(view.attr("mode"))
    lead = b.rank - len(view.need(_INPUT).dim)
    axes = tuple(a + lead for a in _axes(view))

    def over(kind: str, value: int) -> int:
        return b.reduce(kind, value, axes) if axes else b.emit("cast", value)

    if mode == "AMAX":
        return {_OUT: over("max", b.emit("abs", x))}
    if mode == "NORM1":
        return {_OUT: over("add", b.emit("abs", x))}
    if mode == "NORM2":
        return {_OUT: b.emit("sqrt", over("add", b.emit("mul", x, x)))}
    if mode == "MUL_NO_ZEROS":
        is_zero = b.emit("eq", x, b.const(0.0))
        return {_OUT: over("mul", b.emit("select", is_zero, b.const(1.0), x))}
    if mode == "AVG":
        total = over("add", x)
        return {_OUT: b.emit("div", total, b.count(x, axes)) if axes else total}
    return {
        _OUT: over({"ADD": "add", "MUL": "mul", "MIN": "min", "MAX": "max"}[mode], x)
    }


def _cost(view: NodeView) -> Cost:
    return Cost(float(view.need(_INPUT).numel), view.in_bytes, view.out_bytes)


def _draw(pool: Pool) -> Draw:
    """Any axes and any mode but products, which leave the range of most types."""
    x = pool.like()
    kept = tuple(1 if pool.rng.random() < 0.5 else d for d in x.need_dim())
    modes = [
        m for m in MODES if "MUL" not in m and not (m == "NORM2" and pool.is_whole)
    ]
    return Draw({_INPUT: x}, {_OUT: kept}, {"mode": pool.rng.choice(modes)})


def _samples() -> Iterable[Sample]:  # table
    bad = InvalidGraphError
    for mode in MODES:
        attrs = {"mode": mode}
        yield Sample(
            f"{mode}-rows", {_INPUT: ((3, 5, 7), "FLOAT")}, attrs, {_OUT: (3, 5, 1)}
        )
        yield Sample(
            f"{mode}-channel",
            {_INPUT: ((2, 3, 4, 5), "FLOAT", (60, 1, 15, 3))},
            attrs,
            {_OUT: (1, 3, 1, 1)},
        )
        yield Sample(
            f"{mode}-all", {_INPUT: ((2, 9, 5), "FLOAT")}, attrs, {_OUT: (1, 1, 1)}
        )
        yield Sample(
            f"{mode}-none", {_INPUT: ((3, 4), "FLOAT", (0, 1))}, attrs, {_OUT: (3, 4)}
        )
        yield Sample(
            f"{mode}-half",
            {_INPUT: ((1, 33, 1), "HALF")},
            attrs,
            {_OUT: (1, 1, 1)},
            {_OUT: "HALF"},
        )
        if mode != "NORM2":
            yield Sample(
                f"{mode}-int32",
                {_INPUT: ((4, 5), "INT32")},
                attrs,
                {_OUT: (4, 1)},
                {_OUT: "INT32"},
                compute="INT32",
            )
    yield Sample(
        "MAX-huge",
        {_INPUT: ((5, 6), "FLOAT")},
        {"mode": "MAX"},
        {_OUT: (1, 6)},
        low=-1e38,
        high=1e38,
    )
    yield Sample(
        "zeros", {_INPUT: ((5, 6), "INT8")}, {"mode": "MUL_NO_ZEROS"}, {_OUT: (5, 1)}
    )
    yield Sample(
        "ones",
        {_INPUT: ((1, 1, 1, 1), "BFLOAT16")},
        {"mode": "AVG"},
        {_OUT: (1, 1, 1, 1)},
    )
    yield Sample(
        "mode-missing",
        {_INPUT: ((5, 6), "FLOAT")},
        {"mode": None},
        {_OUT: (5, 1)},
        fails=bad,
    )
    yield Sample(
        "mode-not-set",
        {_INPUT: ((5, 6), "FLOAT")},
        {"mode": "NOT_SET"},
        {_OUT: (5, 1)},
        fails=bad,
    )
    yield Sample(
        "dims-not-set", {_INPUT: ((5, 6), "FLOAT")}, {"mode": "ADD"}, fails=bad
    )
    yield Sample(
        "extent-wrong",
        {_INPUT: ((5, 6), "FLOAT")},
        {"mode": "ADD"},
        {_OUT: (5, 2)},
        fails=bad,
    )
    yield Sample(
        "rank-wrong",
        {_INPUT: ((5, 6), "FLOAT")},
        {"mode": "ADD"},
        {_OUT: (5,)},
        fails=bad,
    )
    yield Sample(
        "grouped",
        {_INPUT: ((5, 6), "FLOAT"), "group_offset": ((3, 1, 1), "INT32")},
        {"mode": "ADD"},
        {_OUT: (5, 1)},
        fails=cudnnGraphNotSupportedError,
    )


REDUCTION = register(
    OpSchema(
        name="reduction",
        family="reduction",
        inputs=(Port(_INPUT), Port("group_offset", is_optional=True)),
        outputs=(Port(_OUT),),
        infer=_infer,
        reference=_reference,
        cost=_cost,
        decompose=_decompose,
        samples=_samples,
        draws=Draws(_draw, weight=8.0),
        call=Call(
            positional=(_INPUT, "group_offset", "mode"),
            classic=(_INPUT, "mode", "compute_data_type", "name", "group_offset"),
            doc="Reduce over the axes whose extent is 1 in the output; the output's dims must be set.",
            names={_OUT: "OUT_0"},
        ),
        attrs=(Attr("mode", "enum:reduction_mode", is_required=True),),
        exact_when=lambda node: node.attr("mode") in ("MAX", "MIN", "AMAX"),
    )
)
