"""Matmul: one or several products over one domain, pointwise operations in front of and behind them."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.codegen import c_expr
from fuseplan.engines.base import Config, KnobSpace, Support
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
from fuseplan.engines.cpu_c.source import Source, assemble
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


@dataclass(frozen=True)
class MatmulSchedule:
    """How products are computed; `is_dot`: for each, whether its B runs along k in memory."""

    blocks: BlockSchedule
    is_dot: tuple[bool, ...]


class MatmulForm:
    """Blocks of sums along N, filled with one product after the other; then the epilogue on their elements."""

    name = "matmul"

    def match(self, region: Region, device: Device) -> MatmulSchedule | Support:
        if not region.anchors or region.values[region.anchors[0]].op != "matmul":
            return NOT_THIS
        fit = blocks_refusal(region, "matmul")
        if not fit.is_supported:
            return fit
        blocks = schedule_blocks(region, device, len(region.domain) - 1)
        return MatmulSchedule(
            blocks, tuple([_is_dot(region, i) for i in blocks.anchors])
        )

    def configs(self, schedule: MatmulSchedule) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: MatmulSchedule, config: Config) -> float:
        return schedule.blocks.expected_us

    def notes(self, schedule: MatmulSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: MatmulSchedule, config: Config) -> Source:
        blocks = schedule.blocks
        holes = begin_blocks(blocks, "PRODUCT")
        values = blocks.region.values
        rank = len(blocks.region.domain)
        outer = outer_index(blocks)
        depths, loads_a, loads_b, dots = [], [], [], []
        for i, is_dot in zip(blocks.anchors, schedule.is_dot, strict=True):
            a, b = values[i].args
            depths.append(
                f"return {holes.args.number(f'depth{i}', values[a].dim[-1])};"
            )
            dots.append(f"return {int(is_dot)};")
            loads_a.append(write_load(holes, a, i, {**outer, rank - 1: "k"}))
            loads_b.append(
                write_load(holes, b, i, {**outer, rank - 2: "k", rank - 1: "j"})
            )
        factor = c_expr.CARRIER[
            c_expr.KIND_TYPE[c_expr.KIND[values[blocks.anchors[0]].compute.name]].name
        ]
        q = "const int q"
        holes.per_anchor("int64_t", "depth", ("const struct args *p", q), depths)
        holes.per_anchor("int", "is_dot", (q,), dots)
        holes.per_anchor(factor, "load_a", (*AT, q, "int64_t k"), loads_a)
        holes.per_anchor(factor, "load_b", (*AT, q, "int64_t k", "int64_t j"), loads_b)
        finish_blocks(holes, blocks)
        return assemble(
            "matmul", "matmul", holes, blocks.tiling.num_tasks, blocks.work_us
        )


def _is_dot(region: Region, anchor: int) -> bool:
    """Whether B, or the largest of what it is computed from, has its neighbours along k next to each other."""
    operand = largest_load(region, region.values[anchor].args[1])
    if operand < 0:
        return False
    o = region.operands[operand]
    along_k, along_n = (
        s if d != 1 else 0 for s, d in zip(o.stride[-2:], o.dim[-2:], strict=True)
    )
    return along_k == 1 and along_n != 1
