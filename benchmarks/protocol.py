"""How GPU peers are timed: each is captured into a CUDA graph, the graphs are replayed in turn, medians are reported.

Only figures of one `compare` may be put in a ratio: the card slows under load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

MAX_ERROR = 0.02  # of a result that is timed at all; half types are near 0.002 here


def capture(fn: Callable[[], Any], iters: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `iters` calls, replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(iters):
            fn()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, iters: int) -> float:
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / iters * 1e3


def relative_error(got: torch.Tensor, ref: torch.Tensor) -> float:
    """||got - ref|| / ||ref||; NaN if anything is NaN."""
    got, ref = got.double(), ref.double()
    return ((got - ref).norm() / ref.norm().clamp_min(1e-30)).item()


def compare(work: str, peers: dict[str, Callable[[], Any]], ref: torch.Tensor, *, iters: int = 10,
            rounds: int = 15, load_s: float = 1.0, rest_s: float = 0.0) -> list[dict[str, Any]]:  # fmt: skip
    """Rows {work, peer, us, quartiles, over_best, rel_err}; peers are timed interleaved and return their result.

    With `rest_s` also cool_us, before the load: each after so much rest and one untimed replay.
    """
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, float]] = {}
    rows: list[dict[str, Any]] = []
    for label, fn in peers.items():
        try:
            err = relative_error(fn(), ref)
            if not err < MAX_ERROR:
                rows.append({"work": work, "peer": label, "error": f"wrong result, relative error {err:.1e}"})
                continue
            graphs[label] = (capture(fn, iters), err)
        except Exception as e:  # a peer that cannot run is a row, not a crash of the table
            rows.append({"work": work, "peer": label, "error": f"{type(e).__name__}: {str(e)[:200]}"})
            torch.cuda.synchronize()
    cool: dict[str, list[float]] = {label: [] for label in graphs}
    for _ in range(rounds if rest_s else 0):
        for label, (g, _) in graphs.items():
            time.sleep(rest_s)
            g.replay()
            cool[label].append(replay_us(g, iters))
    end = time.time() + load_s
    while time.time() < end:
        for g, _ in graphs.values():
            g.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {label: [] for label in graphs}
    for _ in range(rounds):
        for label, (g, _) in graphs.items():
            times[label].append(replay_us(g, iters))
    medians = {label: statistics.median(t) for label, t in times.items()}
    best = min(medians.values(), default=0.0)
    for label, t in times.items():
        q1, _, q3 = statistics.quantiles(t, n=4)
        rows.append({
            "work": work, "peer": label, "us": round(medians[label], 3), "quartiles": [round(q1, 3), round(q3, 3)],
            "over_best": round(medians[label] / best, 3), "rel_err": float(f"{graphs[label][1]:.1e}"),
            **({"cool_us": round(statistics.median(cool[label]), 3)} if rest_s else {}),
        })  # fmt: skip
    return rows


def host_us(fn: Callable[[], Any], iters: int = 2000, rounds: int = 9) -> float:
    """Median host time of one call over an unsynchronised loop."""
    for _ in range(200):
        fn()
    torch.cuda.synchronize()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(iters):
            fn()
        found.append((time.perf_counter() - start) / iters * 1e6)
        torch.cuda.synchronize()
    return statistics.median(found)
