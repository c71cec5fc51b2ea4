"""Results that do not depend on the values of an input, behind virtual tensors, on every plan and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.engines.base import FusionLimits, Support, no
from fuseplan.engines.cpu_c.engine import CpuCEngine
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from fuseplan.ops.judge import judge
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.run import random_inputs, run_on_host

D = cudnn.data_type
NAMES = "FLOAT HALF BFLOAT16 DOUBLE INT8 UINT8 INT32 INT64 BOOLEAN FP8_E4M3 FP8_E5M2 FP8_E8M0".split()
TYPES = [D[name] for name in NAMES]
LIMITS: list[dict[str, Any]] = [{}, {"max_nodes": 1}, {"max_nodes": 2}, {"max_operands": 2}, {"reuse_reduction": False}]
CASES = [(changes, share) for changes in LIMITS for share in (0.0, 0.5)]


def random_graph(seed: int) -> Graph:
    """Two to seven nodes, half of them without regard to the values in front of them."""
    rng = random.Random(seed)
    g = cudnn.pygraph(device="cpu", io_data_type=D.FLOAT, compute_data_type=rng.choice([D.FLOAT, D.FLOAT, D.HALF]))
    dim = [rng.choice([1, 2, 3, 5]) for _ in range(rng.randint(1, 3))]
    made, read = [g.tensor(dim=dim, data_type=rng.choice(TYPES[:3]))], set[int]()
    for _ in range(rng.randint(2, 7)):
        a, b = rng.choice(made[-3:]), rng.choice(made[-3:])
        kind = rng.choice(["gen_index", "gen_index", "gen_index", "equal", "add", "reduction", "unary", "unary"])
        if kind == "gen_index":
            y = g.gen_index(input=a, axis=rng.randrange(len(dim)))
        elif kind == "reduction":
            y = g.reduction(a, mode=cudnn.reduction_mode.MAX).set_dim([1] * len(dim))
        elif kind == "unary":
            y = rng.choice([g.exp, g.neg, g.identity, g.relu])(a)
        else:
            y = g.add(a, b) if kind == "add" else g.cmp_eq(a, a)
        y.set_data_type(rng.choice(TYPES) if rng.random() < 0.6 else D.FLOAT)
        read |= {a.get_uid(), b.get_uid()} if kind == "add" else {a.get_uid()}
        made.append(y)
    for y in made[1:]:
        if y.get_uid() not in read or rng.random() < 0.2:
            y.set_output(True)
    g.validate()
    graph: Graph = g._draft.validated()
    return graph


def plant(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], refuses: Callable[[Region], int | None]) -> None:
    """Other limits, and refusals of what the engine could do; `refuses` gives the place at fault."""
    limits, supports = CpuCEngine.limits, CpuCEngine.supports

    def cut(self: CpuCEngine, device: Device) -> FusionLimits:
        return replace(limits(self, device), **changes)

    def refuse(self: CpuCEngine, region: Region, device: Device) -> Support:
        at = refuses(region)
        return supports(self, region, device) if at is None else no("planted", at)

    monkeypatch.setattr(CpuCEngine, "limits", cut)
    monkeypatch.setattr(CpuCEngine, "supports", refuse)


def check_every_plan(graph: Graph, seed: int) -> int:
    """Each plan is right or refused before it runs; the number that ran."""
    plans = make_plans(graph, cpu_device())
    inputs = random_inputs(graph, seed)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    ran = 0
    for k in range(len(plans.entries)):
        try:
            plan = plans.build(k)
        except cudnnGraphNotSupportedError:
            continue
        verdict = judge(graph, arrays, run_on_host(plan, inputs))
        assert verdict.is_right, f"seed {seed}, {plan.name}: {verdict.message}"
        ran += 1
    return ran


def seeded(seed: int, share: float) -> Callable[[Region], int | None]:
    """Refuses a share of the regions, at a place of its choice."""

    def refuses(region: Region) -> int | None:
        rng = random.Random(f"{seed} {region.structure}")
        return rng.randrange(-1, len(region.values)) if rng.random() < share else None

    return refuses


@pytest.mark.parametrize("name", NAMES)
def test_index_behind_a_virtual_tensor_runs_on_every_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=D.FLOAT, compute_data_type=D.FLOAT)
    x = g.tensor(dim=[1, 3])
    g.gen_index(input=g.exp(x), axis=1).set_output(True).set_data_type(D[name])
    g.neg(x).set_output(True)
    g.validate()
    for changes in LIMITS[:2]:
        with monkeypatch.context() as patch:
            plant(patch, changes, lambda region: None)
            assert check_every_plan(g._draft.validated(), 0) >= 2


def run_cases(k: int, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs under the limits and the share of refusals that a number stands for."""
    changes, share = CASES[k]
    ran = 0
    for seed in seeds:
        with monkeypatch.context() as patch:
            plant(patch, changes, seeded(seed, share))
            ran += check_every_plan(random_graph(seed), seed)
    assert ran >= len(seeds)


@pytest.mark.parametrize("k", range(len(CASES)))
def test_graphs_that_ignore_values_are_right_on_every_plan(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cases(k, range(3 * k, 3 * k + 3), monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("k", range(len(CASES)))
def test_many_graphs_that_ignore_values_are_right_on_every_plan(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cases(k, range(100 * k, 100 * k + 40), monkeypatch)
