"""Gradients of attention against PyTorch's autograd and central differences, from the forward op's own results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fuseplan.ir.graph import Graph
from fuseplan.ops.evaluate import run_judge
from tests.attention_cases import attention_graph, attention_inputs, backward_graph

DIMS = (2, 4, 6, 6, 8, 5)
Arrays = dict[str, np.ndarray[Any, Any]]


def run(graph: Graph, named: Arrays) -> Arrays:
    """Results of a graph by name in float64; a result's name is what follows its node's."""
    uids = {t.name: uid for uid, t in graph.tensors.items()}
    given = {uids[name]: x for name, x in named.items() if uids.get(name) in graph.input_uids}
    found = run_judge(graph, given)
    return {graph.tensors[uid].name.split("::")[-1]: np.asarray(found[uid]) for uid in graph.output_uids}


def inputs_of(options: tuple[str, ...]) -> Arrays:
    graph = attention_graph(options, DIMS, "FLOAT")
    found = {graph.tensors[uid].name: b.view.astype(np.float64) for uid, b in attention_inputs(graph, 1).items()}
    for name in ("seq_len_q", "seq_len_kv"):
        if name in found:
            found[name] = found[name].astype(np.int32)
    return found


def gradients(options: tuple[str, ...], named: Arrays, grad: np.ndarray[Any, Any]) -> Arrays:
    forward = run(attention_graph(options, DIMS, "FLOAT"), named)
    more = {"o": forward["O"], "stats": forward["Stats"], "dO": grad}
    return run(backward_graph(options, DIMS, "FLOAT"), {**named, **more})


@pytest.mark.parametrize("is_causal", [False, True])
def test_plain_gradients_are_those_of_pytorch(is_causal: bool) -> None:
    options = ("causal",) if is_causal else ()
    named = inputs_of(options)
    q, k, v = (torch.tensor(named[n], requires_grad=True) for n in "qkv")
    o = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    grad = torch.randn(o.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = gradients(options, named, grad.numpy())
    for name, expected in zip(("dQ", "dK", "dV"), torch.autograd.grad(o, (q, k, v), grad), strict=True):
        np.testing.assert_allclose(found[name], expected.numpy(), rtol=1e-10, atol=1e-12)


OPTIONS = [
    ("grouped", "causal"),
    ("bias", "sink"),
    ("bias_row", "window"),
    ("alibi", "bottom"),
    ("scale_tensor", "band"),
]


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_gradients_are_central_differences(options: tuple[str, ...]) -> None:
    named = inputs_of(options)
    graph = attention_graph(options, DIMS, "FLOAT")
    rng = np.random.default_rng(2)
    grad = rng.standard_normal(run(graph, named)["O"].shape)
    found = gradients(options, named, grad)
    of = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    for name, result in of.items():
        if name in named:
            way, step = rng.standard_normal(named[name].shape), 1e-5
            high, low = (run(graph, {**named, name: named[name] + s * step * way})["O"] for s in (1, -1))
            expected = ((high - low) * grad).sum() / (2 * step)
            np.testing.assert_allclose((found[result] * way).sum(), expected, rtol=1e-6, atol=1e-8)


def test_what_lies_past_a_length_does_not_matter_and_gets_no_gradient() -> None:
    options = ("padding", "causal")
    named = inputs_of(options)
    assert any(np.isnan(named[n]).any() for n in "qkv")
    grad = np.full((2, 4, 6, 5), 0.5)
    lengths = {n: named[n].reshape(-1) for n in ("seq_len_q", "seq_len_kv")}
    for b, count in enumerate(lengths["seq_len_q"]):
        grad[b, :, count:] = np.nan
    found = gradients(options, named, grad)
    for name, length in (("dQ", "seq_len_q"), ("dK", "seq_len_kv"), ("dV", "seq_len_kv")):
        assert np.isfinite(found[name]).all()
        for b, count in enumerate(lengths[length]):
            assert (found[name][b, :, count:] == 0).all()
