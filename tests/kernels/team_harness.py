"""What the tests of the team share: kernels that draw tasks, a program of them, and scripts that fork."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuseplan import dtypes
from fuseplan.runtime import team, toolchain
from fuseplan.runtime.dispatch.layout import threads_bytes
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Program, Tasks
from tests.kernels.dispatch_harness import dispatcher_of, pointer, slot

TILE = 512
SOURCE = (
    "#include <string.h>\n"
    + team.header()
    + """
struct args { const double *x; double *y; int32_t *who; double *sums; int64_t rounds, fails; };

/* y = x after some rounds of x/2 + 1, computed in the thread's own memory */
int halve(const void *block, const struct fp_task *task) {
  const struct args *p = block;
  double *own = task->scratch;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    if (t == p->fails) return 7;
    memcpy(own, p->x + t * 512, 512 * sizeof *own);
    for (int64_t k = 0; k < p->rounds; ++k)
      for (int i = 0; i < 512; ++i) own[i] = own[i] * 0.5 + 1.0;
    memcpy(p->y + t * 512, own, 512 * sizeof *own);
    p->who[t] += task->thread + 1 + (task->num_threads << 16);
  }
  return 0;
}
/* the sum of x in y[0]: a partial sum from each task, folded in order by the thread that ends last */
int total(const void *block, const struct fp_task *task) {
  const struct args *p = block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    double sum = 0;
    for (int64_t k = 0; k < p->rounds; ++k) {
      sum = 0;
      for (int i = 0; i < 512; ++i) sum += p->x[t * 512 + i];
    }
    p->sums[t] = sum;
    p->who[t] += task->thread + 1;
    if (fp_is_last(task)) {
      p->y[0] = 0;
      for (int64_t i = 0; i < task->num_tasks; ++i) p->y[0] += p->sums[i];
    }
  }
  return 0;
}
"""
)


def kernels() -> Artifact:
    return toolchain.compile_shared(SOURCE)


class TeamCase:
    """One program on buffers of its own, and what it must give.

    Args:
        symbol: ``"halve"`` or ``"total"``
        rounds: how often the work is done
        work_us: what the launch says of its work
    """

    def __init__(self, symbol: str = "halve", *, num_tasks: int = 48, num_threads: int = 4, rounds: int = 50,
                 work_us: float = 1e6, fails: int = -1, seed: int = 0) -> None:  # fmt: skip
        n = num_tasks * TILE
        names = (("x", 8 * n, False), ("y", 8 * n, True), ("who", 4 * num_tasks, True), ("sums", 8 * num_tasks, True))
        slots = tuple(
            slot(k, name, dtype=dtypes.INT32 if name == "who" else dtypes.DOUBLE, span_bytes=size, is_output=out)
            for k, (name, size, out) in enumerate(names)
        )
        tasks = Tasks(num_tasks, work_us, 8 * TILE, 16, num_threads)
        block = bytes(32) + struct.pack("qq", rounds, fails)
        patches = tuple(pointer(8 * k, k) for k in range(4))
        launch = Launch(LaunchKind.HOST, block, patches, kernels(), symbol, label=symbol, tasks=tasks)
        size = 16 + threads_bytes(tasks, num_threads)
        self.program = Program(slots, (launch,), size, "cpu", num_threads=num_threads)
        self.symbol, self.rounds = symbol, rounds
        self.x = np.random.default_rng(seed).standard_normal(n)
        self.y, self.who = np.zeros(n), np.zeros(num_tasks, np.int32)
        self.sums, self.work = np.zeros(num_tasks), np.zeros(size, np.uint8)
        self.dispatcher = dispatcher_of(self.program)

    def run(self) -> None:
        self.y[:], self.who[:] = 0, 0
        self.dispatcher.execute({0: self.x, 1: self.y, 2: self.who, 3: self.sums}, self.work, 0)

    def check(self) -> None:
        """Every task was done once, and the results have the bits of the same operations in order."""
        if self.symbol == "total":
            partial = np.add.accumulate(self.x.reshape(-1, TILE), axis=1)[:, -1]
            assert self.y[0] == np.add.accumulate(partial)[-1]
        else:
            expected = self.x.copy()
            for _ in range(self.rounds):
                expected = expected * 0.5 + 1.0
            np.testing.assert_array_equal(self.y, expected)
        assert ((self.threads() >= 0) & (self.threads() < 256)).all()

    def threads(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The thread that did each task; negative if nobody did."""
        return (self.who & 0xFFFF) - 1

    def size(self) -> int:
        """The largest number of threads that a task was told of (`halve`)."""
        return int(self.who.max()) >> 16


def pool_threads() -> int:
    """How many threads of our own pool this process has."""
    return sum(_name_of(task) == "fuseplan" for task in Path("/proc/self/task").iterdir())


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has just ended
        return ""


def num_threads() -> int:
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def run_script(text: str, *args: str, env: Sequence[tuple[str, str]] = (), timeout: float = 120) -> str:
    """Run a program of its own; what it printed. A deadlock is a failure."""
    root = Path(__file__).parents[2]
    full = {**os.environ, "PYTHONPATH": str(root), **dict(env)}
    done = subprocess.run(
        [sys.executable, "-c", text, *args],
        cwd=root,
        env=full,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
