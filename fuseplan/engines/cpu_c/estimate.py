"""Expected time of a kernel of plain loops."""

from __future__ import annotations

from math import prod

from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

# table: nanoseconds per element, one core of a 2.6 GHz server CPU, `expf` and so on of glibc 2.36
_LIBM_NS = {"exp": 2.0, "log": 2.3, "log1p": 11.0, "sin": 5.7, "cos": 5.7, "tan": 12.0, "tanh": 14.0, "erf": 12.0,
            "pow": 5.4, "mod": 3.0}  # fmt: skip
_CALL_US = 0.5
_MEMORY_SHARE = 0.5  # of the bandwidth that all cores reach together
_PEAK_SHARE = 0.12  # of one core's peak: what the plain main loops reach on the same machine

# table: a core that stands for all: how a kernel is divided must not depend on the machine, so that a saved plan and
# the sums of its tasks are the same everywhere
_CORE_GBPS = 10.0
_CORE_GFLOPS = 6.0


def serial_us(region: Region, device: Device) -> float:
    """Time of memory traffic and arithmetic, one after the other, at the rates that plain loops reach on a device."""
    core_gflops = device.peak_gflops / max(1, device.sm_count)
    return _CALL_US + _sum_us(region, _MEMORY_SHARE * device.memory_gbps, _PEAK_SHARE * core_gflops)


def work_us(region: Region) -> float:
    """The same on any machine: how much there is to divide."""
    return _sum_us(region, _CORE_GBPS, _CORE_GFLOPS)


def _sum_us(region: Region, gbps: float, gflops: float) -> float:
    cost = region.cost
    libm_ns = sum([_LIBM_NS[v.op] * prod(v.dim) for v in region.values if v.op in _LIBM_NS])
    return (cost.read_bytes + cost.write_bytes) / (1e3 * gbps) + libm_ns / 1e3 + cost.flops / (1e3 * gflops)
