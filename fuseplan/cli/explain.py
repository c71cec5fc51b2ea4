"""`fuseplan explain`: regions, ranking, refusals and keys of a graph or a saved plan in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fuseplan.errors import FuseplanError
from fuseplan.ir import serialize
from fuseplan.ir.text import print_graph
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import device_of


def explain(
    file: Annotated[Path, typer.Argument(help="A graph as JSON, or a saved plan.")],
    device: Annotated[str, typer.Option(help='"cpu", "cuda" or "cuda:1".')] = "cpu",
    source: Annotated[
        bool, typer.Option("--source", help="Also print the source of the first plan's kernels.")
    ] = False,
) -> None:
    """Show what is fused and why, the ranking of plans, refusals with reasons, and keys."""
    if not file.is_file():
        typer.echo(f"fuseplan explain: no file {str(file)!r}", err=True)
        raise typer.Exit(2)
    try:
        typer.echo(_explain(file.read_bytes(), device, source))
    except FuseplanError as error:
        typer.echo(f"fuseplan explain: {file}: {error}", err=True)
        raise typer.Exit(1) from None


def _explain(data: bytes, device: str, source: bool) -> str:
    graph = serialize.loads(data.decode("utf-8", errors="replace"))
    plans = make_plans(graph, device_of(device), ("A", "FALLBACK"))
    lines = [print_graph(graph), "", plans.explain()]
    if source:
        lines += ["", plans.build(0).source]
    return "\n".join(lines)
