"""What `explain` shows: each engine's regions, and the reason at each boundary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.engines import registry
from fuseplan.engines.base import FusionLimits
from fuseplan.engines.null.engine import NullEngine
from fuseplan.ir.limits import ROWS
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.conformance import read_graph
from fuseplan.testing.random_graphs import GraphMaker

GRAPHS = Path(__file__).parents[2] / "conformance"
OPS = ROWS | {"matmul", "conv_fprop"}


class NarrowEngine(NullEngine):
    """Fuses less than the others: short regions, and a reduction's result is never used again in its region."""

    name, engine_ids = "narrow", range(30000, 30001)

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(ops=OPS, max_nodes=25)


@pytest.fixture(autouse=True)
def narrow_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The narrow engine beside those of the CPU."""
    listed = registry.engines_for("cpu")

    def with_narrow(device_kind: str) -> tuple[Any, ...]:
        return (NarrowEngine(), *listed)

    for module in ("fuseplan.plan.planner", "fuseplan.plan.assign", "fuseplan.plan.rank"):
        monkeypatch.setattr(f"{module}.engines_for", with_narrow)
    yield


def regions(graph: str) -> dict[str, list[str]]:
    """Lines of `explain` under each engine's heading."""
    found: dict[str, list[str]] = {}
    for line in make_plans(read_graph(GRAPHS, graph), cpu_device()).explain().splitlines():
        if line.startswith("regions of "):
            current = found.setdefault(line.removeprefix("regions of ").rstrip(":"), [])
        elif found:
            current.append(line.strip())
    return found


def starts(lines: list[str]) -> list[str]:
    """The reasons among the lines of an engine."""
    head = "starts here because: "
    return [line.removeprefix(head) for line in lines if line.startswith(head)]


def test_two_matmuls_show_the_cut_before_the_second() -> None:
    shown = regions("two_matmuls")
    assert shown["cpu_c"][0].startswith("region 0 [cpu_c] 2 node(s): matmul.0(matmul), relu.0(relu)")
    assert shown["cpu_c"][1].startswith("region 1 [cpu_c] 1 node(s): matmul.1(matmul)")
    assert shown["cpu_c"][2] == ("starts here because: matmul stands behind 1 anchor(s) of the region, as many as may")
    assert len(shown["array"]) == 1 and "3 node(s)" in shown["array"][0]


def test_long_chain_shows_where_a_region_is_full() -> None:
    shown = regions("chain_60_output_in_the_middle")
    assert starts(shown["cpu_c"]) == ["reads only graph inputs"] and "60 node(s)" in shown["cpu_c"][0]
    assert starts(shown["narrow"]) == ["reads only graph inputs", *["the region is full (25 nodes)"] * 2]


def test_norm_shows_that_a_reduction_may_not_be_used_again() -> None:
    shown = regions("add_layernorm_gelu")
    assert starts(shown["cpu_c"]) == ["reads only graph inputs"] and "3 node(s)" in shown["cpu_c"][0]
    again = "a reduction's result is used again over the reduced axes"
    assert starts(shown["narrow"]) == ["reads only graph inputs", again, again]


def test_refused_family_shows_who_refused_and_why() -> None:
    m = GraphMaker(Random(0))
    x = m.input((2, 3), dtypes.FP8_E4M3, (3, 1))
    m.node("relu", {"input": x})
    text = make_plans(m.finish(), cpu_device()).explain()
    assert "regions of array" in text and "regions of cpu_c" not in text
    assert "cpu_c: " in text.split("refusals:")[1]
