"""The tables: ``python -m benchmarks cpu`` or ``python -m benchmarks gpu``, all rows or those with a name.

    python -m benchmarks cpu [ROW] [--threads 2] [--out FILE.json] [--without-compile] [--rounds 9]
    python -m benchmarks gpu [ROW] [--out FILE.json]

A ratio is the time of a peer over that of fuseplan's default or tuned plan: above 1, fuseplan is faster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from fuseplan.runtime.device import cpu_device

SHOWN = ("row", "type", "default", "tuned", "limit_us", "eager/default", "eager/tuned", "compile/default",
         "compile/tuned", "of limit, default", "of limit, tuned")  # fmt: skip


def show(line: dict[str, Any]) -> None:
    """One line of the table as it is found."""
    if "error" in line or line["row"].startswith(("host", "five")):
        print("  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
        return
    cells = [f"{line['row']:<32}", f"{line['type']:<8}"]
    cells += [f"{line[k]:>10}" if k in line else " " * 10 for k in SHOWN[2:]]
    print(" ".join(cells), flush=True)


def cpu_rows(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    from benchmarks import cpu
    from benchmarks.planning import measure_tour

    cpu.pin(args.threads)
    yield from cpu.measure(args.row, args.threads, is_compiled=not args.without_compile, num_rounds=args.rounds)
    if args.row in "host cost, 8x8 matmul":
        yield from cpu.host_rows()
    if args.row in "five steps":
        yield {**measure_tour("matmul"), "row": "five steps, the tour's matmul", "type": "float32"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("row", nargs="?", default="", help="part of a row's name; all rows without it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-compile", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    if args.device == "gpu":
        raise SystemExit("python -m benchmarks.skeleton_gpu is the table of the GPU at the moment")
    print(" ".join([f"{'row':<32}", f"{'type':<8}", *(f"{name[:10]:>10}" for name in SHOWN[2:])]), flush=True)
    lines = []
    for line in cpu_rows(args):
        show(line)
        lines.append(line)
    facts = {
        "device": f"{cpu_device().name}, {cpu_device().arch}, {args.threads} threads",
        "python": platform.python_version(), "torch": torch.__version__, "fuseplan": cudnn.__version__,
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]), "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
