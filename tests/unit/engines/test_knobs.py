"""Knob spaces: defaults, validity, what a search may try next, and the numbers that users see."""

from __future__ import annotations

import random

import pytest

from fuseplan.engines.base import Config, Knob, KnobSpace, config

TILES = Knob((16, 32, 64, 128), 2)
ORDERS = Knob(("rows", "columns", "tiles"))
FREE = KnobSpace({"TILE": TILES, "ORDER": ORDERS})
LISTED = KnobSpace({"TILE": TILES, "ORDER": ORDERS}, (config(TILE=32, ORDER="rows"), config(TILE=128, ORDER="tiles")))


def too_large(chosen: Config) -> str:
    values = dict(chosen)
    return "tiles of 128 do not fit" if values["ORDER"] == "tiles" and values["TILE"] == 128 else ""


RULED = KnobSpace({"TILE": TILES, "ORDER": ORDERS}, (config(TILE=32, ORDER="rows"),), too_large)


def test_default_is_the_start_of_each_knob_or_the_first_listed() -> None:
    assert FREE.default == config(ORDER="rows", TILE=64) == FREE.configs()[0]
    assert LISTED.default == config(ORDER="rows", TILE=32) == LISTED.configs()[0]
    assert KnobSpace().default == () and KnobSpace().configs() == [()] and KnobSpace().is_valid(())


def test_all_combinations_are_configs_unless_some_are_listed() -> None:
    assert len(FREE.configs()) == len(set(FREE.configs())) == 12
    assert LISTED.configs() == list(LISTED.listed)


# table: space, config, part of the reason why it is not valid (empty: it is valid)
VALIDITY = [
    (FREE, config(TILE=16, ORDER="tiles"), ""),
    (FREE, config(TILE=17, ORDER="tiles"), "cannot set knob 'TILE' to 17"),
    (FREE, config(TILE=16, ORDER="diagonal"), "cannot set knob 'ORDER' to 'diagonal'"),
    (FREE, config(TILE=16, ORDER="tiles", WARPS=4), "no knob 'WARPS'"),
    (FREE, config(TILE=16), "one value for each"),
    (LISTED, config(TILE=128, ORDER="tiles"), ""),
    (LISTED, config(TILE=128, ORDER="rows"), "do not combine"),
    (RULED, config(TILE=128, ORDER="rows"), ""),
    (RULED, config(TILE=128, ORDER="tiles"), "do not fit"),
]


@pytest.mark.parametrize(("space", "chosen", "part"), VALIDITY)
def test_config_is_valid_or_refused_with_the_reason(space: KnobSpace, chosen: Config, part: str) -> None:
    assert part in space.refusal(chosen)
    assert space.is_valid(chosen) is (part == "")


@pytest.mark.parametrize(("space", "size"), [(FREE, 12), (LISTED, 2), (RULED, 11)], ids=["free", "listed", "ruled"])
def test_random_configs_and_neighbours_are_valid_and_reach_everything(space: KnobSpace, size: int) -> None:
    rng, seen = random.Random(0), set()
    for _ in range(300):
        drawn = space.random(rng)
        assert space.is_valid(drawn)
        seen.add(drawn)
    reached, todo = {space.default}, [space.default]
    while todo:
        near = space.neighbours(todo.pop())
        assert all(space.is_valid(c) for c in near)
        todo += [c for c in near if c not in reached]
        reached.update(near)
    assert seen == reached and len(reached) == size


def test_neighbours_are_one_step_away() -> None:
    assert TILES.neighbours(16) == (32,) and TILES.neighbours(64) == (32, 128)
    assert ORDERS.neighbours("columns") == ("rows", "tiles")
    assert config(ORDER="rows", TILE=128) not in FREE.neighbours(config(ORDER="rows", TILE=32))


def test_numbers_are_integers_themselves_and_positions_of_names() -> None:
    assert [TILES.number(v) for v in TILES.values] == [16, 32, 64, 128] and TILES.value(64) == 64
    assert [ORDERS.number(v) for v in ORDERS.values] == [0, 1, 2] and ORDERS.value(1) == "columns"
    assert ORDERS.value(3) is None and TILES.value(0) is None


def test_given_values_are_completed_by_defaults_or_by_what_is_listed_with_them() -> None:
    assert FREE.complete({"TILE": 16}) == config(ORDER="rows", TILE=16)
    assert LISTED.complete({"TILE": 128}) == config(ORDER="tiles", TILE=128)
    assert not LISTED.is_valid(LISTED.complete({"TILE": 16}))
