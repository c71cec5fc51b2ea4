"""`fuseplan tour`: runs the programs beside this file, then shows a table of what they found."""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from fuseplan.cli.tour import (
    attention,
    autotuning,
    convolution,
    dynamic_shapes,
    environment,
    matmul_epilogue,
    repeated_calls,
    saving,
)
from fuseplan.cli.tour.setting import Outcome, Setting, TourError

Program = Callable[[Setting], Outcome]
PROGRAMS: tuple[tuple[str, Program], ...] = (
    ("environment", environment.run),
    ("convolution + bias + relu", convolution.run),
    ("autotuning", autotuning.run),
    ("matmul, scale, bias, gelu, amax", matmul_epilogue.run),
    ("causal attention", attention.run),
    ("save, load, run by uid", saving.run),
    ("dynamic shapes", dynamic_shapes.run),
    ("repeated calls", repeated_calls.run),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=("tiny", "small", "tutorial"),
                        help="default: small on a CPU, tutorial on a GPU")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU that PyTorch sees, else the CPU")


def tour(args: argparse.Namespace) -> int:
    """Run, check and time eight short programs; exits with 1 if one of them fails."""
    console, torch = Console(), load_torch()
    has_cuda = torch is not None and torch.cuda.is_available()
    device = args.device or ("cuda" if has_cuda else "cpu")
    if device == "cuda" and not has_cuda:
        console.print("fuseplan tour: --device cuda needs PyTorch with a CUDA device; use --device cpu")
        return 2
    at = Setting(device, args.size or ("tutorial" if device == "cuda" else "small"), console, torch)
    start = time.perf_counter()
    results = [(name, _run(at, f"{number}. {name}", program)) for number, (name, program) in enumerate(PROGRAMS, 1)]
    console.print(_summary(results))
    failed = [name for name, found in results if found is None]
    console.print(f"{len(results) - len(failed)} of {len(results)} sections in {time.perf_counter() - start:.0f} s")
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def load_torch() -> Any:
    """PyTorch, None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def _run(at: Setting, title: str, program: Program) -> Outcome | None:
    """Run one program; a failure is shown, and the next one still runs."""
    at.console.rule(f"{title}  [dim]{program.__module__}[/dim]", align="left")
    try:
        return program(at)
    except TourError as wrong:
        at.say("FAILED", str(wrong))
    except Exception as error:
        at.say("FAILED", f"{type(error).__name__}: {error}")
        traceback.print_exc()
    return None


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
