"""The tables: ``python -m benchmarks cpu`` or ``python -m benchmarks gpu``, all rows or those with a name.

    python -m benchmarks cpu [ROW] [--threads 2] [--tier x86-64-v3] [--out FILE.json] [--without-compile] [--rounds 9]
    python -m benchmarks gpu [ROW] [--out FILE.json] [--without-compile] [--budget 15]

A ratio is the time of a peer over that of fuseplan's default or tuned plan: above 1, fuseplan is faster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from fuseplan.runtime.device import cpu_device

LIMITS_OF_TORCH = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
COMMON = ("row", "type", "default", "tuned")
SHOWN = {
    "cpu": (*COMMON, "limit_us", "eager/default", "eager/tuned", "compile/default", "compile/tuned",
            "of limit, default", "of limit, tuned"),
    "gpu": (*COMMON, "eager", "eager/default", "eager/tuned", "torch.compile/default", "torch.compile/tuned",
            "frontend tuned/default", "frontend tuned/tuned", "of limit, default", "of limit, tuned"),
}  # fmt: skip


def show(line: dict[str, Any], columns: Sequence[str]) -> None:
    """One line of the table as it is found."""
    if "error" in line or line["row"].startswith(("host", "five")):
        print("  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
        return
    cells = [f"{line['row']:<32}", f"{line['type']:<8}"]
    cells += [f"{line[k]!s:>10.10}" if k in line else " " * 10 for k in columns[2:]]
    print(" ".join(cells), flush=True)


def _command(arguments: Sequence[str]) -> str:
    """What was typed, without the place of the result."""
    kept = list(arguments)
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return " ".join(["python -m benchmarks", *kept])


def _short(name: str) -> str:
    return (
        name.replace("torch.", "")
        .replace("frontend tuned", "fe")
        .replace("default", "def")
        .replace("of limit", "lim")[:10]
    )


def cpu_rows(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    from benchmarks import cpu
    from benchmarks.planning import measure_tour

    cpu.pin(args.threads)
    yield from cpu.measure(args.row, args.threads, is_compiled=not args.without_compile, num_rounds=args.rounds)
    if args.row in "host cost, 8x8 matmul":
        yield from cpu.host_rows()
    if args.row in "five steps":
        yield {**measure_tour("matmul"), "row": "five steps, the tour's matmul", "type": "float32"}


def gpu_rows(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    from benchmarks import gpu

    yield from gpu.measure(args.row, is_compiled=not args.without_compile, budget_s=args.budget)
    if args.row in "host cost, 256x256x256 matmul":
        yield from gpu.host_rows()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("row", nargs="?", default="", help="part of a row's name; all rows without it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tier", default="", help="plan and compile as on a CPU of a lower tier, such as x86-64-v3")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of tuning for each row, on a GPU")
    parser.add_argument("--without-compile", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    if args.tier:
        from benchmarks import cpu

        cpu.pretend(args.tier)
    columns = SHOWN[args.device]
    print(" ".join([f"{'row':<32}", f"{'type':<8}", *(f"{_short(name):>10}" for name in columns[2:])]), flush=True)
    on_cpu = f"{cpu_device().name}, {cpu_device().arch}, {args.threads} threads"
    facts = {
        "device": on_cpu if args.device == "cpu" else torch.cuda.get_device_name(),
        "limits of PyTorch": ", ".join(f"{k}={v}" for k, v in os.environ.items() if k in LIMITS_OF_TORCH) or None,
        "python": platform.python_version(), "torch": torch.__version__, "fuseplan": cudnn.__version__,
        "command": _command(sys.argv[1:]), "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    lines = []
    for line in cpu_rows(args) if args.device == "cpu" else gpu_rows(args):
        show(line, columns)
        lines.append(line)
        if args.out:  # what was measured stays if a later row fails
            args.out.write_text(json.dumps({**facts, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
