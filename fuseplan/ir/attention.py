"""Arguments, results and options of an attention (`sdpa` or `sdpa_backward`), read once for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseplan.ir.graph import AttrValue
from fuseplan.ir.region import Region, Value


@dataclass(frozen=True)
class Attention:
    """One anchor of a region as attention; rows are queries, columns are keys.

    A score is kept where ``column <= row + right + shift`` and ``column + left > row + shift``, as far as there is a
    bound; the shift is 0, or with `is_bottom` the number of columns minus that of rows (of a sequence's own lengths).

    Args:
        arguments: port -> value
        results: name of a result -> the `pick` that reads it
        heads: of the queries; those of keys and of values divide them
        columns: keys of a batch; with pages, as many as the longest sequence may have
        scale: factor of the scores where it is a number; a tensor at port ``attn_scale`` counts beside it
        is_padded: whether sequences have lengths of their own
    """

    value: Value = field(repr=False)
    region: Region = field(repr=False)
    anchor: int
    arguments: Mapping[str, int]
    results: Mapping[str, int]
    batch: int
    heads: int
    rows: int
    columns: int
    scale: float
    left: int | None
    right: int | None
    is_bottom: bool
    is_padded: bool

    def option(self, name: str) -> AttrValue:
        """An attribute of the op, None where it was left out."""
        return dict(self.value.attrs).get(name)

    def dim(self, port: str) -> tuple[int, ...]:
        """The last four dims of an argument."""
        return self.region.values[self.arguments[port]].dim[-4:]

    def operand(self, port: str) -> int:
        """The operand that an argument is read from, -1 where it is computed or absent."""
        return self.region.operand_of.get(self.arguments.get(port, -1), -1)


def attention_of(region: Region, anchor: int) -> Attention:
    """The attention that a value is."""
    value, given = region.values[anchor], dict[str, Any](region.values[anchor].attrs)
    arguments = dict(zip(value.ports, value.args, strict=True))
    picks = {str(region.values[i].attr("result")): i for i in region.users[anchor] if region.values[i].op == "pick"}
    batch, heads, rows, _ = region.values[arguments["q"]].dim[-4:]
    columns = region.values[arguments["k"]].dim[-2]
    if {"page_table_k", "page_table_v"} & arguments.keys():
        columns = given["paged_attention_max_seq_len_kv"]
    scale, is_bottom = given.get("attn_scale_value"), given.get("diagonal_alignment") == "BOTTOM_RIGHT"
    left, right = given.get("diagonal_band_left_bound"), given.get("diagonal_band_right_bound")
    return Attention(
        value, region, anchor, arguments, picks, batch, heads, rows, columns, 1.0 if scale is None else scale,
        left, right, is_bottom, bool(given.get("use_padding_mask")),
    )  # fmt: skip
