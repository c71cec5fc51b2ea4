"""The regions of a saved plan: of which nodes each is made, and the engine and config that build it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.engines.base import Engine, Executable, Value
from fuseplan.engines.registry import engine_named
from fuseplan.errors import PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region, Role
from fuseplan.lowering.fragment import FragmentCache
from fuseplan.lowering.fuse import fuse, slice_region
from fuseplan.plan.assign import Assignment
from fuseplan.plan.graph_json import typed
from fuseplan.plan.plan_check import FIX
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import LaunchKind


def region_to_json(a: Assignment, executable: Executable, graph: Graph) -> dict[str, Any]:
    """The record that a region of a plan is made from again."""
    number = {n.outputs: n.index for n in graph.nodes}
    lives = any(x.kind in (LaunchKind.PYTHON, LaunchKind.LIBRARY) for x in executable.launches)
    return {
        "nodes": [number[n.outputs] for n in a.region.graph.nodes], "by_graph": not a.region.values,
        "engine": a.engine.name, "config": dict(a.config), "has_live_objects": lives,
    }  # fmt: skip


def regions_from_json(records: Any, graph: Graph, device: Device, *, precompiled: bool) -> list[Assignment]:
    """The regions of a plan in launch order, each with the engine that builds it.

    Args:
        precompiled: whether an engine whose launches hold live objects, which may compile, is refused
    Raises:
        PlanFileError: the regions are none of this graph, or a config is none of its engine
        cudnnGraphNotSupportedError: an engine is not here, or does not take its region here
    """
    cache = FragmentCache(graph)
    made = [_assignment(r, graph, device, cache, precompiled) for r in typed(records, list)]
    _check_order([a.region for a in made], graph)
    return made


def _assignment(
    record: dict[str, Any], graph: Graph, device: Device, cache: FragmentCache, precompiled: bool
) -> Assignment:  # fmt: skip
    engine = _engine(typed(record["engine"], str))
    if precompiled and typed(record["has_live_objects"], bool) and engine.is_compiled:
        raise cudnnGraphNotSupportedError(
            f"engine {engine.name!r} would have to build a part of the plan again",
            fix="allow compiling, or write a new file",
        )
    nodes = [typed(n, int) for n in typed(record["nodes"], list)]
    if not nodes or len(set(nodes)) != len(nodes) or not 0 <= min(nodes) <= max(nodes) < len(graph.nodes):
        raise PlanFileError(f"a region of the plan file is made of nodes {nodes}", fix=FIX)
    by_graph = typed(record["by_graph"], bool)
    region = slice_region(graph, nodes) if by_graph else fuse(graph, nodes, cache)
    support = engine.supports(region, device)
    if not support.is_supported:
        raise cudnnGraphNotSupportedError(
            f"engine {engine.name!r} does not take a region of the plan here: {support.reason}",
            fix="build the graph here",
        )
    config = tuple(sorted((k, _value(v)) for k, v in typed(record["config"], dict).items()))
    if reason := engine.knobs(region, device).refusal(config):
        raise PlanFileError(
            f"config {dict(config)} of the plan file is none of engine {engine.name!r}: {reason}", fix=FIX
        )
    return Assignment(region, engine, config)


def _value(value: Any) -> Value:
    return value if type(value) is str else typed(value, int)


def _engine(name: str) -> Engine:
    try:
        return engine_named(name)
    except KeyError as e:
        raise cudnnGraphNotSupportedError(
            f"the plan needs engine {name!r}, which is not installed here", fix="install the package that has it"
        ) from e


def _check_order(regions: Sequence[Region], graph: Graph) -> None:
    """Each tensor is written once, before it is read, and every output is written. Raises PlanFileError."""
    written: set[int] = set()
    for region in regions:
        for operand in region.operands:
            early = operand.uid in graph.producers and operand.uid not in written
            if not operand.role.is_written and early:
                raise PlanFileError(_wrong(graph, operand.uid, "reads", "before it is there"), fix=FIX)
        for operand in region.operands:
            if operand.role is Role.OUT and operand.uid in written:
                raise PlanFileError(_wrong(graph, operand.uid, "writes", "again"), fix=FIX)
        written |= {o.uid for o in region.operands if o.role.is_written}
    for uid in graph.output_uids:
        if uid not in written:
            raise PlanFileError(f"no launch of the plan file writes tensor {graph.tensors[uid].name!r}", fix=FIX)


def _wrong(graph: Graph, uid: int, what: str, when: str) -> str:
    return f"a region of the plan file {what} tensor {graph.tensors[uid].name!r} {when}"
