"""The anchors: main loops around which pointwise work fuses. Everybody who asks about one asks this table.

A signature names the axes of each argument and result by letters, from the left for as many as there are:
``BMK,BKN->BMN``. Batch axes (B, H, G) may be broadcast or grouped; ``*`` stands for all further axes on that
side (batch axes in front, spatial axes behind). A letter of the arguments that no result has is contracted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Anchor:
    """One kind of main loop.

    Args:
        arguments: (name, axes) of the tensors that every such value has, in order
        results: (name, axes) in order. With one result the value is that result; with several it is read by
            `pick` alone, and its attribute `results` names those that are there
        optional: names of further arguments; a value's attribute `ports` then names all it has, in order,
            a list port once per entry
    """

    name: str
    arguments: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]
    optional: tuple[str, ...] = ()

    @property
    def has_many_results(self) -> bool:
        return len(self.results) > 1


_QKV = (("q", "*HSD"), ("k", "*GTD"), ("v", "*GTE"))
#: arguments that sdpa and its gradient take beside q, k and v; `mod` are the tensors that a body reads
_OPTIONS = (
    "attn_scale", "bias", "block_mask", "seq_len_q", "seq_len_kv", "page_table_k", "page_table_v", "sink_token",
    "cu_seq_len_q", "cu_seq_len_kv", "kv_mask", "dropout_mask", "seed", "offset", "mod",
)  # fmt: skip
_ROWS = (("stats", "*HS"), ("max", "*HS"), ("sum", "*HS"))

ANCHORS: dict[str, Anchor] = {  # table
    anchor.name: anchor
    for anchor in (
        Anchor("matmul", (("a", "*MK"), ("b", "*KN")), (("c", "*MN"),)),
        Anchor("conv_fprop", (("x", "NC*"), ("w", "KC*")), (("y", "NK*"),)),
        Anchor("conv_dgrad", (("y", "NK*"), ("w", "KC*")), (("x", "NC*"),)),
        Anchor("conv_wgrad", (("x", "NC*"), ("y", "NK*")), (("w", "KC*"),)),
        Anchor("sdpa", _QKV, (("o", "*HSE"), *_ROWS, ("rng_dump", "*HST")), _OPTIONS),
        Anchor(
            "sdpa_backward", (*_QKV, ("o", "*HSE"), ("do", "*HSE"), ("stats", "*HS")),
            (("dq", "*HSD"), ("dk", "*GTD"), ("dv", "*GTE"), ("dbias", "*HST"), ("dsink", "*H")),
            _OPTIONS,
        ),
    )
}  # fmt: skip
