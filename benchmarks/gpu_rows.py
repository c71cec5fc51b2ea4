"""Row, column and pointwise kernels on a GPU: every listed plan right, then timed beside a device copy.

    python -m benchmarks.gpu_rows --out FOLDER [--only TEXT] [--compiled]

First the tuner compares every plan of small graphs of odd sizes with its judge, all outputs, in three types. Then each
plan of the large works is timed, all plans of a work alternating with PyTorch and with a copy of as many bytes. The
last lines are a table: each work's default and best plans, and the rate of each as a share of the copy's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import works
from benchmarks.protocol import compare
from benchmarks.works import Work

BF16, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
SHOWN = 4  # plans of a work in the table


def large_works() -> dict[str, tuple[Work, int]]:
    """Works by name, with the bytes that each must move."""
    chain, norm, squares = 8192 * 4096, 8192 * 5120, 16384 * 4096
    found = {
        "chain": (works.pointwise_chain(BF16), 6 * chain),
        "softmax": (works.row_softmax(BF16), 4 * chain),
        "rms norm": (works.rms_norm(BF16), 4 * norm),
        "layer norm": (works.layer_norm(BF16), 4 * norm),
        "rms backward": (works.norm_backward(BF16, "rms"), 6 * norm),
        "layer backward": (works.norm_backward(BF16, "layer"), 6 * norm),
        "layer backward 4096": (works.norm_backward(BF16, "layer", 16384, 4096), 6 * squares),
        "softmax 65536": (works.row_softmax(BF16, 1024, 65536), 4 * squares),
        "layer backward 1024": (works.norm_backward(BF16, "layer", 65536, 1024), 6 * squares),
        "layer backward 8192": (works.norm_backward(BF16, "layer", 8192, 8192), 6 * squares),
        "layer norm 1283": (works.layer_norm(BF16, 32768, 1283), 4 * 32768 * 1283),
        "softmax 32768": (works.row_softmax(BF16, 2048, 32768), 4 * squares),
        "rms norm 512": (works.rms_norm(BF16, 65536, 512), 4 * 65536 * 512),
    }
    for dtype, size in ((FLOAT, 4), (BF16, 2)):
        for name, dim, axes in (
            ("rows", (1, 16384, 4096), (2,)), ("columns", (1, 16384, 4096), (1,)), ("middle", (64, 1024, 1024), (1,)),
            ("everything", (1, 16384, 4096), (0, 1, 2)), ("long rows", (1, 8, 8388608), (2,)),
        ):  # fmt: skip
            label = f"sum {name} {'float32' if size == 4 else 'bf16'}"
            found[label] = works.sums(dtype, dim, axes, name), size * squares
    return found


def small_works() -> dict[str, Work]:
    """Works of odd sizes in three types."""
    found: dict[str, Work] = {}
    for kind, dtype in (("bf16", BF16), ("fp16", HALF), ("float32", FLOAT)):
        found |= {
            f"chain {kind}": works.pointwise_chain(dtype, 67, 1030),
            f"softmax {kind}": works.row_softmax(dtype, 131, 1500),
            f"long softmax {kind}": works.row_softmax(dtype, 3, 40001),
            f"rms norm {kind}": works.rms_norm(dtype, 515, 1283),
            f"layer norm {kind}": works.layer_norm(dtype, 270, 5000),
            f"rms backward {kind}": works.norm_backward(dtype, "rms", 1029, 1283),
            f"layer backward {kind}": works.norm_backward(dtype, "layer", 777, 5000),
            f"layer backward, short rows {kind}": works.norm_backward(dtype, "layer", 3001, 96),
            f"sum rows {kind}": works.sums(dtype, (3, 333, 1001), (2,), "rows"),
            f"sum columns {kind}": works.sums(dtype, (1, 5003, 771), (1,), "columns"),
            f"sum middle {kind}": works.sums(dtype, (5, 1027, 130), (1,), "middle"),
            f"sum everything {kind}": works.sums(dtype, (7, 333, 1001), (0, 1, 2), "everything"),
            f"sum long rows {kind}": works.sums(dtype, (1, 5, 200003), (2,), "long rows"),
        }
    return found


@contextlib.contextmanager
def planned_only() -> Iterator[None]:
    """Works list their plans, and build none."""

    def plan(lib: Any, graph: Any) -> Any:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([lib.heur_mode.A])
        return graph

    before = works.finish
    works.finish = plan
    try:
        yield
    finally:
        works.finish = before


def compile_side_by_side(graphs: list[Any], seconds: float) -> None:
    """All kernels of all plans into the cache."""
    from fuseplan.engines.triton.engine import ENGINE

    wanted = {}
    for graph in graphs:
        for entry in graph._plans.ranked.entries:
            for a in entry.assignments:
                if a.engine.name == "triton":
                    wanted[a.region.structure, a.config] = a.region
    if wanted:
        device = graphs[0]._plans.ranked.device
        ENGINE.compile_ahead([(r, c) for (_, c), r in wanted.items()], device, time.monotonic() + seconds)


def check(name: str, built: tuple[Any, Any, Any], handle: Any) -> list[str]:
    """What is wrong with the plans of a small work: one line for each plan that is not right."""
    graph, pack, _ = built
    graph.check_support()
    report = graph.autotune(pack, handle=handle, budget_s=2.0)
    return [f"{name}: {r.name}: {r.outcome}" for r in report.rows if r.us is None]


def candidates(built: tuple[Any, Any, torch.Tensor], handle: Any) -> dict[str, Callable[[], torch.Tensor]]:
    """Each listed plan as a call that gives the first result."""
    graph, pack, first = built
    graph.check_support()
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for index, entry in enumerate(graph._plans.ranked.entries):
        if entry.engine_name != "triton":
            continue
        graph.build_plan_at_index(index)
        size = graph.get_workspace_size_plan_at_index(index)
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device="cuda")

        def call(index: int = index, workspace: torch.Tensor = workspace) -> torch.Tensor:
            cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            graph.execute_plan_at_index(pack, workspace, index, handle)
            return first

        found[f"{index} {entry.name}"] = call
    return found


def time_work(name: str, work: Work, size: int, built: Any, handle: Any, *, compiled: bool) -> list[dict[str, Any]]:
    """Rows of `compare`, with the rate of each candidate as a share of the copy's."""
    calls = candidates(built, handle)
    reference = work.reference()
    calls["eager"] = work.eager
    if compiled and "sum" not in name:
        calls["torch.compile"] = work.compile("max-autotune-no-cudagraphs")
    source, target = (torch.zeros(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    result = reference.clone()

    def copy() -> torch.Tensor:
        target.copy_(source)
        return result

    calls["copy"] = copy
    rows = compare(name, calls, reference, rounds=11, load_s=0.5)
    copied = next((r["us"] for r in rows if r["peer"] == "copy"), 0.0)
    return [{**r, "of_copy": round(copied / r["us"], 3)} if "us" in r else r for r in rows]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """For each work its default plan, the best ones, and what they are compared with."""
    lines = []
    for name in dict.fromkeys(r["work"] for r in rows):
        own = [r for r in rows if r["work"] == name]
        timed = sorted((r for r in own if "us" in r), key=lambda r: r["us"])
        others = [r for r in timed if not r["peer"][0].isdigit()]
        plans = [r for r in timed if r["peer"][0].isdigit()]
        default = [r for r in plans if r["peer"].startswith("0 ")]
        lines.append(f"{name}: " + "  ".join(f"{r['peer']} {r['us']:.1f}" for r in others))
        for r in [*default, *(p for p in plans[:SHOWN] if p not in default)]:
            lines.append(f"   {r['us']:8.2f} us {r['of_copy']:6.3f} of copy  {r['peer'][:120]}")
        lines += [f"   {r['peer'][:60]}: {r['error'][:100]}" for r in own if "us" not in r]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile as well")
    parser.add_argument("--seconds", type=float, default=170.0, help="no small work is started after so many")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    works.on("cuda")
    torch.manual_seed(0)
    handle = cudnn.create_handle()
    start = time.monotonic()
    small = {k: w for k, w in small_works().items() if args.only in k}
    large = {k: w for k, w in large_works().items() if args.only in k}
    with planned_only():
        graphs = {k: w.build(handle) for k, w in small.items()}
        timed = {k: w.build(handle) for k, (w, _) in large.items()}
    compile_side_by_side([g for g, _, _ in (*timed.values(), *graphs.values())], 100.0)
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    for name, (work, size) in large.items():
        rows += time_work(name, work, size, timed[name], handle, compiled=args.compiled)
        (args.out / "gpu_rows.json").write_text(json.dumps(rows, indent=1))
    print(f"timed after {time.monotonic() - start:.0f} s", flush=True)
    wrong: list[str] = []
    for name, built in graphs.items():
        wrong += check(name, built, handle) if time.monotonic() < start + args.seconds else [f"{name}: not checked"]
    (args.out / "gpu_rows_wrong.txt").write_text("\n".join(wrong))
    cudnn.set_stream(handle=handle, stream=0)
    print("\n".join(table(rows)))
    print(f"{len(graphs)} small works checked after {time.monotonic() - start:.0f} s; not right: {wrong or 'none'}")


if __name__ == "__main__":
    main()
