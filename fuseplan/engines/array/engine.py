"""The fallback engine: runs the references of the ops, NumPy on host memory and PyTorch on CUDA memory.

It takes any graph, slowly. It allocates, so it is exempt from the hot-path promise.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from fuseplan.engines.base import YES, Config, Executable, FusionLimits, KnobSpace, Support, no
from fuseplan.ir.region import Region, Role
from fuseplan.ops.arrays import numpy_namespace, torch_namespace
from fuseplan.ops.evaluate import evaluate
from fuseplan.ops.memory import store_all, view_cuda, view_host
from fuseplan.ops.reference_time import cuda_us, host_us
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind


class ArrayEngine:
    """References as an engine."""

    name = "array"
    engine_ids = range(20000, 20001)
    device_kinds = frozenset({"cpu", "cuda"})
    is_general = True
    is_compiled = False

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(by_graph=True)

    def supports(self, region: Region, device: Device) -> Support:
        if device.kind == "cuda" and find_spec("torch") is None:
            return no("CUDA memory needs PyTorch, which is not installed")
        for spec in region.graph.tensors.values():
            if spec.dtype.bits < 8 or not spec.dtype.numpy_name:
                return no(f"tensor {spec.name!r} has type {spec.dtype.name}, which has no array form")
        for node in region.graph.nodes:
            if node.compute.bits < 8 or not node.compute.numpy_name:
                return no(f"node {node.name!r} computes in {node.compute.name}, which has no array form")
        return YES

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace()

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        run = _run_on_cuda if device.kind == "cuda" else _run_on_host
        patches = tuple(Patch(PatchKind.POINTER, 0, slot=i) for i in range(len(region.operands)))
        launch = Launch(LaunchKind.PYTHON, patches=patches, call=partial(run, region, device), label="array")
        return Executable((launch,))

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        return cuda_us(region, device) if device.kind == "cuda" else host_us(region, device)

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


def _run_on_host(region: Region, device: Device, addresses: tuple[int, ...], stream: int, workspace: int) -> None:
    inputs: dict[int, Any] = {}
    outputs: dict[int, Any] = {}
    for operand, address in zip(region.operands, addresses, strict=True):
        spec = region.graph.tensors[operand.uid]
        view = view_host(address, spec.dim, spec.stride, spec.dtype)
        (outputs if operand.role is Role.OUT else inputs)[operand.uid] = view
    with np.errstate(all="ignore"):
        store_all(outputs, evaluate(region.graph, inputs, numpy_namespace()))


def _run_on_cuda(region: Region, device: Device, addresses: tuple[int, ...], stream: int, workspace: int) -> None:
    import torch

    where = torch.device("cuda", device.index)
    side = torch.cuda.ExternalStream(stream, device=where) if stream else torch.cuda.default_stream(where)
    inputs: dict[int, Any] = {}
    outputs: dict[int, Any] = {}
    with torch.cuda.device(where), torch.cuda.stream(side), torch.no_grad():
        for operand, address in zip(region.operands, addresses, strict=True):
            spec = region.graph.tensors[operand.uid]
            if operand.role is Role.SCALAR:  # host memory; filled by a kernel, so that capture is safe
                value = view_host(address, spec.dim, spec.stride, spec.dtype).astype(np.float64).item(0)
                xp = torch_namespace()
                inputs[operand.uid] = torch.full(spec.dim, value, dtype=xp.dtype(spec.dtype), device=where)
                continue
            view = view_cuda(address, spec.dim, spec.stride, spec.dtype, device.index)
            (outputs if operand.role is Role.OUT else inputs)[operand.uid] = view
        store_all(outputs, evaluate(region.graph, inputs, torch_namespace()))


ENGINE = ArrayEngine()
