"""How CPU peers are timed on a machine that others use too: interleaved, medians of the quiet rounds."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BUSY_SHARE = 0.06  # of one core: a round in which other processes used more does not count
ENOUGH = 3  # quiet rounds; with fewer the 10% quantile of all samples stands for them


@dataclass(frozen=True)
class Timing:
    """Microseconds of each peer, and how they were found.

    Args:
        us: one figure per peer
        quiet, noisy: rounds that counted and rounds that did not
        is_median: whether `us` are medians of quiet rounds; else 10% quantiles of all samples
    """

    us: dict[str, float]
    quiet: int
    noisy: int
    is_median: bool

    def __str__(self) -> str:
        how = "medians of the quiet ones" if self.is_median else "10% quantiles of all, for want of quiet ones"
        return f"{self.quiet} quiet and {self.noisy} noisy rounds, {how}"


def _busy_s() -> float:
    """Seconds that all processes of the machine have computed."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(x) for x in file.readline().split()[1:9]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def compare(
    peers: Mapping[str, Callable[[], float]], *, rounds: int = 9, round_s: float = 0.3, limit_s: float = 60
) -> Timing:
    """Call the peers in turn; each returns the microseconds of what it timed itself."""
    for call in peers.values():
        call()
    medians: dict[str, list[float]] = {name: [] for name in peers}
    samples: dict[str, list[float]] = {name: [] for name in peers}
    noisy, end = 0, time.monotonic() + limit_s
    while len(next(iter(medians.values()))) < rounds and time.monotonic() < end:
        found: dict[str, list[float]] = {name: [] for name in peers}
        start, busy, own = time.monotonic(), _busy_s(), _own_s()
        while time.monotonic() - start < round_s:
            for name, call in peers.items():
                found[name].append(call())
        share = ((_busy_s() - busy) - (_own_s() - own)) / (time.monotonic() - start)
        for name, us in found.items():
            samples[name] += us
            if share <= BUSY_SHARE:
                medians[name].append(statistics.median(us))
        noisy += share > BUSY_SHARE
    quiet = len(next(iter(medians.values())))
    if quiet >= ENOUGH:
        return Timing({name: statistics.median(us) for name, us in medians.items()}, quiet, noisy, True)
    return Timing({name: sorted(us)[len(us) // 10] for name, us in samples.items()}, quiet, noisy, False)


def timed(call: Callable[[], object], times: int = 1) -> Callable[[], float]:
    """A peer that calls `times` times; microseconds of one call."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times * 1e6

    return run
