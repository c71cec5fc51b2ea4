"""Attention by the general kernel on a device: options alone and in pairs, odd lengths, head dims, large scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.dtypes import INT32
from fuseplan.engines.triton.engine import ENGINE, LIMITS, TritonEngine
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.lowering.pipeline import lower
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.ops.judge import judge
from fuseplan.runtime.device import cuda_devices
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.testing.run import random_inputs
from tests.attention_cases import OPTIONS, attention_graph, attention_inputs, pairs
from tests.kernels import triton_cases as made

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.kernels.test_triton_gpu import from_torch, program_of, to_torch  # noqa: E402

TYPES = ("BFLOAT16", "HALF", "FLOAT")
PLAIN = ("BLOCK_M", "BLOCK_N", "PACK", "SPLIT", "FLOAT_PARTS", "num_warps", "num_stages")
PAIRS = [(pair, TYPES[k % 3]) for k, pair in enumerate(pairs(36))]


def results_of(graph: Graph, inputs: Mapping[int, Any], knobs: Mapping[str, int], *, aligned: bool) -> dict[int, Any]:
    """Outputs by uid: one region, run twice on outputs and a workspace that hold NaN."""
    (piece,) = lower(graph, LIMITS)
    region, rng = piece.region, np.random.default_rng(0)
    built = TritonEngine().build(region, cuda_devices()[0], config_of(region, knobs), aligned=aligned)
    program = program_of(region, built)
    slots = range(len(program.slots))
    dispatcher = make_dispatcher(program, [(i,) for i in slots], [None] * len(slots), dict)  # type: ignore[arg-type]
    flat = {uid: b.inner.view(numpy_dtype(b.spec.dtype)) for uid, b in inputs.items()}
    pack = {}
    for index, operand in enumerate(region.operands):
        host = flat.get(operand.uid)
        tensor = to_torch(made.buffer_for(operand, rng, poison=True) if host is None else host.copy()).cuda()
        if not aligned:
            longer = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
            longer[1:] = tensor
            tensor = longer[1:]
        pack[index] = tensor
    workspace = torch.full((max(1, program.workspace_bytes),), 255, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        dispatcher.execute(pack, workspace, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    found = {}
    for _, number in region.stores:
        operand = region.operands[number]
        found[operand.uid] = made.view_of(operand, from_torch(pack[number], operand.dtype).copy())
    return found


def config_of(region: Region, knobs: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """These knobs, and that warps have no tasks of their own where there is a choice."""
    known = ENGINE.knobs(region, cuda_devices()[0]).knobs
    return tuple({**({"SPECIALISTS": 0} if "SPECIALISTS" in known else {}), **knobs}.items())


def check(
    options: Sequence[str], dims: tuple[int, ...], io: str, *, seed: int = 0, size: float = 1.0, aligned: bool = True,
    **knobs: int,
) -> None:  # fmt: skip
    graph = attention_graph(options, dims, io)
    inputs = attention_inputs(graph, seed)
    next(b for uid, b in inputs.items() if graph.tensors[uid].name == "q").view[...] *= size
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, results_of(graph, inputs, knobs, aligned=aligned))
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_option_alone(option: str, io: str) -> None:
    check((option,), (1, 4, 170, 333, 64, 64), io)
    check((option,), (2, 4, 300, 133, 40, 24), io)


@pytest.mark.parametrize(("options", "io"), PAIRS, ids=lambda p: "-".join(p) if isinstance(p, tuple) else p)
def test_options_in_pairs(options: tuple[str, ...], io: str) -> None:
    for seed, dims in enumerate(((2, 2, 170, 233, 72, 128), (1, 2, 233, 170, 64, 64))):
        check(options, dims, io, seed=seed)


@pytest.mark.parametrize("io", TYPES[:2])
@pytest.mark.parametrize("depth", [40, 64, 72, 96, 128, 192, 256])
@pytest.mark.parametrize("length", [1, 7, 333, 1025])
def test_lengths_and_head_dims(length: int, depth: int, io: str) -> None:
    check(("causal",) if length % 2 else (), (1, 1, length, length, depth, depth), io)
    check(("bottom", "grouped"), (1, 4, 3, length, depth, max(1, depth // 2)), io)


@pytest.mark.parametrize("size", [30.0, 2500.0, 1e10])
@pytest.mark.parametrize("options", [(), ("causal", "sink"), ("bias",)])
def test_large_scores(options: tuple[str, ...], size: float) -> None:
    check(options, (1, 2, 40, 90, 16, 16), "FLOAT", size=size)


@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_every_listed_config(depth: int, io: str) -> None:
    graph = attention_graph(("causal",), (1, 4, 200, 300, depth, depth), io)
    (piece,) = lower(graph, LIMITS)
    for config in ENGINE.knobs(piece.region, cuda_devices()[0]).configs():
        knobs = {name: value for name, value in config if name in PLAIN}
        if not dict(config).get("SPECIALISTS"):
            for options in (("window", "padding"), ()):
                check(options, (1, 4, 200, 300, depth, depth), io, **knobs)  # type: ignore[arg-type]


@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize("options", [(), ("padding", "bottom"), ("sink", "all_results"), ("bias", "alibi")])
def test_few_queries_and_many_keys(options: tuple[str, ...], io: str) -> None:
    """By default heads that share keys are rows of one tile, and programs share the keys."""
    for dims in ((3, 8, 1, 3001, 128, 128), (1, 6, 5, 777, 64, 40), (2, 4, 2, 512, 256, 256)):
        check((*options, "grouped"), dims, io)
    for pack, split in ((0, 1), (0, 8), (1, 1), (1, 16)):
        check((*options, "grouped"), (1, 8, 3, 700, 64, 64), io, PACK=pack, SPLIT=split)


@pytest.mark.parametrize("io", TYPES)
@pytest.mark.parametrize(("page", "queries"), [(16, 1), (64, 3), (7, 100), (128, 200)])
def test_keys_and_values_in_pages(page: int, queries: int, io: str) -> None:
    batch, heads, most, width, types = 3, 4, 500, 64, cudnn.data_type
    g = cudnn.pygraph(io_data_type=types[io], intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT)
    q, pages = g.tensor(dim=(batch, heads, queries, width), name="q"), most * batch // page
    k, v = (g.tensor(dim=(pages, 2, rows, width)) for rows in (page, 2 * page))
    sizes = {"seq_len_q": (batch, 1, 1, 1), "seq_len_kv": (batch, 1, 1, 1)}
    sizes |= {f"paged_attention_{p}_table": (batch, 1, -(-most // n), 1) for p, n in (("k", page), ("v", 2 * page))}
    ints = {name: g.tensor(dim=dim, data_type=types.INT32, name=name) for name, dim in sizes.items()}
    options = {"use_causal_mask_bottom_right": True, "use_padding_mask": True, "generate_stats": True}
    for result in g.sdpa(q, k, v, attn_scale=0.125, paged_attention_max_seq_len_kv=most, **options, **ints):
        result.set_output(True)
    g.validate()
    graph = g._draft.graph
    assert graph is not None
    inputs, rng = random_inputs(graph, 0), np.random.default_rng(0)
    for uid, b in inputs.items():
        if b.spec.dtype is INT32:
            most_of = {"seq_len_q": queries + 1, "seq_len_kv": most + 1}.get(graph.tensors[uid].name, pages)
            b.view[...] = rng.integers(0, most_of, b.view.shape)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, results_of(graph, inputs, {}, aligned=True))
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("io", TYPES)
def test_buffers_at_any_address(io: str) -> None:
    check(("causal", "bias"), (2, 4, 100, 100, 64, 64), io, aligned=False)


@pytest.mark.parametrize("io", TYPES)
def test_rows_that_see_no_key_are_zero(io: str) -> None:
    """By a bias of minus infinity, and beyond a bound even where scores are infinite."""
    graph = attention_graph(("bias", "bottom", "all_results"), (1, 2, 9, 5, 8, 8), io)
    inputs = attention_inputs(graph, 0)
    by_name = {graph.tensors[uid].name: b for uid, b in inputs.items()}
    by_name["bias"].view[:, :, 6] = -np.inf
    by_name["q"].view[:, :, 0] = np.inf
    found = {graph.tensors[uid].name: a for uid, a in results_of(graph, inputs, {}, aligned=True).items()}
    o, stats = (next(a for n, a in found.items() if n.endswith(e)) for e in ("::O", "::Stats"))
    dead = [0, 1, 2, 3, 6]  # four queries more than keys; one is hidden by the bias
    assert (np.asarray(o[:, :, dead], np.float32) == 0).all() and (stats[:, :, dead] == -np.inf).all()
    assert np.isfinite(stats[:, :, [4, 5, 7, 8]]).all() and (found["score_max"][:, :, dead] == -np.inf).all()
