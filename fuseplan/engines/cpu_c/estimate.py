"""Expected time of a kernel of plain loops."""

from __future__ import annotations

from math import prod

from fuseplan.dtypes import DOUBLE
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

# table: nanoseconds per element on one core of a 2.0 GHz server CPU: vector code of `float_math.h`, others of libm
_LIBM_NS = {"exp": 0.8, "log": 1.0, "log1p": 1.2, "tanh": 1.4, "erf": 1.4, "sin": 2.2, "cos": 2.2, "tan": 2.8,
            "pow": 12.0, "mod": 12.0}  # fmt: skip
_IN_DOUBLE = 8.0  # times as long: libm, one element at a time
# table: nanoseconds to convert an element of a half type when it is read or written
_HALF_NS = {"BFLOAT16": 0.25, "HALF": 0.5}
_CALL_US = 0.5
_MEMORY_SHARE = 0.8  # of the bandwidth of all cores: what they reach together
_PRODUCT_SHARE = 0.12  # of one core's peak: what plain loops of products reach
_ELEMENT_SHARE = 0.25  # the same of loops over elements
_OWN_CACHE_BYTES = (
    1 << 20
)  # a B of this size stays in a core's own cache from row to row

# table: a core that stands for all: how a kernel is divided must not depend on the machine, so that a saved plan and
# the sums of its tasks are the same everywhere
_CORE_GBPS = 10.0
_CORE_GFLOPS = 6.0


def expected_us(region: Region, device: Device, num_tasks: int) -> float:
    """Time of memory traffic and arithmetic, one after the other, at the rates that plain loops reach on a device."""
    cores = max(1, min(num_tasks, device.num_threads or device.sm_count))
    gbps = min(cores * _CORE_GBPS, _MEMORY_SHARE * device.memory_gbps)
    share = _PRODUCT_SHARE if region.anchors else _ELEMENT_SHARE
    gflops = cores * share * device.peak_gflops / max(1, device.sm_count)
    read_again_us = _bytes_read_again(region) / (1e3 * cores * _CORE_GBPS)
    return _CALL_US + read_again_us + _sum_us(region, gbps, gflops, cores)


def _bytes_read_again(region: Region) -> float:
    """Bytes of operands B that every row of a product reads from memory anew, as they are too large for a cache."""
    total = 0.0
    for value in (region.values[i] for i in region.anchors):
        if value.op == "matmul":
            b = region.values[value.args[1]]
            size = b.dim[-2] * b.dim[-1] * b.dtype.itemsize
            total += size * (prod(value.dim[:-1]) - 1) if size > _OWN_CACHE_BYTES else 0
    return total


def work_us(region: Region) -> float:
    """The same on any machine: how much there is to divide."""
    return _sum_us(region, _CORE_GBPS, _CORE_GFLOPS, 1)


def _sum_us(region: Region, gbps: float, gflops: float, cores: int) -> float:
    cost = region.cost
    functions = [v for v in region.values if v.op in _LIBM_NS]
    element_ns = sum(
        [
            prod(v.dim) * _LIBM_NS[v.op] * (_IN_DOUBLE if v.compute is DOUBLE else 1)
            for v in functions
        ]
    )
    if not region.anchors:
        element_ns += sum(
            [prod(o.dim) * _HALF_NS.get(o.dtype.name, 0.0) for o in region.operands]
        )
    return (
        (cost.read_bytes + cost.write_bytes) / (1e3 * gbps)
        + element_ns / (1e3 * cores)
        + cost.flops / (1e3 * gflops)
    )
