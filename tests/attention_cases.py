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


class _Maker:
    """Tensors of one attention, forward or backward."""

    def __init__(self, options: Sequence[str], dims: tuple[int, ...], io: str) -> None:
        self.options, self.dims, types = options, dims, cudnn.data_type
        self.io = types[io]
        self.graph = cudnn.pygraph(
            io_data_type=self.io, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT
        )
        self.order = "bshd" if "bshd" in options else "bhsd"

    def strides(self, dim: Sequence[int], order: str) -> list[int]:
        found, step = {}, 1
        for letter in reversed(order):
            found[letter] = step
            step *= dim["bhsd".index(letter)]
        return [found[letter] for letter in "bhsd"]

    def tensor(self, name: str, dim: Sequence[int], type_: Any = None, order: str = "bhsd") -> Any:
        return self.graph.tensor(dim=list(dim), stride=self.strides(dim, order), name=name, data_type=type_ or self.io)

    def operands(self) -> dict[str, Any]:
        batch, heads, rows, columns, depth, depth_v = self.dims
        is_grouped = "grouped" in self.options
        shared = 2 if is_grouped and heads % 2 == 0 else 1
        dims = {"q": (batch, heads, rows, depth), "k": (batch, heads // shared, columns, depth),
                "v": (batch, 1 if is_grouped else heads, columns, depth_v)}  # fmt: skip
        return {name: self.tensor(name, dim, order=self.order) for name, dim in dims.items()}

    def given(self) -> dict[str, Any]:
        """Arguments for the options that forward and backward calls share."""
        batch, heads, rows, columns, depth, _ = self.dims
        types, options = cudnn.data_type, self.options
        found: dict[str, Any] = {"attn_scale": depth**-0.5}
        if "causal" in options:
            found["use_causal_mask"] = True
        if "bottom" in options:
            found["use_causal_mask_bottom_right"] = True
        if "window" in options:
            found |= {"use_causal_mask": True, "sliding_window_length": 3}
        if "band" in options:
            found |= {"diagonal_band_left_bound": 4, "diagonal_band_right_bound": 2}
        if "padding" in options:
            names = ("seq_len_q", "seq_len_kv")
            found |= {"use_padding_mask": True, **{n: self.tensor(n, (batch, 1, 1, 1), types.INT32) for n in names}}
        if "bias" in options:
            found["bias"] = self.tensor("bias", (batch, heads, rows, columns))
        if "bias_row" in options:
            found["bias"] = self.tensor("bias", (1, heads, 1, columns))
        if "alibi" in options:
            found["use_alibi_mask"] = True
        if "sink" in options:
            found["sink_token"] = self.tensor("sink_token", (1, heads, 1, 1), types.FLOAT)
        if "scale_tensor" in options:
            found["attn_scale"] = self.tensor("attn_scale", (1, 1, 1, 1), types.FLOAT)
        return found

    def finish(self) -> Graph:
        self.graph.validate()
        found = self.graph._draft.graph
        assert found is not None
        return found


def attention_graph(options: Sequence[str], dims: tuple[int, ...], io: str, *, stats: bool = True) -> Graph:
    """One `sdpa` as a graph; dims are batch, heads, queries, keys, depth of q and k, depth of v."""
    m = _Maker(options, dims, io)
    batch, heads, rows, _, _, depth_v = dims
    operands, given, floats = m.operands(), m.given(), cudnn.data_type.FLOAT
    if "log2" in options:
        given["stats_use_log2"] = True
    if "all_results" in options:
        for name in ("score_max", "score_sum_exp"):
            given[name] = m.tensor(name, (batch, heads, rows, 1), floats).set_output(True)
    o, row_stats = m.graph.sdpa(**operands, generate_stats=stats, **given)
    o.set_output(True)
    if m.order == "bshd":
        dim = [batch, heads, rows, depth_v]
        o.set_dim(dim).set_stride(m.strides(dim, m.order))
    if stats:
        row_stats.set_output(True).set_data_type(floats)
    return m.finish()


def backward_graph(options: Sequence[str], dims: tuple[int, ...], io: str, *, of_all: bool = True) -> Graph:
    """One `sdpa_backward` as a graph; `of_all`: with the gradients of a bias and of a sink where there are any."""
    m = _Maker(options, dims, io)
    batch, heads, rows, _, _, depth_v = dims
    operands, given, floats = m.operands(), m.given(), cudnn.data_type.FLOAT
    out = (batch, heads, rows, depth_v)
    operands |= {name: m.tensor(name, out, order=m.order) for name in ("o", "dO")}
    operands["stats"] = m.tensor("stats", (batch, heads, rows, 1), floats)
    for name, of in (("dBias", "bias"), ("dSink_token", "sink_token")):
        if of in given and of_all:
            given[name] = m.tensor(name, given[of].get_dim(), floats if of == "sink_token" else None).set_output(True)
    for gradient in m.graph.sdpa_backward(**operands, **given):
        gradient.set_output(True)
    return m.finish()


def attention_inputs(graph: Graph, seed: int) -> dict[int, HostBuffer]:
    """Random inputs: lengths from 0 to all there are, and NaN in the rows past them, which must not matter."""
    made = random_inputs(graph, seed)
    names = {graph.tensors[uid].name: buffer for uid, buffer in made.items()}
    if "attn_scale" in names:
        names["attn_scale"].view[...] = 0.3
    if "stats" in names:
        arrays = {graph.tensors[uid].name: buffer.view for uid, buffer in made.items()}
        names["stats"].view[...] = _row_stats(arrays, dict(graph.nodes[0].attrs))
    rng = np.random.default_rng(seed)
    queries = [name for name in ("q", "o", "dO", "stats") if name in names]
    for length, padded in (("seq_len_q", queries), ("seq_len_kv", ["k", "v"])):
        if length in names:
            most = names[padded[0]].view.shape[2]
            counts = rng.integers(0, most + 1, names[length].view.shape[0])
            names[length].view[...] = counts.reshape(-1, 1, 1, 1)
            for name in padded:
                for b, count in enumerate(counts):
                    names[name].view[b, :, count:] = np.nan
    return made


def _row_stats(arrays: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """Logarithms of the sums of the powers of all scores, as if nothing were masked: no probability is above 1."""
    q, k = (np.asarray(arrays[name], np.float64) for name in "qk")
    scale = float(arrays["attn_scale"].ravel()[0]) if "attn_scale" in arrays else attrs["attn_scale_value"]
    s = scale * q @ np.repeat(k, q.shape[1] // k.shape[1], axis=1).swapaxes(2, 3)
    if "bias" in arrays:
        s += np.asarray(arrays["bias"], np.float64)
    if attrs["use_alibi_mask"]:
        n = 1 << (s.shape[1].bit_length() - 1)
        exponents = [8 * (i + 1) / n for i in range(n)] + [4 * (2 * i + 1) / n for i in range(s.shape[1] - n)]
        slopes = 2.0 ** -np.array(exponents).reshape(-1, 1, 1)
        s += slopes * (np.arange(s.shape[3]) - np.arange(s.shape[2])[:, None])
    top = s.max(axis=3, keepdims=True)
    return top + np.log(np.exp(s - top).sum(axis=3, keepdims=True))
