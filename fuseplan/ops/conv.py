"""Convolution, forward: one to three spatial axes, groups, padding before and after, stride, dilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any

from fuseplan.ir.graph import AttrValue, DraftNode
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.conv_samples import W, X, Y, conv_samples
from fuseplan.ops.draws import Draw, Draws, Pool
from fuseplan.ops.schema import (
    Array,
    Attr,
    Call,
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    register,
    reject,
)
from fuseplan.ops.shapes import Dims, channels_last, set_dim

_MODES = ("CROSS_CORRELATION", "CONVOLUTION")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Attributes of a convolution, one entry per spatial axis; empty where they are not given."""

    pre_pad: Dims
    post_pad: Dims
    stride: Dims
    dilation: Dims


def geometry(attrs: Mapping[str, AttrValue]) -> Geometry:
    """The attributes with `padding` spread to both sides."""

    def ints(name: str) -> Any:
        return attrs.get(name) or ()

    both = ints("padding")
    return Geometry(
        ints("pre_padding") or both,
        ints("post_padding") or both,
        ints("stride"),
        ints("dilation"),
    )


def out_extents(image: Dims, weight: Dims, g: Geometry) -> Dims:
    """Spatial extents of the output."""
    return tuple(
        1 + (s + pre + post - dil * (f - 1) - 1) // step
        for s, f, pre, post, step, dil in zip(
            image[2:],
            weight[2:],
            g.pre_pad,
            g.post_pad,
            g.stride,
            g.dilation,
            strict=True,
        )
    )


def _check_geometry(node: DraftNode, g: Geometry, num_axes: int) -> None:
    if node.attrs.get("padding") and (
        node.attrs.get("pre_padding") or node.attrs.get("post_padding")
    ):
        raise reject(
            node,
            "padding is given together with pre_padding or post_padding",
            "give one of the two forms",
        )
    mode = node.attrs.get("convolution_mode") or _MODES[0]
    if mode not in _MODES:
        raise reject(
            node, f"convolution_mode is {mode}", f"choose one of {', '.join(_MODES)}"
        )
    for name, values, least in (
        ("padding (or pre_padding and post_padding)", g.pre_pad, 0),
        ("padding (or pre_padding and post_padding)", g.post_pad, 0),
        ("stride", g.stride, 1),
        ("dilation", g.dilation, 1),
    ):
        if not values:
            raise reject(
                node,
                f"{name} is missing",
                f"give a list of {num_axes} numbers, one per spatial axis",
            )
        if len(values) != num_axes or any(v < least for v in values):
            raise reject(
                node,
                f"{name} is {list(values)}",
                f"give {num_axes} numbers, each at least {least}",
            )


def _infer(node: DraftNode) -> None:
    x, w = node.inputs[X].need_dim(), node.inputs[W].need_dim()
    shown = f"image {list(x)}, weight {list(w)}"
    if len(x) != len(w) or not 3 <= len(x) <= 5:
        raise reject(
            node,
            f"image and weight must have the same rank, 3 to 5: {shown}",
            "dims are N, C, then spatial axes",
        )
    g = geometry(node.attrs)
    _check_geometry(node, g, len(x) - 2)
    if x[1] % w[1] or w[0] % (x[1] // w[1]):
        raise reject(
            node,
            f"channels do not divide into groups: {shown}",
            "the weight is [K, C / groups, ..] and groups must divide both C and K",
        )
    spatial = out_extents(x, w, g)
    if any(e < 1 for e in spatial):
        raise reject(
            node,
            f"output extents {list(spatial)} are not positive: {shown}",
            "add padding or use a smaller filter",
        )
    set_dim(node, Y, (x[0], w[0], *spatial), channels_last)


def _pad(xp: ArrayNamespace, x: Array, g: Geometry) -> Array:
    """The image with zeros around its spatial axes."""
    for axis, (pre, post) in enumerate(zip(g.pre_pad, g.post_pad, strict=True), 2):
        line = xp.zeros_like(x[(slice(None),) * axis + (slice(0, 1),)])
        zeros = [
            xp.broadcast_to(line, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
            for n in (pre, post)
        ]
        if pre or post:
            x = xp.concat([zeros[0], x, zeros[1]], axis=axis)
    return x


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    x, w, out = arrays[X], arrays[W], view.made(Y)
    attrs = dict(view.node.attrs)
    g = geometry(attrs)
    batch, channels = x.shape[:2]
    filters, per_group, *taps = w.shape
    groups, spatial = channels // per_group, out.dim[2:]
    is_flipped = attrs.get("convolution_mode") == "CONVOLUTION"
    padded, total, channel_axes = _pad(xp, x, g), None, (slice(None), slice(None))
    for tap in product(*map(range, taps)):
        window = tuple(
            slice(t * dil, t * dil + (e - 1) * step + 1, step)
            for t, dil, e, step in zip(tap, g.dilation, spatial, g.stride, strict=True)
        )
        rows = xp.reshape(
            padded[channel_axes + window], (batch, groups, per_group, prod(spatial))
        )
        at = (
            tuple(n - 1 - t for n, t in zip(taps, tap, strict=True))
            if is_flipped
            else tap
        )
        kernel = xp.reshape(
            w[channel_axes + at], (1, groups, filters // groups, per_group)
        )
        part = xp.matmul(kernel, rows)
        total = part if total is None else total + part
    return {Y: xp.reshape(total, out.dim)}


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    attrs = dict(view.node.attrs)
    flip = attrs.get("convolution_mode") == "CONVOLUTION"
    dim = b.ranked(view.made(Y).dim)
    return {
        Y: b.emit(
            "conv_fprop",
            args[X],
            args[W],
            dim=dim,
            **asdict(geometry(attrs)),
            flip=flip,
        )
    }


def _cost(view: NodeView) -> Cost:
    return Cost(
        2.0 * view.made(Y).numel * prod(view.need(W).dim[1:]),
        view.in_bytes,
        view.out_bytes,
    )


def _prepare(bound: dict[str, Any]) -> None:
    """`padding` becomes padding on both sides, unless both forms are given (which validation refuses)."""
    if (
        bound.get("padding")
        and not bound.get("pre_padding")
        and not bound.get("post_padding")
    ):
        bound["pre_padding"] = bound["post_padding"] = bound["padding"]
        bound["padding"] = None


def _draw(pool: Pool) -> Draw | None:
    """A drawn image of one to three axes and a new filter, groups included."""
    rng, x = pool.rng, pool.of_rank(range(3, 6))
    _, c, *size = x.need_dim()
    taps, step, dilation, pre, post = (
        tuple(rng.choice(values) for _ in size)
        for values in ((1, 2, 3), (1, 1, 2, 3), (1, 1, 2), (0, 1, 2), (0, 1, 2))
    )
    reach = ((t - 1) * d for t, d in zip(taps, dilation, strict=True))
    if any(r >= s + p + q for r, s, p, q in zip(reach, size, pre, post, strict=True)):
        return None
    groups = rng.choice([g for g in range(1, c + 1) if c % g == 0])
    w = pool.input((groups * rng.choice((1, 2, 3)), c // groups, *taps))
    pads: dict[str, AttrValue] = {"pre_padding": pre, "post_padding": post}
    return Draw(
        {X: x, W: w},
        attrs={
            **pads,
            "stride": step,
            "dilation": dilation,
            "convolution_mode": rng.choice(_MODES),
        },
    )


_CALL = Call(
    positional=(
        X,
        W,
        "padding",
        "pre_padding",
        "post_padding",
        "stride",
        "dilation",
        "convolution_mode",
    ),
    classic=(
        X,
        W,
        "padding",
        "stride",
        "dilation",
        "convolution_mode",
        "compute_data_type",
        "name",
        "pre_padding",
        "post_padding",
    ),
    doc="""Convolution of image [N, C, ..] with weight [K, C / groups, ..]; groups follow from the dims.

Dims are in this order whatever the memory is: channels-last is a matter of strides.

Args:
    padding: zeros on both sides of each spatial axis, or pre_padding and post_padding; must be given
    stride, dilation: one number per spatial axis; must be given
""",
    names={Y: "Y"},
    prepare=_prepare,
)

CONV_FPROP = register(
    OpSchema(
        name="conv_fprop",
        family="conv",
        inputs=(Port(X), Port(W)),
        outputs=(Port(Y),),
        infer=_infer,
        reference=_reference,
        cost=_cost,
        decompose=_decompose,
        samples=conv_samples,
        draws=Draws(_draw, weight=3.0),
        call=_CALL,
        attrs=(
            *(
                Attr(name, "ints")
                for name in (
                    "padding",
                    "pre_padding",
                    "post_padding",
                    "stride",
                    "dilation",
                )
            ),
            Attr("convolution_mode", "enum:convolution_mode", _MODES[0]),
        ),
    )
)
