"""Which engine and config a region gets: by estimate, a store's answer, variants; and ids and knobs that replay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from fuseplan.engines import registry
from fuseplan.engines.base import (
    ENGINE_KNOB,
    YES,
    Config,
    Executable,
    FusionLimits,
    Knob,
    KnobSpace,
    Support,
    config,
    no,
)
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import POINTWISE
from fuseplan.ir.region import Region
from fuseplan.plan.planner import MAX_PLANS, make_plans
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind
from fuseplan.testing.random_graphs import GraphMaker

CPU = Device("cpu", arch="x86-64-v4")
ORDERS = ("rows", "columns")


class OpEngine:
    """Takes single nodes of some ops; its time is its own, plus what a config costs."""

    device_kinds = frozenset({"cpu"})
    is_general, is_compiled = False, True

    def __init__(
        self, name: str, first_id: int, ops: str, us: float = 1.0, knobs: dict[str, Knob] | None = None
    ) -> None:
        self.name, self.ops, self.us, self.space = name, ops.split(), us, KnobSpace(knobs or {})
        ids = len(self.space.knobs[ENGINE_KNOB].values) if ENGINE_KNOB in self.space.knobs else 1
        self.engine_ids = range(first_id, first_id + ids)
        self.asked: list[str] = []

    def limits(self, device: Device) -> FusionLimits:
        self.asked.append("limits")
        return FusionLimits(ops=POINTWISE | {"matmul"}, max_nodes=1)

    def supports(self, region: Region, device: Device) -> Support:
        self.asked.append("supports")
        ops = [n.op for n in region.graph.nodes]
        return YES if set(ops) <= set(self.ops) else no(f"takes {self.ops}, not {ops}")

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return self.space

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        return Executable((Launch(LaunchKind.HOST, b"\0" * 8, label=f"{self.name} {dict(config)}"),))

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        own = [self.space.knobs[name].number(value) for name, value in config]
        return self.us + sum(own) * (10 if region.graph.nodes[0].op == "matmul" else 1)

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Engines put before the general one; tests fill the list."""
    extra: list[Any] = []
    general = registry.engine_named(registry.GENERAL)
    for module in ("fuseplan.plan.planner", "fuseplan.plan.assign", "fuseplan.plan.rank"):
        monkeypatch.setattr(f"{module}.engines_for", lambda kind: (*extra, general))
    yield extra


def graph_of(*ops: str, rows: int = 4) -> Graph:
    m = GraphMaker(random.Random(0))
    x = m.input((1, rows, 4))
    for op in ops:
        if op == "matmul":
            (x,) = m.node("matmul", {"A": x, "B": m.input((1, 4, 4))}, {"C": (1, rows, 4)})
        else:
            (x,) = m.node(op, {"input": x})
    return m.finish()


def names(plans: Any) -> list[str]:
    return [e.name for e in plans.entries]


def test_refused_region_goes_to_the_engine_with_the_smallest_estimate(engines: list[Any]) -> None:
    engines += [OpEngine("asked", 1, "matmul"), OpEngine("slow", 2, "neg", 9.0), OpEngine("fast", 3, "neg", 2.0)]
    entry = next(e for e in make_plans(graph_of("matmul", "neg"), CPU).entries if e.engine_name == "asked")
    assert [a.engine.name for a in entry.assignments] == ["asked", "fast"]
    assert entry.estimate_us == 3.0
    assert entry.assignments[1].notes == ("asked: takes ['matmul'], not ['neg']",)


def test_refused_region_of_equal_estimates_goes_by_the_order_of_engines(engines: list[Any]) -> None:
    engines += [OpEngine("asked", 1, "matmul"), OpEngine("first", 2, "neg", 2.0), OpEngine("second", 3, "neg", 2.0)]
    entry = next(e for e in make_plans(graph_of("matmul", "neg"), CPU).entries if e.engine_name == "asked")
    assert entry.assignments[1].engine.name == "first"


def test_general_engine_is_the_default_only_where_it_is_twice_as_fast(engines: list[Any]) -> None:
    general = make_plans(graph_of("neg"), CPU).entries[0].estimate_us
    engines.append(OpEngine("one", 1, "neg", 1.9 * general))
    for modes, expected in ((("A", "FALLBACK"), ["one", "array"]), (("A",), ["one"]), (("FALLBACK",), ["array"])):
        assert names(make_plans(graph_of("neg"), CPU, modes)) == expected
    engines[0].us = 2.1 * general
    for modes, expected in (
        (("A", "FALLBACK"), ["array", "one"]),
        (("A",), ["array", "one"]),
        (("B",), ["array", "one"]),
    ):
        assert names(make_plans(graph_of("neg"), CPU, modes)) == expected


def test_every_kind_of_region_has_variants_and_equal_regions_change_together(engines: list[Any]) -> None:
    engines.append(OpEngine("tiled", 1, "matmul neg abs", knobs={"TILE": Knob((0, 1, 2)), "ORDER": Knob(ORDERS)}))
    plans = make_plans(graph_of("matmul", "neg", "abs", "neg"), CPU, ("A",))
    assert names(plans)[0] == "tiled[ORDER=rows, TILE=0]"
    assert "tiled[ORDER=rows, TILE=0, TILE@2=2]" in names(plans) and len(plans.entries) == 1 + 3 * 5
    both = plans.entries[names(plans).index("tiled[ORDER=rows, TILE=0, TILE@1=1]")]
    assert [dict(a.config)["TILE"] for a in both.assignments] == [0, 1, 0, 1]
    assert both.estimate_us == plans.entries[0].estimate_us + 2
    assert [e.estimate_us for e in plans.entries[1:]] == sorted(e.estimate_us for e in plans.entries[1:])


def test_variants_end_at_the_limit_of_plans(engines: list[Any]) -> None:
    engines.append(OpEngine("tiled", 1, "matmul neg", knobs={"TILE": Knob(tuple(range(40)))}))
    assert len(make_plans(graph_of("matmul", "neg"), CPU).entries) == MAX_PLANS


def test_every_listed_plan_can_be_replayed_from_its_id_and_knobs(engines: list[Any]) -> None:
    library = {ENGINE_KNOB: Knob((0, 1, 2)), "ORDER": Knob(ORDERS)}
    engines += [OpEngine("tiled", 10, "matmul abs", knobs={"TILE": Knob((0, 1)), "ORDER": Knob(ORDERS, 1)})]
    engines += [OpEngine("library", 100, "matmul neg", knobs=library)]
    graph = graph_of("matmul", "neg", "abs", "matmul")
    plans = make_plans(graph, CPU, ("A", "FALLBACK"))
    assert len({(e.engine_id, tuple(e.knobs.items())) for e in plans.entries}) == len(plans.entries) > 9
    for entry in plans.entries:
        replayed = make_plans(graph, CPU, None)
        replayed.append(entry.engine_id, entry.knobs)
        assert (replayed.entries[0].name, replayed.entries[0].assignments) == (entry.name, entry.assignments)


def test_engine_of_many_ids_lists_each_under_its_own(engines: list[Any]) -> None:
    engines.append(OpEngine("library", 100, "matmul", knobs={ENGINE_KNOB: Knob((0, 1, 2)), "ORDER": Knob(ORDERS)}))
    plans = make_plans(graph_of("matmul"), CPU, ("A",))
    assert {e.name: (e.engine_id, e.knobs) for e in plans.entries}["library[ORDER=columns, engine=2]"] == (
        102, {"ORDER": 1},
    )  # fmt: skip
    assert {e.engine_id for e in plans.entries} == {100, 101, 102}
    index = plans.append(101, {})
    assert plans.entries[index].name == "library[ORDER=rows, engine=1]"
    built = plans.build(index)
    assert (built.engine_id, built.knobs, built.engine_name) == (101, {"ORDER": 0}, "library")
    with pytest.raises(cudnnGraphNotSupportedError, match=r"no engine has id 103.*\n.*'100 to 102': 'library'"):
        plans.append(103, {})


# table: engine id, knobs, part of the message
BAD_REPLAYS = [
    (10, {"TILE": 7}, "cannot set knob 'TILE' to 7"),
    (10, {"ORDER": 2}, r"cannot set knob 'ORDER' to 2 here\n.*\[0, 1\]"),
    (10, {"TILE@1": 7}, "cannot set knob 'TILE' to 7"),
    (10, {"TILE@9": 1}, "no knob 'TILE@9'"),
    (10, {"engine@1": 99}, "no engine with id 99"),
]


@pytest.mark.parametrize(("engine_id", "knobs", "part"), BAD_REPLAYS)
def test_replay_of_what_is_not_valid_names_it(engines: list[Any], engine_id: int, knobs: Any, part: str) -> None:
    engines.append(OpEngine("tiled", 10, "matmul neg", knobs={"TILE": Knob((0, 1)), "ORDER": Knob(ORDERS)}))
    plans = make_plans(graph_of("matmul", "neg"), CPU, None)
    with pytest.raises(cudnnGraphNotSupportedError, match=part):
        plans.append(engine_id, knobs)
    assert plans.entries == []


def test_store_answers_for_a_region_and_its_plan_comes_first(engines: list[Any]) -> None:
    engines += [OpEngine("tiled", 10, "matmul neg", knobs={"TILE": Knob((0, 1))}), OpEngine("other", 20, "neg", 5.0)]
    asked: list[tuple[str, Device]] = []

    def choose(region: Region, device: Device) -> tuple[str, Config]:
        asked.append((region.key, device))
        return ("tiled", config(TILE=1)) if region.graph.nodes[0].op == "matmul" else ("other", ())

    graph = graph_of("matmul", "neg", "neg")
    plans = make_plans(graph, CPU, ("A",), choose)
    first, own = (
        next(e for e in plans.entries if e.name == n) for n in ("tiled+other[TILE=1, engine@1=20]", "tiled[TILE=0]")
    )
    assert plans.entries.index(first) < plans.entries.index(own)
    assert [(a.engine.name, a.config) for a in first.assignments] == [("tiled", config(TILE=1)), *[("other", ())] * 2]
    assert len(asked) == len(set(asked)) == 2  # once for each region that differs
    replayed = make_plans(graph, CPU, None)
    replayed.append(first.engine_id, first.knobs)
    assert [(a.engine, a.config) for a in replayed.entries[0].assignments] == [
        (a.engine, a.config) for a in first.assignments
    ]


# table: a store's answer, what explain says of it
BAD_ANSWERS = [
    (("nobody", ()), "no engine 'nobody' is here"),
    (("tiled", config(TILE=9)), "tiled: it cannot set knob 'TILE' to 9"),
    (("tiled", ()), "tiled: a config has one value for each"),
    (("other", ()), "other: takes ['abs'], not ['neg']"),
]


@pytest.mark.parametrize(("answer", "note"), BAD_ANSWERS)
def test_answer_that_is_not_valid_is_noted_and_ignored(engines: list[Any], answer: Any, note: str) -> None:
    engines += [OpEngine("tiled", 10, "neg", knobs={"TILE": Knob((0, 1))}), OpEngine("other", 20, "abs")]
    plain = make_plans(graph_of("neg"), CPU)
    plans = make_plans(graph_of("neg"), CPU, choose=lambda region, device: answer)
    assert names(plans) == names(plain)
    assert f"the store's answer: ignored, {note}" in plans.explain() and "store" not in plain.explain()


def test_new_extents_plan_the_chosen_engine_with_its_configs_and_ask_no_other(engines: list[Any]) -> None:
    chosen = OpEngine("chosen", 10, "matmul neg", knobs={"TILE": Knob((0, 1)), "ORDER": Knob(ORDERS)})
    engines += [chosen, *(OpEngine(f"idle{k}", 20 + k, "matmul neg") for k in range(3))]
    plans = make_plans(graph_of("matmul", "neg"), CPU)
    built = plans.build(names(plans).index("chosen[ORDER=columns, TILE=0]"))
    for engine in engines:
        engine.asked.clear()
    for rows in (8, 16, 8):
        other = make_plans(graph_of("matmul", "neg", rows=rows), CPU, None)
        assert next(other.again(built)) == 0 and next(other.again(built)) == 0
        assert names(other) == [built.name]
        assert [dict(a.config) for a in other.entries[0].assignments] == [
            {"ORDER": "columns", "TILE": 0}, {"ORDER": "rows", "TILE": 0},
        ]  # fmt: skip
    assert chosen.asked.count("limits") == 3
    assert [e.asked for e in engines[1:]] == [[]] * 3


def test_config_that_new_extents_do_not_allow_gives_way_to_the_default(engines: list[Any]) -> None:
    class Fitting(OpEngine):
        def knobs(self, region: Region, device: Device) -> KnobSpace:
            rows = region.graph.tensors[region.graph.output_uids[0]].dim[1]
            return KnobSpace({"TILE": Knob(tuple(t for t in (4, 8, 16) if t <= rows))})

    engines.append(Fitting("fitting", 10, "matmul neg"))
    engines[0].space = KnobSpace({"TILE": Knob((4, 8, 16))})
    plans = make_plans(graph_of("neg", rows=16), CPU)
    built = plans.build(names(plans).index("fitting[TILE=16]"))
    for rows, name in ((32, "fitting[TILE=16]"), (8, "fitting[TILE=4]")):
        other = make_plans(graph_of("neg", rows=rows), CPU, None)
        assert other.entries[next(other.again(built))].name == name


def test_plan_that_new_extents_refuse_is_followed_by_all_others(engines: list[Any]) -> None:
    engines += [OpEngine("chosen", 10, "neg"), OpEngine("other", 20, "neg", 2.0)]
    built = make_plans(graph_of("neg"), CPU).build(0)
    engines[0].ops = []
    other = make_plans(graph_of("neg", rows=8), CPU, None)
    assert [other.entries[k].name for k in other.again(built)] == ["other", "array"]


def simulate(plans: Any, us_of: Any) -> tuple[list[str], str]:
    """Search from the best listed plan with made-up times; the names that were tried, and the fastest."""
    times = {e.name: us_of(e) for e in plans.entries}
    best = min(
        (k for k, e in enumerate(plans.entries) if times[e.name] is not None), key=lambda k: times[names(plans)[k]]
    )
    beyond, tried = plans.search(best, times), []
    entry = next(beyond, None)
    while entry is not None:
        tried.append(entry.name)
        try:
            entry = beyond.send(us_of(entry))
        except StopIteration:
            break
    return tried, min((n for n in times if times[n] is not None), key=lambda n: times[n] or 0.0)


def tiles(entry: Any) -> list[Any]:
    return [dict(a.config)["TILE"] for a in entry.assignments]


def test_search_puts_the_best_configs_of_all_regions_together(engines: list[Any]) -> None:
    engines.append(OpEngine("tiled", 1, "matmul neg abs", knobs={"TILE": Knob((0, 1, 2))}))
    plans = make_plans(graph_of("matmul", "neg", "abs"), CPU, ("A",))
    cost = ({0: 9, 1: 5, 2: 7}, {0: 1, 1: 3, 2: 4}, {0: 6, 1: 4, 2: 2})
    tried, best = simulate(plans, lambda e: sum(c[t] for c, t in zip(cost, tiles(e), strict=True)))
    assert best == "tiled[TILE=1, TILE@2=2]"
    assert best not in names(plans) and tried == [best]


def test_search_goes_on_where_the_list_ended_and_climbs_to_neighbours(engines: list[Any]) -> None:
    engines.append(OpEngine("tiled", 1, "matmul neg", knobs={"TILE": Knob(tuple(range(60)))}))
    plans = make_plans(graph_of("matmul", "neg"), CPU, ("A",))
    tried, best = simulate(plans, lambda e: abs(tiles(e)[0] - 41) + abs(tiles(e)[1] - 50) / 2 + 1)
    assert best == "tiled[TILE=41, TILE@1=50]" and len(tried) == len(set(tried)) < 200


def test_search_passes_over_plans_that_are_not_right(engines: list[Any]) -> None:
    engines.append(OpEngine("tiled", 1, "matmul neg", knobs={"TILE": Knob((0, 1, 2))}))
    plans = make_plans(graph_of("matmul", "neg"), CPU, ("A",))
    _, best = simulate(plans, lambda e: None if tiles(e) == [2, 2] else 10 - sum(tiles(e)))
    assert best in ("tiled[TILE=2, TILE@1=1]", "tiled[TILE=1, TILE@1=2]")


def test_search_climbs_beyond_the_configs_that_are_listed(engines: list[Any]) -> None:
    class Open(OpEngine):
        def knobs(self, region: Region, device: Device) -> KnobSpace:
            return KnobSpace({"TILE": Knob(tuple(range(20)))}, (config(TILE=4), config(TILE=5)), lambda chosen: "")

    engines.append(Open("open", 1, "neg"))
    engines[0].space = KnobSpace({"TILE": Knob(tuple(range(20)))})
    plans = make_plans(graph_of("neg"), CPU, ("A",))
    tried, best = simulate(plans, lambda e: abs(tiles(e)[0] - 9) + 1)
    assert names(plans) == ["open[TILE=4]", "open[TILE=5]"] and best == "open[TILE=9]"
    assert tried == [f"open[TILE={k}]" for k in (6, 7, 8, 9, 10)]
