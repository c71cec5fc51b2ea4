"""`fuseplan explain`: regions, ranking, refusals and keys of a graph or a saved plan in a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import fuseplan
from fuseplan.api import saving
from fuseplan.codegen.text import print_graph
from fuseplan.errors import FuseplanError, PlanFileError
from fuseplan.ir.graph import Graph
from fuseplan.plan import graph_json
from fuseplan.plan.explain import explain_passes
from fuseplan.plan.plan_file import is_plan_file, read_manifest
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import device_of

_ACCEPTED = "pass a file with repr(graph), or with the bytes of graph.serialize()"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a file with repr(graph), or with the bytes of graph.serialize()")
    parser.add_argument("--device", default="cpu", help='"cpu", "cuda" or "cuda:1"; default: cpu')
    parser.add_argument("--passes", action="store_true", help="also print each engine's regions after each pass")
    parser.add_argument("--source", action="store_true", help="also print the source of the first plan's kernels")


def explain(args: argparse.Namespace) -> int:
    """Show what is fused and why, the ranking of plans, refusals with reasons, and keys."""
    if not args.file.is_file():
        print(f"fuseplan explain: no file {str(args.file)!r}", file=sys.stderr)
        return 2
    try:
        print("\n".join(_explain(args)))
    except FuseplanError as error:
        print(f"fuseplan explain: {args.file}: {error}", file=sys.stderr)
        return 1
    return 0


def _explain(args: argparse.Namespace) -> list[str]:
    data = args.file.read_bytes()
    saved: list[str] = []
    if is_plan_file(data):
        manifest, files = read_manifest(data)
        graph = graph_json.graph_from_json(manifest["graph"])
        saved = [*_saved(manifest, files), ""]
    else:
        graph = _graph_of(data.decode("utf-8", errors="replace"))
    device = device_of(args.device)
    plans = make_plans(graph, device, ("A", "FALLBACK"))
    passes = ["", *explain_passes(graph, device)] if args.passes else []
    source = ["", plans.build(0).source] if args.source else []
    return [*saved, print_graph(graph), "", plans.explain(), *passes, *source]


def _graph_of(text: str) -> Graph:
    """The graph of `repr(graph)`, which is what the user declared, or of the IR's own JSON. Raises FuseplanError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PlanFileError(f"neither JSON nor a saved plan: {problem}", fix=_ACCEPTED) from problem
    form = data.get("format") if isinstance(data, dict) else None
    if form not in (saving.FORMAT, graph_json.FORMAT):
        raise PlanFileError("this is not a fuseplan graph", fix=_ACCEPTED)
    if form == graph_json.FORMAT:
        return graph_json.graph_from_json(data)
    declared = fuseplan.pygraph(device="cpu")
    declared.deserialize(text)
    return declared._draft.validated()


def _saved(manifest: dict[str, Any], files: dict[str, bytes]) -> list[str]:
    """What the plan file itself holds."""
    made_for, plan = manifest["device"], manifest["plan"]
    lines = [
        f"saved plan {plan['name']!r}, fuseplan {manifest['release']}, for {made_for['kind']} ({made_for['arch']})"
    ]
    lines.append(f"canonical key {manifest['canonical_key'][:16]}, workspace {manifest['workspace_bytes']} bytes")
    for k, launch in enumerate(manifest["launches"]):
        what = launch.get("symbol") or launch.get("engine", "")
        lines.append(f"  launch {k}: {launch['kind']} {launch['label'] or what}")
    lines += [f"  file {name}: {len(data)} bytes, checksum verified" for name, data in files.items()]
    return lines
