"""Attention forward: a block of queries of one head per task, which walks over the keys that its queries see."""

from __future__ import annotations

from fuseplan.codegen import c_expr
from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, Support
from fuseplan.engines.cpu_c.attention import (
    PLACE,
    ROWS,
    AttentionHoles,
    AttentionSchedule,
    match_attention,
    packed_heads,
    padded,
    visible_flops,
)
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.source import Source, assemble
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


class AttentionForm(OneWayForm):
    """Blocks of queries; scores live in a tile."""

    name = "attention"

    def match(self, region: Region, device: Device) -> AttentionSchedule | Support:
        found = match_attention(region, "sdpa")
        if isinstance(found, Support):
            return found
        pack = packed_heads(found)
        tasks = found.batch * found.heads // pack * -(-found.rows * pack // ROWS)
        flops = visible_flops(found) * (found.dim("q")[3] + found.dim("v")[3])
        return AttentionSchedule.of(found, device, tasks, flops)

    def emit(self, schedule: AttentionSchedule, config: Config) -> Source:
        a = schedule.attention
        holes = AttentionHoles(a)
        has_sink, is_deep = "sink_token" in a.arguments, a.dim("q")[3] > 64
        for port in "qkv":
            holes.read(f"read_{port}", port, is_copied=port == "v" or is_deep)
        holes.macro("HAS_SINK", int(has_sink))
        sink = f"return {holes.element('sink_token') if has_sink else '0'};"
        holes.function("float", "sink_of", (PLACE[0], PLACE[2]), sink)
        holes.write("store_o", "o", a.dim("v")[3])
        parameters = [*PLACE, "int64_t r", "float max", "float sum"]
        holes.function("void", "store_rows", parameters, _rows(holes))
        depth, depth_v = padded(a.dim("q")[3]), padded(a.dim("v")[3])
        floats = ROWS * (2 * depth + 2 * depth_v + ROWS + 3 + 2 * 16)
        holes.args.of_thread("work", "float", floats)
        return assemble(
            self.name, self.name, holes, schedule.num_tasks, schedule.work_us
        )


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
