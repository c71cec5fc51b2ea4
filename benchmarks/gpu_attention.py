"""Attention of the triton engine on a GPU: default, tuned and listed plans beside PyTorch and NVIDIA's frontend.

    python -m benchmarks.gpu_attention [ROW] --out FOLDER [--listed 3] [--tune SECONDS] [--without-odd]

Kernels are compiled side by side first. At odd extents every plan is compared with float64, outputs and statistics,
which are poisoned before. Then all plans of a row are timed in turn, cool (rested before each) and hot (under load).
Writes gpu_attention.json (all times) and attention.json (a result file) into the folder; the last lines are the table.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import gpu
from benchmarks.attention import Shape, attention, exact
from benchmarks.gpu_rows import planned_only
from benchmarks.protocol import MAX_ERROR, compare, relative_error
from fuseplan.engines.triton.attention.special import KNOBS
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.runtime.device import cuda_devices

BF16, HALF = torch.bfloat16, torch.float16
Way = tuple[int, ...]  # stages, order, turns, half, hold, mixed
STATS_ERROR = 1e-3


def ways(stages: Sequence[int], orders: Sequence[int], *, is_cut: bool, is_mixed: bool = False) -> list[Way]:
    """Every way of the warps that load and multiply."""
    halves, mixed = (0, 1) if is_cut else (0,), (0, 1) if is_mixed else (0,)
    return list(itertools.product(stages, orders, (0, 1), halves, (0, 1), mixed))


def rows() -> Iterator[tuple[Shape, list[Way], int]]:
    """Shapes, ways that are timed beside the listed plans, and calls in a CUDA graph."""
    yield Shape(4, 16, 16, 1024, 1024, 64, 0), ways((3,), (32,), is_cut=True) + ways((3,), (8, 16), is_cut=True), 20
    yield Shape(2, 32, 32, 4096, 4096, 128, 0), ways((2,), (8,), is_cut=True), 4
    yield Shape(1, 32, 8, 8192, 8192, 128, 0), ways((2,), (8,), is_cut=True) + ways((2,), (4,), is_cut=False), 3
    yield Shape(2, 32, 32, 4096, 4096, 128), ways((2,), (1, 2, 8), is_cut=False), 3
    yield Shape(4, 16, 16, 4096, 4096, 64), ways((3,), (2, 8), is_cut=False, is_mixed=True), 4
    yield Shape(4, 16, 16, 4096, 4096, 64, 0), ways((3,), (8,), is_cut=True), 4
    yield Shape(1, 16, 16, 4096, 4096, 256, 0), ways((2,), (4, 8), is_cut=False), 4
    yield Shape(2, 32, 32, 4095, 4095, 128, 0, is_by_rows=True), ways((2,), (8,), is_cut=False), 4
    yield Shape(2, 32, 32, 4096, 4096, 128, 0, 1024), ways((2,), (8,), is_cut=False), 4
    yield Shape(2, 32, 8, 4096, 4096, 96, 0), ways((2,), (8,), is_cut=False), 4


def odd_rows() -> Iterator[tuple[Shape, torch.dtype]]:
    """Checked, not timed: with two configs each, from the list."""
    for length, width, dtype in itertools.product((1, 7, 333, 1025, 1152), (64, 128), (BF16, HALF)):
        for right, left in ((None, None), (0, None), (0, 100), (37, 200)):
            yield Shape(2, 4, 2, length, length, width, right, left, is_by_rows=length % 2 > 0), dtype
    for lengths in ((333, 1025), (1025, 333), (1, 2000), (128, 4096)):
        for width, right, left in ((64, 0, None), (128, 0, None), (128, None, None), (128, 0, 300), (256, 0, None)):
            for is_bottom in (False, True):
                yield Shape(1, 6, 3, *lengths, width, right, left, is_bottom), BF16
    for width in (40, 72, 96, 192, 256):
        yield Shape(2, 4, 4, 333, 333, width, 0), BF16
        yield Shape(40, 8, 8, 200, 700, width), HALF


class Built:
    """A shape's work with one graph a plan: the listed plans first, then those of the given ways."""

    def __init__(self, shape: Shape, dtype: torch.dtype, handle: Any, listed: int, given: Sequence[Way] = ()) -> None:
        self.shape, self.handle = shape, handle
        torch.manual_seed(0)
        self.work = attention(shape, dtype)
        self.made: dict[str, tuple[Any, dict[Any, Any], torch.Tensor]] = {}
        first = self.work.build(handle)
        self.made["default"] = first
        own = [e for e in first[0].plans if e.engine_name == "triton"]
        wanted = [e.knobs for e in own[1:listed]]
        special = next((e.knobs for e in own if e.knobs.get("SPECIALISTS")), None)
        if special is not None:
            wanted += [{**special, **dict(zip(KNOBS[4:], way, strict=True))} for way in given]
        for knobs in {str(sorted(k.items())): k for k in wanted}.values():
            graph, pack, out = self.work.build(handle)
            label = ",".join(str(knobs.get(name)) for name in KNOBS[2:])
            try:
                graph.create_execution_plan(ENGINE.engine_ids[0], knobs)
            except Exception as problem:  # a way that does not fit this shape
                print(f"{shape}: {label}: {str(problem)[:200]}", flush=True)
                continue
            self.made[label] = (graph, pack, out)

    def compilations(self) -> list[Any]:
        plans = [graph.plans[0 if label == "default" else -1] for label, (graph, _, _) in self.made.items()]
        return [(a.region, a.config) for p in plans for a in p.assignments if a.engine.name == "triton"]

    def calls(self) -> dict[str, Callable[[], torch.Tensor]]:
        """Each plan as a call; those that cannot be built are printed and left out."""
        found = {}
        for label, (graph, pack, out) in self.made.items():
            try:
                graph.check_support()
                graph.build_plan_at_index(0 if label == "default" else len(graph.plans) - 1)
                found[label] = gpu.bound(graph, pack, out, self.handle)
            except Exception as problem:  # its row must not lose the others
                print(f"{self.shape}: {label}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        return found

    def statistics(self, label: str) -> torch.Tensor:
        return next(t for t in self.made[label][1].values() if t.dtype is torch.float32)


def check(built: Built) -> list[dict[str, Any]]:
    """Errors of every plan, run twice on poisoned outputs."""
    pack = next(iter(built.made.values()))[1]
    q, k, v = list(pack.values())[:3]
    out, stats = exact(built.shape, q, k, v, built.shape.width**-0.5)
    finite, lines = torch.isfinite(stats), []
    for label, call in built.calls().items():
        call()
        got = call()
        torch.cuda.synchronize()
        found = built.statistics(label)
        error, of_stats = relative_error(got, out), (found - stats)[finite].abs().max().nan_to_num(9.0).item()
        if not bool((found[~finite] == stats[~finite]).all()):
            of_stats = 9.0
        is_wrong = not (error < MAX_ERROR and of_stats < STATS_ERROR)
        if is_wrong:
            print(f"WRONG {built.shape}: {label}: {error:.1e}, statistics {of_stats:.1e}", flush=True)
        line = {"work": str(built.shape), "peer": label, "rel_err": error, "stats_err": of_stats, "wrong": is_wrong}
        lines.append(line)
    return lines


def measure(built: Built, iters: int, tune_s: float) -> list[dict[str, Any]]:
    """Times of every plan of a row beside PyTorch and NVIDIA's frontend."""
    facts: dict[str, Any] = {}
    calls = built.calls()
    if tune_s > 0:
        graph, pack, out = built.work.build(built.handle)
        report = graph.autotune(pack, handle=built.handle, budget_s=tune_s)
        facts["tuned_plan"] = next((r.name for r in report.rows if r.index == report.best), "")
        calls["tuned"] = gpu.bound(graph, pack, out, built.handle)
    calls["eager"] = built.work.eager
    calls |= gpu.frontend(built.work, facts)  # none where it is not installed
    lines = compare(str(built.shape), calls, built.work.reference(), iters=iters, rounds=11, rest_s=0.04)
    times = {r["peer"]: r for r in lines if "us" in r}
    peer = times.get("frontend tuned", times.get("eager"))
    entry = built.made["default"][0].plans[0]
    for r in lines:
        if peer and "us" in r:
            r["peer/this"] = [round(peer[name] / r[name], 3) for name in ("cool_us", "us")]
        if r["peer"] == "default":
            r |= {"plan": entry.name, "estimate": round(entry.estimate_us, 2), **facts}
    return lines


def results(lines: list[dict[str, Any]], device: str, command: str, date: str) -> dict[str, Any]:
    """A result file: of each row the times and ratios of the default plan, under load and rested, and the best plan."""
    rows = []
    for work in dict.fromkeys(r["work"] for r in lines if "us" in r):
        times = {r["peer"]: r for r in lines if r["work"] == work and "us" in r}
        own = times["default"]
        best = min((r for n, r in times.items() if n not in ("eager", "frontend tuned")), key=lambda r: float(r["us"]))
        row = {"row": work, "type": "bf16", "default": own["us"], "default cool": own["cool_us"], "plan": own["plan"]}
        row |= {"best listed": best["us"], "best plan": best.get("plan", best["peer"])}
        for peer in ("eager", "frontend tuned"):
            if peer in times:
                row[f"{peer}/default"] = round(times[peer]["us"] / own["us"], 3)
                row[f"{peer}/default cool"] = round(times[peer]["cool_us"] / own["cool_us"], 3)
        rows.append(row)
    return {"device": device, "torch": torch.__version__, "command": command, "date": date, "rows": rows}


def show(lines: list[dict[str, Any]]) -> None:
    """The table: of each row the peers and the best plans."""
    for work in dict.fromkeys(r["work"] for r in lines if "us" in r):
        own = sorted((r for r in lines if r["work"] == work and "us" in r), key=lambda r: float(r["us"]))
        named = [r for r in own if r["peer"] in ("default", "tuned", "eager", "frontend tuned")]
        for r in [*named, *[r for r in own if r not in named][:5]]:
            print(f"{work:<34} {r['peer']:<22} cool {r['cool_us']:>8.2f} hot {r['us']:>8.2f} us  peer/this "
                  f"{r['peer/this']}  err {r['rel_err']:.0e} {r.get('plan', '')} {r.get('estimate', '')}")  # fmt: skip
    for r in lines:
        if "error" in r:
            print(f"{r['work']:<34} {r['peer']:<22} {r['error'][:150]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", nargs="?", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--listed", type=int, default=3, help="plans of the list that are timed")
    parser.add_argument("--tune", type=float, default=0.0, help="seconds of tuning for each row")
    parser.add_argument("--without-odd", action="store_true")
    args = parser.parse_args()
    handle, start, found = cudnn.create_handle(), time.monotonic(), args.out / "gpu_attention.json"
    args.out.mkdir(parents=True, exist_ok=True)
    with planned_only():
        timed = [(Built(s, BF16, handle, args.listed, w), iters) for s, w, iters in rows() if args.row in str(s)]
        odd = [] if args.without_odd else [Built(s, t, handle, 2) for s, t in odd_rows() if args.row in str(s)]
    work = [c for b in (*(b for b, _ in timed), *odd) for c in b.compilations()]
    ENGINE.compile_ahead(work, cuda_devices()[0], start + 200)
    print(f"{len(work)} plans compiled after {time.monotonic() - start:.0f} s", flush=True)
    lines = [line for b in odd for line in check(b)]
    print(f"{len(lines)} plans of odd extents checked, {sum(r['wrong'] for r in lines)} wrong", flush=True)
    for built, iters in timed:
        try:
            lines += measure(built, iters, args.tune)
        except Exception as problem:  # one row must not lose the others
            print(f"{built.shape}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        found.write_text(json.dumps(lines, indent=1))
        command = f"python -m benchmarks.gpu_attention {args.row}".rstrip()
        made = results(lines, torch.cuda.get_device_name(), command, datetime.date.today().isoformat())
        (args.out / "attention.json").write_text(json.dumps(made, indent=1) + "\n")
        print(f"{built.shape} after {time.monotonic() - start:.0f} s", flush=True)
    show(lines)


if __name__ == "__main__":
    main()
