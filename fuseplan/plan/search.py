"""A search over the configs of all regions, one kind of regions after the other; knows no clock and no engine."""

from __future__ import annotations

from collections.abc import Generator

from fuseplan.engines.base import Config
from fuseplan.plan.rank import Candidates, Entry, Pick

Times = dict[str, float | None]  # by a plan's name; None: it was tried and is not right


def search(candidates: Candidates, start: Entry, times: Times) -> Generator[Entry, float | None, None]:
    """Yield plans that may be faster than all known ones; the time of each is sent back, None if it is not right.

    The kinds of regions are gone through by their share of the time. A kind tries the config that was fastest with
    defaults elsewhere, those that were not tried, and from a faster one its neighbours; the other kinds keep the best.

    Args:
        start: the fastest plan so far
        times: what is known; results are added
    """
    best = start
    for at in sorted(candidates.own, key=lambda at: -candidates.estimate_us(at, candidates.own[at])):
        changed = candidates.changed(best)
        engine = changed.get(at, candidates.own[at]).engine
        todo = _options(candidates, at, changed.get(at, candidates.own[at]), times)
        while todo:
            pick = Pick(engine, todo.pop(0))
            entry = candidates.entry({**candidates.changed(best), at: pick})
            if entry.name in times:
                continue
            us = times[entry.name] = yield entry
            if us is not None and us < (times[best.name] or 0.0):
                best = entry
                todo += candidates.space(at, engine).neighbours(pick.config)


def _options(candidates: Candidates, at: int, current: Pick, times: Times) -> list[Config]:
    """Configs of a kind to try beside the best of the others."""
    space, fresh, timed = candidates.space(at, current.engine), list[Config](), list[tuple[float, Config]]()
    for config in space.configs():
        name = candidates.entry({at: Pick(current.engine, config)}).name
        us = times.get(name)
        if us is not None:
            timed.append((us, config))
        elif name not in times:
            fresh.append(config)
    fastest = [min(timed, key=lambda t: t[0])[1]] if timed else []
    return [*fastest, *fresh, *space.neighbours(current.config)]
