"""Pointwise ops: what they share, and one table row per op.

A row holds the formula twice, written apart: once over arrays (the reference) and once over primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fuseplan.ir.graph import DraftNode
from fuseplan.ir.region import Cost
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.pointwise_samples import Domain, draws_of, samples_of
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
from fuseplan.ops.shapes import (
    broadcast_inputs,
    broadcasts_to,
    keep_order,
    need_stride,
    same_stride,
)

OUT = "y"
Formula = Callable[
    ..., Array
]  # (namespace, arrays by port order, attributes by keyword)
Emit = Callable[..., int]  # (builder, values by port order, attributes by keyword)


@dataclass(frozen=True)
class Pointwise:
    """One pointwise op, as a table row.

    Args:
        ports: input ports in order
        reference, emit: the formula over arrays and over primitives
        doc: what the method's docstring says
        flops: work per element
        is_exact: see `OpSchema.is_exact`
        is_float_only: the formula has no meaning in integer arithmetic
        domain: where samples and random graphs draw their inputs from
        check: further checks of a draft, before inference
        needs_rank: `emit` gets the first input's own rank as ``rank``
    """

    name: str
    ports: tuple[str, ...]
    reference: Formula
    emit: Emit
    doc: str
    flops: int = 1
    is_exact: bool = False
    is_float_only: bool = False
    domain: Domain = Domain()
    attrs: tuple[Attr, ...] = ()
    check: Callable[[DraftNode], None] | None = None
    needs_rank: bool = False


def infer_dims(node: DraftNode) -> None:
    """Broadcast dims, and the strides of the first input that has them."""
    tensors = list(node.inputs.values())
    first = tensors[0].need_dim()
    dim = first
    for t in tensors:
        if t.dim != first:
            dim = broadcast_inputs(node, [x.need_dim() for x in tensors])
            break
    out = node.outputs[OUT]
    if out.dim is None:
        out.dim = dim
    elif out.dim != dim:
        if not broadcasts_to(dim, out.dim):
            raise reject(
                node,
                f"inputs of dims {list(dim)} do not broadcast to dims {list(out.dim)} of output {out.name!r}",
                "set the output's dims to the broadcast of the inputs, or larger where that is 1",
            )
        dim = out.dim
    if out.stride is not None:
        return
    for t in tensors:
        if t.dim == dim:
            out.stride = same_stride(dim, need_stride(t))
            return
    if not out.is_virtual:
        raise reject(
            node,
            f"strides of output {out.name!r} cannot be deduced: no input has its dims {list(dim)}",
            "call set_stride on the output",
        )
    out.stride = keep_order(dim, need_stride(tensors[0]))


def _infer(row: Pointwise) -> Callable[[DraftNode], None]:
    def infer(node: DraftNode) -> None:
        if row.is_float_only and node.compute is not None and not node.compute.is_float:
            raise reject(
                node,
                f"{row.name} has no meaning in {node.compute.name}",
                "set compute_data_type to FLOAT",
            )
        if row.check is not None:
            row.check(node)
        infer_dims(node)

    return infer


def _attr_values(row: Pointwise, view: NodeView) -> dict[str, Any]:
    stored = dict(view.node.attrs)
    return {a.name: stored.get(a.name, a.default) for a in row.attrs}


def _reference(row: Pointwise) -> Callable[..., dict[str, Array]]:
    def reference(
        view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
    ) -> dict[str, Array]:
        args = [arrays[port] for port in row.ports]
        y = row.reference(xp, *args, **_attr_values(row, view))
        if y.dtype != args[0].dtype:  # comparisons and logic give bool
            y = xp.astype(y, args[0].dtype)
        dim = view.made(OUT).dim
        return {OUT: y if y.shape == dim else xp.broadcast_to(y, dim)}

    return reference


def _decompose(
    row: Pointwise,
) -> Callable[[FragmentBuilder, NodeView, dict[str, int]], dict[str, int]]:
    def decompose(
        b: FragmentBuilder, view: NodeView, args: dict[str, int]
    ) -> dict[str, int]:
        extra = {"rank": len(view.need(row.ports[0]).dim)} if row.needs_rank else {}
        made = row.emit(
            b, *(args[port] for port in row.ports), **_attr_values(row, view), **extra
        )
        dim = b.ranked(view.made(OUT).dim)
        if (
            b.values[made].dim != dim
        ):  # the user made the output larger than the broadcast
            made = b.emit("cast", made, dim=dim)
        return {OUT: made}

    return decompose


def _cost(row: Pointwise) -> Callable[[NodeView], Cost]:
    def cost(view: NodeView) -> Cost:
        return Cost(
            float(row.flops * view.made(OUT).numel), view.in_bytes, view.out_bytes
        )

    return cost


def primitive(op: str) -> Emit:
    """The emit function of an op that is itself a primitive."""
    return lambda b, *args: b.emit(op, *args)


#: rows of correctly rounded ops, and of ops without a meaning in integer arithmetic
ExactRow = partial(Pointwise, is_exact=True)
FloatRow = partial(Pointwise, is_float_only=True)


def define(rows: Iterable[Pointwise]) -> None:
    """Register every row as an op."""
    for row in rows:
        attrs = tuple(a.name for a in row.attrs)
        tail = (
            ("name", "compute_data_type") if attrs else ()
        )  # ops with attributes take these two by position as well
        register(
            OpSchema(
                name=row.name, family="pointwise",
                inputs=tuple(Port(p) for p in row.ports), outputs=(Port(OUT),),
                infer=_infer(row), reference=_reference(row), cost=_cost(row), decompose=_decompose(row),
                samples=samples_of(row.ports, row.domain, is_float_only=row.is_float_only),
                draws=draws_of(row.ports, row.domain),
                call=Call(
                    positional=(*row.ports, *attrs, *tail), classic=(*row.ports, *attrs, "compute_data_type", "name"),
                    doc=row.doc, names={OUT: "OUT_0"},
                ),
                attrs=row.attrs, is_exact=row.is_exact,
            )
        )  # fmt: skip
