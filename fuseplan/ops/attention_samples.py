"""Test cases of attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuseplan.errors import InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ops.schema import Sample

_B, _H, _Q, _KV, _D = 2, 4, 5, 7, 8
_Dims = tuple[int, ...]


def _sample(
    id: str, q: _Dims = (_B, _H, _Q, _D), k: _Dims = (_B, _H, _KV, _D), v: _Dims = (_B, _H, _KV, _D), **more: Any
) -> Sample:  # fmt: skip
    """A case with statistics; `ports`: further inputs, `results`: row results wanted, `io`: type of q, k, v, O."""
    io = more.pop("io", "FLOAT")
    attrs = {"generate_stats": True, "attn_scale_value": 0.35, **more.pop("attrs", {})}
    ports = more.pop("ports", {})
    wanted = more.pop("results", ("stats",))
    absent = (
        "rng_dump",
        *(p for p in ("stats", "score_max", "score_sum_exp") if p not in wanted),
    )
    ins = {"q": (q, io), "k": (k, io), "v": (v, io), **ports}
    return Sample(id, ins, attrs, types={"o": io}, absent=absent, **more)


def _lengths(**ranges: tuple[float, float]) -> dict[str, Any]:
    return {
        "ports": {
            "seq_len_q": ((_B, 1, 1, 1), "INT32"),
            "seq_len_kv": ((_B, 1, 1, 1), "INT32"),
        },
        "ranges": {"seq_len_q": (0, _Q), "seq_len_kv": (0, _KV), **ranges},
    }


def _paged(id: str, **more: Any) -> Sample:
    """Keys in pages of 4 rows, values in pages of 3."""
    made = _lengths()
    tables = {f"paged_attention_{p}_table": ((_B, 1, 3, 1), "INT32") for p in "kv"}
    attrs = {
        "use_padding_mask": True,
        "paged_attention_max_seq_len_kv": _KV,
        **more.pop("attrs", {}),
    }
    ranges = {**made["ranges"], **dict.fromkeys(tables, (0, 5))}
    return _sample(
        id, k=(6, 2, 4, _D), v=(6, _H, 3, _D), ports={**made["ports"], **tables}, ranges=ranges, attrs=attrs, **more
    )  # fmt: skip


def _good() -> Iterable[Sample]:  # table
    scale_port: dict[str, Any] = {"attn_scale": ((1, 1, 1, 1), "FLOAT")}
    causal = {"diagonal_band_right_bound": 0}
    bottom = {"diagonal_alignment": "BOTTOM_RIGHT"}
    everything = ("stats", "score_max", "score_sum_exp")
    yield _sample("plain")
    yield _sample(
        "inference",
        attrs={"generate_stats": False, "attn_scale_value": None},
        results=(),
    )
    yield _sample(
        "scale-tensor",
        attrs={"attn_scale_value": None},
        ports=scale_port,
        ranges={"attn_scale": (0.1, 0.5)},
    )
    yield _sample("head-dims-differ", v=(_B, _H, _KV, 3), results=everything)
    yield _sample("grouped-heads", k=(_B, 2, _KV, _D), v=(_B, 1, _KV, 5))
    yield _sample("causal", attrs=causal, results=everything)
    yield _sample("causal-bottom-right", attrs={**causal, **bottom})
    yield _sample(
        "causal-bottom-right-empty-rows",
        q=(_B, _H, 9, _D),
        attrs={**causal, **bottom},
        results=everything,
    )
    yield _sample("window", attrs={**causal, "diagonal_band_left_bound": 3})
    yield _sample(
        "band-bottom-right",
        attrs={**bottom, "diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1},
    )
    yield _sample("left-only", attrs={"diagonal_band_left_bound": 2})
    for id, shape in (
        ("bias-full", (_B, _H, _Q, _KV)),
        ("bias-row", (1, 1, 1, _KV)),
        ("bias-heads", (1, _H, _Q, _KV)),
    ):
        yield _sample(id, ports={"bias": (shape, "FLOAT")})
    yield _sample("alibi", attrs={**causal, "use_alibi_mask": True})
    yield _sample(
        "alibi-six-heads",
        q=(1, 6, 3, 4),
        k=(1, 3, 5, 4),
        v=(1, 2, 5, 4),
        attrs={"use_alibi_mask": True},
    )
    yield _sample(
        "padding", attrs={"use_padding_mask": True}, results=everything, **_lengths()
    )
    yield _sample(
        "padding-bottom-right",
        attrs={"use_padding_mask": True, **causal, **bottom},
        **_lengths(),
    )
    yield _sample(
        "padding-flat-lengths", attrs={"use_padding_mask": True}, ranges={"seq_len_q": (1, _Q), "seq_len_kv": (1, _KV)},
        ports={"seq_len_q": ((_B,), "INT32"), "seq_len_kv": ((_B,), "INT32")},
    )  # fmt: skip
    yield _sample(
        "sink", ports={"sink_token": ((1, _H, 1, 1), "FLOAT")}, results=everything
    )
    yield _sample("sink-empty-rows", q=(_B, _H, 9, _D), attrs={**causal, **bottom},
                  ports={"sink_token": ((1, _H, 1, 1), "FLOAT")}, results=everything)  # fmt: skip
    bits: dict[str, Any] = {"block_mask": ((_B, _H, 1, 1), "UINT8")}
    yield _sample("block-mask", ports=bits, ranges={"block_mask": (0, 3)})
    yield _paged("paged")
    yield _paged(
        "paged-causal",
        attrs={**causal, **bottom, "paged_attention_max_seq_len_kv": None},
    )
    yield _sample("log2-stats", attrs={"stats_use_log2": True})
    yield _sample("half", io="HALF", attrs=causal)
    yield _sample("bf16", io="BFLOAT16", attrs=causal)
    yield _sample("one-query", q=(_B, _H, 1, _D), attrs={**causal, **bottom})
    yield _sample("ones", q=(1, 1, 1, 1), k=(1, 1, 1, 1), v=(1, 1, 1, 1))
    yield _sample("huge", low=-1e4, high=1e4)
    bshd = (_Q * _H * _D, _D, _H * _D, 1)
    yield _sample(
        "bshd",
        ports={
            "q": ((_B, _H, _Q, _D), "FLOAT", bshd),
            "k": ((_B, _H, _KV, _D), "FLOAT", (0, 0, _D, 1)),
        },
    )


def _bad() -> Iterable[Sample]:
    bad, unavailable = InvalidGraphError, cudnnGraphNotSupportedError
    one: dict[str, Any] = {"seq_len_q": ((_B, 1, 1, 1), "INT32")}
    yield _sample("rank-3", q=(_H, _Q, _D), fails=bad)
    yield _sample("batch-differs", k=(1, _H, _KV, _D), fails=bad)
    yield _sample("head-dim-differs", k=(_B, _H, _KV, 4), fails=bad)
    yield _sample("sequence-differs", v=(_B, _H, 6, _D), fails=bad)
    yield _sample("heads-do-not-divide", k=(_B, 3, _KV, _D), fails=bad)
    yield _sample(
        "stats-not-said", attrs={"generate_stats": None}, results=(), fails=bad
    )
    yield _sample(
        "right-bound-negative", attrs={"diagonal_band_right_bound": -1}, fails=bad
    )
    yield _sample(
        "length-missing", attrs={"use_padding_mask": True}, ports=one, fails=bad
    )
    yield _sample("lengths-without-mask", fails=bad, **_lengths())
    yield _sample("bias-wrong", ports={"bias": ((1, 1, _Q, 6), "FLOAT")}, fails=bad)
    yield _sample(
        "bias-boolean", ports={"bias": ((1, 1, _Q, _KV), "BOOLEAN")}, fails=unavailable
    )
    yield _sample(
        "sink-wrong", ports={"sink_token": ((1, 1, 1, 1), "FLOAT")}, fails=bad
    )
    yield _sample(
        "scale-twice", ports={"attn_scale": ((1, 1, 1, 1), "FLOAT")}, fails=bad
    )
    yield _sample("output-dims", outputs={"o": (_B, _H, _Q, 3)}, fails=bad)
    yield _sample("dropout", attrs={"has_dropout": True}, fails=unavailable)
    yield _sample("score-mod", attrs={"has_score_mod": True}, fails=unavailable)
    yield _sample("half-softmax", attrs={"has_half_softmax": True}, fails=unavailable)
    yield _sample("packed-bound", attrs={"max_total_seq_len_q": 5}, fails=unavailable)
    for id, ports in (
        ("block-mask-dims", {"block_mask": ((_B, _H, 1, 2), "UINT8")}),
        (
            "pages-without-lengths",
            {"paged_attention_k_table": ((_B, 1, 2, 1), "INT32")},
        ),
    ):
        yield _sample(id, ports=ports, fails=bad)
    yield _sample(
        "longest-without-pages", attrs={"paged_attention_max_seq_len_kv": 5}, fails=bad
    )
    yield _paged(
        "pages-too-few", attrs={"paged_attention_max_seq_len_kv": 13}, fails=bad
    )
    yield _sample(
        "cumulative",
        ports={"cu_seq_len_q": ((_B + 1, 1, 1, 1), "INT32")},
        fails=unavailable,
    )
    yield _sample(
        "kv-mask", ports={"kv_mask": ((1, 1, 1, _KV), "FLOAT")}, fails=unavailable
    )


def sdpa_samples() -> Iterable[Sample]:
    """Every option on small shapes, then what must be refused."""
    yield from _good()
    yield from _bad()
