"""Convolution: forward, with one to three spatial axes, pointwise operations in front of and behind it.

Two loop orders, chosen by strides. The block of sums runs over output channels, each a dot product over input
channels (channels-last memory), or along the last spatial axis, where each weight is added into the whole row
(channels-first memory). What is computed in front of the image is not applied to padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from fuseplan.codegen import c_expr
from fuseplan.engines.base import YES, Config, Support, no
from fuseplan.engines.cpu_c.blocks import (
    AT,
    BlockSchedule,
    begin_blocks,
    blocks_refusal,
    finish_blocks,
    largest_load,
    outer_index,
    schedule_blocks,
    write_load,
)
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_Q = "const int q"
_AXES = 3  # spatial axes of the main loop


@dataclass(frozen=True)
class ConvSchedule:
    """How convolutions are computed; `block_is_channels`: along what the blocks of sums run."""

    blocks: BlockSchedule
    block_is_channels: bool

    @property
    def expected_us(self) -> float:
        return self.blocks.expected_us


class ConvForm(OneWayForm):
    """Blocks of sums along channels or along a row, filled with one convolution after the other; then the epilogue."""

    name = "conv"

    def match(self, region: Region, device: Device) -> ConvSchedule | Support:
        if not region.anchors or region.values[region.anchors[0]].op != "conv_fprop":
            return NOT_THIS
        for fit in (blocks_refusal(region, "conv_fprop"), _geometry_refusal(region)):
            if not fit.is_supported:
                return fit
        last = len(region.domain) - 1
        is_row = all(_runs_along_row(region, i) for i in region.anchors)
        return ConvSchedule(
            schedule_blocks(region, device, last if is_row else 1), not is_row
        )

    def emit(self, schedule: ConvSchedule, config: Config) -> Source:
        blocks = schedule.blocks
        holes = begin_blocks(blocks, "CONVOLUTION")
        holes.macro("BLOCK_IS_CHANNELS", int(schedule.block_is_channels))
        values = blocks.region.values
        first_axis = (
            _AXES + 2 - len(blocks.region.domain)
        )  # of the main loop's axes, the first that the region has
        axes = range(first_axis, _AXES)
        outer = {a: text for a, text in outer_index(blocks).items() if a == 0}
        image = {**outer, 1: "c", **{s + 2 - first_axis: f"s{s}" for s in axes}}
        taps = {0: "k", 1: "c", **{s + 2 - first_axis: f"f{s}" for s in axes}}
        windows, groups, loads_x, loads_w = [], [], [], []
        for i in blocks.anchors:
            x, w = values[i].args
            windows.append(_window(holes, blocks, i, first_axis))
            groups.append(_first_channel(holes, i))
            loads_x.append(write_load(holes, x, i, image))
            loads_w.append(write_load(holes, w, i, taps))
        factor = c_expr.CARRIER[
            c_expr.KIND_TYPE[c_expr.KIND[values[blocks.anchors[0]].compute.name]].name
        ]
        spatial = [f"int64_t s{s}" for s in range(_AXES)]
        filters = [f"int64_t f{s}" for s in range(_AXES)]
        holes.per_anchor("struct window", "window_of", (*AT, _Q), windows)
        holes.per_anchor(
            "int64_t",
            "first_channel",
            ("const struct args *p", _Q, "int64_t k"),
            groups,
        )
        holes.per_anchor(factor, "load_x", (*AT, _Q, "int64_t c", *spatial), loads_x)
        holes.per_anchor(
            factor, "load_w", (*AT, _Q, "int64_t k", "int64_t c", *filters), loads_w
        )
        finish_blocks(holes, blocks)
        return assemble("conv", "conv", holes, blocks.tiling.num_tasks, blocks.work_us)


def _geometry_refusal(region: Region) -> Support:
    for i in region.anchors:
        v = region.values[i]
        if not 3 <= len(v.dim) <= _AXES + 2:
            return no(
                f"value {i} convolves {len(v.dim) - 2} spatial axes, this form takes 1 to {_AXES}",
                at=i,
            )
        if len(_ints(region, i, "stride")) != len(v.dim) - 2:
            return no(
                f"value {i} convolves fewer axes than the region has behind the channels",
                at=i,
            )
    return YES


def _ints(region: Region, anchor: int, name: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", region.values[anchor].attr(name))


def _runs_along_row(region: Region, anchor: int) -> bool:
    """Whether the image has its neighbours on the last spatial axis next to each other, and that axis is walked."""
    v = region.values[anchor]
    operand = largest_load(region, v.args[0])
    if operand < 0:
        return False
    stride = region.operands[operand].stride
    return stride[-1] == 1 and stride[1] != 1 and v.dim[-1] == region.domain[-1]


def _window(holes: Holes, blocks: BlockSchedule, anchor: int, first_axis: int) -> str:
    """The body of `window_of` for one convolution."""
    region, number = holes.region, holes.args.number
    v = region.values[anchor]
    x, w = (region.values[a].dim for a in v.args)
    outer = outer_index(blocks)
    fields: dict[str, list[str]] = {
        name: [] for name in ("size", "filter", "step", "dilation", "pad", "at")
    }
    for s in range(_AXES):
        if s < first_axis:
            for name, text in zip(fields, "111100", strict=True):
                fields[name].append(text)
            continue
        k = s - first_axis
        numbers = (
            x[k + 2],
            w[k + 2],
            *(_ints(region, anchor, n)[k] for n in ("stride", "dilation", "pre_pad")),
        )
        for name, value in zip(fields, numbers, strict=False):
            is_unit_step = (
                name == "step" and value == 1
            )  # baked in, so that the compiler sees contiguous memory
            fields[name].append(
                "1" if is_unit_step else number(f"{name}{anchor}_{s}", value)
            )
        fields["at"].append(outer.get(k + 2, "0") if v.dim[k + 2] != 1 else "0")
    lines = [f"  .{name} = {{{', '.join(values)}}}," for name, values in fields.items()]
    channel = outer.get(1, "0") if v.dim[1] != 1 else "0"
    lines.append(
        f"  .channel = {channel}, .channels = {number(f'channels{anchor}', w[1])},"
    )
    lines.append(f"  .is_flipped = {int(bool(v.attr('flip')))},")
    return "\n".join(["return (struct window){", *lines, "};"])


def _first_channel(holes: Holes, anchor: int) -> str:
    """The body of `first_channel` for one convolution."""
    x, w = (holes.region.values[a].dim for a in holes.region.values[anchor].args)
    groups = x[1] // w[1]
    if groups == 1:
        return "return 0;"
    per_group = holes.args.number(f"group_out{anchor}", w[0] // groups)
    return f"return k / {per_group} * {holes.args.number(f'channels{anchor}', w[1])};"
