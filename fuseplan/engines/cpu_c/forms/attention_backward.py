"""Gradients of attention: a batch and the query heads that share a head of keys and values per task."""

from __future__ import annotations

from fuseplan.engines.base import Config, Support, no
from fuseplan.engines.cpu_c.attention import (
    PLACE,
    ROWS,
    AttentionHoles,
    AttentionSchedule,
    match_attention,
    padded,
    visible_flops,
)
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.source import Source, assemble
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


class AttentionBackwardForm(OneWayForm):
    """Blocks of queries walk over keys; sums for all keys of a head are kept in the thread's memory."""

    name = "attention_backward"

    def match(self, region: Region, device: Device) -> AttentionSchedule | Support:
        found = match_attention(region, "sdpa_backward")
        if isinstance(found, Support):
            return found
        for result in ("dbias", "dsink"):
            if result in found.results:
                return no(f"{result} is not made here", at=found.anchor)
        tasks = found.batch * min(found.dim("k")[1], found.dim("v")[1])
        flops = visible_flops(found) * (3 * found.dim("q")[3] + 2 * found.dim("v")[3])
        return AttentionSchedule.of(found, device, tasks, flops)

    def emit(self, schedule: AttentionSchedule, config: Config) -> Source:
        a = schedule.attention
        holes = AttentionHoles(a)
        for side in "kv":
            holes.getter("int64_t", f"heads_{side}", a.heads // a.dim(side)[1])
        for port in ("q", "k", "v", "o", "do"):
            holes.read(f"read_{port}", port, is_copied=port != "v")
        stats = f"return {holes.element('stats', 'r')};"
        holes.function("float", "stats_of", [*PLACE, "int64_t r"], stats)
        for port in "qkv":
            holes.write(f"store_d{port}", f"d{port}", a.dim(port)[3])
        depth, depth_v = padded(a.dim("q")[3]), padded(a.dim("v")[3])
        floats = ROWS * (5 * depth + 4 * depth_v + 4 * 16 + 2 * ROWS + 2)
        holes.args.of_thread("work", "float", floats + a.columns * (depth + depth_v))
        return assemble(
            self.name, self.name, holes, schedule.num_tasks, schedule.work_us
        )
