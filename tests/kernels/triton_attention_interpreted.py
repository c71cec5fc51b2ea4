"""Numbers of attention kernels, in Triton's interpreter; `test_triton_interpreter.py` starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.dtypes import FLOAT, INT32, UINT8
from fuseplan.engines.triton.engine import LIMITS
from fuseplan.ir.graph import Graph, span_elements
from fuseplan.ir.region import Region
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


@pytest.mark.parametrize("split", [1, 4])
def test_work_behind_an_attention(split: int) -> None:
    """An activation, a gate of each head and a residual in one region with it."""
    types, dims = cudnn.data_type, (2, 4, 19, 20)
    g = cudnn.pygraph(io_data_type=types.HALF, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT)
    q, v, residual = (g.tensor(dim=dims, stride=(1520, 380, 20, 1), name=n) for n in ("q", "v", "residual"))
    k, gate = g.tensor(dim=(2, 2, 19, 20), stride=(760, 380, 20, 1)), g.tensor(dim=(1, 4, 1, 1), stride=(4, 1, 1, 1))
    o, stats = g.sdpa(q, k, v, generate_stats=True, use_causal_mask=True, attn_scale=0.25)
    g.add(a=g.mul(a=g.gelu(input=o), b=gate), b=residual).set_output(True).set_data_type(types.FLOAT)
    stats.set_output(True)
    g.validate()
    graph = g._draft.graph
    inputs = attention_inputs(graph, 0)
    found = results_of(graph, inputs, {**TILE, "BLOCK_M": 16, "PACK": 1, "SPLIT": split})
    verdict = judge(graph, {uid: b.view.copy() for uid, b in inputs.items()}, found)
    assert verdict.is_right, verdict.message


def test_float_products_by_float_units() -> None:
    check(("causal",), (1, 2, 33, 40, 20, 20), "FLOAT", FLOAT_PARTS=0)


def test_scores_whose_rounding_alone_is_more_than_an_exponential_holds() -> None:
    graph = attention_graph(("all_results",), (1, 1, 17, 40, 16, 16), "FLOAT")
    inputs = attention_inputs(graph, 0)
    q, k, v = (next(b for u, b in inputs.items() if graph.tensors[u].name == name).view for name in "qkv")
    q *= 1e10
    found = {graph.tensors[uid].name: a for uid, a in results_of(graph, inputs, TILE).items()}
    best = (q[0, 0].astype(np.float64) @ k[0, 0].T.astype(np.float64)).argmax(1)
    np.testing.assert_allclose(next(a for n, a in found.items() if n.endswith("::O"))[0, 0], v[0, 0][best], rtol=1e-6)
    assert (found["score_sum_exp"] == 1).all()


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


def paged_region(page: int, pages: int, queries: int, split_heads: int, *, has_mask: bool) -> Region:
    """Keys in pages of some rows, values in pages of twice as many, and a mask of blocks, as no node has them yet."""
    d, batch, heads, columns = made.Draft(4), 2, 4, 150
    q, lengths = d.load((batch, heads, queries, 16), FLOAT), [d.load((batch, 1, 1, 1), INT32) for _ in range(2)]
    k, v = d.load((pages, split_heads, page, 16), FLOAT), d.load((pages, heads, 2 * page, 16), FLOAT)
    tables = [d.load((batch, 1, -(-columns // rows), 1), INT32) for rows in (page, 2 * page)]
    ports, args = (
        ["q", "k", "v", "seq_len_q", "seq_len_kv", "page_table_k", "page_table_v"],
        [q, k, v, *lengths, *tables],
    )
    if has_mask:
        ports, args = [*ports, "block_mask"], [*args, d.load((batch, heads, -(-queries // 128), 1), UINT8)]
    attrs = {"use_padding_mask": True, "paged_attention_max_seq_len_kv": columns, "attn_scale_value": 0.25}
    anchor = d.op("sdpa", *args, dim=(batch, heads, queries, 16), ports=tuple(ports), results=("o",), **attrs)
    d.store(d.op("pick", anchor, dim=(batch, heads, queries, 16), result="o"))
    return d.region()


@pytest.mark.parametrize(("page", "has_mask"), [(1, False), (7, False), (16, False), (16, True)])
def test_keys_and_values_in_pages(page: int, has_mask: bool) -> None:
    pages, queries = 400 // page, 130 if has_mask else 5
    region, rng = paged_region(page, pages, queries, 2, has_mask=has_mask), np.random.default_rng(2)
    flat = made.buffers_for(region, rng)
    q, len_q, len_kv, k, v, table_k, table_v, *mask = (
        x.reshape(o.dim) for x, o in zip(flat, region.operands, strict=True)
    )
    len_q[:, 0, 0, 0], len_kv[:, 0, 0, 0] = (queries, queries - 2), (141, 33)
    for table in (table_k, table_v):
        table[...] = rng.permutation(pages)[: table.size].reshape(table.shape)
    want = np.zeros(q.shape)
    for b in range(2):
        rows, keys = len_q[b, 0, 0, 0], np.arange(len_kv[b, 0, 0, 0])
        k_rows = k[table_k[b, 0, keys // page, 0], :, keys % page].astype(np.float64)
        v_rows = v[table_v[b, 0, keys // (2 * page), 0], :, keys % (2 * page)].astype(np.float64)
        for h in range(4):
            s = q[b, h, :rows] @ k_rows[:, h // 2].T * 0.25
            if has_mask:
                bits = mask[0][b, h, :, 0][np.arange(rows) // 128]
                s = np.where(bits[:, None] >> (keys // 128) & 1, s, -np.inf)
            p = np.exp(s - np.maximum(s.max(1, keepdims=True), -1e30))
            want[b, h, :rows] = p @ v_rows[:, h] / np.maximum(p.sum(1, keepdims=True), 1e-30)
    for pack, split in ((0, 1), (1, 4)):
        knobs = {"BLOCK_M": 64 if has_mask else 16, "BLOCK_N": 32, "PACK": pack, "SPLIT": split}
        run_interpreted(region, made.emitted(region, tuple(knobs.items())), flat)
        np.testing.assert_allclose(flat[-1].reshape(want.shape), want, rtol=1e-4, atol=1e-5)
