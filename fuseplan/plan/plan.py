"""A built plan: the whole graph as one program, with what is needed to explain, save and rebuild it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.codegen.writer import operand_names
from fuseplan.engines.base import Config, Executable
from fuseplan.ir.graph import Graph
from fuseplan.plan.assign import Assignment
from fuseplan.plan.compose import compose, keeps_alignments
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Program


@dataclass(frozen=True, repr=False)
class BuiltPlan:
    """What a dispatcher is made from, and where it came from.

    Args:
        name: lasting name, for instance ``cpu_c`` or ``triton[BLOCK_M=128]``
        engine_name: engine that the plan is listed under
        parts: the assignments and their executables, in launch order
    """

    name: str
    engine_name: str
    engine_id: int
    knobs: dict[str, int]
    graph: Graph
    device: Device
    program: Program
    parts: tuple[tuple[Assignment, Executable], ...] = ()

    def __repr__(self) -> str:
        return f"BuiltPlan({self.name} of graph {self.graph.name!r} on {self.device}, workspace {self.workspace_bytes})"

    @property
    def workspace_bytes(self) -> int:
        return self.program.workspace_bytes

    @property
    def source(self) -> str:
        """Readable source of every generated kernel, each once, under the regions that it runs and their tensors."""
        users: dict[str, list[str]] = {}
        for k, (a, executable) in enumerate(self.parts):
            if executable.source:
                tensors = [self.graph.tensors[o.uid].name for o in a.region.operands]
                named = [f"{x} is {t!r}" for x, t in zip(operand_names(a.region.operands), tensors, strict=True)]
                where = f"region {k} of graph {self.graph.name!r}, engine {a.engine.name}: {', '.join(named)}"
                users.setdefault(executable.source, []).append(where)
        return "\n\n".join("\n".join([*where, source]) for source, where in users.items())


class Builder:
    """Builds plans of one graph; equal regions are built once."""

    def __init__(self, graph: Graph, device: Device) -> None:
        self.graph, self.device = graph, device
        self._built: dict[tuple[str, tuple[object, ...], Config, bool], Executable] = {}

    def executable(self, a: Assignment, *, aligned: bool = True) -> Executable:
        """The built region, not `aligned` where a view does not begin so. Raises what the engine's build raises."""
        built = self._build(a, aligned=aligned)
        return built if keeps_alignments(a.region, built) else self._build(a, aligned=False)

    def _build(self, a: Assignment, *, aligned: bool) -> Executable:
        if a.engine.is_general:  # bound to this region's own graph
            return a.engine.build(a.region, self.device, a.config, aligned=aligned)
        key = (a.engine.name, a.region.structure, a.config, aligned)
        found = self._built.get(key)
        if found is None:
            found = self._built[key] = a.engine.build(a.region, self.device, a.config, aligned=aligned)
        return found

    def build(self, name: str, engine: tuple[str, int], knobs: dict[str, int], assignments: Sequence[Assignment],
              *, aligned: bool = True) -> BuiltPlan:  # fmt: skip
        """The plan of these assignments; one that is not `aligned` takes buffers at any address."""
        parts = tuple((a, self.executable(a, aligned=aligned)) for a in assignments)
        program = compose(self.graph, self.device, [(a.region, e) for a, e in parts])
        return BuiltPlan(name, engine[0], engine[1], knobs, self.graph, self.device, program, parts)

    def general(self, plan: BuiltPlan) -> BuiltPlan:
        """The same plan without any promise on addresses."""
        engine, assignments = (plan.engine_name, plan.engine_id), [a for a, _ in plan.parts]
        return self.build(plan.name, engine, plan.knobs, assignments, aligned=False)
