"""The comparison that guards the references must see each of these faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.schema import NodeView, schema_of
from tests.ops.cases import make_case
from tests.ops.test_reference import check_reference

Arrays = dict[str, Any]
Fault = Callable[[NodeView, ArrayNamespace, Arrays], Arrays]


def with_attrs(op: str, **changed: Any) -> Fault:
    """The right reference under other attributes."""

    def fault(view: NodeView, xp: ArrayNamespace, a: Arrays) -> Arrays:
        attrs = tuple(sorted({**dict(view.node.attrs), **changed}.items()))
        return schema_of(op).reference(replace(view, node=replace(view.node, attrs=attrs)), xp, a)

    return fault


def with_inputs(op: str, **changed: Callable[[Any], Any]) -> Fault:
    """The right reference on changed inputs."""
    return lambda view, xp, a: schema_of(op).reference(
        view, xp, {p: changed.get(p, lambda x: x)(x) for p, x in a.items()}
    )


def with_result(op: str, change: Callable[[NodeView, Arrays, Arrays], Arrays]) -> Fault:
    """The right reference with changed results."""
    return lambda view, xp, a: change(view, a, schema_of(op).reference(view, xp, a))


def exp_without_one(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    return {"y": np.where(a["input"] > 0, a["input"], np.exp(a["input"]))}


def unbiased(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    x, n = a["input"], a["scale"].size
    inv = 1 / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + a["eps"].reshape(1, 1))
    assert n == x.shape[-1]
    return {**made, "inv_std": inv, "y": (x - x.mean(axis=-1, keepdims=True)) * inv * a["scale"] + a["bias"]}


def eps_outside(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    return {**made, "inv_std": 1 / (np.sqrt((a["input"] ** 2).mean(axis=-1, keepdims=True)) + a["eps"])}


def too_few(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    n = a["input"].shape[-1]
    return {"y": made["y"] * n / (n - 1)}


def mean_kept(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    return {**made, "dx": made["dx"] + a["inv_std"] * (a["grad"] * a["scale"]).mean(axis=-1, keepdims=True)}


def no_projection(view: NodeView, a: Arrays, made: Arrays) -> Arrays:
    return {**made, "dx": a["inv_std"] * a["grad"] * a["scale"]}


FAULTS: list[tuple[str, str, str, Fault]] = [  # table: op, sample, what is wrong, fault
    ("gelu", "odd", "tanh form", lambda v, xp, a: schema_of("gelu_approx_tanh").reference(v, xp, a)),
    ("swish", "odd-1", "beta ignored", with_attrs("swish", swish_beta=None)),
    ("softplus", "huge", "overflows", lambda v, xp, a: {"y": xp.log(1 + xp.exp(a["input"]))}),
    ("relu", "odd-1", "upper clip ignored", with_attrs("relu", upper_clip=None)),
    ("relu", "odd-2", "slope ignored", with_attrs("relu", negative_slope=None)),
    ("mod", "odd", "sign of Python's %", lambda v, xp, a: {"y": np.mod(a["input0"], a["input1"])}),
    ("elu", "odd", "minus one missing", with_result("elu", exp_without_one)),
    ("div", "int32", "floor division", lambda v, xp, a: {"y": np.broadcast_to(a["a"] // a["b"], (3, 5, 7))}),
    ("binary_select", "int32", "branches swapped", with_inputs("binary_select", mask=lambda m: m == 0)),
    ("gen_index", "odd-1", "wrong axis", with_attrs("gen_index", axis=2)),
    ("gen_index", "odd", "counts from one", with_result("gen_index", lambda v, a, r: {"y": r["y"] + 1})),
    ("cmp_ge", "int32", "strict", lambda v, xp, a: schema_of("cmp_gt").reference(v, xp, a)),
    ("matmul", "odd", "last k skipped", lambda v, xp, a: {"C": a["A"][..., :-1] @ a["B"][..., :-1, :]}),
    ("conv_fprop", "same-3x3", "filter flipped", with_attrs("conv_fprop", convolution_mode="CONVOLUTION")),
    ("conv_fprop", "flipped", "filter not flipped", with_attrs("conv_fprop", convolution_mode="CROSS_CORRELATION")),
    ("conv_fprop", "asymmetric-pad", "pads swapped", with_attrs("conv_fprop", pre_padding=(1, 0), post_padding=(0, 2))),
    ("conv_fprop", "grouped", "groups swapped", with_inputs("conv_fprop", weight=lambda w: w[::-1])),
    ("reduction", "AVG-rows", "divides by n - 1", with_result("reduction", too_few)),
    ("reduction", "AMAX-rows", "sign kept", with_attrs("reduction", mode="MAX")),
    ("reduction", "NORM2-rows", "root missing", with_result("reduction", lambda v, a, r: {"y": r["y"] ** 2})),
    ("reduction", "zeros", "zeros count", with_attrs("reduction", mode="MUL")),
    ("layernorm", "half", "unbiased variance", with_result("layernorm", unbiased)),
    ("layernorm", "rows", "epsilon missing", with_inputs("layernorm", eps=lambda e: e * 0)),
    ("rmsnorm", "half", "epsilon outside the root", with_result("rmsnorm", eps_outside)),
    ("rmsnorm", "rows", "bias missing", with_inputs("rmsnorm", bias=lambda x: x * 0)),
    ("layernorm_backward", "half", "mean of the gradient missing", with_result("layernorm_backward", mean_kept)),
    ("layernorm_backward", "rows", "scale missing", with_inputs("layernorm_backward", scale=lambda s: s * 0 + 1)),
    ("layernorm_backward", "far", "mean ignored", with_inputs("layernorm_backward", mean=lambda m: m * 0)),
    ("rmsnorm_backward", "bf16", "one step of two", with_result("rmsnorm_backward", no_projection)),
    ("rmsnorm_backward", "rows", "statistic squared", with_inputs("rmsnorm_backward", inv_std=np.square)),
    ("sdpa", "causal-bottom-right", "wrong corner", with_attrs("sdpa", diagonal_alignment="TOP_LEFT")),
    ("sdpa", "window", "window one wider", with_attrs("sdpa", diagonal_band_left_bound=4)),
    ("sdpa", "plain", "scale missing", with_attrs("sdpa", attn_scale_value=None)),
    ("sdpa", "grouped-heads", "heads interleaved", with_inputs("sdpa", q=lambda q: q[:, [0, 2, 1, 3]])),
    ("sdpa", "alibi-six-heads", "slopes of the first heads", with_attrs("sdpa", use_alibi_mask=False)),
    ("sdpa", "padding", "lengths off by one", with_inputs("sdpa", seq_len_kv=lambda n: n - 1)),
    ("sdpa", "sink", "sink missing", with_inputs("sdpa", sink_token=lambda s: s * 0 - math.inf)),
    ("sdpa_backward", "plain", "scale missing", with_attrs("sdpa_backward", attn_scale_value=None)),
    ("sdpa_backward", "causal", "output ignored", with_inputs("sdpa_backward", o=lambda o: o * 0)),
    ("sdpa_backward", "grouped-heads", "heads moved", with_inputs("sdpa_backward", q=lambda q: q[:, [0, 2, 1, 3]])),
    ("sdpa_backward", "padding", "lengths off by one", with_inputs("sdpa_backward", seq_len_kv=lambda n: n - 1)),
    ("sdpa_backward", "sink", "sink missing", with_inputs("sdpa_backward", sink_token=lambda s: s * 0 - math.inf)),
    ("sdpa", "log2-stats", "natural logarithm", with_attrs("sdpa", stats_use_log2=False)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "id", "wrong", "fault"), FAULTS, ids=lambda v: v if isinstance(v, str) else "")
def test_planted_fault_is_reported(op: str, id: str, wrong: str, fault: Fault) -> None:
    schema = schema_of(op)
    sample = next(s for s in schema.samples() if s.id == id)
    case = make_case(schema, sample)
    assert check_reference(schema, case) == []
    assert check_reference(replace(schema, reference=fault), case) != []
