"""Host kernels on all cores: two threads against one, right after PyTorch, and calls too small to share.

    python -m benchmarks.threads [--out FILE.json] [--before COMMIT]

Each table is a process of its own. With `--before` the small calls are timed in a checkout of that commit too, in turn
with this one. The machine may be in use: see `benchmarks.quiet` for what counts. `load` is the load average at the end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fuseplan as cudnn
from benchmarks.quiet import Timing, compare, timed
from fuseplan import dtypes
from fuseplan.runtime import team, toolchain
from fuseplan.runtime.device import cpu_device
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind, Program, Slot, Tasks

ROOT = Path(__file__).parents[1]
LARGE = 1 << 24  # floats: 64 MB
COPY_TASKS = 64
COPY = (
    "#include <string.h>\n"
    + team.header()
    + """
int copy(const void *block, const struct fp_task *task) {
  const struct { float *y; const float *x; int64_t n; } *p = block;
  for (int64_t t; (t = fp_next(task)) >= 0;) memcpy(p->y + t * p->n, p->x + t * p->n, (size_t)p->n * 4);
  return 0;
}
"""
)
SMALL = """
import json, statistics, time
import numpy as np
import fuseplan as cudnn
g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, intermediate_data_type=cudnn.data_type.FLOAT,
                  compute_data_type=cudnn.data_type.FLOAT, device="cpu")
a, b = (g.tensor(dim=[8, 8], stride=[8, 1], name=n) for n in "ab")
y = g.relu(input=g.add(a, b))
y.set_output(True).set_name("y")
g.build()
buffers = {n: np.ones((8, 8), np.float32) for n in "aby"}
bound = g.bind(buffers)
def us(call):
    found = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(4000):
            call()
        found.append((time.perf_counter() - start) / 4000 * 1e6)
    return min(found), statistics.median(found)
print(json.dumps({"bound call": us(bound), "execute": us(lambda: g.execute(buffers, None))}))
"""


def chain(n: int, num_threads: int, *, costly: bool) -> tuple[Callable[[], None], np.ndarray, np.ndarray]:
    """A bound pointwise chain on `n` floats, with its input and output."""
    handle = cudnn.create_handle("cpu", num_threads=num_threads)
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, intermediate_data_type=cudnn.data_type.FLOAT,
                      compute_data_type=cudnn.data_type.FLOAT, handle=handle)  # fmt: skip
    x = g.tensor(dim=[n // 4096, 4096], stride=[4096, 1], name="x")
    b = g.tensor(dim=[1, 4096], stride=[4096, 1], name="b")
    y = g.add(g.mul(x, b), b)
    y = g.mul(y, g.sigmoid(input=y)) if costly else g.relu(input=y)
    y.set_output(True).set_name("y")
    g.build()
    data, out = np.random.default_rng(0).random((n // 4096, 4096), np.float32), np.zeros((n // 4096, 4096), np.float32)
    call = g.bind({"x": data, "b": np.full((1, 4096), 0.5, np.float32), "y": out}, None)
    call()
    inner = data.astype(np.float64) * 0.5 + 0.5
    right = inner / (1 + np.exp(-inner)) if costly else np.maximum(inner, 0)
    assert np.abs(out - right).max() < 1e-5
    return call, data, out


def copy_of(x: np.ndarray, y: np.ndarray, num_threads: int) -> Callable[[], None]:
    """A bound copy on the team, the yardstick of what memory gives."""
    slots = tuple(Slot(k, n, dtypes.FLOAT, x.nbytes, "cpu", is_output=n == "y") for k, n in enumerate("yx"))
    patches = tuple(Patch(PatchKind.POINTER, 8 * k, k) for k in range(2))
    block = bytes(16) + struct.pack("q", x.size // COPY_TASKS)
    tasks = Tasks(COPY_TASKS, 1e4)
    launch = Launch(LaunchKind.HOST, block, patches, toolchain.compile_shared(COPY), "copy", label="copy", tasks=tasks)
    program = Program(slots, (launch,), 0, "cpu", num_threads=num_threads)
    made = make_dispatcher(program, [(0,), (1,)], [None, None], dict)
    return made.bind({0: y, 1: x}, None, 0)


def num_threads_here() -> int:
    return len(os.listdir("/proc/self/task"))


def rows_of(work: str, timing: Timing, base: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {"work": work, "peer": name, "us": round(us, 2), f"over {base}": round(us / timing.us[base], 3), **more,
         "rounds": f"{timing.quiet} quiet, {timing.noisy} noisy", "by": "median" if timing.is_median else "q10"}
        for name, us in timing.us.items()
    ]  # fmt: skip


def large_table() -> list[dict[str, Any]]:
    """64 MB on one thread and on all."""
    rows, most = [], team.number()
    for work, costly in (("64 MB x*b+b, relu", False), ("64 MB x*b+b, swish", True)):
        one, x, y = chain(LARGE, 1, costly=costly)
        peers = {"1 thread": timed(one), f"{most} threads": timed(chain(LARGE, most, costly=costly)[0])}
        peers |= {f"copy, {n} threads": timed(copy_of(x, y, n)) for n in (1, most)}
        timing = compare(peers, limit_s=15)
        rows += rows_of(work, timing, "1 thread", threads_of_process=num_threads_here())
    return rows


def torch_table() -> list[dict[str, Any]]:
    """Calls of half a millisecond and more, quiet and right after a parallel operation of PyTorch."""
    import torch

    rows, a, other = [], torch.rand(512, 512), np.zeros((3, 512, 512), np.float32)
    for n in (1 << 16, 1 << 18, 1 << 20):
        call = chain(n, team.number(), costly=True)[0]
        alone = chain(n, 1, costly=True)[0]

        def after_own(call: Callable[[], None] = call) -> float:
            other.__iadd__(1)  # as much memory as the operation of PyTorch touches, on this thread alone
            return timed(call)()

        def after_torch(call: Callable[[], None] = call) -> float:
            torch.mm(a, a)
            return timed(call)()

        peers = {"quiet": after_own, "after torch.mm": after_torch, "1 thread": timed(alone)}
        timing = compare(peers, limit_s=15)
        more = {"torch_threads": torch.get_num_threads(), "threads_of_process": num_threads_here()}
        rows += rows_of(f"x*b+b, swish, {n >> 10}k floats", timing, "quiet", **more)
    return rows


def small_table(before: str, alternations: int = 9) -> list[dict[str, Any]]:
    """8x8 calls here and, in turn, in a checkout of the commit `before`."""
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT}
        if before:
            trees[before] = Path(folder) / "before"
            command = ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(trees[before]), before]
            subprocess.run(command, check=True, capture_output=True)
        try:
            found: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in trees}
            for _ in range(alternations):
                for name, tree in trees.items():
                    for what, pair in _run_small(tree, Path(folder) / f"cache-{name}").items():
                        found[name].setdefault(what, []).append(pair)
        finally:
            if before:
                command = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(trees[before])]
                subprocess.run(command, check=True)
    rows = []
    for what in found["now"]:
        medians = {name: statistics.median(m for _, m in pairs[what]) for name, pairs in found.items()}
        for name, pairs in found.items():
            row = {"work": f"8x8 add, relu: {what}", "peer": name, "us": round(medians[name], 4),
                   "least": round(min(low for low, _ in pairs[what]), 4)}  # fmt: skip
            if before:
                row["over before"] = round(medians[name] / medians[before], 3)
            rows.append(row)
    return rows


def _run_small(tree: Path, cache: Path) -> dict[str, tuple[float, float]]:
    env = {**os.environ, "PYTHONPATH": str(tree), "FUSEPLAN_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", SMALL], env=env, cwd=tree, check=True, capture_output=True, text=True)
    found: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return found


TABLES = {"large": large_table, "torch": torch_table}


def in_process(table: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.threads", "--table", table]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", default="", help="a commit to compare small calls with")
    parser.add_argument("--note", help="what else should be known of the run")
    parser.add_argument("--table", choices=TABLES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        print(json.dumps(TABLES[args.table]()))
        return
    start = time.monotonic()
    rows = [*in_process("large"), *in_process("torch"), *small_table(args.before)]
    facts = {
        "device": f"{cpu_device().name}, {cpu_device().arch}, {cpu_device().sm_count} cores",
        "python": platform.python_version(), "numpy": np.__version__, "fuseplan": cudnn.__version__,
        "command": " ".join(["python -m benchmarks.threads", *sys.argv[1:]]), "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1), "note": args.note, "took_s": round(time.monotonic() - start),
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(facts)
    for row in rows:
        print("  ".join(f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
