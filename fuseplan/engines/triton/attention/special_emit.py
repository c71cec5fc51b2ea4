"""Fills the holes of `kernels/attention_special.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuseplan.engines.triton.attention.bounds import ROWS, Bounds, tile_lists
from fuseplan.engines.triton.attention.special import (
    ALIGN,
    query_stages,
    stored,
    width_of,
)
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList, TileView
from fuseplan.engines.triton.source import Arguments, Entry, Function, kernel_text
from fuseplan.ir.attention import Attention
from fuseplan.runtime.device import Device

_GROUP_ROWS = ROWS // 2


class SpecialAttention:
    """The kernel of an attention under one config."""

    def __init__(
        self, attention: Attention, device: Device, knobs: Mapping[str, int]
    ) -> None:
        self.attention, self.device, self.knobs = attention, device, knobs
        self.region = attention.region
        self.params = ParamList(self.region)
        self.bounds = Bounds.of(attention)

    def emit(self) -> Emitted:
        """The kernel."""
        attention, block_n = self.attention, self.knobs["BLOCK_N"]
        factor = Function(self.params, "factor")
        factor.out.line(f"return {attention.scale * math.log2(math.e)!r}")
        rows = self._store_rows()
        maps = [self._map(attention.operand("q"), _GROUP_ROWS)]
        maps += [self._map(attention.operand(port), block_n) for port in "kv"]
        output = dict(self.region.stores)[attention.results["o"]]
        maps.append(self._map(output, _GROUP_ROWS))
        programs = min(self._heads * self.bounds.tiles, max(1, self.device.sm_count))
        lists = tile_lists(
            self.bounds, self._heads, self.knobs["ORDER"], programs, block_n
        )
        arguments: Arguments = [
            tuple(maps),
            rows.params.names,
            self.params.table("tiles", lists),
        ]
        arguments += self._extents()
        entry = Entry(
            "attention_special",
            "attention_by_specialists",
            arguments,
            self._constants(),
            is_gluon=True,
            base="attention_steps",
        )
        text = kernel_text(entry, [factor, rows], self.params)
        return Emitted(
            (
                Kernel(
                    entry.file,
                    text.source,
                    text.params,
                    text.constants,
                    programs,
                    4,
                    is_gluon=True,
                ),
            )
        )

    @property
    def _heads(self) -> int:
        return self.attention.batch * self.attention.heads

    def _extents(self) -> Arguments:
        """Lengths, bounds, and heads."""
        attention, bounds = self.attention, self.bounds
        numbers = {
            "n_q": attention.rows,
            "n_kv": attention.columns,
            "right": bounds.right or 0,
            "left": bounds.left or 0,
            "n_h": attention.heads,
            "n_g": attention.heads // attention.dim("k")[1],
        }
        n_q, n_kv, right, left, n_h, n_g = (
            self.params.number(*item, "i32") for item in numbers.items()
        )
        return [n_q, (n_kv, right, left), n_h, n_g]

    def _constants(self) -> list[tuple[str, int]]:
        knobs, block_n = self.knobs, self.knobs["BLOCK_N"]
        edges, left_edges = self.bounds.edges(block_n)
        found = {
            "CUTS": self.bounds.cuts(block_n),
            "EDGES": edges,
            "LEFT_EDGES": left_edges,
            "STAGES": knobs["num_stages"],
            "Q_STAGES": query_stages(width_of(self.attention)),
        }
        found |= {name: knobs[name] for name in ("TURNS", "HALF", "HOLD", "MIXED")}
        return list(found.items())

    def _map(self, number: int, rows: int) -> str:
        operand = self.region.operands[number]
        never = (
            ALIGN // operand.dtype.itemsize
        )  # a stride that may be encoded, of an axis that is not walked
        steps = [
            s if d > 1 else never
            for d, s in zip(operand.dim[:-1], operand.stride, strict=False)
        ]
        tile = (1, 1, rows, width_of(self.attention))
        return self.params.tile_map(
            number, TileView(operand.dtype, operand.dim, (*steps, 1), tile)
        )

    def _store_rows(self) -> Function:
        """Statistics, maxima and sums, as far as they are asked for."""
        function = Function(self.params, "store_rows")
        base = 1.0 if self.attention.option("stats_use_log2") else math.log(2.0)
        texts = {
            "stats": f'gl.where(total > 0, (top + gl.log2(total)) * {base!r}, float("-inf"))',
            "max": f'gl.where(total > 0, top * {math.log(2.0)!r}, float("-inf"))',
            "sum": "total",
        }
        for name, value in self.attention.results.items():
            if name != "o":
                place = self._place(function.params, value)
                function.out.line(f"gl.store({place}, {texts[name]}, mask=m_inside)")
        if len(self.attention.results) == 1:
            function.out.line("pass")
        return function

    def _place(self, params: ParamList, value: int) -> str:
        """Addresses of one number a query."""
        number = dict(self.region.stores)[value]
        found = params.operand(number)
        strides = stored(self.region, value).stride
        for axis, index in enumerate("bhm"):
            step = params.stride(f"s{number}_{axis}", strides[axis], number)
            found += f" + {index} * {step}"
        return found
