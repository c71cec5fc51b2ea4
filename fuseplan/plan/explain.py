"""What was fused, why, and what was refused, as text."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.engines.registry import engines_for
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.keys import canonical_key
from fuseplan.ir.region import Region
from fuseplan.lowering.pipeline import Piece
from fuseplan.plan.assign import Assigner, Assignment
from fuseplan.plan.rank import Entry
from fuseplan.runtime.device import Device

MAX_REGIONS = 24


def explain_plans(graph: Graph, device: Device, entries: Sequence[Entry], refusals: Sequence[str]) -> str:
    """Ranking, refusals, regions of each listed engine, and keys."""
    lines = [f"graph {graph.name!r} on {device} ({device.arch}): {len(graph.nodes)} nodes"]
    lines.append(f"canonical key {canonical_key(graph)[:16]}")
    general = [e.engine_name for e in entries[1:] if e.is_general]
    last = f"; {general[0]}, which takes any graph, comes last" if general else ""
    lines.append(f"ranking (estimates, nothing was timed{last}):")
    for k, e in enumerate(entries):
        barred = f"  barred: {e.barred}" if e.barred else ""
        lines.append(f"  {k:>2} {e.name:<48} {e.estimate_us:>10.1f} us, {len(e.assignments)} region(s){barred}")
    lines += ["refusals:", *(f"  {r}" for r in refusals)] if refusals else ["refusals: none"]
    seen: set[str] = set()
    for e in entries:
        if e.engine_name not in seen:
            seen.add(e.engine_name)
            lines.append(f"regions of {e.engine_name}:")
            lines.extend(explain_regions(e.assignments, device))
    return "\n".join(lines)


def explain_regions(assignments: Sequence[Assignment], device: Device) -> list[str]:
    """One line per region with its estimate; why it starts and ends there; the refusals on the way."""
    lines = []
    for k, a in enumerate(assignments[:MAX_REGIONS]):
        us = a.engine.estimate_us(a.region, device, a.config)
        key = f"key {a.region.key[:12]}" if a.region.values else "by graph"
        lines.append(f"  region {k} [{a.engine.name}] {_nodes(a.region)}  {key}, {us:.1f} us")
        lines += _boundaries(a.starts, a.ends)
        lines.extend(f"    refused by {note}" for note in a.notes)
        if a.answer:
            lines.append(f"    the store's answer: {a.answer}")
    return [*lines, *_rest(assignments)]


def explain_passes(graph: Graph, device: Device) -> list[str]:
    """For each engine the regions after each named pass, and what they were assigned to."""
    lines: list[str] = []

    def trace(name: str, pieces: Sequence[Piece]) -> None:
        lines.append(f"  after {name}: {len(pieces)} region(s)")
        for k, piece in enumerate(pieces[:MAX_REGIONS]):
            lines.append(f"    region {k} {_nodes(piece.region)}")
            lines.extend(f"  {line}" for line in _boundaries(piece.starts, piece.ends))
            if piece.refused:
                lines.append(f"      refused by {piece.refused}")
        lines.extend(f"  {line}" for line in _rest(pieces))

    assigner = Assigner(graph, device)
    for engine in engines_for(device.kind):
        lines.append(f"passes of {engine.name}:")
        try:
            assignments = assigner.assign(engine, trace)
        except cudnnGraphNotSupportedError as error:
            lines.append(f"  {error}")
            continue
        lines.append(f"  after assign: {', '.join(a.engine.name for a in assignments[:MAX_REGIONS])}")
    return lines


def _nodes(region: Region) -> str:
    names = [f"{n.name}({n.op})" for n in region.graph.nodes]
    shown = ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
    return f"{len(names)} node(s): {shown}"


def _boundaries(starts: str, ends: str) -> list[str]:
    named = (("starts", starts), ("ends", ends))
    return [f"    {verb} here because: {reason}" for verb, reason in named if reason]


def _rest(regions: Sequence[object]) -> list[str]:
    return [f"  ... and {len(regions) - MAX_REGIONS} more regions"] if len(regions) > MAX_REGIONS else []
