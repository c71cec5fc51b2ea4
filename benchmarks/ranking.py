"""Estimates beside measured times, and whether the default is among the fast ones: ``python -m benchmarks.ranking``.

Plans of a graph are timed in turn; each figure is the fastest of its rounds, so that a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fuseplan as cudnn

MAX_OVER_BEST = 1.5  # how much slower than the best the default may be
FLOAT, BFLOAT16 = cudnn.data_type.FLOAT, cudnn.data_type.BFLOAT16
Maker = Callable[[Any], Any]


def matmul(m: int, k: int, n: int, batch: int = 1, dtype: Any = FLOAT) -> Maker:
    def make(g: Any) -> Any:
        a, b = (
            g.tensor(dim=[batch, *dims], name=name, data_type=dtype) for name, dims in (("a", (m, k)), ("b", (k, n)))
        )
        return g.relu(input=g.matmul(A=a, B=b))

    return make


def norm_matmul(rows: int, columns: int, n: int) -> Maker:
    def make(g: Any) -> Any:
        x = g.tensor(dim=[1, rows, columns], name="x")
        mean = g.reduction(input=g.mul(a=x, b=x), mode=cudnn.reduction_mode.AVG)
        inverse = g.rsqrt(input=mean.set_dim([1, rows, 1]))
        return g.matmul(A=g.mul(a=x, b=inverse), B=g.tensor(dim=[1, columns, n], name="w"))

    return make


def conv(n: int, c: int, side: int, k: int, r: int, stride: int = 1) -> Maker:
    def make(g: Any) -> Any:
        x, w = g.tensor(dim=[n, c, side, side], name="x"), g.tensor(dim=[k, c, r, r], name="w")
        pad, step = [r // 2] * 2, [stride] * 2
        return g.relu(input=g.conv_fprop(image=x, weight=w, padding=pad, stride=step, dilation=[1, 1]))

    return make


def softmax(rows: int, columns: int) -> Maker:
    def make(g: Any) -> Any:
        x = g.tensor(dim=[rows, columns], name="x")
        shifted = g.sub(a=x, b=g.reduction(input=x, mode=cudnn.reduction_mode.MAX).set_dim([rows, 1]))
        powers = g.exp(input=shifted)
        return g.div(a=powers, b=g.reduction(input=powers, mode=cudnn.reduction_mode.ADD).set_dim([rows, 1]))

    return make


def chain(length: int, numel: int, op: str = "add", dtype: Any = FLOAT) -> Maker:
    def make(g: Any) -> Any:
        x = y = g.tensor(dim=[numel], name="x", data_type=dtype)
        for _ in range(length):
            y = g.add(a=y, b=x) if op == "add" else getattr(g, op)(input=y)
        return y

    return make


def reduce(rows: int, columns: int) -> Maker:
    def make(g: Any) -> Any:
        x = g.tensor(dim=[rows, columns], name="x")
        return g.reduction(input=x, mode=cudnn.reduction_mode.ADD).set_dim([rows, 1])

    return make


# table: what is ranked
GRAPHS: dict[str, Maker] = {
    "matmul 8x8x8": matmul(8, 8, 8),
    "matmul 64x64x64": matmul(64, 64, 64),
    "matmul 256x1024x1024": matmul(256, 1024, 1024),
    "matmul 64x3136x576": matmul(64, 3136, 576),
    "matmul 1x1024x4096": matmul(1, 1024, 4096),
    "matmul 16 x 64x64x64": matmul(64, 64, 64, 16),
    "matmul 128x256x256 bf16": matmul(128, 256, 256, 1, BFLOAT16),
    "norm + matmul 256x512x512": norm_matmul(256, 512, 512),
    "norm + matmul 16x64x32": norm_matmul(16, 64, 32),
    "conv 1x32x28x28 k32 3x3": conv(1, 32, 28, 32, 3),
    "conv 2x64x56x56 k64 1x1": conv(2, 64, 56, 64, 1),
    "conv 1x3x64x64 k32 7x7/2": conv(1, 3, 64, 32, 7, 2),
    "softmax 8x64": softmax(8, 64),
    "softmax 512x1024": softmax(512, 1024),
    "sum 2048x1024": reduce(2048, 1024),
    "add x 1, 1k": chain(1, 1000),
    "add x 1, 4M": chain(1, 1 << 22),
    "add x 12, 1M": chain(12, 1 << 20),
    "add x 4, 1M bf16": chain(4, 1 << 20, dtype=BFLOAT16),
    "tanh x 1, 64k": chain(1, 1 << 16, "tanh"),
    "tanh x 4, 256k": chain(4, 1 << 18, "tanh"),
    "exp x 1, 1M": chain(1, 1 << 20, "exp"),
    "gelu x 2, 256k": chain(2, 1 << 18, "gelu"),
    "sqrt x 4, 256k": chain(4, 1 << 18, "sqrt"),
}


def declared(make: Maker) -> Any:
    """A graph on the CPU, validated."""
    handle = cudnn.create_handle(device="cpu")
    g = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    make(g).set_output(True)
    g.validate()
    return g


def measure(g: Any, rounds: int, limit_s: float) -> list[float]:
    """The fastest time of each listed plan in microseconds."""
    pack, held = buffers(g)
    bound = []
    for index in range(len(g.plans)):
        g.build_plan_at_index(index)
        workspace = np.empty(max(1, g.get_workspace_size()), np.uint8)
        held.append(workspace)
        bound.append(g.bind(pack, workspace))
    best = [float("inf")] * len(bound)
    end = time.perf_counter() + limit_s
    for _ in range(rounds):
        for index, call in enumerate(bound):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], (time.perf_counter() - start) * 1e6)
        if time.perf_counter() > end:
            break
    return best


def buffers(g: Any) -> tuple[dict[int, int], list[Any]]:
    """Addresses of random buffers by uid, and what keeps them alive."""
    rng = np.random.default_rng(0)
    held: list[Any] = []
    pack: dict[int, int] = {}
    for uid in (*g._draft.graph.input_uids, *g._draft.graph.output_uids):
        spec = g._draft.graph.tensors[uid]
        values = rng.uniform(0.1, 1.0, spec.numel).astype(np.float32)
        held.append(values if spec.dtype.bits == 32 else (values.view(np.uint32) >> 16).astype(np.uint16))
        pack[uid] = held[-1].ctypes.data
    return pack, held


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only graphs whose name has this in it")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for each graph")
    args = parser.parse_args(argv)
    slow = []
    for name, make in GRAPHS.items():
        if args.part not in name:
            continue
        g = declared(make)
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        times = measure(g, args.rounds, args.limit)
        over = times[0] / min(times)
        if over > MAX_OVER_BEST:
            slow.append(name)
        print(f"{name}: the default takes {over:.2f} of the best" + (", TOO SLOW" if over > MAX_OVER_BEST else ""))
        for entry, us in zip(g.plans, times, strict=True):
            print(f"  {entry.name:<40} estimate {entry.estimate_us:>10.1f} us, measured {us:>10.1f} us")
    print(f"{len(slow)} defaults are over {MAX_OVER_BEST} of the best: {slow}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
