"""An engine of another package that calls a library: a C object with a handle, a stream and a status.

The test copies this file out of the tree and installs it with an entry point.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from typing import Any

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import YES, Config, Executable, FusionLimits, Knob, KnobSpace, Support, no
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region
from fuseplan.runtime import artifacts, toolchain
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind

# the foreign library: its handles count their calls, and one that was destroyed refuses
LIBRARY = """
#include <stdint.h>
#include <stdlib.h>
struct handle { int64_t calls, alive; void *stream; };
void *toy_create(void) { struct handle *h = calloc(1, sizeof *h); h->alive = 1; return h; }
void toy_destroy(struct handle *h) { h->alive = 0; }
int toy_negate(struct handle *h, void *stream, const float *x, float *y, int64_t n, int64_t limit) {
  if (!h->alive) return 2;
  if (n > limit) return 7;
  h->calls += 1;
  h->stream = stream;
  for (int64_t i = 0; i < n; ++i) y[i] = -x[i];
  return 0;
}
int toy_run(const void *block, void *stream) {
  const struct { const float *x; float *y; struct handle *h; int64_t n, limit; } *p = block;
  return toy_negate(p->h, stream, p->x, p->y, p->n, p->limit);
}
"""
STATUS = {2: "TOY_DESTROYED: the handle is gone", 7: "TOY_TOO_LONG: more elements than LIMIT"}


class Handle:
    """A handle of the library; destroyed with the object."""

    def __init__(self, library: Any) -> None:
        library.toy_create.restype = ctypes.c_void_p
        self.address = int(library.toy_create())
        weakref.finalize(self, library.toy_destroy, ctypes.c_void_p(self.address))

    @property
    def state(self) -> tuple[int, int, int]:
        """Calls, whether it is alive, the last stream."""
        calls, alive, stream = (ctypes.c_int64 * 3).from_address(self.address)
        return calls, alive, stream


class LibraryEngine:
    """Negates packed FLOAT tensors."""

    name = "toy_library"
    engine_ids = range(70100, 70101)
    device_kinds = frozenset({"cpu"})
    is_general = False
    is_compiled = True
    made: list[Any] = []  # weak references of the handles, for the test

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(ops=frozenset({"neg"}), max_nodes=1)

    def supports(self, region: Region, device: Device) -> Support:
        specs = region.graph.tensors.values()
        if [n.op for n in region.graph.nodes] != ["neg"]:
            return no("it negates, and nothing else")
        plain = all(t.dtype is FLOAT and t.stride == packed_stride(t.dim) for t in specs)
        return YES if plain else no("a tensor is not packed FLOAT")

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace({"LIMIT": Knob((1 << 20, 16))})

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        artifact = toolchain.compile_shared(LIBRARY, label="the toy library")
        handle = Handle(artifacts.load_shared(artifact))
        self.made.append(weakref.ref(handle))
        (numel,) = {t.numel for t in region.graph.tensors.values()}
        block = bytes(16) + struct.pack("Qqq", handle.address, numel, dict(config)["LIMIT"])
        patches = tuple(Patch(PatchKind.POINTER, 8 * k, k) for k in range(2))
        launch = Launch(
            LaunchKind.LIBRARY, block, patches, artifact, "toy_run", label="toy",
            status_text=lambda status: STATUS.get(status, "unknown"), owner=handle,
        )  # fmt: skip
        return Executable((launch,))

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        return 0.001 if dict(config)["LIMIT"] > 16 else 0.002

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


ENGINE = LibraryEngine()
