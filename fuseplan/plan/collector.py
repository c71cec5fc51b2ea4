"""Pauses Python's cycle collector while many objects are made that all stay alive.

Planning a graph of 10,000 nodes makes some 200,000 objects and no garbage in cycles; passes of the
collector over them cost as much as the planning (docs: benchmarks/planning.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic collection inside; afterwards as before. Two threads at once end with it running again."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()
