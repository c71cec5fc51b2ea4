"""The floor of a call: a C loop of bare cuLaunchKernel on the kernel of a built graph."""

from __future__ import annotations

import ctypes
import statistics
from typing import Any

from fuseplan.runtime import artifacts, cuda, toolchain
from fuseplan.runtime.launch import LaunchKind, PatchKind

SOURCE = """
#define _POSIX_C_SOURCE 199309L
#include <time.h>
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
double bare_loop(void *entry, void *kernel, const unsigned *grid, const unsigned *block, unsigned shared, void **params,
                 int count) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < count; ++i)
    if (((launch_t)entry)(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, 0, params, 0))
      return -1;
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (b.tv_sec - a.tv_sec) * 1e6 + (b.tv_nsec - a.tv_nsec) * 1e-3;
}
"""


def bare_launch_us(graph: Any, pack: dict[Any, Any], iters: int = 2000, rounds: int = 9) -> float:
    """Median microseconds of one cuLaunchKernel of the graph's only kernel, called in a C loop on stream 0."""
    import torch

    program = graph._plans.need_built().program
    (launch,) = [x for x in program.launches if x.kind is LaunchKind.CUDA]
    by_uid = {t.get_uid(): buffer for t, buffer in pack.items()}
    block = bytearray(launch.template)
    for p in launch.patches:
        assert p.kind is PatchKind.POINTER, "the benchmark's kernel takes device buffers only"
        address = by_uid[program.slots[p.slot].uid].data_ptr() + p.addend
        block[p.offset : p.offset + 8] = address.to_bytes(8, "little")
    raw = (ctypes.c_char * len(block)).from_buffer(block)
    base = ctypes.addressof(raw)
    params = (ctypes.c_void_p * len(launch.param_offsets))(*(base + o for o in launch.param_offsets))
    assert launch.artifact is not None
    kernel = cuda.load_cubin(launch.artifact.data, launch.symbol, launch.shared_bytes)
    entry = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value
    address = artifacts.symbol_address(toolchain.compile_shared(SOURCE), "bare_loop")
    unsigned3 = ctypes.c_uint * 3
    loop = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, unsigned3, unsigned3, ctypes.c_uint,
                            ctypes.c_void_p, ctypes.c_int)(address)  # fmt: skip

    def run() -> float:
        us = loop(entry, kernel, unsigned3(*launch.grid), unsigned3(*launch.block), launch.shared_bytes, params, iters)
        torch.cuda.synchronize()
        assert us > 0, "cuLaunchKernel failed"
        return us / iters

    run()
    return statistics.median(run() for _ in range(rounds))
