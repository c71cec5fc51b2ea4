"""The command `fuseplan tour`: runs the sections, then a table of what they found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fuseplan.cli.tour import kernels, lifecycle
from fuseplan.cli.tour.stage import Outcome, Stage, TourError, load_torch

Section = Callable[[Stage], Outcome]
SECTIONS: tuple[tuple[str, Section], ...] = (
    ("environment", lifecycle.environment),
    ("convolution + bias + relu", kernels.conv_fusion),
    ("autotuning", kernels.autotuning),
    ("matmul, scale, bias, gelu, amax", kernels.matmul_epilogue),
    ("causal attention", kernels.causal_attention),
    ("save, load, run by uid", lifecycle.save_and_load),
    ("dynamic shapes", lifecycle.dynamic_shapes),
    ("repeated calls", lifecycle.repeated_calls),
)


class Size(str, Enum):
    """Sizes of the problems."""

    TINY = "tiny"
    SMALL = "small"
    TUTORIAL = "tutorial"


class Place(str, Enum):
    """Where the tour runs."""

    CPU = "cpu"
    CUDA = "cuda"


def tour(
    size: Annotated[Size | None, typer.Option(help="Default: small on a CPU, tutorial on a GPU.")] = None,
    device: Annotated[Place | None, typer.Option(help="Default: a GPU that PyTorch sees, else the CPU.")] = None,
) -> None:
    """Run, check and time eight short programs; exits with 1 if one of them fails."""
    console, torch = Console(), load_torch()
    has_cuda = torch is not None and torch.cuda.is_available()
    place = device or (Place.CUDA if has_cuda else Place.CPU)
    if place is Place.CUDA and not has_cuda:
        console.print("fuseplan tour: --device cuda needs PyTorch with a CUDA device; use --device cpu")
        raise typer.Exit(2)
    chosen = size or (Size.TUTORIAL if place is Place.CUDA else Size.SMALL)
    stage = Stage(place.value, chosen.value, console, torch)
    start = time.perf_counter()
    results = [_run_section(stage, number, *section) for number, section in enumerate(SECTIONS, 1)]
    console.print(_summary(results))
    failed = [name for name, found in results if found is None]
    console.print(f"{len(results) - len(failed)} of {len(results)} sections in {time.perf_counter() - start:.0f} s")
    if failed:
        console.print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


def _run_section(stage: Stage, number: int, name: str, section: Section) -> tuple[str, Outcome | None]:
    """Run one section; a failure is shown, and the next section still runs."""
    stage.console.rule(f"{number}. {name}", align="left")
    try:
        return name, section(stage)
    except TourError as wrong:
        stage.say("FAILED", str(wrong))
    except Exception as error:
        stage.say("FAILED", f"{type(error).__name__}: {error}")
        traceback.print_exc()
    return name, None


def _summary(results: list[tuple[str, Outcome | None]]) -> Table:
    table = Table(title="summary")
    for column in ("section", "error", "ms", "PyTorch ms", "note"):
        table.add_column(column, justify="right" if column in ("error", "ms", "PyTorch ms") else "left")
    for number, (name, found) in enumerate(results, 1):
        if found is None:
            table.add_row(f"{number}. {name}", "", "", "", "FAILED")
            continue
        error = "" if found.error is None else f"{found.error:.1e}"
        times = ("" if t is None else f"{t:.3f}" for t in (found.ms, found.torch_ms))
        table.add_row(f"{number}. {name}", error, *times, found.note)
    return table
