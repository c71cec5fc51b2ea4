"""The ranked list: order, names, refusals, append, and what explain says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.engines import registry
from fuseplan.engines.base import YES, Executable, FusionLimits, Knob, KnobSpace, Support, config, no
from fuseplan.errors import PlanIndexError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import POINTWISE
from fuseplan.ir.region import Region
from fuseplan.plan.planner import MAX_PLANS, make_plans
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind
from fuseplan.testing.random_graphs import GraphMaker

CPU = Device("cpu", arch="x86-64-v4")


class PickyEngine:
    """Takes pointwise regions of at most `limit` nodes; launches nothing that runs."""

    device_kinds = frozenset({"cpu"})
    is_general, is_compiled = False, True

    def __init__(self, name: str, engine_id: int, limit: int = 64, us: float = 1.0, knobs: int = 1) -> None:
        self.name, self.engine_ids = name, range(engine_id, engine_id + 1)
        self.limit, self.us, self.num_knobs = limit, us, knobs
        self.builds: list[Any] = []

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(ops=POINTWISE | {"matmul"})

    def supports(self, region: Region, device: Device) -> Support:
        if any(n.op == "matmul" for n in region.graph.nodes):
            return no("matmul is too hard")
        return YES if len(region.graph.nodes) <= self.limit else no(f"more than {self.limit} nodes")

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace({"TILE": Knob(tuple(range(self.num_knobs)))} if self.num_knobs > 1 else {})

    def build(self, region: Region, device: Device, config: Any, *, aligned: bool = True) -> Executable:
        self.builds.append((region.key, config))
        return Executable((Launch(LaunchKind.HOST, b"\0" * 8),))

    def estimate_us(self, region: Region, device: Device, config: Any) -> float:
        return self.us + dict(config).get("TILE", 0)

    def notes(self, region: Region, device: Device, config: Any) -> frozenset[str]:
        return frozenset({"TENSOR_CORE"} if dict(config).get("TILE", 0) else ())


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Engines put before the general one; tests fill the list."""
    extra: list[Any] = []
    general = registry.engine_named(registry.GENERAL)

    def listed(device_kind: str) -> tuple[Any, ...]:
        return (*extra, general)

    for module in ("fuseplan.plan.planner", "fuseplan.plan.assign", "fuseplan.plan.rank"):
        monkeypatch.setattr(f"{module}.engines_for", listed)
    yield extra


def pointwise_graph(num_nodes: int = 3) -> Graph:
    m = GraphMaker(random.Random(0))
    x = m.input((4, 8), stride=(8, 1))
    for _ in range(num_nodes):
        (x,) = m.node("neg", {"input": x})
    return m.finish()


def matmul_relu() -> Graph:
    m = GraphMaker(random.Random(0))
    (c,) = m.node("matmul", {"A": m.input((1, 3, 4)), "B": m.input((1, 4, 5))}, {"C": (1, 3, 5)})
    m.node("relu", {"input": c})
    return m.finish()


def test_list_is_ranked_by_estimate_with_the_general_engine_last(engines: list[Any]) -> None:
    engines += [PickyEngine("slow", 30000, us=9.0), PickyEngine("fast", 30100, us=2.0)]
    plans = make_plans(pointwise_graph(), CPU)
    assert [e.name for e in plans.entries] == ["fast", "slow", "array"]
    assert plans.refusals == []


def test_knobs_make_names_and_never_more_than_the_limit_of_plans(engines: list[Any]) -> None:
    engines.append(PickyEngine("tiled", 30000, knobs=100))
    plans = make_plans(pointwise_graph(), CPU)
    assert len(plans.entries) == MAX_PLANS
    assert plans.entries[0].name == "tiled[TILE=0]" and plans.entries[1].name == "tiled[TILE=1]"
    assert plans.entries[-1].name == "array"


def test_modes_are_concatenated_without_duplicates(engines: list[Any]) -> None:
    engines.append(PickyEngine("one", 30000))
    names = [e.name for e in make_plans(pointwise_graph(), CPU, ("FALLBACK", "A", "B", "A")).entries]
    assert names == ["array", "one"]
    assert [e.name for e in make_plans(pointwise_graph(), CPU, ("A",)).entries] == ["one"]


def test_mode_b_ranks_all_configs_by_estimate_alone(engines: list[Any]) -> None:
    engines += [PickyEngine("tiled", 30000, us=1.0, knobs=3), PickyEngine("plain", 30100, us=1.5)]
    by_mode = {mode: [e.name for e in make_plans(pointwise_graph(), CPU, (mode,)).entries] for mode in ("A", "B")}
    assert by_mode["A"] == ["tiled[TILE=0]", "plain", "tiled[TILE=1]", "tiled[TILE=2]"]
    assert by_mode["B"] == ["tiled[TILE=0]", "plain", "tiled[TILE=1]", "tiled[TILE=2]"]
    engines[1].us = 2.5
    assert [e.name for e in make_plans(pointwise_graph(), CPU, ("B",)).entries] == [
        "tiled[TILE=0]", "tiled[TILE=1]", "plain", "tiled[TILE=2]",
    ]  # fmt: skip


def test_mode_a_falls_back_to_the_general_engine_when_nothing_else_is_left(engines: list[Any]) -> None:
    assert [e.name for e in make_plans(pointwise_graph(), CPU, ("A",)).entries] == ["array"]


def test_cut_at_a_refused_value_names_the_engine_and_its_reason_on_both_sides(engines: list[Any]) -> None:
    class NoTanh(PickyEngine):
        def supports(self, region: Region, device: Device) -> Support:
            at = next((i for i, v in enumerate(region.values) if v.op == "tanh"), -1)
            return no("tanh is too hard", at) if at >= 0 else YES

    engines.append(NoTanh("picky", 30000))
    m = GraphMaker(random.Random(0))
    (x,) = m.node("neg", {"input": m.input((4, 8), stride=(8, 1))})
    (x,) = m.node("abs", {"input": x})
    (x,) = m.node("tanh", {"input": x})
    m.node("floor", {"input": x})
    shown = make_plans(m.finish(max_outputs=0), CPU).explain().split("regions of picky:")[1].split("regions of")[0]
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    picked = [line for line in lines if "tanh is too hard" in line]
    assert "neg.0(neg), abs.1(abs)" in lines[0]
    assert picked[0] == "ends here because: picky: tanh is too hard" and picked[1].startswith("starts here because: ")
    assert any(line.startswith("refused by picky: tanh is too hard") for line in lines)


def test_refused_region_is_split_and_offered_again(engines: list[Any]) -> None:
    engines.append(PickyEngine("small", 30000, limit=2))
    entry = make_plans(pointwise_graph(5), CPU).entries[0]
    assert entry.name == "small"
    assert [len(a.region.graph.nodes) for a in entry.assignments] == [2, 1, 2]
    assert entry.assignments[1].starts.startswith("small: ")


def test_node_that_one_engine_refuses_goes_to_another_and_the_reason_is_kept(engines: list[Any]) -> None:
    engines.append(PickyEngine("picky", 30000))
    plans = make_plans(matmul_relu(), CPU)
    assert plans.entries[0].name == "picky+array"
    assert "picky: matmul is too hard" in plans.explain()


def test_engine_that_takes_nothing_is_listed_under_refusals_only(engines: list[Any]) -> None:
    engines.append(PickyEngine("nothing", 30000, limit=0))
    plans = make_plans(pointwise_graph(1), CPU)
    assert [e.name for e in plans.entries] == ["array"]
    assert plans.refusals == ["nothing: more than 0 nodes"]


def test_equal_regions_are_built_once(engines: list[Any]) -> None:
    engine = PickyEngine("cut", 30000, limit=2)
    engines.append(engine)
    plans = make_plans(pointwise_graph(8), CPU)
    built = plans.build(0)
    assert len(built.program.launches) == 4
    assert len(engine.builds) == len({key for key, _ in engine.builds}) < 4


def test_append_replays_exactly_one_plan(engines: list[Any]) -> None:
    engines.append(PickyEngine("tiled", 30000, knobs=4))
    plans = make_plans(pointwise_graph(), CPU)
    index = plans.append(30000, {"TILE": 3})
    assert index == len(plans.entries) - 1
    assert plans.entries[index].name == "tiled[TILE=3]"
    assert plans.entries[index].assignments[0].config == config(TILE=3)


def test_list_without_modes_holds_and_asks_nothing_until_a_plan_is_appended(engines: list[Any]) -> None:
    engines += [PickyEngine("tiled", 30000, knobs=4), PickyEngine("nothing", 30100, limit=0)]
    plans = make_plans(pointwise_graph(), CPU, None)
    assert plans.entries == [] and plans.refusals == []
    assert plans.append(30000, {}) == 0
    assert [e.name for e in make_plans(pointwise_graph(), CPU, ()).entries] == ["array"]


@pytest.mark.parametrize(("engine_id", "knobs", "part"), [(77, {}, "id 77"), (30000, {"SPEED": 1}, "'SPEED'")])
def test_append_of_unknown_engine_or_knob_names_it(engines: list[Any], engine_id: int, knobs: Any, part: str) -> None:
    engines.append(PickyEngine("tiled", 30000, knobs=4))
    plans = make_plans(pointwise_graph(), CPU)
    with pytest.raises(cudnnGraphNotSupportedError, match=part):
        plans.append(engine_id, knobs)


def test_index_out_of_range_names_the_graph_and_the_range(engines: list[Any]) -> None:
    plans = make_plans(pointwise_graph(), CPU)
    with pytest.raises(PlanIndexError, match=r"plan index 5 .*'random' has 1 plans"):
        plans.entry(5)


def test_workspace_blocks_are_used_again_along_a_chain(engines: list[Any]) -> None:
    engines.append(PickyEngine("cut", 30000, limit=1))
    built = make_plans(pointwise_graph(12), CPU).build(0)
    assert len(built.program.launches) == 12
    assert built.workspace_bytes == 2 * 256  # 128 bytes each; two are alive at a time


def test_type_without_an_array_form_is_refused_by_name_with_every_reason(engines: list[Any]) -> None:
    m = GraphMaker(random.Random(0))
    m.node("identity", {"input": m.input((4,), dtypes.INT8x4, (1,))})
    plans = make_plans(m.finish(), CPU)
    assert plans.entries == []
    assert any("'t1'" in r and "INT8x4" in r for r in plans.refusals)


class ReadableEngine(PickyEngine):
    """One node per region, with source."""

    def limits(self, device: Device) -> FusionLimits:
        return replace(super().limits(device), max_nodes=1)

    def build(self, region: Region, device: Device, config: Any, *, aligned: bool = True) -> Executable:
        built = super().build(region, device, config, aligned=aligned)
        return replace(built, source=f"source of {region.graph.nodes[0].op}")


def test_source_of_equal_regions_is_shown_once_under_their_tensors(engines: list[Any]) -> None:
    engines.append(ReadableEngine("readable", 40))
    graph = pointwise_graph()
    shown = make_plans(graph, CPU).build(0).source.splitlines()
    assert [line for line in shown if line.startswith("source")] == ["source of neg"]
    assert [line.split(":")[0] for line in shown[:-1]] == [
        f"region {k} of graph {graph.name!r}, engine readable" for k in range(3)
    ]
    (x,), (y,) = graph.input_uids, graph.output_uids
    assert f"x0 is {graph.tensors[x].name!r}" in shown[0] and f"y0 is {graph.tensors[y].name!r}" in shown[2]
