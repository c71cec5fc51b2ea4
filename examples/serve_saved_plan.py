"""Build a plan once, save it, load it in a server, and call it without checks.

Run as `python examples/serve_saved_plan.py`; needs NumPy only.
"""

from __future__ import annotations

import time

import numpy as np

import fuseplan

UID_X, UID_W, UID_Y = 1, 2, 3
ROWS, WIDTH = 128, 256


def build_and_save() -> bytes:
    """relu(x @ w) as a saved plan."""
    flt = fuseplan.data_type.FLOAT
    g = fuseplan.pygraph(name="served", io_data_type=flt, handle=fuseplan.create_handle(device="cpu"))
    x = g.tensor(dim=[1, ROWS, WIDTH], name="x").set_uid(UID_X)
    w = g.tensor(dim=[1, WIDTH, WIDTH], name="w").set_uid(UID_W)
    g.relu(input=g.matmul(A=x, B=w)).set_output(True).set_uid(UID_Y)
    g.build()
    return bytes(g.serialize())


def serve(blob: bytes) -> None:
    """Load the plan and call it: checked once when it is bound, never again."""
    handle = fuseplan.create_handle(device="cpu")
    g = fuseplan.pygraph(handle=handle)
    g.deserialize(handle, blob)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, ROWS, WIDTH), dtype=np.float32)
    w = rng.standard_normal((1, WIDTH, WIDTH), dtype=np.float32)
    y = np.empty_like(x)
    call = g.bind({UID_X: x, UID_W: w, UID_Y: y}, np.empty(g.get_workspace_size(), dtype=np.uint8))
    start = time.perf_counter()
    for _ in range(1000):
        call()
    each_us = (time.perf_counter() - start) * 1e3
    want = np.maximum(x.astype(np.float64) @ w, 0)
    print(f"{each_us:.1f} us a call; largest error {np.abs(y - want).max():.1e}")


if __name__ == "__main__":
    saved = build_and_save()
    print(f"plan of {len(saved)} bytes")
    serve(saved)
