"""Attention forward: a program for each tile of queries, which goes over the blocks of keys.

Kernels for all extents have those of heads as constants, in powers of two; lengths of sequences are numbers.
"""

from __future__ import annotations

from dataclasses import replace

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.attention import special
from fuseplan.engines.triton.attention.emit import AttentionEmitter
from fuseplan.engines.triton.attention.schedule import AttentionSchedule, schedule_of
from fuseplan.engines.triton.attention.special_emit import SpecialAttention
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted
from fuseplan.engines.triton.knobs import complete_knobs, listed, power_of_two
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_READS_SHARED = 90
_FEW_ROWS = 64  # of all heads that share keys
_LEAST_SHARED = 256  # keys that are worth dividing
_MAX_PARTS = 64
_MATRIX_GAIN = 5.0  # of rates that are reached, over those of float32 lanes


class AttentionForm:
    """`BLOCK_M` rows per program, `BLOCK_N` keys per step; on sm_90 also by warps of their own."""

    name = "attention"

    def match(self, region: Region, device: Device) -> AttentionSchedule | Support:
        if all(region.values[i].op != "sdpa" for i in region.anchors):
            return NOT_THIS
        return schedule_of(region, device)

    def configs(self, schedule: AttentionSchedule) -> KnobSpace:
        plain = _configs(schedule)
        if special.special_gap(schedule.attention, schedule.device):
            return listed(plain)
        return special.space(schedule.attention, schedule.device, plain)

    def estimate_us(self, schedule: AttentionSchedule, config: Config) -> float:
        if dict(config).get("SPECIALISTS"):
            return special.special_us(schedule.attention, schedule.device)
        gain = 1.0 if schedule.kind is FLOAT else _MATRIX_GAIN
        return estimate_us(schedule.region, schedule.device, 1, gain * schedule.device.peak_gflops)

    def notes(self, schedule: AttentionSchedule, config: Config) -> frozenset[str]:
        return frozenset() if schedule.kind is FLOAT else frozenset({"TENSOR_CORE", "DOWN_CONVERT_INPUTS"})

    def emit(self, schedule: AttentionSchedule, config: Config) -> Emitted:
        knobs = complete_knobs(self.configs(schedule), config)
        if not knobs.get("SPECIALISTS"):
            return AttentionEmitter(schedule, knobs).emit()
        plain = AttentionEmitter(schedule, _configs(schedule)[0])
        emitted = SpecialAttention(schedule.attention, schedule.device, knobs).emit()
        return replace(emitted, unaligned=plain.emit)


def _configs(schedule: AttentionSchedule) -> list[dict[str, int]]:
    """Choices, the default first; kernels for all extents have tiles that fit at any."""
    if schedule.region.graph.is_dynamic:
        return [_knobs(schedule, *tile) for tile in ((16, 16, 4, 1),) if schedule.kind is FLOAT] or [
            _knobs(schedule, *tile) for tile in ((64, 64, 4, 2), (64, 32, 4, 2))
        ]
    rows = power_of_two(schedule.attention.rows * schedule.shared_heads)
    if rows <= _FEW_ROWS and schedule.attention.columns >= _LEAST_SHARED:
        return _decoding(schedule, max(16, rows))
    most = max(16, power_of_two(schedule.attention.rows))
    return _fitting(schedule, [_knobs(schedule, min(block_m, most), *rest) for block_m, *rest in _tiles(schedule)])


def _tiles(schedule: AttentionSchedule) -> list[tuple[int, int, int, int]]:
    """Rows, keys, warps and stages for many rows."""
    width = max(schedule.widths)
    if schedule.kind is FLOAT and width > 128:
        return [(32, 16, 4, 1), (16, 16, 4, 1)]
    if schedule.kind is FLOAT:
        tiles = [(64, 32, 4, 2), (64, 64, 4, 2), (32, 32, 4, 2)]
        a = schedule.attention
        is_filled = schedule.widths != (a.dim("q")[3], a.dim("v")[3])
        is_tight = width > 64 or is_filled or a.left is not None  # a third loop, or masks, take registers as well
        return tiles if is_tight else [tiles[1], tiles[0], tiles[2]]
    if width <= 64:
        return [(64, 64, 4, 3), (128, 64, 4, 3), (64, 128, 4, 2), (128, 128, 8, 2)]
    if width <= 128:
        tiles = [(64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)]
        # matrix units of older devices read registers alone
        return tiles if schedule.device.sm_version >= _READS_SHARED else [tiles[1], tiles[0], tiles[2]]
    return [(128, 64, 8, 2), (64, 32, 4, 2), (64, 64, 4, 2)]


def _decoding(schedule: AttentionSchedule, rows: int) -> list[dict[str, int]]:
    """Few rows: heads that share keys in one tile, and keys divided so that all multiprocessors load."""
    attention, sms = schedule.attention, max(1, schedule.device.sm_count)
    width = max(schedule.widths)
    tiles = attention.batch * attention.heads // schedule.shared_heads
    block_n = 16 if schedule.kind is FLOAT else 64 if width <= 128 else 32
    found = []
    orders = (1, 2, 4) if 4 * tiles >= sms else (2, 1, 4)  # with few tiles all is over before the memory is busy
    for per_sm, stages in (*((n, 3) for n in orders), (orders[0], 4)):
        wanted = max(1, min(per_sm * sms // tiles, -(-attention.columns // (2 * block_n)), _MAX_PARTS))
        split = 1 << (wanted.bit_length() - 1)
        found.append(_knobs(schedule, rows, block_n, 4, stages, pack=int(schedule.shared_heads > 1), split=split))
    return _fitting(schedule, found)


def _fitting(schedule: AttentionSchedule, configs: list[dict[str, int]]) -> list[dict[str, int]]:
    """Those that fit shared memory, at least one."""
    found = [knobs for knobs in configs if _shared_bytes(schedule, knobs) <= schedule.device.shared_bytes]
    return found or [min(configs, key=lambda knobs: _shared_bytes(schedule, knobs))]


def _knobs(
    schedule: AttentionSchedule, block_m: int, block_n: int, warps: int, stages: int, *, pack: int = 0, split: int = 1
) -> dict[str, int]:
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "PACK": pack, "SPLIT": split,
        "FLOAT_PARTS": int(schedule.kind is FLOAT), "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


def _shared_bytes(schedule: AttentionSchedule, knobs: dict[str, int]) -> int:
    """Shared memory of a tile of queries, and of keys and values in stages."""
    width = schedule.widths[0] * knobs["BLOCK_M"] + sum(schedule.widths) * knobs["BLOCK_N"] * knobs["num_stages"]
    return width * schedule.kind.itemsize
