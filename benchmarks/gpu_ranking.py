"""Row, column and pointwise works on a GPU: the default beside the fastest listed plan, and its estimate.

    python -m benchmarks.gpu_ranking --out FOLDER [--only TEXT]

A line for each work: microseconds of the default and of the fastest plan, the estimate of the default, and the name of
the fastest. The last line counts the defaults that are within a tenth of the fastest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import works
from benchmarks.gpu_rows import candidates, compile_side_by_side, planned_only
from benchmarks.protocol import compare
from benchmarks.works import Work

NEAR = 1.1  # of the fastest plan's time
KINDS = {"bf16": torch.bfloat16, "float32": torch.float32}


def ranked_works() -> dict[str, Work]:
    """Works by name: norms, softmax, sums and chains of short, long, odd, few and many rows."""
    found: dict[str, Work] = {}
    for kind, dtype in KINDS.items():
        for rows, columns in ((262144, 128), (8192, 1000), (64, 8192), (4096, 12288), (1024, 50257)):
            found[f"softmax {rows}x{columns} {kind}"] = works.row_softmax(dtype, rows, columns)
        for rows, columns in ((65536, 256), (16384, 1283), (128, 4096), (2048, 20000)):
            found[f"layer norm {rows}x{columns} {kind}"] = works.layer_norm(dtype, rows, columns)
        for rows, columns in ((65536, 512), (512, 7168)):
            found[f"rms norm {rows}x{columns} {kind}"] = works.rms_norm(dtype, rows, columns)
        for rows, columns in ((65536, 256), (2048, 4096), (8192, 5120)):
            found[f"layer backward {rows}x{columns} {kind}"] = works.norm_backward(dtype, "layer", rows, columns)
        for rows, columns in ((8192, 5120), (32768, 1024)):
            found[f"rms backward {rows}x{columns} {kind}"] = works.norm_backward(dtype, "rms", rows, columns)
        for dim, axes in (((1, 4096, 4096), (2,)), ((1, 4096, 4096), (1,)), ((4096, 64, 100), (1,)),
                          ((1, 16, 1000001), (2,)), ((8, 1024, 1024), (0, 1, 2))):  # fmt: skip
            name = f"sum {'x'.join(map(str, dim))} over {'x'.join(map(str, axes))} {kind}"
            found[name] = works.sums(dtype, dim, axes, name)
        for rows, columns in ((64, 1000), (8192, 4096)):
            found[f"chain {rows}x{columns} {kind}"] = works.pointwise_chain(dtype, rows, columns)
    return found


def rank(name: str, work: Work, built: Any, handle: Any) -> dict[str, Any]:
    """Times of all listed plans of a work by name, in their order, and the estimate of the first."""
    calls = candidates(built, handle)
    rows = compare(name, calls, work.reference(), rounds=7, load_s=0.1)
    times = {r["peer"]: r["us"] for r in rows if "us" in r}
    wrong = [f"{r['peer']}: {r['error']}" for r in rows if "us" not in r]
    estimate = built[0]._plans.ranked.entries[0].estimate_us
    return {"work": name, "us": times, "wrong": wrong, "estimate_us": round(estimate, 1)}


def shown(found: dict[str, Any]) -> str:
    """The line of a work."""
    times = found["us"]
    first, best = next(iter(times)), min(times, key=times.__getitem__)
    line = (
        f"{found['work']:<36} default {times[first]:8.1f}  best {times[best]:8.1f}  {times[first] / times[best]:5.2f}"
    )
    return f"{line}  estimate {found['estimate_us']:8.1f}  {best if best != first else ''}"


def as_row(found: dict[str, Any]) -> dict[str, Any]:
    """A work as a row of results: the default plan beside the fastest one."""
    times = found["us"]
    first, best = next(iter(times)), min(times, key=times.__getitem__)
    return {
        "row": found["work"], "default plan": first[2:], "default us": times[first], "fastest plan": best[2:],
        "fastest us": times[best], "plans": len(times), "estimate us": found["estimate_us"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    works.on("cuda")
    torch.manual_seed(0)
    handle = cudnn.create_handle()
    ranked = {k: w for k, w in ranked_works().items() if args.only in k}
    with planned_only():
        graphs = {k: w.build(handle) for k, w in ranked.items()}
    start = time.monotonic()
    compile_side_by_side([g for g, _, _ in graphs.values()], 100.0)
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    rows = []
    facts = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "fuseplan": cudnn.__version__,
        "command": "python -m benchmarks.gpu_ranking", "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    for name, work in ranked.items():
        rows.append(rank(name, work, graphs.pop(name), handle))
        print("\n".join([shown(rows[-1]), *rows[-1]["wrong"]]), flush=True)
        made = {**facts, "rows": [as_row(r) for r in rows]}
        (args.out / "gpu_ranking.json").write_text(json.dumps(made, indent=1) + "\n")
    cudnn.set_stream(handle=handle, stream=0)
    near = [r for r in rows if next(iter(r["us"].values())) <= NEAR * min(r["us"].values())]
    print(f"{len(near)} of {len(rows)} defaults are within a tenth of the fastest listed plan")


if __name__ == "__main__":
    main()
