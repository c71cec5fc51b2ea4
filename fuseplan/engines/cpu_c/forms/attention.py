"""Attention forward: a block of queries of one head per task, which walks over the keys that its queries see."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.codegen import c_expr
from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, KnobSpace, Support, no
from fuseplan.engines.cpu_c.attention import (
    ROWS,
    AttentionHoles,
    attention_refusal,
    blocks_us,
    visible_flops,
)
from fuseplan.engines.cpu_c.estimate import work_us
from fuseplan.engines.cpu_c.source import Source, assemble
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.attention import Attention, attention_of
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_WIDEST = (
    16  # floats of the longest vectors: rows in a thread's memory are whole vectors
)


@dataclass(frozen=True)
class AttentionSchedule:
    """An attention and in how many tasks it is given out."""

    attention: Attention
    num_tasks: int
    expected_us: float


class AttentionForm:
    """Blocks of queries; scores live in a tile."""

    name = "attention"

    def match(self, region: Region, device: Device) -> AttentionSchedule | Support:
        if not any(region.values[i].op == "sdpa" for i in region.anchors):
            return NOT_THIS
        if len(region.anchors) > 1:
            return no("an attention beside another anchor", at=region.anchors[1])
        a = attention_of(region, region.anchors[0])
        fit = attention_refusal(a)
        if not fit.is_supported:
            return fit
        tasks = a.batch * a.heads * -(-a.rows // ROWS)
        flops = visible_flops(a) * (a.dim("q")[3] + a.dim("v")[3])
        return AttentionSchedule(a, tasks, blocks_us(flops, region, device, tasks))

    def configs(self, schedule: AttentionSchedule) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: AttentionSchedule, config: Config) -> float:
        return schedule.expected_us

    def notes(self, schedule: AttentionSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: AttentionSchedule, config: Config) -> Source:
        a = schedule.attention
        holes = AttentionHoles(a)
        for port in "qkv":
            holes.read(
                f"read_{port}", port, is_copied=port == "v" or a.dim("q")[3] > 64
            )
        has_sink = "sink_token" in a.arguments
        holes.macro("HAS_SINK", int(has_sink))
        sink = holes.element("sink_token") if has_sink else "0"
        holes.function(
            "float", "sink_of", ["const struct args *p", "int64_t h"], f"return {sink};"
        )
        depth, depth_v = (-(-a.dim(p)[3] // _WIDEST) * _WIDEST for p in "qv")
        holes.write("store_o", "o", a.dim("v")[3])
        holes.function(
            "void",
            "store_rows",
            [
                "const struct args *p",
                "int64_t b",
                "int64_t h",
                "int64_t r",
                "float max",
                "float sum",
            ],
            _rows(holes),
        )
        floats = ROWS * (2 * depth + 2 * depth_v + ROWS + 3 + 2 * 16)
        holes.args.of_thread("work", "float", floats)
        work = work_us(a.region)
        return assemble("attention", "attention", holes, schedule.num_tasks, work)


def _rows(holes: AttentionHoles) -> str:
    """The body of `store_rows`."""
    a, lines = holes.a, []
    log = "(max + log_f32(sum))"
    stats = f"{log} * 1.44269504f" if a.option("stats_use_log2") else log
    for name, text in (("stats", stats), ("max", "max"), ("sum", "sum")):
        for k in holes.region.outputs_of.get(a.results.get(name, -1), ()):
            stored = c_expr.store(text, FLOAT, holes.region.operands[k].dtype)
            lines.append(f"*({holes.place(k, 'r')}) = {stored};")
    return "\n".join(lines)
