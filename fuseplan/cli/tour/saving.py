"""A built plan as bytes, loaded into an empty graph and run by uid."""

from __future__ import annotations

import time

import numpy as np

import fuseplan
from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.setting import Outcome, Setting, TourError

#: batch, M, K, N
SIZES = {"tiny": (2, 16, 32, 16), "small": (4, 256, 512, 256), "tutorial": (8, 256, 512, 256)}
UID_A, UID_B, UID_C = 101, 102, 103


def run(at: Setting) -> Outcome:
    batch, m, k, n = SIZES[at.size]
    at.say("problem", f"({batch}, {m}, {k}) x ({batch}, {k}, {n}), {at.io.name}")
    a = at.normal(batch, m, k)
    b = at.normal(batch, k, n)
    c = at.empty(batch, m, n)

    g = at.graph("saved_matmul")
    A = g.tensor_like(a, name="a").set_uid(UID_A)
    B = g.tensor_like(b, name="b").set_uid(UID_B)
    C = g.matmul(A=A, B=B)
    C.set_output(True).set_name("c").set_uid(UID_C)
    start = time.perf_counter()
    g.build()
    built_ms = (time.perf_counter() - start) * 1e3
    pack = {A: a, B: b, C: c}
    at.run(g, pack)
    error = at.compare(g, pack, C, formulas.matmul(at.host(a), at.host(b)))

    blob = g.serialize()
    start = time.perf_counter()
    loaded = fuseplan.pygraph(handle=at.handle)
    loaded.deserialize(at.handle, blob)
    loaded_ms = (time.perf_counter() - start) * 1e3
    again = at.empty(batch, m, n)
    at.run(loaded, {UID_A: a, UID_B: b, UID_C: again})
    if not np.array_equal(at.host(c), at.host(again)):
        raise TourError("the loaded plan's result differs from the saved one's")
    at.say("saved plan", f"{len(blob)} bytes; loaded by uid, the same result bit for bit")
    at.say("build, load", f"{built_ms:.1f} ms, {loaded_ms:.1f} ms")
    return Outcome(error, None, None, f"{len(blob)} bytes, load {loaded_ms:.1f} ms, build {built_ms:.1f} ms")
