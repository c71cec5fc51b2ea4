"""Main loop of a forward convolution with one to three spatial axes: fills one block of accumulators.

Two forms, chosen by strides. *Dot*: the block runs over output channels, and each is a dot product over
input channels (channels-last memory). *Row*: the block runs over the last spatial axis, and each weight
is added into the whole row (channels-first memory). Positions outside the image are skipped before the
channel loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import effective_stride
from fuseplan.engines.cpu_c.emit_matmul import add_partial, anchor_base, open_partial_sums, write_dot
from fuseplan.engines.cpu_c.emit_scope import Scope
from fuseplan.ir.region import Region


def block_axis_of_conv(region: Region) -> int:
    """Axis of the accumulators: the last spatial one for the row form, output channels for the dot form."""
    v = region.values[region.anchors[0]]
    last = len(v.dim) - 1
    x = region.operands[region.operand_of[v.args[0]]]
    is_row = x.stride[last] == 1 and x.stride[1] != 1 and v.dim[last] == region.domain[last]
    return last if is_row else 1


def fill_conv(scope: Scope, value: int, last: int) -> None:
    """Lines that leave the sum over filter positions and channels in ``acc[j]`` for j below ``width``."""
    conv = _Conv(scope, value)
    if scope.axes[last].axes[0] == 1:
        conv.fill_channels()
    else:
        conv.fill_row()


class _Conv:
    """Texts of one convolution; spatial axis s of the image is axis s + 2 of the region."""

    def __init__(self, scope: Scope, value: int) -> None:
        self.scope, self.w, self.value = scope, scope.writer, value
        region = scope.region
        v = region.values[value]
        self.x_operand, self.w_operand = (region.operand_of[a] for a in v.args)
        self.x, self.weights = region.operands[self.x_operand], region.operands[self.w_operand]
        self.x_stride, self.w_stride = effective_stride(self.x), effective_stride(self.weights)
        self.spatial = range(len(v.dim) - 2)
        self.groups = self.x.dim[1] // self.weights.dim[1]
        self.compute = v.compute
        kind = c_expr.KIND[v.compute.name]
        self.acc = c_expr.MAIN_LOOP[kind]
        self.carrier = c_expr.CARRIER[c_expr.KIND_TYPE[kind].name]
        self.pad, self.step, self.dilation = (self._ints(name) for name in ("pre_pad", "stride", "dilation"))
        self.is_flipped = bool(v.attr("flip"))

    def _ints(self, name: str) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self.scope.region.values[self.value].attr(name))

    def number(self, name: str, s: int, value: int) -> str:
        return self.scope.args.number(f"{name}{s}", value)

    def term(self, index: str, name: str, stride: int) -> list[str]:
        """The offset of an index as a list of terms; empty if the axis does not move."""
        return [self.scope.term(index, name, stride)] if stride else []

    def pointers(self, x_skip: Sequence[int], channel: str) -> None:
        """Local pointers to the image (of this group, if `channel` is given) and to the weights."""
        scope, axes = self.scope, tuple(x_skip)
        x_base = anchor_base(scope, self.x_operand, "x", axes)
        if self.groups > 1 and channel:
            x_base.append(self.group_offset(channel))
        x_type, w_type = (f"const {c_expr.STORAGE[o.dtype.name]}" for o in (self.x, self.weights))
        w_base = self.term(channel, "w_s0", self.w_stride[0]) if channel else []
        self.w.line(f"{x_type} *const x = {' + '.join(x_base)};")
        self.w.line(
            f"{w_type} *const w = {' + '.join([scope.pointer(self.w_operand), *w_base])}; {scope.note(self.value)}"
        )

    def group_offset(self, channel: str) -> str:
        """Offset of the first input channel of the group that an output channel belongs to."""
        args = self.scope.args
        per_group = args.number("group_out", self.weights.dim[0] // self.groups)
        return f"{channel} / {per_group} * {args.number('group_step', self.weights.dim[1] * self.x_stride[1])}"

    def open_taps(self, axes: Sequence[int]) -> None:
        """Loops over filter positions; those that fall outside the image are skipped."""
        for s in axes:
            self.open_filter(s)
            moves = self.scope.region.values[self.value].dim[s + 2] != 1
            start = f"{self.position(s)} * {self.number('step', s, self.step[s])} + " if moves else ""
            shift = f"f{s} * {self.number('dilation', s, self.dilation[s])} - {self.number('pad', s, self.pad[s])}"
            self.w.line(f"const int64_t s{s} = {start}{shift};")
            self.w.line(f"if (s{s} < 0 || s{s} >= {self.number('size', s, self.x.dim[s + 2])}) continue;")

    def open_filter(self, s: int) -> None:
        self.w.open(f"for (int64_t f{s} = 0; f{s} < {self.number('filter', s, self.weights.dim[s + 2])}; ++f{s}) {{")

    def position(self, s: int) -> str:
        """Output position on a spatial axis."""
        for k, axis in enumerate(self.scope.axes):
            if axis.axes[0] == s + 2:
                return self.scope.index[k]
        return "0"

    def image_terms(self, axes: Sequence[int]) -> list[str]:
        return [t for s in axes for t in self.term(f"s{s}", f"x_s{s + 2}", self.x_stride[s + 2])]

    def filter_terms(self) -> list[str]:
        terms = []
        for s in self.spatial:
            count = self.number("filter", s, self.weights.dim[s + 2])
            index = f"({count} - 1 - f{s})" if self.is_flipped else f"f{s}"
            terms += self.term(index, f"w_s{s + 2}", self.w_stride[s + 2])
        return terms

    def factors(self, x_index: Sequence[str], w_index: Sequence[str]) -> tuple[str, str]:
        """Image and weight elements in the compute type."""
        x_text = c_expr.load(f"x[{' + '.join(x_index) or '0'}]", self.x.dtype)
        w_text = c_expr.load(f"w[{' + '.join(w_index) or '0'}]", self.weights.dtype)
        return (
            c_expr.argument(x_text, self.x.dtype, self.compute),
            c_expr.argument(w_text, self.weights.dtype, self.compute),
        )

    def channels(self) -> str:
        return self.scope.args.number("channels", self.weights.dim[1])

    def fill_channels(self) -> None:
        """Dot form."""
        w = self.w
        self.pointers([*range(1, len(self.x.dim))], "")
        self.open_taps(self.spatial)
        w.line(f"const int64_t x_at = {' + '.join(self.image_terms(self.spatial)) or '0'};")
        w.line(f"const int64_t w_at = {' + '.join(self.filter_terms()) or '0'};")
        w.open("for (int64_t j = 0; j < width; ++j) {")
        x_index, w_index = ["x_at"], ["w_at", *self.term("(j0 + j)", "w_s0", self.w_stride[0])]
        if self.groups > 1:
            x_index.append(self.group_offset("(j0 + j)"))
        x_index += self.term("c", "x_s1", self.x_stride[1])
        w_index += self.term("c", "w_s1", self.w_stride[1])
        write_dot(self.scope, self.acc, "c", self.channels(), self.factors(x_index, w_index))
        w.line("acc[j] += sum;")
        w.close()
        for _ in self.spatial:
            w.close()

    def fill_row(self) -> None:
        """Row form."""
        w = self.w
        last = self.spatial[-1]
        channel = next((self.scope.index[k] for k, a in enumerate(self.scope.axes) if a.axes[0] == 1), "0")
        self.pointers([*range(1, len(self.x.dim))], channel)
        self.open_filter(last)
        step, dilation = (self.number(n, last, v[last]) for n, v in (("step", self.step), ("dilation", self.dilation)))
        size = self.number("size", last, self.x.dim[last + 2])
        w.line(f"const int64_t shift = f{last} * {dilation} - {self.number('pad', last, self.pad[last])};")
        w.line(f"const int64_t first = (shift < 0 ? ({step} - 1 - shift) / {step} : 0) - j0;")
        w.line(f"const int64_t past = ({size} - shift + {step} - 1) / {step} - j0;")
        w.line("const int64_t low = first > 0 ? first : 0, high = past < width ? past : width;")
        others = [s for s in self.spatial if s != last]
        open_partial_sums(self.scope, self.acc, "c", self.channels())
        self.open_taps(others)
        w.open("for (int64_t c = c0; c < past_c; ++c) {")
        x_index = ["shift", *self.image_terms(others), *self.term("c", "x_s1", self.x_stride[1])]
        column = self.scope.term("(j0 + j)", "row_step", self.step[last])  # image's own stride is 1 here
        x_text, w_text = self.factors(
            ["x_at", column], [*self.filter_terms(), *self.term("c", "w_s1", self.w_stride[1])]
        )
        w.line(f"const int64_t x_at = {' + '.join(x_index)};")
        w.line(f"const {self.carrier} y = {w_text};")
        w.margin("#pragma omp simd")
        update = self.acc.update.format(a="part[j]", x=x_text, y="y")
        w.line(f"for (int64_t j = low; j < high; ++j) part[j] = {update};")
        for _ in range(1 + len(others)):
            w.close()
        add_partial(self.scope)
        for _ in range(2):
            w.close()
