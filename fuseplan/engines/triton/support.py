"""Which regions the triton engine takes, and why not."""

from __future__ import annotations

import functools
import importlib.util

from fuseplan.codegen import triton_expr as expr
from fuseplan.dtypes import BFLOAT16, BOOLEAN, FLOAT, HALF
from fuseplan.engines.base import YES, FusionLimits, Support, no
from fuseplan.engines.triton.closing import closing_gap
from fuseplan.engines.triton.layout import reduced_axes
from fuseplan.ir.limits import ROWS
from fuseplan.ir.region import ELEMENTWISE, Region, Role
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device

LIMITS = FusionLimits(
    ops=ROWS | {"matmul"},
    reuse_reduction=True,
    reduce_after_anchor=frozenset({"add", "max", "min"}),
    max_nodes=64,
    max_operands=32,
)
_MIN_SM = 80  # bfloat16 arithmetic and asynchronous copies
_MIN_SM_FP8 = 89
_PARAMETER_BYTES = 4000


@functools.cache
def missing_package() -> str:
    """Why Triton cannot be used in this process; empty if it can."""
    if importlib.util.find_spec("triton") is None and not supply.is_given():
        return "triton is not installed: pip install triton (Linux), or a CUDA build of torch, which brings it"
    return ""


def supports(region: Region, device: Device) -> Support:
    """Whether the engine can build this region for this device."""
    if missing_package():
        return no(missing_package())
    if device.kind != "cuda":
        return no(f"tensors are on {device}, this engine needs a CUDA device")
    if device.sm_version < _MIN_SM:
        return no(f"{device.arch} is older than sm_{_MIN_SM}")
    if device.sm_version < _MIN_SM_FP8 and any(v.dtype in expr.FP8_TYPES for v in region.values):
        return no(f"8-bit floats need sm_{_MIN_SM_FP8} or newer, the device is {device.arch}")
    return no(reason) if (reason := region_gap(region)) else YES


def region_gap(region: Region) -> str:
    """What in a region has no kernel form here; empty if nothing."""
    return _operand_gap(region) or _value_gap(region) or (_gemm_gap(region) if region.anchors else _rows_gap(region))


def _operand_gap(region: Region) -> str:
    for index, operand in enumerate(region.operands):
        if operand.dtype not in expr.VALUE_TYPES:
            return f"operand {index} has type {operand.dtype}, which this engine does not load or store"
        if operand.role is Role.SCALAR and operand.dtype in expr.FP8_TYPES:
            return f"operand {index} is a host scalar of type {operand.dtype}"
    rank = len(region.domain)
    if (16 + 8 * rank) * len(region.operands) > _PARAMETER_BYTES:
        return f"{len(region.operands)} operands of rank {rank} exceed the parameter space of a kernel"
    return ""


def _value_gap(region: Region) -> str:
    for index, value in enumerate(region.values):
        where = f"value {index}"
        if value.dtype not in expr.VALUE_TYPES:
            return f"{where} ('{value.op}') has type {value.dtype}, which this engine does not compute"
        if value.op in ELEMENTWISE:
            if reason := expr.expression_gap(value.op, value.compute):
                return f"{where}: {reason}"
        elif value.op == "reduce":
            if value.mode not in ("add", "mul", "max", "min"):
                return f"{where}: reduction mode '{value.mode}' has no form here"
            if value.compute is BOOLEAN or value.compute not in expr.COMPUTE_TYPES:
                return f"{where}: reductions in compute type {value.compute} have no form here"
        elif value.op not in ("load", "const", "index", "count", "matmul"):
            return f"{where}: '{value.op}' has no kernel form here"
    return ""


def _rows_gap(region: Region) -> str:
    sets = {reduced_axes(region, region.values[i]) for i in region.reductions}
    if len(sets) > 1:
        return f"reductions over different axes in one region: {sorted(sorted(s) for s in sets)}"
    return ""


def _gemm_gap(region: Region) -> str:
    if len(region.anchors) > 1:
        return f"{len(region.anchors)} matmuls in one region"
    anchor = region.values[region.anchors[0]]
    if len(region.domain) < 2:
        return "a matmul with something else than two matrices"
    if anchor.compute not in (FLOAT, HALF, BFLOAT16):
        return f"matmul in compute type {anchor.compute}: only FLOAT, HALF and BFLOAT16 sums have a main loop here"
    for side, index in zip("AB", anchor.args, strict=True):
        if region.values[index].op != "load":
            return f"matmul operand {side} is computed in the region ('{region.values[index].op}'), not loaded"
        if anchor.dim[-2:] != region.domain[-2:]:
            return "the matmul's result is broadcast over M or N by its epilogue"
    return closing_gap(region)
