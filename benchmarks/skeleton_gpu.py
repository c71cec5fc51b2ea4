"""The first graphs on a GPU: right, then timed beside PyTorch, with the host cost of a call.

    python -m benchmarks.skeleton_gpu [--out FILE.json]

Works: pointwise chain, row softmax, RMS norm, matmul + bias + gelu with two outputs, and
matmul, scale, bias, gelu with AMAX, each in bfloat16 and float16. Prints a table last.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks.protocol import compare, host_us
from benchmarks.works import Work, all_works

try:
    import cudnn as nvidia  # the peer; the table goes without it where it is not installed
except ImportError:
    nvidia = None

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def peers_of(work: Work, dtype: torch.dtype, handle: Any) -> dict[str, Callable[[], Any]]:
    """fuseplan by heuristic and tuned, PyTorch eager and compiled; each returns the work's first result."""
    graph, pack, first = work.build(handle)
    size = graph.get_workspace_size()
    workspace = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")

    def run() -> Any:
        graph.execute(pack, workspace, handle)
        return first

    found: dict[str, Callable[[], Any]] = {"fuseplan": run, "torch eager": work.eager}
    if nvidia is not None:
        found["NVIDIA frontend"] = nvidia_peer(work)
    tuned, tuned_pack, tuned_first = work.build(handle)
    report = tuned.autotune(tuned_pack, handle=handle, budget_s=20.0)
    print(report, flush=True)
    big = torch.empty(max(tuned.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")

    def run_tuned() -> Any:
        tuned.execute(tuned_pack, big, handle)
        return tuned_first

    found["fuseplan tuned"] = run_tuned
    # tuning takes half a minute for a matmul, so it is done for one type
    mode = "max-autotune-no-cudagraphs" if work.has_matmul and dtype is torch.bfloat16 else "default"
    found[f"torch.compile {mode}"] = torch.compile(work.eager, mode=mode, dynamic=False)
    return found


def nvidia_peer(work: Work) -> Callable[[], Any]:
    """The same graph through NVIDIA's frontend, its plan by heuristic; built at the first call."""
    state: list[Any] = []

    def run() -> Any:
        stream = torch.cuda.current_stream().cuda_stream
        if not state:
            own = nvidia.create_handle()
            nvidia.set_stream(handle=own, stream=stream)
            graph, pack, first = work.build(own, nvidia)
            size = max(graph.get_workspace_size(), 1)
            state.extend((own, graph, pack, first, torch.empty(size, dtype=torch.uint8, device="cuda")))
        own, graph, pack, first, workspace = state
        nvidia.set_stream(handle=own, stream=stream)
        graph.execute(pack, workspace, handle=own)
        return first

    return run


def measure(handle: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, dtype in TYPES.items():
        for work in all_works(dtype):

            def on_current_stream(fn: Callable[[], Any]) -> Callable[[], Any]:
                def call() -> Any:
                    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
                    return fn()

                return call

            peers = {k: on_current_stream(fn) for k, fn in peers_of(work, dtype, handle).items()}
            rows += [{**r, "dtype": name, "shape": work.shape} for r in compare(work.name, peers, work.reference())]
    cudnn.set_stream(handle=handle, stream=0)
    return rows


def measure_host(handle: Any) -> list[dict[str, Any]]:
    """Host cost of one call on a tiny matmul: fuseplan's forms, PyTorch, and a C loop of bare cuLaunchKernel."""
    from benchmarks.bare_launch import bare_launch_us

    a, b = (torch.randn(1, 256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    graph = cudnn.pygraph(io_data_type=torch.bfloat16, compute_data_type=torch.float32, handle=handle)
    A, B = graph.tensor_like(a), graph.tensor_like(b)
    C = graph.matmul(A=A, B=B)
    C.set_output(True).set_data_type(torch.bfloat16)
    graph.build()
    pack = {A: a, B: b, C: c}
    bound = graph.bind(pack, None, handle)
    rows = [
        ("bound call", host_us(bound)),
        ("execute", host_us(lambda: graph.execute(pack, None, handle))),
        ("execute_plan_at_index", host_us(lambda: graph.execute_plan_at_index(pack, None, 0, handle))),
        ("torch.mm out=", host_us(lambda: torch.mm(a[0], b[0], out=c[0]))),
        ("C loop of bare cuLaunchKernel, same kernel", bare_launch_us(graph, pack)),
        ("bound call again", host_us(bound)),
    ]
    return [{"work": "host cost 256x256x256", "peer": k, "us": round(v, 3)} for k, v in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    handle = cudnn.create_handle()
    rows = measure_host(handle) + measure(handle)
    facts = {
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__, "fuseplan": cudnn.__version__,
        "nvidia_frontend": getattr(nvidia, "__version__", None),
        "command": "python -m benchmarks.skeleton_gpu", "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    print(facts)
    for r in rows:
        shown = r.get("error") or f"{r['us']:>10.2f} us  x{r.get('over_best', 1):<6} err {r.get('rel_err', 0):.1e}"
        print(f"{r['work']:<28} {r.get('dtype', ''):<5} {r['peer']:<44} {shown}")


if __name__ == "__main__":
    main()
