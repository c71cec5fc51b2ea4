"""Cost of the five steps on a CPU: graphs of 1,000 and 10,000 nodes, and two of the tour's graphs cold and warm.

    python -m benchmarks.planning [--out FILE.json]

Each large graph is planned three times in a fresh kernel cache, medians are printed; "cold" starts from an empty
cache folder in a new process, "warm" builds the same graph again in the same process, "next process" in another.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fuseplan as cudnn
from fuseplan import settings
from fuseplan.runtime.device import cpu_device

FLOAT = cudnn.data_type.FLOAT


def new_graph() -> Any:
    return cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, device="cpu")


def chain(num_nodes: int) -> Any:
    """A chain of alternating pointwise nodes."""
    g = new_graph()
    x, b = g.tensor(dim=[8, 32]), g.tensor(dim=[1, 32])
    for k in range(num_nodes):
        x = (g.add, g.mul, g.max, g.sub)[k % 4](x, b)
    x.set_output(True)
    return g


def wide_shared(num_nodes: int) -> Any:
    """Independent nodes that read one tensor."""
    g = new_graph()
    x = g.tensor(dim=[8, 32])
    for k in range(num_nodes):
        (g.relu if k % 2 else g.tanh)(input=x).set_output(True)
    return g


def wide_separate(num_nodes: int) -> Any:
    """Independent nodes that read a tensor each."""
    g = new_graph()
    for k in range(num_nodes):
        (g.relu if k % 2 else g.tanh)(input=g.tensor(dim=[8, 32])).set_output(True)
    return g


def five_steps_s(g: Any) -> float:
    start = time.perf_counter()
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans()
    return time.perf_counter() - start


def measure_graphs(repeats: int = 3) -> list[dict[str, Any]]:
    rows = []
    makers: dict[str, Callable[[int], Any]] = {
        "chain": chain, "wide, shared input": wide_shared, "wide, own inputs": wide_separate,
    }  # fmt: skip
    for name, make in makers.items():
        times: dict[int, list[float]] = {1000: [], 10000: []}
        for _ in range(repeats):
            for size, found in times.items():
                with tempfile.TemporaryDirectory() as folder:
                    settings.use(settings.Settings(cache_dir=Path(folder)))
                    found.append(five_steps_s(make(size)))
        small, large = (statistics.median(t) for t in times.values())
        ratio = round(large / small, 2)
        rows.append({"work": name, "s_1000": round(small, 4), "s_10000": round(large, 4), "ratio": ratio})
    settings.use(None)
    return rows


def tour_conv() -> Any:
    """The tour's convolution on a CPU: N4 C64 56x56 K128 3x3, bias, relu, channels-last."""
    g = new_graph()
    x = g.tensor(dim=[4, 64, 56, 56], stride=[200704, 1, 3584, 64], name="x")
    w = g.tensor(dim=[128, 64, 3, 3], stride=[576, 1, 192, 64], name="w")
    b = g.tensor(dim=[1, 128, 1, 1], stride=[128, 1, 128, 128], name="b")
    conv = g.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    g.relu(input=g.bias(input=conv, bias=b)).set_output(True)
    return g


def tour_matmul() -> Any:
    """The tour's matmul on a CPU: 4x256x512x256 with scale, bias, gelu and AMAX."""
    g = new_graph()
    a, b = g.tensor(dim=[4, 256, 512], name="a"), g.tensor(dim=[4, 512, 256], name="b")
    bias = g.tensor(dim=[1, 1, 256], name="bias")
    y = g.gelu(input=g.bias(input=g.mul(a=g.matmul(A=a, B=b), b=0.125), bias=bias)).set_output(True)
    g.reduction(input=y, mode=cudnn.reduction_mode.AMAX).set_output(True).set_dim([1, 1, 1])
    return g


TOURS: dict[str, Callable[[], Any]] = {"convolution": tour_conv, "matmul": tour_matmul}


def tour_process(name: str, folder: str) -> None:
    """In a new process: build one of the tour's graphs several times and print the first and the later times."""
    settings.use(settings.Settings(cache_dir=Path(folder)))
    cudnn.create_handle(device="cpu")
    first = five_steps_s(TOURS[name]())
    again = [five_steps_s(TOURS[name]()) for _ in range(5)]
    print(json.dumps({"first_ms": first * 1e3, "again_ms": statistics.median(again) * 1e3}))


def measure_tour(name: str, repeats: int = 5) -> dict[str, Any]:
    cold, warm, next_process = [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for found in (cold, next_process):
                command = [sys.executable, "-m", "benchmarks.planning", "--tour", name, folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = json.loads(done.stdout)
                found.append(row["first_ms"])
                warm.append(row["again_ms"])
    return {
        "work": f"tour {name}", "cold_ms": round(statistics.median(cold), 2),
        "next_process_ms": round(statistics.median(next_process), 2), "warm_ms": round(statistics.median(warm), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tour", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tour:
        tour_process(*args.tour)
        return
    rows = [*measure_graphs(), *map(measure_tour, TOURS)]
    facts = {
        "device": f"{cpu_device().name}, {cpu_device().arch}, {cpu_device().sm_count} cores",
        "python": platform.python_version(),
        "numpy": np.__version__, "fuseplan": cudnn.__version__, "command": "python -m benchmarks.planning",
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(facts)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
