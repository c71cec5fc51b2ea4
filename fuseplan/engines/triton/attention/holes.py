"""What fills the holes of `kernels/attention.py`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.dtypes import FLOAT
from fuseplan.engines.triton.attention.schedule import AttentionSchedule
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.kernel import ParamList
from fuseplan.engines.triton.source import Function

_LOG2_E = math.log2(math.e)
_MASK_SIDE = 128  # queries and keys of a bit of a block mask
_LENGTHS = ("seq_len_q", "seq_len_kv")


@dataclass(frozen=True)
class Side:
    """One axis of a tile of an argument.

    Args:
        axis: of the argument
        side: the constant with its extent in the tile
        mask: condition that a position is inside
    """

    index: str
    axis: int
    side: str
    mask: str = ""


class Holes:
    """Functions of an attention's kernels under one config, and the parameters that they take."""

    def __init__(self, schedule: AttentionSchedule, knobs: Mapping[str, int]) -> None:
        self.schedule, self.attention, self.region = (
            schedule,
            schedule.attention,
            schedule.region,
        )
        self.knobs, self.params = dict(knobs), ParamList(schedule.region)
        self.is_dynamic = self.region.graph.is_dynamic

    @property
    def is_plain(self) -> bool:
        """Whether scores are the products times a number above 0."""
        attention = self.attention
        has_more = {
            "attn_scale",
            "bias",
        } & attention.arguments.keys() or attention.option("use_alibi_mask")
        return not has_more and attention.scale > 0

    @property
    def group(self) -> int:
        """Heads that share the rows of a tile."""
        return self.schedule.shared_heads if self.knobs["PACK"] else 1

    def _axis(self, name: str, port: str, axis: int, mask: str = "") -> TileAxis:
        extent = self.attention.dim(port)[axis]
        return TileAxis(name, (MergedAxis((axis,), extent),), mask)

    def lengths(self) -> Function:
        function, attention = (
            Function(self.params, "lengths", "length_params"),
            self.attention,
        )
        rows, columns = "n_q", "n_kv"
        if attention.is_padded:
            for port in _LENGTHS:
                axis = 3 if attention.dim(port)[3] > 1 else 0
                body = Body(self.region, [self._axis("b", port, axis)], function)
                function.out.line(
                    f"{port} = {body.load(attention.arguments[port])}.to(n_q.dtype)"
                )
            rows, columns = (
                f"tl.minimum(tl.maximum({port}, 0), {n})"
                for port, n in zip(_LENGTHS, (rows, columns), strict=True)
            )
        shift = "0"
        if attention.is_bottom:
            shift = "seq_len_kv - seq_len_q" if attention.is_padded else "n_kv - n_q"
        function.out.line(f"return {rows}, {columns}, {shift}")
        return function

    def load(self, port: str) -> Function:
        """A tile of q, k or v in the type of the products, with zeros outside."""
        function, attention = (
            Function(self.params, f"load_{port}", f"{port}_params"),
            self.attention,
        )
        rows, width = "m" if port == "q" else "n", "e" if port == "v" else "d"
        shared = attention.heads // attention.dim(port)[1]
        if attention.dim(port)[1] != attention.heads or self.is_dynamic:
            function.out.line(
                f"h = h // {function.params.number(f'n_{port}_group', shared)}"
            )
        is_filled = (
            self.is_dynamic
            or self.schedule.widths[port == "v"] != attention.dim(port)[3]
        )
        if is_filled:
            extent = function.params.number(
                f"n_{width}", attention.dim(port)[3], is_vector=True
            )
            function.out.line(f"{width}_inside = {width} < {extent}")
        place = (
            self._place_in_pages(function, port)
            if f"page_table_{port}" in attention.arguments
            else ("b", rows)
        )
        inner = Side(
            width, 3, f"BLOCK_{width.upper()}", f"{width}_inside" if is_filled else ""
        )
        outer = Side(place[1], 2, f"BLOCK_{rows.upper()}", f"{rows}_inside")
        order = (inner, outer) if port == "k" else (outer, inner)
        if port == "q":
            self._load_tile(function, port, place[0], order)
        else:
            with function.out.indent("if IS_CUT:"):
                self._load_tile(function, port, place[0], order)
            with function.out.indent("else:"):
                bare = Side(outer.index, outer.axis, outer.side)
                self._load_tile(
                    function, port, place[0], [bare if s is outer else s for s in order]
                )
        function.out.line("return x")
        return function

    def _place_in_pages(self, function: Function, port: str) -> tuple[str, str]:
        """Names of the page and of the rows in it that keys are read from."""
        table, out = f"page_table_{port}", function.out
        length = function.params.number(f"n_{port}_page", self.attention.dim(port)[2])
        out.line(f"turn, n_in_page = n // {length}, n % {length}")
        axes = [self._axis("b", table, 0), self._axis("turn", table, 2, "n_inside")]
        out.line(
            f"page = {Body(self.region, axes, function).load(self.attention.arguments[table])}.to(n.dtype)"
        )
        return "page", "n_in_page"

    def _load_tile(
        self, function: Function, port: str, batch: str, sides: Sequence[Side]
    ) -> None:
        attention, kind = self.attention, self.schedule.kind
        value = attention.arguments[port]
        operand = self.region.operands[attention.operand(port)]
        inner = [self._axis(s.index, port, s.axis, s.mask) for s in sides]
        body = Body(
            self.region,
            [self._axis(batch, port, 0), self._axis("h", port, 1), *inner],
            function,
        )
        x = expr.coerce(body.load(value), operand.dtype, kind)
        absent = [
            a
            for a in inner
            if a.groups[0].stride(operand) == 0 or a.groups[0].extent == 1
        ]
        masks = [a.mask for a in absent if a.mask]
        if masks:
            x = f"tl.where({' & '.join(masks)}, {x}, 0.0).to({expr.VALUE_TYPES[kind]})"
        if absent:
            x = f"tl.broadcast_to({x}, ({', '.join(s.side for s in sides)}))"
        function.out.line(f"x = {x}")

    def started(self) -> Function:
        function, attention = (
            Function(self.params, "started", "start_params"),
            self.attention,
        )
        out = function.out
        out.line("zero = tl.zeros((BLOCK_M, 1), tl.float32)")
        if "sink_token" in attention.arguments:
            value = attention.arguments["sink_token"]
            body = Body(self.region, [self._axis("h", "sink_token", 1)], function)
            x = expr.coerce(body.load(value), self.region.values[value].dtype, FLOAT)
            out.line(f"top = zero + {x} * {_LOG2_E!r}")
            out.line(
                'return top, exp2_near(top - tl.where(top == float("-inf"), 0.0, top))'
            )
        else:
            out.line('return zero + float("-inf"), zero')
        return function

    def factor(self) -> Function:
        function = Function(self.params, "factor", "score_params")
        function.out.line(
            f"return {self.attention.scale * _LOG2_E if self.is_plain else 1.0!r}"
        )
        return function

    def scores(self) -> Function:
        function, attention = (
            Function(self.params, "scores", "score_params"),
            self.attention,
        )
        out = function.out
        if not self.is_plain:
            out.line(f"s = s * {self._scale(function)}")
        if "bias" in attention.arguments:
            value = attention.arguments["bias"]
            sides = (("b", ""), ("h", ""), ("m", "m_inside"), ("n", "n_inside"))
            body = Body(
                self.region,
                [self._axis(n, "bias", i, mask) for i, (n, mask) in enumerate(sides)],
                function,
            )
            out.line(
                f"s += {expr.coerce(body.load(value), self.region.values[value].dtype, FLOAT)} * {_LOG2_E!r}"
            )
        if attention.option("use_alibi_mask"):
            table = function.params.table("slopes", _slope_bits(attention.heads))
            out.line(
                f"s += tl.load({table} + h).to(tl.float32, bitcast=True) * (n - m).to(tl.float32)"
            )
        if "block_mask" in attention.arguments:
            names = (
                ("b", ""),
                ("h", ""),
                (f"m // {_MASK_SIDE}", "m_inside"),
                (f"n // {8 * _MASK_SIDE}", "n_inside"),
            )
            axes = [
                self._axis(f"({n})", "block_mask", i, mask)
                for i, (n, mask) in enumerate(names)
            ]
            out.line(
                f"kept = {Body(self.region, axes, function).load(attention.arguments['block_mask'])}.to(tl.int32)"
            )
            out.line(
                f's = tl.where((kept >> (n // {_MASK_SIDE} % 8).to(tl.int32)) & 1 != 0, s, float("-inf"))'
            )
        out.line("return s")
        return function

    def _scale(self, function: Function) -> str:
        value = self.attention.arguments.get("attn_scale")
        if value is None:
            return repr(self.attention.scale * _LOG2_E)
        x = Body(self.region, [], function).load(value)
        return (
            f"({expr.coerce(x, self.region.values[value].dtype, FLOAT)} * {_LOG2_E!r})"
        )

    def products(self) -> list[Function]:
        first, second = (
            Function(self.params, "first_product"),
            Function(self.params, "second_product"),
        )
        kind = self.schedule.kind
        if kind is not FLOAT:
            first.out.line("return tl.dot(q, k)")
            second.out.line(f"return tl.dot({expr.coerce('p', FLOAT, kind)}, v, o)")
        elif self.knobs["FLOAT_PARTS"]:
            first.out.line("return dot_of_parts(q, k)")
            second.out.line("return o + dot_of_parts(p, v)")
        else:
            first.out.line('return tl.dot(q, k, input_precision="ieee")')
            second.out.line('return tl.dot(p, v, o, input_precision="ieee")')
        return [first, second]

    def parts(self, hole: str) -> Function:
        """Sums over parts of the keys are kept in scratch, or loaded from it."""
        function = Function(self.params, hole, "part_params")
        params, out, numbers = function.params, function.out, self.part_bytes()
        offsets = [sum(numbers[:i]) for i in range(3)]
        count = params.number("n_rows", self.attention.rows * self.group)
        out.line(f"place = slot * {count} + row")
        places = (
            ("o", " + place * BLOCK_E + e", "0.0"),
            ("top", " + place", 'float("-inf")'),
            ("total", " + place", "0.0"),
        )
        for (name, place, other), offset in zip(places, offsets, strict=True):
            address = params.scratch(offset, "fp32") + place
            if hole == "keep":
                out.line(f"tl.store({address}, {name}, mask=row_inside)")
            else:
                out.line(f"{name} = tl.load({address}, mask=row_inside, other={other})")
        if hole != "keep":
            out.line("return o, top, total")
        return function

    def part_bytes(self) -> tuple[int, int, int]:
        """Scratch of the outputs, largest scores and sums of all parts."""
        attention = self.attention
        rows = attention.batch * attention.heads * attention.rows * self.knobs["SPLIT"]
        return 4 * rows * self.schedule.widths[1], 4 * rows + -4 * rows % 16, 4 * rows

    def finish(self) -> Function:
        """Results, what follows from them, and their stores."""
        region, attention = self.region, self.attention
        function = Function(self.params, "finish")
        width = attention.dim("v")[3]
        mask = ""
        if self.is_dynamic or width != self.schedule.widths[1]:
            mask = "e_inside"
            function.out.line(
                f"e_inside = e < {function.params.number('n_e', width, is_vector=True)}"
            )
        sides = (("b", ""), ("h", ""), ("m", "m_inside"), ("e", mask))
        axes = [
            TileAxis(n, (MergedAxis((i,), region.domain[i]),), m)
            for i, (n, m) in enumerate(sides)
        ]
        body = _ResultBody(region, axes, function)
        base = 1.0 if attention.option("stats_use_log2") else math.log(2.0)
        texts = {
            "o": "o", "stats": f"row_statistics(top, total, is_row, {base!r})", "max": "row_maximum(top, total)",
            "sum": "total",
        }  # fmt: skip
        names = {value: texts[name] for name, value in attention.results.items()}
        stops = frozenset({attention.anchor})
        for index in needed_for(region, [value for value, _ in region.stores], stops):
            value = region.values[index]
            if index in names:
                function.out.line(
                    f"v{index} = {expr.from_work(names[index], value.compute, value.dtype)}"
                )
            elif index not in stops:
                body.define(index)
        # after all loads: an output may lie in the buffer of an input
        for index, operand in region.stores:
            body.store(index, operand)
        return function


class _ResultBody(Body):
    """A body that stores one number a row as well, for which no vectors are wanted."""

    def stride(self, operand: int, group: MergedAxis) -> str:
        spec = self.region.operands[operand]
        step = group.stride(spec)
        if spec.dim[-1] > 1 or step in (0, 1):
            return super().stride(operand, group)
        return self.params.number(f"s{operand}_{group.axes[-1]}", step)


def _slope_bits(heads: int) -> list[int]:
    """ALiBi slopes of all heads, times log2(e), as bits of float32 numbers."""
    n = 1 << (heads.bit_length() - 1)
    powers = [
        (h + 1) * 8.0 / n if h < n else (2 * (h - n) + 1) * 4.0 / n
        for h in range(heads)
    ]
    return [
        struct.unpack("<i", struct.pack("<f", 2.0**-p * _LOG2_E))[0] for p in powers
    ]
