"""Matrix products of the triton engine on a GPU: the default plan and many configs beside PyTorch, all in turn.

    python -m benchmarks.gpu_gemm [ROW] --out FOLDER [--listed 3] [--without-odd]

Kernels are compiled side by side first. Results are checked before anything is timed (outputs are poisoned), at odd
extents as well. Writes gpu_gemm.json into the folder; the last lines are the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import works
from benchmarks.protocol import MAX_ERROR, compare, relative_error
from benchmarks.works import Work
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.products.tiles import KNOBS
from fuseplan.runtime.device import cuda_devices

BF16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
NAMES = (*KNOBS[:10], "GROUP_M", "FLOAT_PARTS", "SHARED_TAIL", "SPECIALISTS")
Tile = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A work and configs that are timed beside the listed ones: values of NAMES, whose last four may be left out."""

    name: str
    make: Callable[[], Work]
    tiles: Sequence[Tile] = ()
    iters: int = 10


def product(
    m: int, k: int, n: int, *tiles: Tile, dtype: torch.dtype = BF16, turned: bool = True, iters: int = 10
) -> Row:
    """A bare product."""
    name = f"{m}x{k}x{n} {'NT' if turned else 'NN'} {works.KINDS[dtype].lower()}"
    return Row(name, lambda: works.matmul(dtype, m, k, n, turned=turned), tiles, iters)


WIDE, WIDE_HALVES = (128, 256, 64, 8, 3, 1, 0, 1, 1, 1), (128, 256, 64, 8, 4, 2, 0, 1, 1, 1)
SQUARE = (128, 128, 64, 8, 4, 1, 0, 1, 1, 1)


def special(stages: int, parts: int, group: int = 8) -> Tile:
    return (128, 256, 64, 4, stages, parts, 0, 1, 1, 1, group, 0, 0, 1)


def in_turn(stages: int, parts: int, group: int = 8) -> Tile:
    return (128, 128, 64, 4, stages, parts, 0, 1, 1, 1, group, 0, 0, 2)


def swapped(m: int, n: int, k: int, stages: int, parts: int = 1, warps: int = 4) -> Tile:
    return (m, n, k, warps, stages, 1, 1, 1, 0, parts)


def rows() -> Iterator[Row]:
    two = (128, 128, 64, 4, 3, 2, 0, 1, 0, 1)
    large = (WIDE, WIDE_HALVES, SQUARE, two, special(4, 2), special(4, 2, 16), special(3, 1), in_turn(6, 2))
    yield product(8192, 5120, 17408, *large, iters=4)
    yield product(4096, 4096, 4096, *large)
    yield product(4096, 4096, 4096, WIDE, special(4, 2), special(4, 2, 16), turned=False)
    shared = [(128, 256, 64, 8, s, 2, 0, 1, 1, 1, g, 0, 1) for s, g in ((3, 8), (4, 8), (4, 16), (4, 4))]
    yield product(2048, 6144, 7168, *large, *shared)
    yield product(512, 33792, 7168, *large, *shared)
    small = [(64, 64, 128, 4, 6, 1, 0, 1, 0, 1), (64, 64, 256, 4, 3, 1, 0, 1, 0, 1), (64, 64, 128, 4, 6, 1, 0, 1, 0, 2)]
    yield product(128, 3072, 3584, *small, swapped(64, 64, 128, 5), swapped(64, 64, 256, 3), swapped(32, 64, 128, 6, 2))
    shapes = ((64, 128, 6, 32), (128, 128, 4, 64), (128, 64, 8, 64), (256, 64, 5, 64), (256, 64, 5, 128))
    long = [(64, n, k, 4, s, 1, 0, 1, 0, p, 8, 0, joined) for n, k, s, p in shapes for joined in (0, 1)]
    yield product(64, 65536, 256, *long, swapped(64, 64, 128, 5, 32), swapped(64, 128, 128, 4, 64))
    shapes = ((64, 256, 4, 1), (64, 128, 8, 1), (64, 256, 5, 1), (64, 512, 2, 1), (128, 128, 5, 2), (64, 128, 4, 2))
    thin = [swapped(16, *shape) for shape in shapes]
    yield product(16, 8192, 8192, *thin)
    yield product(1, 8192, 8192, *thin)
    halves = [(128, 256, 64, 8, s, 2, 0, 1, p, 1) for s, p in ((3, 1), (3, 0), (4, 0))]
    squares = [(128, 128, 64, w, s, h, 0, 1, p, 1) for w, s, h, p in ((8, 3, 1, 0), (4, 3, 2, 0), (4, 3, 1, 0))]
    turns = [in_turn(5, 2), in_turn(6, 4), in_turn(6, 4, 16)]
    yield Row("amax", lambda: works.matmul_amax(BF16), [*halves, *squares])
    yield Row(
        "bias gelu, two outputs", lambda: works.matmul_bias_gelu(BF16), [*halves, *squares, special(3, 2), *turns]
    )
    yield Row("bias gelu, short sums", lambda: works.matmul_bias_gelu(BF16, 8192, 4096, 1024), [*squares, *turns])
    cut = [(m, n, k, w, s, 1, 0, 0, 0, 1, 8, 1) for m, n, k, w, s in
           ((128, 128, 32, 8, 3), (128, 128, 64, 8, 2), (128, 128, 32, 8, 4), (128, 256, 32, 8, 3))]  # fmt: skip
    yield product(2048, 4096, 1024, *cut, (64, 64, 16, 4, 4, 1, 0, 0, 0, 1), dtype=FLOAT, turned=False)


def odd_rows() -> Iterator[Row]:
    """Extents that fill no tile, every way of computing them; checked, not timed."""
    ways = [
        (64, 64, 64, 4, 3, 1, 0, 1, 0, 1), (64, 64, 64, 4, 3, 2, 0, 1, 1, 1), (64, 64, 64, 4, 3, 1, 0, 1, 0, 4),
        (16, 64, 64, 4, 3, 1, 1, 1, 1, 1), (32, 64, 64, 4, 3, 1, 1, 1, 0, 2), (64, 64, 64, 4, 3, 1, 0, 0, 1, 2),
        (64, 64, 64, 4, 3, 1, 0, 1, 0, 2, 8, 0, 1),
    ]  # fmt: skip
    for m, k, n, turned in ((1000, 520, 1032, True), (300, 264, 776, False)):
        yield product(m, k, n, special(4, 2), special(3, 1), in_turn(6, 2), turned=turned)
        yield product(m, k, n, special(4, 2), turned=turned, dtype=HALF)
    tail = (128, 128, 64, 8, 3, 2, 0, 1, 1, 1, 8, 0, 1)
    yield product(1000, 8200, 2504, tail, turned=False)
    yield product(1000, 36000, 1784, tail)
    for m, k, n, turned in ((200, 328, 136, True), (131, 512, 72, False), (1, 264, 520, True), (1000, 2056, 8, False)):
        yield product(m, k, n, *ways, turned=turned)
        yield product(m, k, n, *ways, turned=turned, dtype=HALF)
    yield product(67, 129, 33)
    yield Row("odd amax", lambda: works.matmul_amax(BF16, 3, 130, 264, 72), ways)
    yield Row("odd bias gelu", lambda: works.matmul_bias_gelu(HALF, 130, 264, 520), ways)


def knobs_of(tile: Tile) -> dict[str, int]:
    """Knobs of a tile; GROUP_M is 8, the others are 0 where they are left out."""
    return dict(zip(NAMES, (*tile, *(8, 0, 0, 0)[len(tile) - 10 :]), strict=True))


class Built:
    """A row's work with one graph a plan: the listed plans first, then those of the row's tiles."""

    def __init__(self, row: Row, handle: Any, num_listed: int) -> None:
        self.row, self.work, self.handle = row, row.make(), handle
        self.made: dict[str, tuple[Any, dict[Any, Any], torch.Tensor]] = {}
        first = self.work.build(handle)
        self.made["default"] = first
        listed = [e for e in first[0].plans if e.engine_name == "triton"]
        wanted = [e.knobs for e in listed[1:num_listed]] + [knobs_of(t) for t in row.tiles]
        for knobs in {str(sorted(k.items())): k for k in wanted}.values():
            graph, pack, out = self.work.build(handle)
            label = ",".join(str(knobs.get(name)) for name in NAMES)
            try:
                graph.create_execution_plan(ENGINE.engine_ids[0], knobs)
            except Exception as problem:  # a tile that does not fit this work
                print(f"{row.name}: {label}: {str(problem)[:200]}", flush=True)
                continue
            self.made[label] = (graph, pack, out)

    def entry(self, label: str) -> Any:
        plans = self.made[label][0].plans
        return plans[0] if label == "default" else plans[-1]

    def compilations(self) -> list[Any]:
        found = [self.entry(label).assignments for label in self.made]
        return [(a.region, a.config) for made in found for a in made if a.engine.name == "triton"]

    def calls(self) -> dict[str, Callable[[], torch.Tensor]]:
        """Each plan as a call; those that cannot be built are printed and left out."""
        found = {}
        for label, (graph, pack, out) in self.made.items():
            try:
                index = 0 if label == "default" else len(graph.plans) - 1
                graph.build_plan_at_index(index)
                found[label] = self._call(graph, pack, out)
            except Exception as problem:  # its row must not lose the others
                print(f"{self.row.name}: {label}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        return found

    def _call(self, graph: Any, pack: dict[Any, Any], out: torch.Tensor) -> Callable[[], torch.Tensor]:
        workspace = torch.full((max(graph.get_workspace_size(), 1),), 255, dtype=torch.uint8, device="cuda")

        def run() -> torch.Tensor:
            cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
            graph.execute(pack, workspace, self.handle)
            return out

        return run


def check(built: Built) -> list[dict[str, Any]]:
    """Errors of every plan of a row, run twice."""
    reference, lines = built.work.reference(), []
    for label, call in built.calls().items():
        call()
        error = relative_error(call(), reference)
        if not error < MAX_ERROR:
            print(f"WRONG {built.row.name}: {label}: relative error {error:.1e}", flush=True)
        lines.append({"work": built.row.name, "peer": label, "rel_err": error})
    return lines


def measure(built: Built) -> list[dict[str, Any]]:
    """Times of every plan of a row beside PyTorch."""
    calls = {**built.calls(), "eager": built.work.eager}
    lines = compare(built.row.name, calls, built.work.reference(), iters=built.row.iters, rounds=11)
    eager = next((r["us"] for r in lines if r["peer"] == "eager" and "us" in r), None)
    for r in lines:
        if eager and "us" in r:
            r["eager/this"] = round(eager / r["us"], 3)
    entry = built.entry("default")
    for r in lines:
        if r["peer"] == "default":
            r["plan"], r["estimate"] = entry.name, round(entry.estimate_us, 2)
    return lines


def go_on(args: argparse.Namespace, first: int, problem: Exception) -> None:
    """Start again behind a row whose failure may have broken the device's context."""
    print(f"stopped before row {first}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
    row = [args.row] if args.row else []
    options = ["--out", str(args.out), "--listed", str(args.listed), "--without-odd", "--first", str(first)]
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu_gemm", *row, *options])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", nargs="?", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--listed", type=int, default=3, help="plans of the list that are timed")
    parser.add_argument("--without-odd", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="rows that an earlier run has measured")
    args = parser.parse_args()
    handle, start, found = cudnn.create_handle(), time.monotonic(), args.out / "gpu_gemm.json"
    args.out.mkdir(parents=True, exist_ok=True)
    timed = [Built(r, handle, args.listed) for r in rows() if args.row in r.name]
    checked = [] if args.without_odd else [Built(r, handle, 2) for r in odd_rows() if args.row in r.name]
    work = [c for b in (*timed, *checked) for c in b.compilations()]
    ENGINE.compile_ahead(work, cuda_devices()[0], start + 150)
    print(f"{len(work)} plans compiled after {time.monotonic() - start:.0f} s", flush=True)
    lines: list[dict[str, Any]] = json.loads(found.read_text()) if args.first else []
    done = 0
    try:
        lines += [line for b in checked for line in check(b)]
        if checked:
            wrong = sum(not r["rel_err"] < MAX_ERROR for r in lines)
            print(f"{len(lines)} plans of odd extents checked, {wrong} wrong", flush=True)
        for done, b in enumerate(timed[args.first :], args.first + 1):
            lines += measure(b)
            found.write_text(json.dumps(lines, indent=1))
            print(f"row {done}, {b.row.name}, after {time.monotonic() - start:.0f} s", flush=True)
    except Exception as problem:
        found.write_text(json.dumps(lines, indent=1))
        go_on(args, done, problem)
    print(f"done after {time.monotonic() - start:.0f} s")
    for r in lines:
        if "us" in r:
            print(f"{r['work']:<28} {r['peer']:<36} {r['us']:>9.2f} us  eager/this {r.get('eager/this', 0):>6.3f}  "
                  f"err {r['rel_err']:.0e} {r.get('plan', '')} {r.get('estimate', '')}")  # fmt: skip
        elif "error" in r:
            print(f"{r['work']:<28} {r['peer']:<36} {r['error'][:150]}")


if __name__ == "__main__":
    main()
