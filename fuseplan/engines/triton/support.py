"""What the engine refuses whatever the form: devices, types, ops."""

from __future__ import annotations

import functools
import importlib.util

from fuseplan.codegen import triton_expr as expr
from fuseplan.dtypes import BOOLEAN
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.triton.body import needed_for
from fuseplan.ir.region import ELEMENTWISE, Region, Role, Value
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device

_MIN_SM = 80  # bfloat16 arithmetic and asynchronous copies
_MIN_SM_FP8 = 89
_PARAMETER_BYTES = 4000
_OTHER_OPS = frozenset({"load", "const", "index", "count", "matmul", "sdpa", "pick"})


@functools.cache
def missing_package() -> str:
    """Why Triton cannot be used in this process; empty if it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton (Linux), or a CUDA build of torch, which brings it"
    return ""


def device_gap(device: Device) -> str:
    """Why nothing can be built for a device in this process; empty if something can."""
    if not supply.is_given() and (reason := missing_package()):
        return reason
    if device.kind != "cuda":
        return f"tensors are on {device}, this engine needs a CUDA device"
    return f"{device.arch} is older than sm_{_MIN_SM}" if device.sm_version < _MIN_SM else ""


def region_support(region: Region, device: Device) -> Support:
    """Whether all operands and values of a region have expressions here."""
    rank = len(region.domain)
    if (16 + 8 * rank) * len(region.operands) > _PARAMETER_BYTES:
        return no(f"{len(region.operands)} operands of rank {rank} exceed the parameter space of a kernel")
    read = [((*region.users[value], value)[0], number) for value, number in region.loads]  # a cut is made at a reader
    for value, number in (*read, *region.stores):
        if reason := _operand_gap(region, number) or _hazard(region, number):
            return no(f"operand {number} {reason}", at=value)
    for index, made in enumerate(region.values):
        if reason := _value_gap(made, device):
            return no(f"value {index} ('{made.op}'): {reason}", at=index)
    return YES


def _operand_gap(region: Region, number: int) -> str:
    operand = region.operands[number]
    if operand.dtype not in expr.VALUE_TYPES:
        return f"has type {operand.dtype}, which this engine does not load or store"
    if operand.role is Role.SCALAR and operand.dtype in expr.FP8_TYPES:
        return f"is a host scalar of type {operand.dtype}"
    if operand.rows is not None:
        return "is packed sequences, which this engine does not walk"
    if operand.init is not None or operand.combine:
        return "has a starting value or joins stores, which this engine does not do"
    return "is scratch, which this engine makes itself" if operand.role is Role.SCRATCH else ""


def _hazard(region: Region, number: int) -> str:
    """Why one program may read what another one writes; empty if each element is read and written by one."""
    operand = region.operands[number]
    if any(o.uid == operand.uid and o.role.is_written for o in region.operands if o is not operand):
        return "is a view of a tensor that the region writes through another view"
    loads = [value for value, loaded in region.loads if loaded == number]
    if not operand.role.is_written or not loads:
        return ""
    in_front = needed_for(region, [a for i in region.anchors for a in region.values[i].args])
    is_elsewhere = operand.dim != region.domain or any(value in in_front for value in loads)
    return "is written in place, and read at other elements" if is_elsewhere else ""


def _value_gap(value: Value, device: Device) -> str:
    if value.dtype not in expr.VALUE_TYPES:
        return f"type {value.dtype}, which this engine does not compute"
    if value.dtype in expr.FP8_TYPES and device.sm_version < _MIN_SM_FP8:
        return f"8-bit floats need sm_{_MIN_SM_FP8} or newer, the device is {device.arch}"
    if value.op in ELEMENTWISE:
        return expr.expression_gap(value.op, value.compute)
    if value.op != "reduce":
        return "" if value.op in _OTHER_OPS else f"'{value.op}' has no kernel form here"
    if value.mode not in ("add", "mul", "max", "min"):
        return f"reduction mode '{value.mode}' has no form here"
    if value.compute is BOOLEAN or value.compute not in expr.COMPUTE_TYPES:
        return f"reductions in compute type {value.compute} have no form here"
    return ""
