"""Attention as engines see it."""

from __future__ import annotations

from typing import Any

import fuseplan as cudnn
from fuseplan.ir.attention import attention_of
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import everything
from fuseplan.lowering.pipeline import lower


def _graph(**options: Any) -> Graph:
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    dims = [(2, 4, 5, 8), (2, 2, 7, 8), (2, 1, 7, 6)]
    q, k, v = (g.tensor(dim=d, stride=(d[1] * d[2] * d[3], d[2] * d[3], d[3], 1)) for d in dims)
    ints = cudnn.data_type.INT32
    seq_len_q, seq_len_kv = (g.tensor(dim=(2, 1, 1, 1), stride=(1, 1, 1, 1), data_type=ints) for _ in range(2))
    for result in g.sdpa(q, k, v, seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, generate_stats=True, **options):
        result.set_output(True)
    g.validate()
    return g._draft.graph


def test_options_and_results_of_an_attention() -> None:
    graph = _graph(attn_scale=0.5, use_padding_mask=True, use_causal_mask_bottom_right=True, sliding_window_length=3)
    (piece,) = lower(graph, everything())
    a = attention_of(piece.region, piece.region.anchors[0])
    assert (a.batch, a.heads, a.rows, a.columns, a.dim("v")) == (2, 4, 5, 7, (2, 1, 7, 6))
    assert (a.scale, a.left, a.right, a.is_bottom, a.is_padded) == (0.5, 3, 0, True, True)
    assert set(a.results) == {"o", "stats"} and a.option("has_dropout") is False
    assert [a.operand(p) for p in ("q", "seq_len_kv", "bias")] == [0, 4, -1]
