"""The anchors: main loops around which pointwise work fuses. Everybody who asks about one asks this table.

A signature names the axes of each argument and result by letters, from the left for as many as there are:
``BMK,BKN->BMN``. Batch axes (B, H, G) may be broadcast or grouped; ``*`` stands for all further axes on that
side (batch axes in front, spatial axes behind). A letter of the arguments that no result has is contracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseplan.runtime.forks import cached_property

Dim = tuple[int, ...]
Dims = dict[str, Dim]


@dataclass(frozen=True)
class Anchor:
    """One kind of main loop.

    Args:
        arguments: (name, axes) of the tensors that every such value has, in order
        results: (name, axes) in order. With one result the value is that result; with several it is read by
            `pick` alone, and its attribute `results` names those that are there
        optional: names of further arguments; a value's attribute `ports` then names all it has, in order,
            a list port once per entry
        check: what is wrong with the dims of arguments and results (by name) under the value's attributes, or ""
    """

    name: str
    arguments: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]
    optional: tuple[str, ...] = ()
    check: Callable[[Dims, Dims, Mapping[str, Any]], str] = lambda arguments, results, attrs: ""

    @property
    def has_many_results(self) -> bool:
        return len(self.results) > 1

    @cached_property
    def contracted(self) -> frozenset[str]:
        """Axes of the arguments over which it sums: those that no result has."""
        kept = {letter for _, axes in self.results for letter in axes}
        return frozenset(letter for _, axes in self.arguments for letter in axes) - kept

    def argument_names(self, ports: Sequence[str] = ()) -> tuple[str, ...]:
        """Name of each argument of a value that has the attribute `ports` (or none)."""
        return tuple(ports) or tuple(name for name, _ in self.arguments)


def _fits(small: int, large: int) -> bool:
    return small in (1, large)


def _check_matmul(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    a, b, c = given["a"], given["b"], made["c"]
    if a[-1] != b[-2]:
        return f"a has {a[-1]} columns, b {b[-2]} rows"
    batches = zip(a[:-2], b[:-2], c[:-2], strict=True)
    if c[-2:] != (a[-2], b[-1]) or not all(_fits(x, z) and _fits(y, z) for x, y, z in batches):
        return f"the result has dims {list(c)}"
    return ""


def _check_conv(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    """One rule for the three: image, weights and result of the forward convolution, whichever are given."""
    rank = 2 + len(attrs["stride"])
    x, w, y = (({**given, **made}[name])[-rank:] for name in ("x", "w", "y"))
    if len(x) != rank or not 3 <= rank <= 5:
        return f"{rank - 2} strides for an image of rank {len(x)}"
    if x[1] % w[1] or w[0] % (x[1] // w[1]):
        return f"{x[1]} channels and weights {list(w)} make no groups"
    if y[:2] != (x[0], w[0]):
        return f"image {list(x)} and weights {list(w)} do not make {list(y)}"
    return ""


def _check_attention(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    q, k, v = given["q"], given["k"], given["v"]
    if q[-1] != k[-1] or k[-2] != v[-2]:
        return f"q {list(q)}, k {list(k)}, v {list(v)}"
    if q[-3] % k[-3] or q[-3] % v[-3]:
        return f"{q[-3]} query heads share {k[-3]} and {v[-3]} heads"
    for name, dim in made.items():
        width = {"o": v[-1], "dq": q[-1]}.get(name, 1)
        like = {"dk": k, "dv": v}.get(name, (*q[:-1], width))
        if name in ("o", "dq", "dk", "dv", "stats", "max", "sum") and dim != like:
            return f"{name} has dims {list(dim)}, not {list(like)}"
    return ""


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
        Anchor("matmul", (("a", "*MK"), ("b", "*KN")), (("c", "*MN"),), check=_check_matmul),
        Anchor("conv_fprop", (("x", "NC*"), ("w", "KC*")), (("y", "NK*"),), check=_check_conv),
        Anchor("conv_dgrad", (("y", "NK*"), ("w", "KC*")), (("x", "NC*"),), check=_check_conv),
        Anchor("conv_wgrad", (("x", "NC*"), ("y", "NK*")), (("w", "KC*"),), check=_check_conv),
        Anchor("sdpa", _QKV, (("o", "*HSE"), *_ROWS, ("rng_dump", "*HST")), _OPTIONS, _check_attention),
        Anchor(
            "sdpa_backward", (*_QKV, ("o", "*HSE"), ("do", "*HSE"), ("stats", "*HS")),
            (("dq", "*HSD"), ("dk", "*GTD"), ("dv", "*GTE"), ("dbias", "*HST"), ("dsink", "*H")),
            _OPTIONS, _check_attention,
        ),
    )
}  # fmt: skip
