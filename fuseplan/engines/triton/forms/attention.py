"""Attention forward: a program for each tile of queries, which goes over the blocks of keys.

Kernels for all extents have those of heads as constants, in powers of two; lengths of sequences are numbers.
"""

from __future__ import annotations

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.attention.emit import AttentionEmitter
from fuseplan.engines.triton.attention.schedule import AttentionSchedule, schedule_of
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted
from fuseplan.engines.triton.knobs import complete_knobs, listed
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_MATRIX_GAIN = 5.0  # of rates that are reached, over those of float32 lanes


class AttentionForm:
    """`BLOCK_M` rows per program, `BLOCK_N` keys per step."""

    name = "attention"

    def match(self, region: Region, device: Device) -> AttentionSchedule | Support:
        if all(region.values[i].op != "sdpa" for i in region.anchors):
            return NOT_THIS
        return schedule_of(region, device)

    def configs(self, schedule: AttentionSchedule) -> KnobSpace:
        return listed(_configs(schedule))

    def estimate_us(self, schedule: AttentionSchedule, config: Config) -> float:
        gain = 1.0 if schedule.kind is FLOAT else _MATRIX_GAIN
        return estimate_us(schedule.region, schedule.device, 1, gain * schedule.device.peak_gflops)

    def notes(self, schedule: AttentionSchedule, config: Config) -> frozenset[str]:
        return frozenset() if schedule.kind is FLOAT else frozenset({"TENSOR_CORE", "DOWN_CONVERT_INPUTS"})

    def emit(self, schedule: AttentionSchedule, config: Config) -> Emitted:
        return AttentionEmitter(schedule, complete_knobs(self.configs(schedule), config)).emit()


def _configs(schedule: AttentionSchedule) -> list[dict[str, int]]:
    """Choices, the default first."""
    width, is_float = max(schedule.widths), schedule.kind is FLOAT
    if is_float:
        tiles = [(64, 32, 4, 2), (64, 64, 4, 2), (32, 32, 4, 2)] if width <= 128 else [(32, 16, 4, 1), (16, 16, 4, 1)]
    elif width <= 64:
        tiles = [(128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2)]
    elif width <= 128:
        tiles = [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 2)]
    else:
        tiles = [(128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)]
    found = []
    for block_m, block_n, warps, stages in tiles:
        size = (block_m * schedule.widths[0] + stages * block_n * sum(schedule.widths)) * schedule.kind.itemsize
        if size <= schedule.device.shared_bytes or block_m == tiles[-1][0]:
            knobs = {"BLOCK_M": block_m, "BLOCK_N": block_n, "GROUP": 1, "FLOAT_PARTS": int(is_float)}
            found.append({**knobs, "num_warps": warps, "num_stages": stages})
    return found
