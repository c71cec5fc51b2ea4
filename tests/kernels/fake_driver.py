"""A CUDA driver of our own that writes down what it is asked, and how it is put in force."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from fuseplan.runtime import artifacts, cuda, device, toolchain

# Two devices; a launch copies 3 parameters (pointer, pointer, float) and its configuration into `calls`.
FAKE_DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned num; } Config;
typedef struct {
  uint64_t kind, function, context, stream, shared, a, b;
  uint32_t grid[3], block[3];
  float s;
  uint32_t words;
} Call;
Call calls[64];
int num_calls, fail_next, num_loads, num_unloads, num_retains, num_switches;
uint64_t shared_limit, now = 0;
int cuInit(unsigned f) { return f; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = 10 + i; return i < 2 ? 0 : 101; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, d == 10 ? "NVIDIA H200" : "Unheard Of"); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
  switch (a) {
    case 13: *v = 1500000; break; case 16: *v = d == 10 ? 132 : 10; break; case 36: *v = 1000000; break;
    case 37: *v = 256; break; case 38: *v = 60 << 20; break; case 75: *v = d == 10 ? 9 : 12; break;
    case 76: *v = 0; break; case 97: *v = 232448; break; default: return 1;
  }
  return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { ++num_retains; *c = (void *)(uintptr_t)(1000 + d - 10); return 0; }
int cuCtxGetCurrent(void **c) { *c = (void *)now; return 0; }
int cuCtxSetCurrent(void *c) { ++num_switches; now = (uint64_t)c; return 0; }
int cuLibraryLoadData(void **l, const void *data, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
  ++num_loads;
  if (memcmp(data, "cubin", 5)) return 200;
  *l = (void *)1; return 0;
}
int cuLibraryUnload(void *l) { (void)l; ++num_unloads; return 0; }
int cuLibraryGetKernel(void **k, void *l, const char *name) {
  (void)l;
  *k = (void *)(uintptr_t)(strcmp(name, "mapped") ? 2 : 3);
  return strcmp(name, "kernel") && strcmp(name, "mapped") ? 500 : 0;
}
int cuKernelGetFunction(void **f, void *k) { *f = (void *)(7000 + now + ((uint64_t)k == 3 ? 500 : 0)); return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { (void)f; if (a == 8) shared_limit = v; return v > 232448 ? 1 : 0; }
/* What the driver was asked to encode stands in the map itself; `mapped` has a map, a pointer and an int. */
typedef struct {
  uint64_t address, dims[3], strides[2];
  uint32_t box[3], steps[3], rank;
  int32_t type, interleave, swizzle, promotion, fill;
} Map;
typedef struct { int id, unused; unsigned value[16]; } Attribute;
Map mapped[64];
uint64_t mapped_pointer[64];
int mapped_int[64], num_mapped, num_encodes, fail_encode, num_attributes;
Attribute attributes[4];
int cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *at, const uint64_t *dims, const uint64_t *strides,
                           const unsigned *box, const unsigned *steps, int a, int b, int c, int fill) {
  Map m = {(uint64_t)at, {0}, {0}, {0}, {0}, rank, type, a, b, c, fill};
  if (now < 1000 || now > 1001) return 201; /* no context of a device */
  if (fail_encode || (uint64_t)out % 64 || rank > 3) return 1;
  memcpy(m.dims, dims, 8 * rank); memcpy(m.strides, strides, 8 * (rank - 1));
  memcpy(m.box, box, 4 * rank); memcpy(m.steps, steps, 4 * rank);
  memset(out, 0, 128); memcpy(out, &m, sizeof m);
  ++num_encodes;
  return 0;
}
static int launch_mapped(const Config *c, void **params) {
  if ((uint64_t)params[0] % 64) return 1;
  memcpy(&mapped[num_mapped], params[0], sizeof(Map));
  mapped_pointer[num_mapped] = *(uint64_t *)params[1];
  mapped_int[num_mapped++] = *(int *)params[2];
  num_attributes = c->num;
  if (c->num) memcpy(attributes, c->attributes, c->num * sizeof(Attribute));
  return 0;
}
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  if (fail_next) { int code = fail_next; fail_next = 0; return code; }
  if ((uint64_t)f == 7500 + now) return launch_mapped(c, params);
  if (extra || c->attributes || c->num) return 1;
  Call *o = &calls[num_calls++];
  o->kind = 1; o->function = (uint64_t)f; o->context = now; o->stream = (uint64_t)c->stream; o->shared = c->shared;
  memcpy(o->grid, c->grid, 12); memcpy(o->block, c->block, 12);
  o->a = *(uint64_t *)params[0]; o->b = *(uint64_t *)params[1]; o->s = *(float *)params[2];
  return 0;
}
int cuMemsetD32Async(uint64_t p, unsigned v, size_t n, void *s) {
  Call *o = &calls[num_calls++];
  o->kind = 2; o->a = p; o->b = v; o->words = n; o->stream = (uint64_t)s; o->context = now;
  return 0;
}
/* memory of a device is memory of the process */
int num_allocations, num_frees;
int cuMemAlloc_v2(uint64_t *at, size_t size) {
  if (now < 1000 || now > 1001) return 201;
  if (size > 1 << 20) return 2;
  ++num_allocations; *at = (uint64_t)malloc(size); return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemFree_v2(uint64_t at) { ++num_frees; free((void *)at); return 0; }
int cuStreamSynchronize(void *s) { return s == (void *)13 ? 700 : 0; }
int cuGetErrorName(int c, const char **s) {
  *s = c == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SOME";
  return 0;
}
int cuGetErrorString(int c, const char **s) { (void)c; *s = "in words"; return 0; }
"""


class Call(ctypes.Structure):
    """One record of the fake driver."""

    _fields_ = [
        *[(name, ctypes.c_uint64) for name in ("kind", "function", "context", "stream", "shared", "a", "b")],
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("s", ctypes.c_float),
        ("words", ctypes.c_uint32),
    ]


class Map(ctypes.Structure):
    """What the driver was asked to encode."""

    _fields_ = [
        ("address", ctypes.c_uint64), ("dims", ctypes.c_uint64 * 3), ("strides", ctypes.c_uint64 * 2),
        ("box", ctypes.c_uint32 * 3), ("steps", ctypes.c_uint32 * 3), ("rank", ctypes.c_uint32),
        *[(name, ctypes.c_int32) for name in ("type", "interleave", "swizzle", "promotion", "fill")],
    ]  # fmt: skip


class Fake:
    """The fake driver's memory."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        for name in (
            "num_calls", "num_loads", "num_unloads", "num_retains", "num_switches", "fail_next",
            "num_mapped", "num_encodes", "fail_encode", "num_attributes",
        ):  # fmt: skip
            self.set(name, 0)
        self.context = 0

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, name).value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, name).value = value

    @property
    def context(self) -> int:
        """Handle of the current context."""
        return ctypes.c_uint64.in_dll(self.library, "now").value

    @context.setter
    def context(self, value: int) -> None:
        ctypes.c_uint64.in_dll(self.library, "now").value = value

    @property
    def maps(self) -> list[Map]:
        """Tensor maps of the launches of `mapped`."""
        return list((Map * 64).in_dll(self.library, "mapped"))[: self.get("num_mapped")]

    @property
    def attributes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Attributes of the last launch of `mapped`, by number, with their first three values."""
        read = (cuda.LaunchAttribute * 4).in_dll(self.library, "attributes")
        return [(a.id, tuple(a.value[:3])) for a in read[: self.get("num_attributes")]]

    @property
    def calls(self) -> list[Call]:
        return list((Call * 64).in_dll(self.library, "calls"))[: self.get("num_calls")]


def fake_driver() -> Iterator[Fake]:
    """The fake driver, in force."""
    path = str(artifacts.shared_path(toolchain.compile_shared(FAKE_DRIVER, ("-w",), label="the fake driver")))
    cuda.set_library(path)
    device.cuda_devices.cache_clear()
    yield Fake(path)
    cuda.set_library(None)
    device.cuda_devices.cache_clear()
