"""What the CPU at hand can do: FMA peak, read and copy rate, on the same team of threads as the plans."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import torch

from fuseplan import dtypes
from fuseplan.runtime import team, toolchain
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind, Program, Slot, Tasks

TASKS = 64
FMA_STEPS = 4096  # of one task
SOURCE = (
    "#include <string.h>\n"
    + team.header()
    + """
#ifdef __AVX512F__
enum { VW = 16, NUM = 24 };
#elif defined __ARM_NEON
enum { VW = 4, NUM = 24 };
#else
enum { VW = 8, NUM = 12 };
#endif
typedef float vf __attribute__((vector_size(VW * 4)));
typedef int vi __attribute__((vector_size(VW * 4)));

static inline vf multiply_add(vf a, vf b, vf c) {
  vf r;
  for (int l = 0; l < VW; ++l) r[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return r;
}

struct block { char *y; const char *x; int64_t bytes; };

int copy(const void *block, const struct fp_task *task) {
  const struct block *p = block;
  for (int64_t t; (t = fp_next(task)) >= 0;) memcpy(p->y + t * p->bytes, p->x + t * p->bytes, (size_t)p->bytes);
  return 0;
}

static inline void take(vi *sum, const char *x) {
  vi v;
  memcpy(&v, x, sizeof v);
  *sum |= v;
}

/* As rows of a matrix are read that are added up together: more lines are on their way than along one row. */
int read_all(const void *block, const struct fp_task *task) {
  enum { ROWS = 8, ROW_BYTES = 16384, STEP = 2 * sizeof(vi) };
  const struct block *p = block;
  vi sum[ROWS] = {0};
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    const char *x = p->x + t * p->bytes, *past = x + p->bytes;
    for (; past - x >= ROWS * ROW_BYTES; x += ROWS * ROW_BYTES)
      for (int64_t i = 0; i < ROW_BYTES; i += STEP)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
          take(&sum[r], x + r * ROW_BYTES + i);
          take(&sum[r], x + r * ROW_BYTES + i + sizeof(vi));
        }
    for (; past - x >= (int64_t)sizeof(vi); x += sizeof(vi)) take(&sum[0], x);
  }
  for (int r = 1; r < ROWS; ++r) sum[0] |= sum[r];
  memcpy(p->y + 64 * task->thread, sum, 64 < sizeof *sum ? 64 : sizeof *sum);
  return 0;
}

int fma_peak(const void *block, const struct fp_task *task) {
  const struct block *p = block;
  vf acc[NUM], a, b;
  for (int l = 0; l < VW; ++l) a[l] = 0.5f, b[l] = 1.0f;
#pragma GCC unroll 24
  for (int k = 0; k < NUM; ++k) acc[k] = a * (float)k;
  for (int64_t t; (t = fp_next(task)) >= 0;)
    for (int64_t i = 0; i < p->bytes; ++i) {
      __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
      for (int k = 0; k < NUM; ++k) acc[k] = multiply_add(acc[k], a, b);
    }
#pragma GCC unroll 24
  for (int k = 1; k < NUM; ++k) acc[0] += acc[k];
  memcpy(p->y + 64 * task->thread, acc, 64 < sizeof *acc ? 64 : sizeof *acc);
  return 0;
}
"""
)


def _bound(name: str, x: np.ndarray, y: np.ndarray, per_task: int, num_threads: int) -> Callable[[], None]:
    slots = (Slot(0, "y", dtypes.UINT8, y.nbytes, "cpu", is_output=True), Slot(1, "x", dtypes.UINT8, x.nbytes, "cpu"))
    patches = tuple(Patch(PatchKind.POINTER, 8 * k, k) for k in range(2))
    tasks = Tasks(TASKS, 1e4)
    flags = ("-mprefer-vector-width=512",) if "avx512f" in toolchain.native_features() else ()
    artifact = toolchain.compile_shared(SOURCE, flags)
    launch = Launch(LaunchKind.HOST, bytes(16) + struct.pack("q", per_task), patches, artifact, name, label=name,
                    tasks=tasks)  # fmt: skip
    program = Program(slots, (launch,), 0, "cpu", num_threads=num_threads)
    call: Callable[[], None] = make_dispatcher(program, [(0,), (1,)], [None, None], dict).bind({0: y, 1: x}, None, 0)
    return call


class Limits:
    """The limits as calls to be timed beside plans.

    Args:
        num_threads: of the team
        num_bytes: read, or read and written, by one call of `read` or `copy`
    """

    def __init__(self, num_threads: int, num_bytes: int = 64 << 20) -> None:
        self.num_threads, self.num_bytes = num_threads, num_bytes
        # from PyTorch, as the works' tensors are: NumPy asks for huge pages, which are read 8% faster
        x, y = torch.ones(num_bytes, dtype=torch.uint8).numpy(), torch.zeros(num_bytes, dtype=torch.uint8).numpy()
        small = np.zeros(64 * 256, np.uint8)
        self.copy = _bound("copy", x[: num_bytes // 2], y[: num_bytes // 2], num_bytes // 2 // TASKS, num_threads)
        self.read = _bound("read_all", x, small, num_bytes // TASKS, num_threads)
        self.fma = _bound("fma_peak", x, small, FMA_STEPS, num_threads)
        avx512 = "avx512f" in toolchain.native_features()
        width, num = (16, 24) if avx512 else (8, 12)
        self.flops = 2.0 * width * num * FMA_STEPS * TASKS
