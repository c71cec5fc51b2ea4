"""Gives each region of a graph to an engine: the asked one, else another that takes it, at last the general one."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuseplan.engines.base import Config, Engine, FusionLimits
from fuseplan.engines.registry import GENERAL, engines_for
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Cost, Operand, Region, Role
from fuseplan.lowering.fragment import FragmentCache, node_key
from fuseplan.lowering.fuse import fuse
from fuseplan.lowering.partition import Group, live_nodes, partition, split
from fuseplan.ops.schema import NodeView, schema_of
from fuseplan.runtime.device import Device


@dataclass(frozen=True)
class Assignment:
    """One region and the engine that builds it; `notes` holds the refusals on the way."""

    region: Region
    engine: Engine
    config: Config
    notes: tuple[str, ...] = ()


@dataclass
class Assigner:
    """Assignments of one graph on one device; what equal regions got is remembered."""

    graph: Graph
    device: Device
    cache: FragmentCache = field(init=False)
    _choice: dict[tuple[str, tuple[object, ...]], tuple[Engine | None, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = FragmentCache(self.graph)

    def assign(self, engine: Engine) -> list[Assignment]:
        """Regions under the engine's limits, each with the engine that builds it.

        Raises:
            cudnnGraphNotSupportedError: a region that no engine takes, with every reason
        """
        limits = engine.limits(self.device)
        if limits.whole_graph:
            return [self._whole(engine)]
        made: list[Assignment] = []
        for group in partition(self.graph, limits, self.cache):
            self._place(group, engine, limits, made)
        return made

    def _place(self, group: Group, engine: Engine, limits: FusionLimits, made: list[Assignment]) -> None:
        region = fuse(self.graph, group.nodes, self.cache, group.reason)
        chosen, notes = self._choose(region, engine)
        if chosen is not None:
            made.append(Assignment(region, chosen, chosen.knobs(region, self.device).default, notes))
        elif len(group.nodes) > 1:
            for half in split(group):
                self._place(half, engine, limits, made)
        else:
            raise cudnnGraphNotSupportedError(
                f"no engine can run node {region.graph.nodes[0].name!r} ({region.graph.nodes[0].op}) on {self.device}",
                asked="; ".join(notes),
                fix="change the types named above, or run `fuseplan doctor` to see what is missing",
            )

    def _choose(self, region: Region, engine: Engine) -> tuple[Engine | None, tuple[str, ...]]:
        """The asked engine if it takes the region; otherwise another one, the general one for single nodes only."""
        key = (engine.name, region.structure)
        found = self._choice.get(key)
        if found is not None:
            return found
        notes: list[str] = []
        chosen: Engine | None = None
        others = [e for e in engines_for(self.device.kind) if e.name != engine.name]
        for candidate in (engine, *others):
            if candidate.name == GENERAL and len(region.graph.nodes) > 1:
                continue
            support = candidate.supports(region, self.device)
            if support.is_supported:
                chosen = candidate
                break
            notes.append(f"{candidate.name}: {support.reason}")
        found = self._choice[key] = (chosen, tuple(notes))
        return found

    def _whole(self, engine: Engine) -> Assignment:
        region = whole_region(self.graph)
        support = engine.supports(region, self.device)
        if not support.is_supported:
            raise cudnnGraphNotSupportedError(
                f"engine {engine.name!r} cannot run graph {self.graph.name!r}: {support.reason}",
                fix="change what the reason names, or use another engine of the list",
            )
        return Assignment(region, engine, engine.knobs(region, self.device).default)


def whole_region(graph: Graph) -> Region:
    """The graph as one region without an SSA list, for engines that run the nodes themselves."""
    alive = live_nodes(graph)
    kept = graph.slice([n.index for n in graph.nodes if alive[n.index]], graph.output_uids)
    operands = []
    for uid in (*kept.input_uids, *kept.output_uids):
        spec = kept.tensors[uid]
        if spec.is_constant:
            continue
        role = Role.OUT if uid in kept.producers else Role.SCALAR if spec.is_host_scalar else Role.IN
        operands.append(Operand(uid, spec.dim, spec.stride, spec.dtype, role))
    return Region(kept, (), tuple(operands), (), (), _work(kept))


def _work(graph: Graph) -> Cost:
    """Work of the nodes run one by one, each reading and writing memory."""
    found: dict[object, Cost] = {}
    total = Cost()
    for node in graph.nodes:
        key = node_key(graph, node)
        if key not in found:
            found[key] = schema_of(node.op).cost(NodeView(node, graph))
        total += found[key]
    return total
