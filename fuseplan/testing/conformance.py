"""Claims of engines about graphs, at three rungs: accepted, builds, correct. For engines in and out of this tree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fuseplan.engines.registry import engine_named
from fuseplan.errors import FuseplanError
from fuseplan.ir.graph import Graph
from fuseplan.plan.assign import Assigner
from fuseplan.plan.graph_json import loads
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.run import build_on, judge_engines

RUNGS = ("refused", "accepted", "builds", "correct")


@dataclass(frozen=True)
class Claim:
    """That an engine reaches a rung for a graph, alone (no region given to another engine) or with help.

    Args:
        arch: a GPU by its architecture (``sm_90``), which need not be there: only whether it is accepted is asked.
            Empty: this machine's CPU
    """

    graph: str
    engine: str
    rung: str
    is_alone: bool = True
    arch: str = ""

    @property
    def device(self) -> Device:
        return Device("cuda", arch=self.arch) if self.arch else cpu_device()


def read_claims(folder: Path) -> list[Claim]:
    """The claims in ``claims.json`` of a folder of graphs.

    Raises:
        ValueError: an unknown rung, or a graph without a file
    """
    claims = [Claim(**c) for c in json.loads((folder / "claims.json").read_text())]
    for c in claims:
        if c.rung not in RUNGS or not (folder / f"{c.graph}.json").exists():
            raise ValueError(f"claim {c}: unknown rung or no file {c.graph}.json")
    return claims


def read_graph(folder: Path, name: str) -> Graph:
    """The graph ``<name>.json``."""
    return loads((folder / f"{name}.json").read_text())


def reached_rung(
    graph: Graph, engine: str, *, is_alone: bool = True, device: Device | None = None, seed: int = 0
) -> str:
    """The highest rung that an engine reaches for a graph; on a GPU no more is asked than whether it is accepted."""
    device = device or cpu_device()
    chosen = engine_named(engine)
    try:
        assignments = Assigner(graph, device).assign(chosen)
    except FuseplanError:
        return "refused"
    own = [a for a in assignments if a.engine is chosen]
    if not own or (is_alone and len(own) < len(assignments)):
        return "refused"
    if device.kind != "cpu":
        return "accepted"
    try:
        build_on(graph, engine, device)
    except FuseplanError:
        return "accepted"
    return "correct" if judge_engines(graph, [engine], seed)[engine].is_right else "builds"
