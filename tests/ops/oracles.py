"""What each op should compute: PyTorch's own operation where there is one, else a plain loop. float64 or int64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from fuseplan.ops.schema import NodeView
from tests.ops.attention_oracle import sdpa, sdpa_backward

T = Any  # a torch.Tensor
Oracle = Callable[[NodeView, dict[str, T]], dict[str, T]]


def _attr(view: NodeView, name: str) -> Any:
    return dict(view.node.attrs).get(name)


def _relu(view: NodeView, a: dict[str, T]) -> T:
    low, high, slope = (_attr(view, n) for n in ("lower_clip", "upper_clip", "negative_slope"))
    low, slope, high = low or 0.0, slope or 0.0, math.inf if high is None else high
    made = [
        x if math.isnan(x) else min(x, high) if x > low else low + (slope * (x - low) if slope else 0.0)
        for x in a["input"].flatten().tolist()
    ]
    return torch.tensor(made, dtype=a["input"].dtype).reshape(a["input"].shape)


def _gen_index(view: NodeView, a: dict[str, T]) -> T:
    out = torch.zeros_like(a["input"])
    for at in product(*map(range, out.shape)):
        out[at] = at[_attr(view, "axis")]
    return out


def _div(a: T, b: T) -> T:
    if a.is_floating_point():
        return torch.div(a, b)
    zero = b == 0
    return torch.where(zero, 0, torch.div(a, torch.where(zero, 1, b), rounding_mode="trunc"))


def _fmod(a: T, b: T) -> T:
    if a.is_floating_point():
        return torch.fmod(a, b)
    return torch.where(b == 0, 0, torch.fmod(a, torch.where(b == 0, 1, b)))


_UNARY: dict[str, Callable[[T], T]] = {  # table
    "abs": torch.abs, "neg": torch.neg, "ceil": torch.ceil, "floor": torch.floor, "cos": torch.cos, "sin": torch.sin,
    "tan": torch.tan, "erf": torch.special.erf, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "identity": torch.clone,
    "logical_not": torch.logical_not, "sigmoid": torch.sigmoid, "elu": F.elu, "gelu": F.gelu,
    "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": lambda x: -F.logsigmoid(-x),
}  # fmt: skip

_BINARY: dict[str, Callable[[T, T], T]] = {  # table
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _div, "mod": _fmod, "pow": torch.pow,
    "add_square": lambda a, b: a + torch.square(b), "max": torch.maximum, "min": torch.minimum,
    "bias": torch.add, "scale": torch.mul, "cmp_eq": torch.eq, "cmp_neq": torch.ne, "cmp_gt": torch.gt,
    "cmp_ge": torch.ge, "cmp_lt": torch.lt, "cmp_le": torch.le,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
}  # fmt: skip


def _conv(view: NodeView, a: dict[str, T]) -> T:
    x, w = a["image"], a["weight"]
    both = _attr(view, "padding")
    pre, post = _attr(view, "pre_padding") or both, _attr(view, "post_padding") or both
    pads = [n for axis in reversed(range(len(pre))) for n in (pre[axis], post[axis])]
    if _attr(view, "convolution_mode") == "CONVOLUTION":
        w = torch.flip(w, dims=tuple(range(2, w.ndim)))
    conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
    made: T = conv(
        F.pad(x, pads),
        w,
        stride=_attr(view, "stride"),
        dilation=_attr(view, "dilation"),
        groups=x.shape[1] // w.shape[1],
    )
    return made


def _reduction(view: NodeView, a: dict[str, T]) -> T:
    x, out, mode = a["input"], view.output("y"), _attr(view, "mode")
    assert out is not None
    made = torch.zeros(out.dim, dtype=x.dtype)
    for at in product(*map(range, out.dim)):
        values = x[
            tuple(
                slice(i, i + 1) if e != 1 or d == 1 else slice(None)
                for i, e, d in zip(at, out.dim, x.shape, strict=True)
            )
        ]
        values = values.flatten()
        made[at] = {
            "ADD": lambda v: v.sum(), "MUL": lambda v: v.prod(), "MIN": lambda v: v.min(), "MAX": lambda v: v.max(),
            "AMAX": lambda v: v.abs().max(), "AVG": _mean, "NORM1": lambda v: v.abs().sum(),
            "NORM2": torch.linalg.vector_norm, "MUL_NO_ZEROS": lambda v: v[v != 0].prod(),
        }[mode](values)  # fmt: skip
    return made


def _mean(v: T) -> T:
    return v.mean() if v.is_floating_point() else torch.tensor(int(v.sum() / len(v)))


def _norm(view: NodeView, a: dict[str, T]) -> dict[str, T]:
    x, scale, stats = a["input"], a.get("scale"), view.output("inv_std")
    if scale is not None:
        axes = [i for i, e in enumerate(scale.shape) if e != 1]
    elif stats is not None:
        axes = [i for i, e in enumerate(stats.dim) if e == 1 and x.shape[i] != 1]
    else:
        axes = list(range(1, x.ndim))
    axes = axes or [x.ndim]  # nothing is normalised: an axis of one element
    wide = x if axes[0] < x.ndim else x.unsqueeze(-1)
    eps = a["eps"].flatten()[0]
    results: dict[str, T] = {}
    if view.node.op == "layernorm":
        var, mean = torch.var_mean(wide, dim=axes, correction=0, keepdim=True)
        results["mean"] = mean
    else:
        var, mean = wide.square().mean(dim=axes, keepdim=True), torch.zeros(())
    results["inv_std"] = torch.rsqrt(var + eps)
    results["y"] = (wide - mean) * results["inv_std"]
    if axes[0] == x.ndim:
        results = {port: value.squeeze(-1) for port, value in results.items()}
    elif axes == list(range(axes[0], x.ndim)):  # PyTorch has the operation itself
        shape = x.shape[axes[0] :]
        named = F.layer_norm(x, shape, eps=float(eps)) if "mean" in results else F.rms_norm(x, shape, eps=float(eps))
        assert torch.allclose(named, results["y"], rtol=1e-9)
        results["y"] = named
    for port, combine in (("scale", torch.mul), ("bias", torch.add)):
        if port in a:
            results["y"] = combine(results["y"], a[port])
    return results


def _norm_backward(view: NodeView, a: dict[str, T]) -> dict[str, T]:
    """Row by row, by the Jacobian of the row: a projection off the normed row and, of a layer norm, off the ones."""
    x, inv, scale = a["input"], a["inv_std"], a.get("scale")
    like, extents = (inv, x.shape) if scale is None else (scale, (1,) * x.ndim)
    axes = [i for i, (d, e) in enumerate(zip(like.shape, extents, strict=True)) if d != e]
    others = [i for i in range(x.ndim) if i not in axes]
    order = [*others, *axes]
    count = math.prod(x.shape[i] for i in axes)

    def rows(t: T) -> T:
        return torch.broadcast_to(t, x.shape).permute(order).reshape(-1, count)

    def back(t: T, dim: tuple[int, ...]) -> T:
        return t.reshape([dim[i] for i in order]).permute([order.index(i) for i in range(x.ndim)])

    grad, normed = rows(a["grad"]), rows((x - a.get("mean", torch.zeros_like(inv))) * inv)
    scaled, steps = rows(a["grad"] if scale is None else a["grad"] * scale), rows(inv)
    made = []
    for g, h, r in zip(scaled, normed, steps, strict=True):
        jacobian = torch.eye(count, dtype=x.dtype) - torch.outer(h, h) / count
        jacobian = jacobian - (1 / count if "mean" in a else 0.0)
        made.append(r[0] * (jacobian @ g))
    narrow = tuple(d if i in axes else 1 for i, d in enumerate(x.shape))
    results = {"dx": back(torch.stack(made), tuple(x.shape))}
    results["dscale"], results["dbias"] = back((grad * normed).sum(0), narrow), back(grad.sum(0), narrow)
    return results


def _swish(view: NodeView, a: dict[str, T]) -> T:
    beta = _attr(view, "swish_beta")
    return F.silu(a["input"]) if beta is None else a["input"] * torch.sigmoid(beta * a["input"])


def oracle(view: NodeView, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Expected results of the connected output ports, as NumPy arrays. Raises KeyError for an op without an oracle."""
    a = {port: torch.from_numpy(x.copy()) for port, x in arrays.items()}
    made = _results(view, a)
    outs = {port: view.graph.tensors[uid] for port, uid in view.node.outputs}
    return {port: torch.broadcast_to(made[port], spec.dim).numpy() for port, spec in outs.items()}


def _results(view: NodeView, a: dict[str, T]) -> dict[str, T]:
    op = view.node.op
    if op in _UNARY:
        return {"y": _UNARY[op](a["input"])}
    if op in _BINARY:
        return {"y": _BINARY[op](*a.values())}
    if op in ("layernorm", "rmsnorm"):
        return _norm(view, a)
    if op in ("layernorm_backward", "rmsnorm_backward"):
        return _norm_backward(view, a)
    if op == "sdpa":
        return sdpa(view, a)
    if op == "sdpa_backward":
        return sdpa_backward(view, a)
    single: dict[str, tuple[str, Callable[[NodeView, dict[str, T]], T]]] = {
        "relu": ("y", _relu),
        "leaky_relu": ("y", lambda v, t: F.leaky_relu(t["input"], _attr(v, "negative_slope"))),
        "swish": ("y", _swish),
        "gen_index": ("y", _gen_index),
        "binary_select": ("y", lambda v, t: torch.where(t["mask"] != 0, t["input0"], t["input1"])),
        "matmul": ("C", lambda v, t: torch.matmul(t["A"], t["B"])),
        "conv_fprop": ("y", _conv),
        "reduction": ("y", _reduction),
    }
    port, compute = single[op]
    return {port: compute(view, a)}
