"""Expected time of a region: its launches, and the larger of memory time and arithmetic time."""

from __future__ import annotations

from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_LAUNCH_US = 2.5


def estimate_us(region: Region, device: Device, launches: int, gflops: float) -> float:
    """Microseconds at a rate of arithmetic."""
    cost = region.cost
    memory_us = (cost.read_bytes + cost.write_bytes) / (device.memory_gbps * 1e3)
    return launches * _LAUNCH_US + max(memory_us, cost.flops / (gflops * 1e3))
