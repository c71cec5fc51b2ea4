"""Attention by warps of their own: which regions it takes, lists of tiles, and kernels compiled without a GPU."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.engines.triton import compile as aot
from fuseplan.engines.triton.attention import special
from fuseplan.engines.triton.attention.bounds import Bounds, tile_lists
from fuseplan.engines.triton.attention.special_emit import SpecialAttention
from fuseplan.engines.triton.engine import LIMITS
from fuseplan.ir.attention import Attention, attention_of
from fuseplan.ir.limits import everything
from fuseplan.lowering.pipeline import lower
from tests.kernels import triton_cases as made
from tests.kernels.test_triton_compile import check_parameters

triton = pytest.importorskip("triton", reason="triton is not installed")

Dims = tuple[int, int, int, int]
BF16, HALF = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF


def packed(dim: Dims, *, is_by_rows: bool) -> Dims:
    _, heads, rows, width = dim
    return (heads * rows * width, *((width, heads * width) if is_by_rows else (rows * width, width)), 1)


def graph_of(
    q: Dims, kv: Dims, dtype: Any = BF16, *, handle: Any = None, is_by_rows: bool = False, has_stats: bool = True,
    has_tops: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """A graph with one attention, not built; `has_tops`: with maxima and sums of the rows."""
    float_type = cudnn.data_type.FLOAT
    g = cudnn.pygraph(handle=handle, io_data_type=dtype, compute_data_type=float_type)
    names = {"q": q, "k": kv, "v": kv}
    given: dict[str, Any] = {
        n: g.tensor(dim=d, stride=packed(d, is_by_rows=is_by_rows), name=n) for n, d in names.items()
    }
    for name in ("score_max", "score_sum_exp") if has_tops else ():
        dim = (*q[:3], 1)
        options[name] = g.tensor(dim=dim, stride=packed(dim, is_by_rows=False), data_type=float_type)
    o, stats = g.sdpa(**given, generate_stats=has_stats, attn_scale=q[3] ** -0.5, **options)
    o.set_output(True).set_dim(q).set_stride(packed(q, is_by_rows=is_by_rows))
    if has_stats:
        stats.set_output(True).set_data_type(float_type)
    return g


def attention(*args: Any, **options: Any) -> Attention:
    g = graph_of(*args, **options)
    g.validate()
    (piece,) = lower(g._draft.graph, everything())
    return attention_of(piece.region, piece.region.anchors[0])


CAUSAL = {"use_causal_mask": True}
BAND = {"use_causal_mask_bottom_right": True, "sliding_window_length": 300}
# table: what an attention is made from
CASES: dict[str, tuple[Dims, Dims, dict[str, Any]]] = {
    "causal-64": ((4, 16, 1024, 64), (4, 16, 1024, 64), CAUSAL),
    "causal-128": ((1, 32, 1025, 128), (1, 8, 1025, 128), {**CAUSAL, "is_by_rows": True}),
    "plain-64": ((4, 16, 4096, 64), (4, 16, 4096, 64), {"dtype": HALF}),
    "plain-128": ((2, 32, 4096, 128), (2, 32, 4096, 128), {"has_stats": False}),
    "odd-band-128": ((2, 4, 333, 128), (2, 4, 1025, 128), BAND),
    "band-64": ((2, 4, 512, 64), (2, 4, 512, 64), {**CAUSAL, "sliding_window_length": 128}),
    "causal-256": ((1, 4, 777, 256), (1, 4, 777, 256), CAUSAL),
    "tops-64": ((1, 2, 100, 64), (1, 2, 100, 64), {"has_tops": True}),
    "padded-96": ((1, 4, 7, 96), (1, 2, 333, 96), {}),
}


def ways(a: Attention) -> list[dict[str, int]]:
    """Listed configs, and each of them with every choice of how the groups work together."""
    found = special.special_knobs(a, made.device())
    for chosen in itertools.product((0, 1), repeat=4):
        knobs = {**found[0], **dict(zip(special.KNOBS[6:], chosen, strict=True))}
        if knobs not in found and not special.special_knob_gap(a, made.device(), knobs):
            found.append(knobs)
    return found


def compile_and_check(a: Attention, knobs: dict[str, int], folder: Path) -> None:
    """No spills, and no products that wait for each other, say the assembler's messages."""
    (kernel,) = SpecialAttention(a, made.device(), knobs).emit().steps
    asm, facts = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))  # type: ignore[arg-type]
    check_parameters(kernel, asm["ptx"], [aot.Box(*box) for box in facts["boxes"]])  # type: ignore[arg-type]
    assert facts["shared_bytes"] <= made.device().shared_bytes
    (folder / "kernel.ptx").write_text(asm["ptx"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    command = [str(tool), "-v", "--gpu-name=sm_90a", str(folder / "kernel.ptx"), "-o", str(folder / "kernel.cubin")]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in said.stderr and "C75" not in said.stderr + said.stdout, knobs
    assert asm["ptx"].count("wgmma.mma_async") >= 8


@pytest.mark.parametrize("name", CASES)
def test_default_config_compiles_without_spills_and_waits(name: str, tmp_path: Path) -> None:
    q, kv, options = CASES[name]
    a = attention(q, kv, **options)
    assert special.special_gap(a, made.device()) == ""
    compile_and_check(a, special.special_knobs(a, made.device())[0], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_every_way_compiles_without_spills_and_waits(name: str, tmp_path: Path) -> None:
    q, kv, options = CASES[name]
    a = attention(q, kv, **options)
    for knobs in ways(a):
        compile_and_check(a, knobs, tmp_path)


BOUNDS = [
    Bounds(rows, columns, right, left)
    for rows, columns in ((1, 1), (300, 300), (1000, 517), (517, 1000), (128, 640))
    for right in (None, 0, 37, 128, columns - rows)
    for left in (None, 1, 100, 128, rows - columns + 5)
]


@pytest.mark.parametrize("block_n", [64, 128])
def test_blocks_of_a_tile_hold_all_keys_that_its_queries_see(block_n: int) -> None:
    for bounds in BOUNDS:
        edges, left_edges = bounds.edges(block_n)
        for m in range(-(-bounds.rows // 128)):
            rows = range(m * 128, m * 128 + 128)
            first, last = bounds.blocks(m, block_n)
            assert 0 <= first < last <= -(-bounds.columns // block_n)
            free = range(first + left_edges, last - edges)
            for n in range(-(-bounds.columns // block_n)):
                columns = range(n * block_n, n * block_n + block_n)
                seen = [bounds.is_seen(r, c) for r in (rows[0], rows[-1]) for c in (columns[0], columns[-1])]
                inner = [bounds.is_seen(r, c) for r in rows[::9] for c in columns[::9]]
                assert first <= n < last or not any(inner), (bounds, m, n)
                assert n not in free or all(seen), (bounds, m, n)


def test_lists_hold_every_tile_once_and_share_the_work() -> None:
    for q, kv, options in CASES.values():
        a = attention(q, kv, **options)
        tiles = -(-a.rows // 128)
        programs = min(132, a.batch * a.heads * tiles)
        table = tile_lists(Bounds.of(a), a.batch * a.heads, 8, programs, 128)
        rows = [table[i : i + programs] for i in range(0, len(table), programs)]
        assert len(rows) == max(rows[0]) + 2 and rows[-1] == [0] * programs
        listed = [[rows[1 + i][p] for i in range(rows[0][p])] for p in range(programs)]
        found = Counter(tile for own in listed for tile in own)
        assert found == Counter(h << 16 | m for h in range(a.batch * a.heads) for m in range(tiles))
        first = [Bounds.of(a).blocks(m, 128) for m in range(tiles)]
        work = [sum(first[t & 65535][1] - first[t & 65535][0] for t in own) for own in listed]
        assert max(work) <= min(work) + max(last - first for first, last in first) + 1


REFUSED: dict[str, tuple[Dims, Dims, dict[str, Any]]] = {
    "no other option": ((1, 2, 64, 64), (1, 2, 64, 64), {"use_alibi_mask": True}),
    "multiples of 16 bytes": ((1, 2, 64, 60), (1, 2, 64, 60), {}),
    "one half type": ((1, 2, 64, 64), (1, 2, 64, 64), {"dtype": cudnn.data_type.FLOAT}),
    "256 columns": ((1, 2, 64, 264), (1, 2, 64, 264), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_attention_is_refused_with_a_reason(reason: str) -> None:
    q, kv, options = REFUSED[reason]
    a = attention(q, kv, **options)
    assert reason in special.special_gap(a, made.device())
    assert "sm_90" in special.special_gap(a, made.device(100))


def test_work_behind_is_refused_where_keys_are_also_the_values() -> None:
    g = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=cudnn.data_type.FLOAT)
    q, k = (g.tensor(dim=(1, 2, 64, 64), name=name) for name in "qk")
    o, _ = g.sdpa(q, k, k, generate_stats=False)
    g.tanh(o).set_output(True)
    g.validate()
    (piece,) = lower(g._draft.graph, LIMITS)
    a = attention_of(piece.region, piece.region.anchors[0])
    assert "no work" in special.special_gap(a, made.device())
