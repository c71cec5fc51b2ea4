"""A search over the configs of all regions, one kind of regions after the other; knows no clock and no engine."""

from __future__ import annotations

from collections.abc import Generator

from fuseplan.engines.base import Config, KnobSpace
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
        current = candidates.changed(best).get(at, candidates.own[at])
        timed, todo = _options(candidates, at, current, times)
        while timed or todo:
            is_known, config = bool(timed), (timed or todo).pop(0)
            entry = candidates.entry({**candidates.changed(best), at: Pick(current.engine, config)})
            us = times[entry.name] if entry.name in times else (yield entry)
            times[entry.name] = us
            if is_known and us is not None:
                timed.clear()  # the others were slower with defaults elsewhere
            if us is not None and us < (times[best.name] or 0.0):
                best = entry
                todo += _beyond(candidates.space(at, current.engine), config)


def _options(candidates: Candidates, at: int, current: Pick, times: Times) -> tuple[list[Config], list[Config]]:
    """Configs of a kind to try beside the best of the others: timed with defaults elsewhere, fastest first; new."""
    space, new, timed = candidates.space(at, current.engine), list[Config](), list[tuple[float, Config]]()
    for config in space.configs():
        name = candidates.entry({at: Pick(current.engine, config)}).name
        us = times.get(name)
        if us is not None:
            timed.append((us, config))
        elif name not in times:
            new.append(config)
    return [config for _, config in sorted(timed)], [*new, *_beyond(space, current.config)]


def _beyond(space: KnobSpace, config: Config) -> list[Config]:
    """Neighbours that are not worth a plan of their own and so are not tried anyway."""
    return [c for c in space.neighbours(config) if c not in space.configs()]
