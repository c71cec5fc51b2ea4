"""Candidates that alternate in one process: medians and quartiles of their rounds, on the CPU or on a GPU."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Microseconds of one candidate over its rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f} to {self.high:.1f})"


def alternate(calls: Mapping[str, Call], *, rounds: int = 9, least_s: float = 0.004,
              limit_s: float = 40.0) -> dict[str, Spread]:  # fmt: skip
    """Time each call in each round, often enough to fill `least_s`; at least 8 rounds unless `limit_s` is over.

    The order is another one in each round: what the one before leaves in the last cache counts.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        once = _seconds(call, 1)
        counts[name] = max(1, int(least_s / max(once, 1e-7)))
    end, order = time.monotonic() + limit_s, random.Random(0)
    while len(next(iter(times.values()))) < rounds and (time.monotonic() < end):
        for name, call in order.sample(list(calls.items()), len(calls)):
            if counts[name] == 1:
                call()  # its data and threads, not those of the one before
            times[name].append(1e6 * _seconds(call, counts[name]) / counts[name])
    return {name: _spread(found) for name, found in times.items()}


def _seconds(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _spread(found: list[float]) -> Spread:
    if len(found) < 2:
        return Spread(found[0], found[0], found[0])
    low, median, high = statistics.quantiles(found, n=4)
    return Spread(median, low, high)
