"""Arguments, results and options of an attention (`sdpa` or `sdpa_backward`), read once for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from fuseplan.ir.graph import AttrValue
from fuseplan.ir.region import Region, Value


@dataclass(frozen=True)
class Attention:
    """One anchor of a region as attention; rows are queries, columns are keys.

    A score is kept where ``column <= row + right + shift`` and ``column + left > row + shift``, as far as there is a
    bound; the shift is 0, or with `is_bottom` the number of columns minus that of rows (of a sequence's own lengths).

    Args:
        anchor: the value
        arguments: port -> value
        results: name of a result -> the `pick` that reads it
        scale: factor of the scores where it is a number; a tensor at port ``attn_scale`` counts beside it
    """

    region: Region = field(repr=False)
    anchor: int
    arguments: Mapping[str, int]
    results: Mapping[str, int]

    @property
    def value(self) -> Value:
        return self.region.values[self.anchor]

    def option(self, name: str) -> AttrValue:
        """An attribute of the op, None where it was left out."""
        return dict(self.value.attrs).get(name)

    def dim(self, port: str) -> tuple[int, ...]:
        """The last four dims of an argument."""
        return self.region.values[self.arguments[port]].dim[-4:]

    def operand(self, port: str) -> int:
        """The operand that an argument is read from, -1 where it is computed or absent."""
        return self.region.operand_of.get(self.arguments.get(port, -1), -1)

    @property
    def batch(self) -> int:
        return self.dim("q")[0]

    @property
    def heads(self) -> int:
        """Heads of the queries; those of keys and of values divide them."""
        return self.dim("q")[1]

    @property
    def rows(self) -> int:
        return self.dim("q")[2]

    @property
    def columns(self) -> int:
        """Keys of a batch: with pages, as many as the longest sequence may have."""
        if "page_table_k" in self.arguments or "page_table_v" in self.arguments:
            return cast(int, self.option("paged_attention_max_seq_len_kv"))
        return self.dim("k")[2]

    @property
    def scale(self) -> float:
        given = self.option("attn_scale_value")
        return 1.0 if given is None else cast(float, given)

    @property
    def left(self) -> int | None:
        return cast("int | None", self.option("diagonal_band_left_bound"))

    @property
    def right(self) -> int | None:
        return cast("int | None", self.option("diagonal_band_right_bound"))

    @property
    def is_bottom(self) -> bool:
        return self.option("diagonal_alignment") == "BOTTOM_RIGHT"

    @property
    def is_padded(self) -> bool:
        """Whether sequences have lengths of their own."""
        return bool(self.option("use_padding_mask"))


def attention_of(region: Region, anchor: int) -> Attention:
    """The attention that a value is."""
    value = region.values[anchor]
    picks = {
        str(region.values[i].attr("result")): i for i in region.users[anchor] if region.values[i].op == "pick"
    }  # fmt: skip
    return Attention(region, anchor, dict(zip(value.ports, value.args, strict=True)), picks)
