"""Knobs of the engine: short lists of configs that belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuseplan.engines.base import Config, Knob, KnobSpace, config
from fuseplan.errors import ArgumentError

_NO_SIZES = ("num_stages", "GROUP_M", "SWAP", "MAPS", "PROGRAMS", "FLOAT_PARTS", "SHARED_TAIL", "SPECIALISTS",
             "PACK", "TURNS", "HALF", "HOLD", "MIXED")  # fmt: skip


def listed(
    configs: Sequence[dict[str, int]],
    others: Mapping[str, Sequence[int]] | None = None,
    refuse: Callable[[Config], str] | None = None,
) -> KnobSpace:
    """The space of these configs, the default first.

    Args:
        others: further values of knobs
        refuse: which combinations do not work; without it only those that are listed do
    """
    knobs = {}
    for name in configs[0]:
        values = [*(c[name] for c in configs), *(others or {}).get(name, ())]
        knobs[name] = Knob(tuple(dict.fromkeys(values)))
    return KnobSpace(knobs, tuple(dict.fromkeys(config(**c) for c in configs)), refuse)


def complete_knobs(space: KnobSpace, chosen: Config) -> dict[str, int]:
    """All knobs of a config. Raises ArgumentError for one that does not exist."""
    knobs: dict[str, int] = {}
    for name, value in (*space.default, *chosen):
        if name not in space.knobs:
            raise ArgumentError(
                f"the triton engine has no knob '{name}' for this region",
                fix=f"knobs are {', '.join(sorted(space.knobs))}",
            )
        is_size = name not in _NO_SIZES
        if isinstance(value, str) or value < 0 or (is_size and (value < 1 or value & (value - 1))):
            raise ArgumentError(f"knob '{name}' of the triton engine must be a power of two, not {value}")
        knobs[name] = value
    most = 4 if knobs.get("SPECIALISTS") else 2
    if knobs.get("SPLIT_N", 1) > most:
        raise ArgumentError(f"knob 'SPLIT_N' of the triton engine is at most {most} here, not {knobs['SPLIT_N']}")
    return knobs


def power_of_two(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, n - 1).bit_length()
