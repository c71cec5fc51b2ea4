"""What the tests of the dispatchers share: kernels in C, a program, and buffers between guards."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np

from fuseplan import dtypes
from fuseplan.errors import BindError
from fuseplan.runtime import team
from fuseplan.runtime.dispatch import Dispatcher, make_dispatcher
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program, Slot

N = 8
SOURCE = (
    team.header()
    + """
/* y = a * s + b, and b is kept in the workspace */
int scaled(const void *block, const struct fp_task *task) {
  (void)task;
  const struct { const float *a, *b; float *y, *work; int64_t n; float s; } *p = block;
  for (int64_t i = 0; i < p->n; ++i) { p->work[i] = p->b[i]; p->y[i] = p->a[i] * p->s + p->work[i]; }
  return 0;
}
/* waits for the other thread: only possible if the interpreter's lock is free */
int meet(const void *block, const struct fp_task *task) {
  (void)task;
  const struct { volatile int32_t *cell; } *p = block;
  __atomic_add_fetch(p->cell, 1, __ATOMIC_SEQ_CST);
  for (int64_t i = 0; i < 2000000000 && __atomic_load_n(p->cell, __ATOMIC_SEQ_CST) < 2; ++i) {}
  return 0;
}
int copy8(const void *block, const struct fp_task *task) {
  (void)task;
  const struct { uint64_t *y; uint64_t value; } *p = block;
  *p->y = p->value;
  return 0;
}
"""
)


def pointer(offset: int, slot: int, addend: int = 0) -> Patch:
    return Patch(PatchKind.POINTER, offset, slot, addend)


def slot(uid: int, name: str, **changes: Any) -> Slot:
    made = Slot(uid, name, dtypes.FLOAT, 4 * N, "cpu")
    return replace(made, **changes)


def scaled_program(kernels: Artifact, **y: Any) -> Program:
    """y = a * s + b with a workspace of N floats."""
    slots = (slot(1, "a"), slot(2, "b"), slot(3, "y", is_output=True, **y), slot(4, "s", place="host", span_bytes=4))
    to_workspace, to_scalar = Patch(PatchKind.SCRATCH, 24), Patch(PatchKind.SCALAR, 40, 3, size=4)
    patches = (pointer(0, 0), pointer(8, 1), pointer(16, 2), to_workspace, to_scalar)
    block = bytes(32) + struct.pack("qf", N, 0.0)
    launch = Launch(LaunchKind.HOST, block, patches, kernels, "scaled", label="scaled")
    return Program(slots, (launch,), 4 * N, "cpu")


def by_uid(pack: object) -> dict[int, Any]:
    """A normaliser: names and uids of `scaled_program`, lists are refused."""
    if not isinstance(pack, dict):
        raise BindError("the pack is not a dict")
    names = {"a": 1, "b": 2, "y": 3, "s": 4}
    unknown = [k for k in pack if isinstance(k, str) and k not in names]
    if unknown:
        raise BindError(f"unknown name {unknown[0]}")
    return {names.get(k, k): v for k, v in pack.items()}


def dispatcher_of(program: Program, defaults: Any = None) -> Dispatcher:
    keys = [(s.uid, s.name) for s in program.slots]
    return make_dispatcher(program, keys, defaults or [None] * len(keys), by_uid)


class Guarded:
    """Buffers a, b and y with guard bytes around y, and a workspace."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = rng.random(N, np.float32), rng.random(N, np.float32)
        self.memory = np.full(3 * N, 7.0, np.float32)
        self.y, self.work = self.memory[N : 2 * N], np.full(N, 7.0, np.float32)

    def pack(self, **changes: Any) -> dict[object, Any]:
        return {"a": self.a, "b": self.b, "y": self.y, "s": 2.5, **changes}

    def is_untouched(self) -> bool:
        return bool((self.memory == 7).all() and (self.work == 7).all())

    def is_right(self, s: float = 2.5) -> bool:
        expected = self.a.astype(np.float64) * np.float64(np.float32(s)) + self.b.astype(np.float64)
        inside = np.abs(self.y.astype(np.float64) - expected).max() <= 2**-23 * np.abs(expected).max()
        return bool(inside and (self.memory[:N] == 7).all() and (self.memory[2 * N :] == 7).all())
