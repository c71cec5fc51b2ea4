"""Evaluates the primitives of `ir.region` with NumPy, one by one and plainly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fuseplan.dtypes import DType
from fuseplan.ir.region import Value
from fuseplan.ops.schema import FragmentBuilder, NodeView, OpSchema
from tests.ops.erf import erf

Array = Any


def _larger(a: Array, b: Array) -> Array:
    return np.where((a > b) | (a != a), a, b)


def _smaller(a: Array, b: Array) -> Array:
    return np.where((a < b) | (a != a), a, b)


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe)))


_ELEMENTWISE: dict[str, Callable[..., Array]] = {  # table
    "cast": np.asarray, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "erf": erf,
    "floor": np.floor, "ceil": np.ceil, "not_": lambda x: x == 0,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _quotient, "max": _larger, "min": _smaller,
    "mod": np.fmod, "pow": np.power, "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal,
    "lt": np.less, "le": np.less_equal,
    "and_": lambda a, b: (a != 0) & (b != 0), "or_": lambda a, b: (a != 0) | (b != 0),
    "select": lambda mask, a, b: np.where(mask != 0, a, b), "matmul": np.matmul,
}  # fmt: skip


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": _larger,
    "min": _smaller,
}


def _reduce(mode: Any, x: Array, axes: Any) -> Array:
    """Element by element in order, with the accumulator as second argument."""
    combine = _COMBINE[mode]
    for axis in axes:
        parts = np.split(x, x.shape[axis], axis=axis)
        total = parts[0]
        for part in parts[1:]:
            total = combine(part, total)
        x = total
    return x


def _conv_fprop(x: Array, w: Array, value: Any) -> Array:
    """One output position and filter at a time."""
    dim = value.dim
    out: Any = np.zeros(dim, dtype=x.dtype)
    step, dilation, pre = value.attr("stride"), value.attr("dilation"), value.attr("pre_pad")
    if value.attr("flip"):
        w = np.flip(w, axis=tuple(range(2, w.ndim)))
    per_group, filters_per_group = w.shape[1], dim[1] * w.shape[1] // x.shape[1]
    for at in product(*map(range, dim[2:])):
        for tap in product(*map(range, w.shape[2:])):
            pos = [o * s + t * d - p for o, s, t, d, p in zip(at, step, tap, dilation, pre, strict=True)]
            if all(0 <= i < n for i, n in zip(pos, x.shape[2:], strict=True)):
                for k in range(dim[1]):
                    channels = slice(k // filters_per_group * per_group, (k // filters_per_group + 1) * per_group)
                    piece = x[(slice(None), channels) + tuple(pos)]
                    out[(slice(None), k) + at] += piece @ w[(k, slice(None)) + tap]
    return out


def evaluate(values: Sequence[Value], loads: Mapping[int, Array], scalar: Callable[[DType], Any]) -> list[Array]:
    """All values in order; `scalar` gives the NumPy type that stands for a compute type."""
    done: list[Array] = []
    v: Any
    for i, v in enumerate(values):
        t = scalar(v.compute)
        args = [done[a].astype(t) for a in v.args]
        if v.op == "load":
            made = loads[i]
        elif v.op == "const":
            made = np.full(v.dim, v.attr("value"))
        elif v.op == "index":
            axis = v.attr("axis")
            made = np.arange(v.dim[axis]).reshape([-1 if k == axis else 1 for k in range(len(v.dim))])
        elif v.op == "count":
            made = np.full(v.dim, np.prod([args[0].shape[a] for a in v.attr("axes")]))
        elif v.op == "reduce":
            made = _reduce(v.attr("mode"), args[0], v.attr("axes"))
        elif v.op == "conv_fprop":
            made = _conv_fprop(args[0], args[1], v)
        else:
            made = _ELEMENTWISE[v.op](*args)
        made = np.asarray(made).astype(t)
        done.append(np.broadcast_to(made, v.dim))
    return done


def run_decomposition(
    schema: OpSchema,
    view: NodeView,
    arrays: Mapping[str, Array],
    *,
    scalar: Callable[[DType], Any],
    extra_rank: int = 0,
) -> dict[str, Array]:
    """Results of a node by port, evaluated through its primitives at a rank of the node's or higher."""
    specs = [view.graph.tensors[u] for _, u in (*view.node.inputs, *view.node.outputs)]
    rank = max(len(s.dim) for s in specs) + extra_rank
    values: list[Value] = []
    loads: dict[int, Array] = {}
    args: dict[str, int] = {}
    for port, uid in view.node.inputs:
        spec = view.graph.tensors[uid]
        dim = (1,) * (rank - len(spec.dim)) + spec.dim
        args[port] = len(values)
        loads[len(values)] = arrays[port].reshape(dim)
        values.append(Value("load", (), dim, spec.dtype, view.compute))
    made = schema.decompose(FragmentBuilder(view.compute, values, rank), view, args)
    with np.errstate(all="ignore"):
        done = evaluate(values, loads, scalar)
    results: dict[str, Array] = {}
    for port, uid in view.node.outputs:
        spec = view.graph.tensors[uid]
        assert done[made[port]].shape == (1,) * (rank - len(spec.dim)) + spec.dim, (port, values[made[port]])
        results[port] = done[made[port]].reshape(spec.dim)
    return results
