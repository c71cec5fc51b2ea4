"""Runs a graph through the references of its ops: as the float64 judge, or in the declared types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph, TensorSpec
from fuseplan.ops import casts, judge_casts
from fuseplan.ops.arrays import ArrayNamespace, numpy_dtype, numpy_namespace
from fuseplan.ops.schema import NodeView, Reference, schema_of

Array = Any


class Casts(Protocol):
    """Conversions around references: those of the `array` engine, or the judge's, which share no code."""

    def widen(
        self, xp: ArrayNamespace, x: Array, compute: DType, *, judge: bool = False
    ) -> Array: ...

    def narrow(self, xp: ArrayNamespace, x: Array, t: DType) -> Array: ...


def run_reference(
    view: NodeView, xp: ArrayNamespace, args: dict[str, Array]
) -> dict[str, Array]:
    """The results of one node by port."""
    return schema_of(view.node.op).reference(view, xp, args)


def run_in_compute_type(
    view: NodeView, xp: ArrayNamespace, args: dict[str, Array]
) -> dict[str, Array]:
    """The same with operands and results rounded to a compute type under 32 bits, which references run in FLOAT."""
    t = view.compute
    if not t.is_float or t.bits >= 32:
        return run_reference(view, xp, args)
    rounded = {
        port: casts.widen(xp, casts.narrow(xp, x, t), t) for port, x in args.items()
    }
    made = run_reference(view, xp, rounded)
    return {
        port: casts.widen(xp, casts.narrow(xp, y, t), t) for port, y in made.items()
    }


def evaluate(
    graph: Graph, inputs: Mapping[int, Array], xp: ArrayNamespace, *, judge: bool = False, keep: Iterable[int] = (),
    run: Reference = run_in_compute_type, by: Casts | None = None,
) -> dict[int, Array]:  # fmt: skip
    """Results of the graph's non-virtual outputs (and of `keep`), by uid.

    Args:
        inputs: uid -> array of the declared dims, in the storage type or wider
        judge: float64 throughout, no rounding to float types (conversions to integer types stay: they
            are part of the meaning); otherwise the declared compute types, each tensor rounded to its type
        keep: uids of virtual tensors to return as well
        run: takes the place of the nodes' references
        by: the conversions between their types; None: the judge's own if `judge`, else those of the `array` engine
    """
    by = by or (judge_casts if judge else casts)
    wanted = set(graph.output_uids) | set(keep)
    live: dict[int, Array] = {
        uid: inputs[uid]
        if uid in inputs
        else scalar_array(xp, graph.tensors[uid], inputs, by)
        for uid in graph.input_uids
    }
    last_use = {uid: uses[-1] for uid, uses in graph.consumers.items()}
    out: dict[int, Array] = {uid: live[uid] for uid in wanted if uid in live}
    for node in graph.nodes:
        args = {
            port: by.widen(xp, live[uid], node.compute, judge=judge)
            for port, uid in node.inputs
        }
        results = run(NodeView(node, graph), xp, args)
        for port, uid in node.outputs:
            spec = graph.tensors[uid]
            value = xp.broadcast_to(results[port], spec.dim)
            if not judge or not spec.dtype.is_float:
                value = by.narrow(xp, value, spec.dtype)
            if uid in wanted:
                out[uid] = value
            if uid in last_use:
                live[uid] = value
        for _, uid in node.inputs:
            if last_use.get(uid) == node.index:
                live.pop(uid, None)
    return out


def scalar_array(
    xp: ArrayNamespace, spec: TensorSpec, inputs: Mapping[int, Array], by: Casts = casts
) -> Array:
    """The value that the graph itself owns, as an array of dims 1. Raises KeyError if it owns none."""
    if spec.value is None:
        raise KeyError(f"no input for tensor {spec.name!r} (uid {spec.uid})")
    wide = numpy_dtype(dtypes.DOUBLE if spec.dtype.is_float else dtypes.INT64)
    with np.errstate(over="ignore"):
        made = by.narrow(
            numpy_namespace(), np.full(spec.dim, spec.value, wide), spec.dtype
        )
    if not xp.is_torch:
        return made
    return xp.astype(
        xp.asarray(made.astype(wide), **_beside(xp, inputs)), xp.dtype(spec.dtype)
    )


def _beside(xp: ArrayNamespace, inputs: Mapping[int, Array]) -> dict[str, Any]:
    """The device keyword that puts a new array beside the inputs."""
    if xp.is_torch:
        for x in inputs.values():
            return {"device": x.device}
    return {}


def run_judge(
    graph: Graph, inputs: Mapping[int, Array], xp: ArrayNamespace | None = None
) -> dict[int, Array]:
    """The float64 results that candidates are compared with, by uid."""
    return evaluate(
        graph, inputs, xp or numpy_namespace(), judge=True, run=run_reference
    )


def run_declared(
    graph: Graph, inputs: Mapping[int, Array], xp: ArrayNamespace | None = None
) -> dict[int, Array]:
    """The results in the declared types, by uid: what the `array` engine computes."""
    return evaluate(graph, inputs, xp or numpy_namespace())
