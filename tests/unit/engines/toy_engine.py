"""An engine of another package. The test copies this file out of the tree and installs it with an entry point."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import YES, Config, Executable, FusionLimits, KnobSpace, Support, no
from fuseplan.ir.graph import TensorSpec, packed_stride
from fuseplan.ir.limits import POINTWISE
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind

RUNS = {"abs": np.abs, "neg": np.negative, "sqrt": np.sqrt}


class ToyEngine:
    """Runs chains of three operations on packed FLOAT tensors."""

    name = "toy"
    engine_ids = range(70000, 70001)
    device_kinds = frozenset({"cpu"})
    is_general = False
    is_compiled = False

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(ops=POINTWISE)

    def supports(self, region: Region, device: Device) -> Support:
        for node in region.graph.nodes:
            if node.op not in RUNS or node.compute is not FLOAT:
                return no(f"node {node.name!r} is {node.op} in {node.compute}, toy runs {sorted(RUNS)} in FLOAT")
        for spec in region.graph.tensors.values():
            if spec.dtype is not FLOAT or spec.stride != packed_stride(spec.dim):
                return no(f"tensor {spec.name!r} is not packed FLOAT")
        return YES

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace()

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        patches = tuple(Patch(PatchKind.POINTER, 0, slot) for slot in range(len(region.operands)))
        return Executable((Launch(LaunchKind.PYTHON, patches=patches, call=partial(run, region), label="toy"),))

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        return 0.001

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


def run(region: Region, addresses: tuple[int, ...], stream: int, workspace: int) -> None:
    """The nodes one by one."""
    graph, memory = region.graph, dict(zip((o.uid for o in region.operands), addresses, strict=True))
    made: dict[int, Any] = {o.uid: view(memory[o.uid], graph.tensors[o.uid]) for o in region.operands}
    outputs = [o.uid for o in region.operands if o.role is Role.OUT]
    targets = {uid: made.pop(uid) for uid in outputs}
    for node in graph.nodes:
        ((_, source),), ((_, result),) = node.inputs, node.outputs
        made[result] = RUNS[node.op](made[source])
    for uid in outputs:
        targets[uid][...] = made[uid]


def view(address: int, spec: TensorSpec) -> Any:
    memory = (ctypes.c_float * spec.numel).from_address(address)
    return np.ctypeslib.as_array(memory).reshape(spec.dim)


ENGINE = ToyEngine()
