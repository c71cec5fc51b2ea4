"""Runs plans on host buffers with guard bytes, and judges them: what tests of engines are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuseplan.engines.registry import engine_named
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph, TensorSpec
from fuseplan.ops.arrays import numpy_dtype, numpy_namespace
from fuseplan.ops.casts import narrow
from fuseplan.ops.judge import Verdict, judge
from fuseplan.plan.assign import Assigner
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import Builder, BuiltPlan
from fuseplan.runtime.device import Device, cpu_device

GUARD_BYTES = 64
GUARD = 0xA5
POISON = 0xFF  # reads as NaN in every float type


class HostBuffer:
    """Host memory for one tensor, with guard bytes before and behind."""

    def __init__(self, spec: TensorSpec, fill: int = POISON) -> None:
        self.spec = spec
        self.raw = np.full(spec.span_bytes + 2 * GUARD_BYTES, GUARD, dtype=np.uint8)
        self.inner = self.raw[GUARD_BYTES : GUARD_BYTES + spec.span_bytes]
        self.inner[:] = fill
        kind = numpy_dtype(spec.dtype)
        strides = tuple(s * kind.itemsize for s in spec.stride)
        self.view = np.ndarray(spec.dim, kind, self.inner, strides=strides)

    @property
    def is_guarded(self) -> bool:
        """Whether the guard bytes are untouched."""
        return bool((self.raw[:GUARD_BYTES] == GUARD).all() and (self.raw[-GUARD_BYTES:] == GUARD).all())


def random_inputs(graph: Graph, seed: int, low: float = -2.0, high: float = 2.0) -> dict[int, HostBuffer]:
    """Random values for every input that the graph does not own; integers and booleans from small ranges."""
    rng = np.random.default_rng(seed)
    made: dict[int, HostBuffer] = {}
    for uid in graph.input_uids:
        spec = graph.tensors[uid]
        if spec.value is not None:
            continue
        buffer = HostBuffer(spec, fill=0)
        if spec.dtype.is_float:
            values = narrow(numpy_namespace(), rng.uniform(low, high, spec.dim), spec.dtype)
        elif spec.dtype.kind == "bool":
            values = rng.integers(0, 2, spec.dim).astype(np.bool_)
        else:
            values = rng.integers(0 if spec.dtype.kind == "uint" else -5, 6, spec.dim).astype(buffer.view.dtype)
        buffer.view[...] = values
        made[uid] = buffer
    return made


def build_on(graph: Graph, engine: str, device: Device | None = None) -> BuiltPlan:
    """The plan of one engine's partition of the graph with its default configs.

    Raises:
        cudnnGraphNotSupportedError: the engine takes no region
    """
    device = device or cpu_device()
    chosen = engine_named(engine)
    assignments = Assigner(graph, device).assign(chosen)
    if not any(a.engine is chosen for a in assignments):
        raise cudnnGraphNotSupportedError(f"engine {engine!r} takes no region of graph {graph.name!r}")
    return Builder(graph, device).build(engine, (chosen.name, chosen.engine_ids[0]), {}, assignments)


def run_on_host(plan: BuiltPlan, inputs: Mapping[int, HostBuffer], times: int = 2) -> dict[int, np.ndarray[Any, Any]]:
    """Run a plan `times` in a row on poisoned outputs and a poisoned workspace; outputs by uid.

    Raises:
        AssertionError: the plan wrote outside a buffer
    """
    runner = Runner(plan, {}, {}, lambda pack: dict(pack))
    outputs = {uid: HostBuffer(plan.graph.tensors[uid]) for uid in plan.graph.output_uids}
    workspace = np.full(plan.workspace_bytes, POISON, np.uint8) if plan.workspace_bytes else None
    pack = {uid: _bindable(b) for uid, b in (*inputs.items(), *outputs.items())}
    for _ in range(times):
        runner.execute(pack, workspace, 0)
    for b in (*inputs.values(), *outputs.values()):
        if not b.is_guarded:
            raise AssertionError(f"plan {plan.name!r} wrote outside tensor {b.spec.name!r}")
    return {uid: b.view.copy() for uid, b in outputs.items()}


def _bindable(buffer: HostBuffer) -> int:
    return int(buffer.inner.ctypes.data)


def judge_engines(graph: Graph, engines: Sequence[str], seed: int) -> dict[str, Verdict]:
    """The verdict on each engine's plan for random inputs."""
    inputs = random_inputs(graph, seed)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    return {name: judge(graph, arrays, run_on_host(build_on(graph, name), inputs)) for name in engines}
