"""Writes the graphs of tests/conformance: ``python scripts/make_conformance.py``. Claims are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuseplan as cudnn
from fuseplan.plan.graph_json import graph_to_json

FOLDER = Path(__file__).parent.parent / "tests" / "conformance"
FLOAT, HALF, BF16 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.BFLOAT16
GRAPHS: dict[str, Callable[[], Any]] = {}


def graph(fn: Callable[[], Any]) -> Callable[[], Any]:
    GRAPHS[fn.__name__] = fn
    return fn


def new(name: str, io: Any = FLOAT) -> Any:
    return cudnn.pygraph(
        name=name, io_data_type=io, intermediate_data_type=FLOAT, compute_data_type=FLOAT, device="cpu"
    )


def scalar(g: Any, name: str) -> Any:
    return g.tensor(dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT, is_pass_by_value=True, name=name)


@graph
def conv_bias_relu() -> Any:
    g = new("conv_bias_relu", BF16)
    x = g.tensor(dim=[2, 8, 9, 7], stride=[504, 1, 56, 8], name="x")
    w = g.tensor(dim=[5, 8, 3, 3], stride=[72, 1, 24, 8], name="w")
    b = g.tensor(dim=[1, 5, 1, 1], stride=[5, 1, 5, 5], name="b")
    conv = g.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[2, 1], dilation=[1, 1])
    g.relu(input=g.bias(input=conv, bias=b)).set_output(True)
    return g


@graph
def matmul_scale_bias_gelu_amax() -> Any:
    g = new("matmul_scale_bias_gelu_amax", HALF)
    a, b = g.tensor(dim=[3, 17, 33], name="a"), g.tensor(dim=[3, 33, 9], stride=[297, 1, 33], name="b")
    bias = g.tensor(dim=[1, 1, 9], name="bias")
    act = g.gelu(input=g.bias(input=g.mul(a=g.matmul(A=a, B=b), b=scalar(g, "alpha")), bias=bias))
    act.set_output(True)
    top = g.reduction(input=act, mode=cudnn.reduction_mode.AMAX)
    top.set_output(True).set_data_type(FLOAT).set_dim([1, 1, 1]).set_stride([1, 1, 1])
    return g


@graph
def two_matmuls() -> Any:
    g = new("two_matmuls")
    a, b, c = g.tensor(dim=[2, 8, 6]), g.tensor(dim=[2, 6, 10]), g.tensor(dim=[1, 10, 4])
    g.matmul(A=g.relu(input=g.matmul(A=a, B=b)), B=c).set_output(True)
    return g


@graph
def add_layernorm_gelu() -> Any:
    g = new("add_layernorm_gelu")
    x, r = g.tensor(dim=[2, 5, 24], name="x"), g.tensor(dim=[2, 5, 24], name="residual")
    scale, bias = g.tensor(dim=[1, 1, 24], name="scale"), g.tensor(dim=[1, 1, 24], name="bias")
    s = g.add(a=x, b=r)
    y, mean, inv = g.layernorm(norm_forward_phase=cudnn.norm_forward_phase.TRAINING, input=s, scale=scale, bias=bias,
                               epsilon=scalar(g, "eps"))  # fmt: skip
    for t in (s, mean, inv, g.gelu(input=y)):
        t.set_output(True)
    return g


@graph
def rms_norm() -> Any:
    g = new("rms_norm", BF16)
    x, w = g.tensor(dim=[1, 7, 40], name="x"), g.tensor(dim=[1, 1, 40], name="w")
    y, inv = g.rmsnorm(norm_forward_phase=cudnn.norm_forward_phase.TRAINING, input=x, scale=w, bias=None,
                       epsilon=scalar(g, "eps"))  # fmt: skip
    y.set_output(True)
    inv.set_output(True).set_data_type(FLOAT)
    return g


@graph
def softmax_rows() -> Any:
    g = new("softmax_rows")
    x = g.tensor(dim=[1, 6, 50], name="x")
    top = g.reduction(input=x, mode=cudnn.reduction_mode.MAX).set_dim([1, 6, 1])
    e = g.exp(input=g.sub(a=x, b=top))
    g.div(a=e, b=g.reduction(input=e, mode=cudnn.reduction_mode.ADD).set_dim([1, 6, 1])).set_output(True)
    return g


@graph
def chain_60_output_in_the_middle() -> Any:
    g = new("chain_60_output_in_the_middle")
    x, b = g.tensor(dim=[4, 33], name="x"), g.tensor(dim=[1, 33], name="b")
    for k in range(60):
        x = (g.add, g.max, g.sub, g.mul)[k % 4](x, b)
        if k == 30:
            x.set_output(True)
    x.set_output(True)
    return g


@graph
def causal_attention_bias_stats() -> Any:
    g = new("causal_attention_bias_stats")
    q, k, v = g.tensor(dim=[2, 4, 9, 8]), g.tensor(dim=[2, 2, 9, 8]), g.tensor(dim=[2, 1, 9, 6])
    bias = g.tensor(dim=[1, 4, 9, 9])
    o, stats = g.sdpa(q=q, k=k, v=v, is_inference=False, attn_scale=0.3, bias=bias, use_causal_mask=True)
    o.set_output(True)
    stats.set_output(True)
    return g


def row(g: Any, name: str, *dim: int) -> Any:
    return g.tensor(dim=list(dim), name=name)


@graph
def gate_up_swish_product() -> Any:
    g = new("gate_up_swish_product", HALF)
    x, gate, up = row(g, "x", 1, 33, 24), row(g, "w_gate", 1, 24, 40), row(g, "w_up", 1, 24, 40)
    g.mul(a=g.swish(input=g.matmul(A=x, B=gate)), b=g.matmul(A=x, B=up)).set_output(True)
    return g


@graph
def prologue_matmul_epilogue() -> Any:
    g = new("prologue_matmul_epilogue", HALF)
    x, s, w, b = row(g, "x", 2, 19, 33), row(g, "s", 1, 1, 33), row(g, "w", 1, 33, 21), row(g, "b", 1, 1, 21)
    g.relu(input=g.add(a=g.matmul(A=g.relu(input=g.mul(a=x, b=s)), B=w), b=b)).set_output(True)
    return g


@graph
def norm_matmul() -> Any:
    g = new("norm_matmul")
    x, scale, w = row(g, "x", 1, 7, 40), row(g, "scale", 1, 1, 40), row(g, "w", 1, 40, 18)
    y, _ = g.rmsnorm(norm_forward_phase=cudnn.norm_forward_phase.INFERENCE, input=x, scale=scale, bias=None,
                     epsilon=scalar(g, "eps"))  # fmt: skip
    g.matmul(A=y, B=w).set_output(True)
    return g


@graph
def dswiglu_epilogue() -> Any:
    """Gradients of gate and up from one product: dh = dy W^T, then both derivatives, as two outputs."""
    g = new("dswiglu_epilogue", BF16)
    dy, w = row(g, "dy", 1, 17, 24), g.tensor(dim=[1, 24, 40], stride=[960, 1, 24], name="w_down")
    gate, up = row(g, "gate", 1, 17, 40), row(g, "up", 1, 17, 40)
    dh, s = g.matmul(A=dy, B=w), g.sigmoid(input=gate)
    swish = g.mul(a=gate, b=s)
    slope = g.sub(a=g.add(a=s, b=swish), b=g.mul(a=swish, b=s))
    g.mul(a=dh, b=swish).set_output(True)
    g.mul(a=g.mul(a=dh, b=up), b=slope).set_output(True)
    return g


@graph
def scale_bias_relu_conv() -> Any:
    g = new("scale_bias_relu_conv")
    x = g.tensor(dim=[2, 8, 7, 6], stride=[336, 1, 48, 8], name="x")
    w = g.tensor(dim=[5, 8, 3, 3], stride=[72, 1, 24, 8], name="w")
    s, b = (g.tensor(dim=[1, 8, 1, 1], stride=[8, 1, 8, 8], name=name) for name in ("scale", "bias"))
    act = g.relu(input=g.add(a=g.mul(a=x, b=s), b=b))
    g.conv_fprop(image=act, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_output(True)
    return g


def main() -> None:

    for name, make in GRAPHS.items():
        g = make()
        g.validate()
        g.build_operation_graph()
        (FOLDER / f"{name}.json").write_text(json.dumps(graph_to_json(g._draft.graph), indent=1) + "\n")
        print(name)


if __name__ == "__main__":
    main()
