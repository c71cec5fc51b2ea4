"""The timing protocol, one for all: warm up, then the median of batches of back-to-back calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

BATCH_US = 2000.0


def time_us(
    call: Callable[[], None], synchronise: Callable[[], None], *, limit_s: float = 0.3, batches: int = 7
) -> float:
    """Median time of one call in microseconds.

    Args:
        call: starts the work; may be asynchronous
        synchronise: waits for all started work
        limit_s: stop measuring after this time; at least one batch is measured
        batches: number of batches
    """
    call()
    synchronise()
    once = _batch(call, synchronise, 1)
    count = max(1, min(1000, int(BATCH_US / max(once, 0.1))))
    deadline = time.perf_counter() + limit_s
    found = []
    for _ in range(batches):
        found.append(_batch(call, synchronise, count))
        if time.perf_counter() > deadline:
            break
    return statistics.median(found)


def _batch(call: Callable[[], None], synchronise: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronise()
    return (time.perf_counter() - start) / count * 1e6
