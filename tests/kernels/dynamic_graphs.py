"""Graphs with dynamic shapes, made through the public API at any extents, for tests of engines that share kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import fuseplan as cudnn
from fuseplan.engines.base import Engine
from fuseplan.ir.graph import Graph, channels_last_order, packed_stride
from fuseplan.plan.assign import Assigner, Assignment
from fuseplan.runtime.device import Device

Shape = tuple[int, ...]
DEVICE: ContextVar[str] = ContextVar("device", default="cpu")  # of the graphs made here
FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF


def begin(dtype: Any = FLOAT, **options: Any) -> Any:
    """An empty graph with dynamic shapes."""
    chosen = {"is_dynamic_shape_enabled": True, "device": DEVICE.get(), **options}
    return cudnn.pygraph(io_data_type=dtype, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **chosen)


def frozen(g: Any) -> Graph:
    """The validated graph."""
    g.build_operation_graph()
    graph = g._draft.graph
    assert isinstance(graph, Graph)
    return graph


def output(t: Any, dim: Shape | None = None, stride: Sequence[int] | None = None, dtype: Any = None) -> None:
    """Make a result an output, packed unless strides are given."""
    t.set_output(True)
    if dim is not None:
        t.set_dim(list(dim)).set_stride(list(stride or packed_stride(dim)))
    if dtype is not None:
        t.set_data_type(dtype)


def conv_bias_relu(shape: Shape, *, order: Sequence[int] = (3, 2, 1, 0), groups: int = 1, **options: Any) -> Any:
    """shape: N, C, H, W, K; 3x3, same padding; `order` of the axes in memory, fastest first."""
    n, c, h, w, k = shape
    g = begin(**options)
    x = g.tensor(dim=[n, c, h, w], stride=packed_stride((n, c, h, w), order), name="x")
    filters = (k, c // groups, 3, 3)
    weight = g.tensor(dim=filters, stride=packed_stride(filters, order), name="w")
    bias = g.tensor(dim=[1, k, 1, 1], stride=[k, 1, 1, 1], name="b")
    y = g.conv_fprop(image=x, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    output(g.relu(input=g.bias(input=y, bias=bias)), (n, k, h, w), packed_stride((n, k, h, w), order))
    return g


def conv_channels_last(shape: Shape) -> Any:
    return conv_bias_relu(shape, order=channels_last_order(4))


def matmul_epilogue(shape: Shape, dtype: Any = FLOAT, **options: Any) -> Any:
    """shape: B, M, N, K; gelu(a b + bias) and its largest magnitude."""
    b, m, n, k = shape
    g = begin(dtype, **options)
    left, right = g.tensor(dim=[b, m, k], name="a"), g.tensor(dim=[b, k, n], name="b")
    bias = g.tensor(dim=[1, 1, n], name="bias")
    y = g.gelu(input=g.bias(input=g.matmul(A=left, B=right), bias=bias))
    output(y)
    output(g.reduction(input=y, mode=cudnn.reduction_mode.AMAX), (1, 1, 1), dtype=FLOAT)
    return g


def gated(shape: Shape, dtype: Any = FLOAT, **options: Any) -> Any:
    """shape: M, N, K; swish(x gate) * (x up): two matmuls that share an operand."""
    m, n, k = shape
    g = begin(dtype, **options)
    x, gate, up = (g.tensor(dim=d, name=t) for d, t in (([m, k], "x"), ([k, n], "gate"), ([k, n], "up")))
    opened = g.swish(input=g.matmul(A=x, B=gate))
    output(g.mul(a=opened, b=g.matmul(A=x, B=up)), dtype=dtype)
    return g


def scaled_matmul(shape: Shape, dtype: Any = FLOAT, **options: Any) -> Any:
    """shape: M, N, K; relu(relu(x * scale) w + bias): pointwise work in front of a matmul and behind it."""
    m, n, k = shape
    g = begin(dtype, **options)
    x, scale = g.tensor(dim=[m, k], name="x"), g.tensor(dim=[1, k], name="scale")
    w, bias = g.tensor(dim=[k, n], name="w"), g.tensor(dim=[1, n], name="bias")
    product = g.matmul(A=g.relu(input=g.mul(a=x, b=scale)), B=w)
    output(g.relu(input=g.add(a=product, b=bias)), dtype=dtype)
    return g


def attention(shape: Shape, dtype: Any = FLOAT, **options: Any) -> Any:
    """shape: B, H, queries, keys, D; causal from the last ones, with lengths and statistics; two heads share keys."""
    b, h, rows, columns, d = shape
    g = begin(dtype, **options)
    q, k, v = (
        g.tensor(dim=[b, n, s, d], name=t) for t, n, s in (("q", h, rows), ("k", h // 2, columns), ("v", h, columns))
    )
    lengths = [g.tensor(dim=[b, 1, 1, 1], name=t, data_type=cudnn.data_type.INT32) for t in ("seq_len_q", "seq_len_kv")]
    given = {"use_causal_mask_bottom_right": True, "use_padding_mask": True, "generate_stats": True, "attn_scale": 0.2}
    o, stats = g.sdpa(q, k, v, seq_len_q=lengths[0], seq_len_kv=lengths[1], **given)
    output(o)
    output(stats, dtype=FLOAT)
    return g


def row_norm(shape: Shape, op: str, dtype: Any = FLOAT) -> Any:
    """shape: rows, columns; layernorm or rmsnorm with statistics."""
    rows, columns = shape
    g = begin(dtype)
    x, scale, bias = (g.tensor(dim=[d, columns], name=t) for d, t in ((rows, "x"), (1, "scale"), (1, "bias")))
    eps = g.tensor_scalar(1e-5, cudnn.scalar_type.RUNTIME_PARAM)
    phase = cudnn.norm_forward_phase.TRAINING
    made = getattr(g, op)(norm_forward_phase=phase, input=x, scale=scale, bias=bias, epsilon=eps)
    output(made[0])
    for stat in made[1:]:
        output(stat, dtype=FLOAT)
    return g


def layernorm(shape: Shape) -> Any:
    return row_norm(shape, "layernorm")


def rmsnorm(shape: Shape, dtype: Any = FLOAT) -> Any:
    return row_norm(shape, "rmsnorm", dtype)


def softmax(shape: Shape, dtype: Any = FLOAT) -> Any:
    """shape: rows, columns; softmax of each row."""
    rows, columns = shape
    g = begin(dtype)
    x = g.tensor(dim=[rows, columns], name="x")
    top = g.reduction(input=x, mode=cudnn.reduction_mode.MAX)
    top.set_dim([rows, 1]).set_stride([1, 1])
    e = g.exp(input=g.sub(a=x, b=top))
    total = g.reduction(input=e, mode=cudnn.reduction_mode.ADD)
    total.set_dim([rows, 1]).set_stride([1, 1])
    output(g.div(a=e, b=total))
    return g


def pointwise_broadcast(shape: Shape, dtype: Any = FLOAT) -> Any:
    """shape: N, C, H, W; gelu(x * scale per channel + a row), with the sum as an output too."""
    n, c, h, w = shape
    g = begin(dtype)
    x = g.tensor(dim=[n, c, h, w], name="x")
    scale, row = g.tensor(dim=[1, c, 1, 1], stride=[c, 1, 1, 1], name="s"), g.tensor(dim=[1, 1, 1, w], name="r")
    total = g.add(a=g.mul(a=x, b=scale), b=row)
    output(total)
    output(g.gelu(input=total))
    return g


def pointwise_chain(shape: Shape, dtype: Any = FLOAT) -> Any:
    """gelu(x + y) without any broadcasting."""
    g = begin(dtype)
    x, y = g.tensor(dim=list(shape), name="x"), g.tensor(dim=list(shape), name="y")
    output(g.gelu(input=g.add(a=x, b=y)))
    return g


def pitched(shape: Shape, pitch: int = 24, dtype: Any = FLOAT) -> Any:
    """Rows of a wider buffer: the strides stay where the extents change; at `pitch` columns it happens to be packed."""
    rows, columns = shape
    g = begin(dtype)
    x = g.tensor(dim=[2, rows, columns], stride=[40 * pitch, pitch, 1], name="x")
    output(g.tanh(input=x), (2, rows, columns), (40 * pitch, pitch, 1))
    return g


def column_sums(shape: Shape, dtype: Any = FLOAT) -> Any:
    """shape: B, M, N; sums over the rows, and over batch and columns of another tensor."""
    b, m, n = shape
    g = begin(dtype)
    x = g.tensor(dim=[b, m, n], name="x")
    output(g.reduction(input=g.tanh(input=x), mode=cudnn.reduction_mode.ADD), (b, 1, n), dtype=FLOAT)
    return g


def totals(shape: Shape, dtype: Any = FLOAT) -> Any:
    """The mean and the largest magnitude of everything."""
    g = begin(dtype)
    x = g.tanh(input=g.tensor(dim=list(shape), name="x"))
    for mode in (cudnn.reduction_mode.AVG, cudnn.reduction_mode.AMAX):
        output(g.reduction(input=x, mode=mode), (1,) * len(shape), dtype=FLOAT)
    return g


def assignments(g: Any, engine: Engine, device: Device) -> list[Assignment]:
    """Regions of a graph under an engine's limits; the engine must take all of them."""
    made = Assigner(frozen(g), device).assign(engine)
    assert all(a.engine is engine for a in made), [a.notes for a in made]
    return made


Maker = Callable[[Shape], Any]
