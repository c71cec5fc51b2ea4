"""What was fused, why, and what was refused, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseplan.ir.serialize import canonical_key
from fuseplan.plan.assign import Assignment

if TYPE_CHECKING:
    from fuseplan.plan.planner import PlanList

MAX_REGIONS = 24


def explain_plans(plans: PlanList) -> str:
    """Ranking, refusals, regions of each listed engine, and keys."""
    graph = plans.graph
    lines = [f"graph {graph.name!r} on {plans.device} ({plans.device.arch}): {len(graph.nodes)} nodes"]
    lines.append(f"canonical key {canonical_key(graph)[:16]}")
    general = [e.engine_name for e in plans.entries[1:] if e.is_general]
    last = f"; {general[0]}, which takes any graph, comes last" if general else ""
    lines.append(f"ranking (estimates, nothing was timed{last}):")
    for k, e in enumerate(plans.entries):
        barred = f"  barred: {e.barred}" if e.barred else ""
        lines.append(f"  {k:>2} {e.name:<48} {e.estimate_us:>10.1f} us, {len(e.assignments)} region(s){barred}")
    lines += ["refusals:", *(f"  {r}" for r in plans.refusals)] if plans.refusals else ["refusals: none"]
    seen: set[str] = set()
    for e in plans.entries:
        if e.engine_name not in seen:
            seen.add(e.engine_name)
            lines.append(f"regions of {e.engine_name}:")
            lines.extend(explain_regions(e.assignments))
    return "\n".join(lines)


def explain_regions(assignments: Sequence[Assignment]) -> list[str]:
    """One line per region with the reason why it starts there, and the refusals on the way."""
    lines = []
    for k, a in enumerate(assignments[:MAX_REGIONS]):
        nodes = a.region.graph.nodes
        names = [f"{n.name}({n.op})" for n in nodes]
        shown = ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
        key = a.region.key[:12] if a.region.values else "whole graph"
        lines.append(f"  region {k} [{a.engine.name}] {len(nodes)} node(s): {shown}  key {key}")
        if a.starts:
            lines.append(f"    starts here because: {a.starts}")
        if a.ends:
            lines.append(f"    ends here because: {a.ends}")
        lines.extend(f"    refused by {note}" for note in a.notes)
        if a.answer:
            lines.append(f"    the store's answer: {a.answer}")
    if len(assignments) > MAX_REGIONS:
        lines.append(f"  ... and {len(assignments) - MAX_REGIONS} more regions")
    return lines
