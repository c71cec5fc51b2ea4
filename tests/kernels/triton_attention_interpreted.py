"""Numbers of attention kernels, in Triton's interpreter; `test_triton_interpreter.py` starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fuseplan.engines.triton.engine import LIMITS
from fuseplan.ir.graph import Graph, span_elements
from fuseplan.lowering.pipeline import lower
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.ops.judge import judge
from tests.attention_cases import OPTIONS, attention_graph, attention_inputs, pairs
from tests.kernels import triton_cases as made
from tests.kernels.triton_interpret import run_interpreted

# of the interpreter itself, where a loop's bound is a one-element array, and of its maximum of NaN
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]
TILE = {"BLOCK_M": 32, "BLOCK_N": 16}
PAIRS = [(pair, ("FLOAT", "HALF")[k % 2]) for k, pair in enumerate(pairs(24))]


@pytest.fixture(autouse=True)
def needs_the_interpreter() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("start this file with TRITON_INTERPRET=1, or through test_triton_interpreter.py")
    yield


def results_of(graph: Graph, inputs: Mapping[int, Any], knobs: Mapping[str, int]) -> dict[int, Any]:
    """Outputs by uid: one region, run twice on outputs that hold NaN."""
    (piece,) = lower(graph, LIMITS)
    region, rng = piece.region, np.random.default_rng(0)
    memory = {uid: b.inner.view(numpy_dtype(b.spec.dtype)) for uid, b in inputs.items()}
    for operand in region.operands:
        if operand.uid not in memory:
            memory[operand.uid] = made.buffer_for(operand, rng, poison=True)
    emitted = made.emitted(region, tuple(knobs.items()))
    for _ in range(2):
        run_interpreted(region, emitted, [memory[o.uid] for o in region.operands])
    found = {}
    for uid in graph.output_uids:
        spec, flat = graph.tensors[uid], memory[uid]
        assert span_elements(spec.dim, spec.stride) == flat.size
        steps = tuple(s * flat.itemsize for s in spec.stride)
        found[uid] = np.lib.stride_tricks.as_strided(flat, spec.dim, steps)
    return found


def check(options: Sequence[str], dims: tuple[int, ...], io: str, seed: int = 0, **knobs: int) -> None:
    graph = attention_graph(options, dims, io)
    inputs = attention_inputs(graph, seed)
    verdict = judge(graph, {uid: b.view.copy() for uid, b in inputs.items()}, results_of(graph, inputs, TILE | knobs))
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("io", ["FLOAT", "HALF"])
@pytest.mark.parametrize("option", OPTIONS)
def test_option_alone(option: str, io: str) -> None:
    check((option,), (2, 2, 33, 37, 24, 20), io)


@pytest.mark.full
@pytest.mark.parametrize(("options", "io"), PAIRS, ids=lambda p: "-".join(p) if isinstance(p, tuple) else p)
def test_options_in_pairs(options: tuple[str, ...], io: str) -> None:
    for seed, dims in enumerate(((2, 2, 23, 37, 24, 20), (1, 2, 37, 23, 8, 8))):
        check(options, dims, io, seed)


@pytest.mark.parametrize(
    "dims", [(1, 2, 1, 1, 1, 1), (1, 2, 7, 1, 16, 1), (2, 1, 1, 40, 1, 17), (1, 1, 64, 64, 16, 16)]
)
def test_extents_of_one_and_whole_tiles(dims: tuple[int, ...]) -> None:
    for options in ((), ("padding", "band"), ("bias", "bottom")):
        check(options, dims, "FLOAT")


@pytest.mark.parametrize("options", [(), ("padding", "bottom"), ("window", "sink", "all_results"), ("bias", "alibi")])
def test_heads_in_one_tile_and_parts_of_keys(options: tuple[str, ...]) -> None:
    """Heads that share keys are rows of one tile; several programs share the keys, and their sums are joined."""
    check((*options, "grouped"), (2, 2, 5, 69, 20, 24), "HALF", PACK=0, SPLIT=4, BLOCK_M=16)
    check((*options, "grouped"), (1, 6, 11, 40, 16, 16), "FLOAT", PACK=1, SPLIT=2, BLOCK_M=16)


def test_float_products_by_float_units() -> None:
    check(("causal",), (1, 2, 33, 40, 20, 20), "FLOAT", FLOAT_PARTS=0)


@pytest.mark.parametrize("io", ["FLOAT", "HALF"])
def test_rows_that_see_no_key_are_zero(io: str) -> None:
    """By a bias of minus infinity, and beyond a bound even where scores are infinite."""
    graph = attention_graph(("bias", "bottom", "all_results"), (1, 2, 9, 5, 8, 8), io)
    inputs = attention_inputs(graph, 0)
    by_name = {graph.tensors[uid].name: b for uid, b in inputs.items()}
    by_name["bias"].view[:, :, 6] = -np.inf
    by_name["q"].view[:, :, 0] = np.inf
    found = {graph.tensors[uid].name: a for uid, a in results_of(graph, inputs, TILE).items()}
    o, stats = (next(a for n, a in found.items() if n.endswith(e)) for e in ("::O", "::Stats"))
    dead = [0, 1, 2, 3, 6]  # four queries more than keys; one is hidden by the bias
    assert (np.asarray(o[:, :, dead], np.float32) == 0).all() and (stats[:, :, dead] == -np.inf).all()
    assert np.isfinite(stats[:, :, [4, 5, 7, 8]]).all() and (found["score_max"][:, :, dead] == -np.inf).all()
