"""An attention as kernels compute it, and which ones they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.base import Support, no
from fuseplan.engines.triton.body import needed_for
from fuseplan.engines.triton.knobs import power_of_two
from fuseplan.ir.attention import Attention, attention_of
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_PORTS = frozenset(
    "q k v attn_scale bias block_mask seq_len_q seq_len_kv page_table_k page_table_v sink_token".split()
)
_FLAGS = ("has_dropout", "has_score_mod", "has_half_softmax")
_RESULTS = frozenset({"o", "stats", "max", "sum"})
_MAX_WIDTH, _LEAST_WIDTH = 256, 16
_SWIZZLED = (
    64  # columns from which on all rows of 2-byte elements lie alike in shared memory
)


@dataclass(frozen=True)
class AttentionSchedule:
    """An attention that has a kernel here, and what is computed from its results."""

    attention: Attention
    device: Device

    @property
    def region(self) -> Region:
        return self.attention.region

    @property
    def kind(self) -> DType:
        """Type in which products take their operands."""
        found = {
            self.region.values[self.attention.arguments[port]].dtype for port in "qkv"
        }
        return found.pop() if len(found) == 1 and found <= {HALF, BFLOAT16} else FLOAT

    @property
    def widths(self) -> tuple[int, int]:
        """Columns of a tile of q and k, and of one of v: filled up with zeros."""
        q, v = (
            max(_LEAST_WIDTH, power_of_two(self.attention.dim(port)[3]))
            for port in "qv"
        )
        if self.kind is FLOAT:
            # Parts of v lie where parts of k did. Were they swizzled otherwise, ptxas 12.8 would compute where they are
            # from registers that it never wrote.
            least = min(max(q, v), _SWIZZLED)
            q, v = max(q, least), max(v, least)
        return q, v

    @property
    def shared_heads(self) -> int:
        """Heads that share both keys and values."""
        heads = self.attention.heads
        return gcd(*(heads // self.attention.dim(port)[1] for port in "kv"))


def schedule_of(region: Region, device: Device) -> AttentionSchedule | Support:
    """The schedule of a region with one attention, or a "no"."""
    anchor = region.anchors[0]
    if len(region.anchors) > 1:
        return no("an attention and another product", at=region.anchors[1])
    attention = attention_of(region, anchor)
    if reason := _gap(attention):
        return no(reason, at=anchor)
    return _support_behind(attention) or AttentionSchedule(attention, device)


def _gap(attention: Attention) -> str:
    """Why an attention has no kernel here whatever follows from it; empty if it has one."""
    if others := sorted(attention.arguments.keys() - _PORTS):
        return f"attention with {', '.join(others)}"
    if attention.value.body is not None or any(
        attention.option(name) for name in _FLAGS
    ):
        return "attention with dropout, a modifier of scores or a softmax in half precision"
    if others := sorted(attention.results.keys() - _RESULTS):
        return f"attention that gives {', '.join(others)}"
    if len(attention.region.domain) != 4:
        return "attention together with tensors of more than four dims"
    if max(attention.dim("q")[3], attention.dim("v")[3]) > _MAX_WIDTH:
        return f"head dims above {_MAX_WIDTH}"
    computed = [port for port in attention.arguments if attention.operand(port) < 0]
    return f"work in front of {', '.join(computed)}" if computed else ""


def _support_behind(attention: Attention) -> Support | None:
    """Why what follows from the results has no place in the kernel; None if it has."""
    region, anchor = attention.region, attention.anchor
    for index in needed_for(
        region, [value for value, _ in region.stores], frozenset({anchor})
    ):
        value = region.values[index]
        if value.op == "reduce":
            return no("a reduction behind an attention", at=index)
        if index != anchor and any(
            d not in (1, e) for d, e in zip(value.dim, region.domain, strict=True)
        ):
            return no(
                "an argument of an attention is stored, or used again behind it",
                at=index,
            )
    rows = (*region.domain[:3], 1)
    for index, _ in region.stores:
        if region.values[index].dim not in (region.domain, rows):
            return no("a result behind an attention that lacks heads or rows", at=index)
    return None
