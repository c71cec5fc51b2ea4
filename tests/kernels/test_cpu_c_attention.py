"""Attention by `cpu_c`: every option alone and in pairs, odd extents and head dims, against the float64 judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from fuseplan.engines.registry import engine_named
from fuseplan.ir.graph import Graph
from fuseplan.ops.judge import judge
from fuseplan.plan.assign import Assigner
from fuseplan.runtime.device import cpu_device
from fuseplan.runtime.toolchain import has_compiler
from fuseplan.testing.run import build_on, run_on_host
from tests.attention_cases import OPTIONS, attention_graph, attention_inputs, backward_graph, pairs

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
Make = Callable[[Sequence[str], tuple[int, ...], str], Graph]
TYPES = ("FLOAT", "BFLOAT16", "HALF")
PAIRS = [(pair, TYPES[k % 3]) for k, pair in enumerate(pairs(60))]
make_backward = partial(backward_graph, of_all=False)


def check(options: Sequence[str], dims: tuple[int, ...], io: str, seed: int = 0, make: Make = attention_graph) -> None:
    """The plan is one kernel of this engine, writes all it should and nothing else, and is right."""
    graph = make(options, dims, io)
    (assigned,) = Assigner(graph, cpu_device()).assign(engine_named("cpu_c"))
    assert assigned.engine.name == "cpu_c", assigned.notes
    inputs = attention_inputs(graph, seed)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, run_on_host(build_on(graph, "cpu_c"), inputs))
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("io", TYPES)
def test_causal_attention_of_grouped_heads(io: str) -> None:
    check(("causal", "grouped", "all_results"), (2, 4, 130, 130, 40, 24), io)


@pytest.mark.full
@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_option_alone(option: str, io: str) -> None:
    check((option,), (2, 4, 70, 133, 40, 24), io)


@pytest.mark.full
@pytest.mark.parametrize(("options", "io"), PAIRS, ids=lambda p: "-".join(p) if isinstance(p, tuple) else p)
def test_options_in_pairs(options: tuple[str, ...], io: str) -> None:
    for seed, dims in enumerate(((2, 4, 70, 133, 40, 24), (1, 6, 133, 70, 8, 8))):
        check(options, dims, io, seed)


@pytest.mark.full
@pytest.mark.parametrize("depth", [1, 40, 64, 72, 96, 128, 192, 256])
@pytest.mark.parametrize("length", [1, 7, 333, 1025])
def test_lengths_and_head_dims(length: int, depth: int) -> None:
    io = TYPES[(length + depth) % 3]
    check(("causal",) if length % 2 else (), (1, 2, length, length, depth, depth), io)
    check(("bottom",), (1, 2, 3, length, depth, max(1, depth // 2)), io)


@pytest.mark.full
@pytest.mark.parametrize("size", [120.0, 1e4])
@pytest.mark.parametrize("options", [(), ("causal", "sink"), ("bias",)])
def test_large_scores(options: tuple[str, ...], size: float) -> None:
    graph = attention_graph(options, (1, 2, 40, 90, 16, 16), "FLOAT")
    inputs = attention_inputs(graph, 0)
    by_name = {graph.tensors[uid].name: b for uid, b in inputs.items()}
    by_name["q"].view[...] *= size / 4
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, run_on_host(build_on(graph, "cpu_c"), inputs))
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("io", TYPES)
def test_rows_that_see_no_key_are_zero(io: str) -> None:
    """By a bias of minus infinity, and beyond a bound even where scores are infinite."""
    graph = attention_graph(("bias", "bottom", "all_results"), (1, 2, 9, 5, 8, 8), io)
    inputs = attention_inputs(graph, 0)
    by_name = {graph.tensors[uid].name: b for uid, b in inputs.items()}
    by_name["bias"].view[:, :, 6] = -np.inf
    by_name["q"].view[:, :, 0] = np.inf
    found = {graph.tensors[uid].name: a for uid, a in run_on_host(build_on(graph, "cpu_c"), inputs).items()}
    o, stats = (next(a for n, a in found.items() if n.endswith(e)) for e in ("::O", "::Stats"))
    dead = [0, 1, 2, 3, 6]  # four queries more than keys; one is hidden by the bias
    assert (np.asarray(o[:, :, dead], np.float32) == 0).all() and (stats[:, :, dead] == -np.inf).all()
    assert np.isfinite(stats[:, :, [4, 5, 7, 8]]).all() and (found["score_max"][:, :, dead] == -np.inf).all()


BACKWARD = [o for o in OPTIONS if o not in ("log2", "all_results")]
BACKWARD_PAIRS = [(pair, TYPES[k % 3]) for k, pair in enumerate(pairs(60, 1)) if set(pair) <= set(BACKWARD)]


@pytest.mark.parametrize("io", TYPES)
def test_gradients_of_grouped_heads(io: str) -> None:
    check(("causal", "grouped"), (2, 4, 130, 130, 40, 24), io, make=make_backward)


@pytest.mark.full
@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize("option", BACKWARD)
def test_gradients_with_an_option_alone(option: str, io: str) -> None:
    check((option,), (2, 4, 70, 133, 40, 24), io, make=make_backward)


@pytest.mark.full
@pytest.mark.parametrize(("options", "io"), BACKWARD_PAIRS, ids=lambda p: "-".join(p) if isinstance(p, tuple) else p)
def test_gradients_with_options_in_pairs(options: tuple[str, ...], io: str) -> None:
    for seed, dims in enumerate(((2, 4, 70, 133, 40, 24), (1, 6, 133, 70, 8, 8))):
        check(options, dims, io, seed, make_backward)


@pytest.mark.full
@pytest.mark.parametrize("depth", [1, 40, 64, 72, 96, 128, 192, 256])
@pytest.mark.parametrize("length", [1, 7, 333])
def test_gradients_of_lengths_and_head_dims(length: int, depth: int) -> None:
    io = TYPES[(length + depth) % 3]
    check(("causal",) if length % 2 else (), (1, 2, length, length, depth, depth), io, make=make_backward)
    check(("bottom",), (1, 2, 3, length, depth, max(1, depth // 2)), io, make=make_backward)


@pytest.mark.parametrize("option", ["bias", "sink"])
def test_gradients_of_biases_and_sinks_are_left_to_others(option: str) -> None:
    graph = backward_graph((option,), (1, 2, 9, 9, 8, 8), "FLOAT")
    (assigned,) = Assigner(graph, cpu_device()).assign(engine_named("cpu_c"))
    assert assigned.engine.name == "array" and "is not made here" in assigned.notes[0]


@pytest.mark.parametrize("options", [("grouped",), ("grouped", "bottom", "padding"), ("grouped", "sink"), ("causal",)])
def test_one_query_of_heads_that_share_keys(options: tuple[str, ...]) -> None:
    for io, dims in zip(TYPES, ((2, 12, 1, 133, 40, 24), (3, 8, 1, 64, 16, 16), (1, 40, 1, 70, 8, 8)), strict=True):
        check((*options, "all_results"), dims, io)
