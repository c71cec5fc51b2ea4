"""Graphs of one attention with any options, and inputs for them, for the tests of every engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

import fuseplan as cudnn
from fuseplan.ir.graph import Graph
from fuseplan.testing.run import HostBuffer, random_inputs

#: alone, each of these is a case; two at a time, all that may stand together are
OPTIONS = (
    "causal", "bottom", "window", "band", "padding", "bias", "bias_row", "alibi", "sink", "scale_tensor", "grouped",
    "log2", "bshd", "all_results",
)  # fmt: skip
_APART = ({"causal", "bottom", "window", "band"}, {"bias", "bias_row"})  # of each, one at a time


def pairs(count: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Some pairs of options that may stand together."""
    fitting = [p for p in combinations(OPTIONS, 2) if not any(set(p) <= group for group in _APART)]
    return Random(seed).sample(fitting, min(count, len(fitting)))


def attention_graph(options: Sequence[str], dims: tuple[int, ...], io: str, *, stats: bool = True) -> Graph:
    """One `sdpa` as a graph; dims are batch, heads, queries, keys, depth of q and k, depth of v."""
    batch, heads, rows, columns, depth, depth_v = dims
    types = cudnn.data_type
    g = cudnn.pygraph(io_data_type=types[io], intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT)

    def tensor(name: str, dim: Sequence[int], type_: Any = None, order: str = "bhsd") -> Any:
        strides, step = {}, 1
        for letter in reversed(order):
            strides[letter] = step
            step *= dim["bhsd".index(letter)]
        found = [strides[letter] for letter in "bhsd"]
        return g.tensor(dim=list(dim), stride=found, name=name, data_type=type_ or types[io])

    order, shared = ("bshd" if "bshd" in options else "bhsd"), (2 if "grouped" in options and heads % 2 == 0 else 1)
    q = tensor("q", (batch, heads, rows, depth), order=order)
    k = tensor("k", (batch, heads // shared, columns, depth), order=order)
    v = tensor("v", (batch, 1 if "grouped" in options else heads, columns, depth_v), order=order)
    given: dict[str, Any] = {"attn_scale": depth**-0.5}
    if "causal" in options:
        given["use_causal_mask"] = True
    if "bottom" in options:
        given["use_causal_mask_bottom_right"] = True
    if "window" in options:
        given |= {"use_causal_mask": True, "sliding_window_length": 3}
    if "band" in options:
        given |= {"diagonal_band_left_bound": 4, "diagonal_band_right_bound": 2}
    if "padding" in options:
        lengths = [tensor(n, (batch, 1, 1, 1), types.INT32) for n in ("seq_len_q", "seq_len_kv")]
        given |= {"use_padding_mask": True, "seq_len_q": lengths[0], "seq_len_kv": lengths[1]}
    if "bias" in options:
        given["bias"] = tensor("bias", (batch, heads, rows, columns))
    if "bias_row" in options:
        given["bias"] = tensor("bias", (1, heads, 1, columns))
    if "alibi" in options:
        given["use_alibi_mask"] = True
    if "sink" in options:
        given["sink_token"] = tensor("sink_token", (1, heads, 1, 1), types.FLOAT)
    if "scale_tensor" in options:
        given["attn_scale"] = tensor("attn_scale", (1, 1, 1, 1), types.FLOAT)
    if "log2" in options:
        given["stats_use_log2"] = True
    if "all_results" in options:
        more = [tensor(n, (batch, heads, rows, 1), types.FLOAT) for n in ("score_max", "score_sum_exp")]
        given |= {"score_max": more[0].set_output(True), "score_sum_exp": more[1].set_output(True)}
    o, row_stats = g.sdpa(q, k, v, generate_stats=stats, **given)
    stride = [rows * heads * depth_v, depth_v, heads * depth_v, 1] if order == "bshd" else None
    o.set_output(True)
    if stride is not None:
        o.set_dim([batch, heads, rows, depth_v]).set_stride(stride)
    if stats:
        row_stats.set_output(True).set_data_type(types.FLOAT)
    g.validate()
    graph = g._draft.graph
    assert graph is not None
    return graph


def attention_inputs(graph: Graph, seed: int) -> dict[int, HostBuffer]:
    """Random inputs: lengths from 0 to all there are, and NaN in the rows past them, which must not matter."""
    made = random_inputs(graph, seed)
    names = {graph.tensors[uid].name: buffer for uid, buffer in made.items()}
    rng = np.random.default_rng(seed)
    if "attn_scale" in names:
        names["attn_scale"].view[...] = 0.3
    for length, padded in (("seq_len_q", "q"), ("seq_len_kv", "kv")):
        if length in names:
            most = names[padded[0]].view.shape[2]
            counts = rng.integers(0, most + 1, names[length].view.shape[0])
            names[length].view[...] = counts.reshape(-1, 1, 1, 1)
            for name in padded:
                for b, count in enumerate(counts):
                    names[name].view[b, :, count:] = np.nan
    return made
