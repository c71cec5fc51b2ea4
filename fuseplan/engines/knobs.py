"""The choices of an engine for one region: typed knobs, and which of their combinations are valid.

A search needs nothing but this: a default, random values, and the neighbours of a config.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product

Value = int | str
Config = tuple[tuple[str, Value], ...]  # knob values, sorted by name
ENGINE_KNOB = "engine"  # its value is the place of an entry's id in `Engine.engine_ids`, for engines of many ids
MAX_TRIES = 64


def config(**knobs: Value) -> Config:
    """A config from keyword values."""
    return tuple(sorted(knobs.items()))


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice.

    Args:
        values: integers or names; users see the position of a name, so names keep their order from release to release
        start: position of the default
    """

    values: tuple[Value, ...]
    start: int = 0

    @property
    def default(self) -> Value:
        return self.values[self.start]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def number(self, value: Value) -> int:
        """The integer that users see: the value itself, or the position of a name."""
        return value if isinstance(value, int) else self.values.index(value)

    def value(self, number: int) -> Value | None:
        """The value with this number, None if there is none."""
        return next((v for v in self.values if self.number(v) == number), None)

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """The next smaller and larger integer; for a name all others."""
        if isinstance(value, str):
            return tuple(v for v in self.values if v != value)
        ordered = sorted(v for v in self.values if isinstance(v, int))
        at = ordered.index(value)
        return tuple(ordered[max(0, at - 1) : at] + ordered[at + 1 : at + 2])


@dataclass(frozen=True)
class KnobSpace:
    """The configs of one region.

    Args:
        knobs: the choices by name
        listed: configs that are worth a plan, the default first; without any, every valid combination is
        refuse: why a combination of values does not work, empty if it does; without it those that are listed work,
            or all if none is
    """

    knobs: Mapping[str, Knob] = field(default_factory=dict)
    listed: tuple[Config, ...] = ()
    refuse: Callable[[Config], str] | None = None

    @property
    def default(self) -> Config:
        return self.listed[0] if self.listed else config(**{name: k.default for name, k in self.knobs.items()})

    def configs(self) -> list[Config]:
        """The configs worth a plan, the default first."""
        if self.listed:
            return list(self.listed)
        names = sorted(self.knobs)
        combined = product(
            *((k.default, *(v for v in k.values if v != k.default)) for _, k in sorted(self.knobs.items()))
        )
        return [c for picked in combined if self.is_valid(c := tuple(zip(names, picked, strict=True)))]

    def refusal(self, chosen: Config) -> str:
        """Why a config does not work; empty if it does."""
        for name, value in chosen:
            if name not in self.knobs:
                return f"it has no knob {name!r} here; its knobs are {sorted(self.knobs)}"
            if value not in self.knobs[name]:
                return f"it cannot set knob {name!r} to {value!r} here; its values are {list(self.knobs[name].values)}"
        if [name for name, _ in chosen] != sorted(self.knobs):
            return f"a config has one value for each of {sorted(self.knobs)}"
        if self.refuse is not None:
            return self.refuse(chosen)
        return "its knobs do not combine so here" if self.listed and chosen not in self.listed else ""

    def is_valid(self, chosen: Config) -> bool:
        return not self.refusal(chosen)

    def complete(self, given: Mapping[str, Value]) -> Config:
        """The config with these values and defaults elsewhere, else the first listed that has these values.

        It may be invalid: ask `refusal`.
        """
        wanted = config(**{**dict(self.default), **given})
        if self.is_valid(wanted):
            return wanted
        return next((c for c in self.listed if given.items() <= dict(c).items()), wanted)

    def random(self, rng: random.Random) -> Config:
        """A valid config drawn at random."""
        if self.listed and self.refuse is None:
            return rng.choice(self.listed)
        for _ in range(MAX_TRIES):
            drawn = config(**{name: rng.choice(k.values) for name, k in sorted(self.knobs.items())})
            if self.is_valid(drawn):
                return drawn
        return self.default

    def neighbours(self, chosen: Config) -> list[Config]:
        """Valid configs that differ in one step of one knob; of a closed list those that differ in the fewest knobs."""
        if self.listed and self.refuse is None:
            others = {c: len(set(c) - set(chosen)) for c in self.listed if c != chosen}
            return [c for c, steps in others.items() if steps == min(others.values())]
        steps = ((name, v) for name, value in chosen for v in self.knobs[name].neighbours(value))
        return [c for name, v in steps if self.is_valid(c := config(**{**dict(chosen), name: v}))]
