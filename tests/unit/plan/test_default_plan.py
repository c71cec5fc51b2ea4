"""The default plan on given devices: estimates against each other, nothing is timed.

Times are measured by ``python -m benchmarks.ranking``, which has the same graphs.
"""

from __future__ import annotations

import pytest

from benchmarks import ranking
from fuseplan.plan.planner import GENERAL_GAIN, PlanList, make_plans
from fuseplan.runtime.device import Device


def cpu(arch: str, cores: int) -> Device:
    """A CPU with the rates that `cpu_device` gives to its vectors and cores."""
    lanes = {"x86-64-v4": 16, "x86-64-v3": 8}[arch]
    return Device("cpu", arch=arch, sm_count=cores, memory_gbps=12.0 * cores, peak_gflops=cores * 2.5 * lanes * 4)


DEVICES = [cpu("x86-64-v4", 2), cpu("x86-64-v3", 2), cpu("x86-64-v4", 16), cpu("x86-64-v3", 8)]

MARGIN = 1.3
# table: graphs on which one engine is much faster on every device, as measured, and that engine
FASTER = {
    "matmul 8x8x8": "cpu_c",
    "matmul 64x64x64": "cpu_c",
    "matmul 256x1024x1024": "cpu_c",
    "matmul 64x3136x576": "cpu_c",
    "norm + matmul 16x64x32": "cpu_c",
    "softmax 8x64": "cpu_c",
    "add x 1, 1k": "cpu_c",
    "add x 1, 4M": "cpu_c",
    "add x 12, 1M": "cpu_c",
    "add x 4, 1M bf16": "cpu_c",
    "sqrt x 4, 256k": "cpu_c",
    "gelu x 2, 256k": "cpu_c",
}


def ranked(name: str, device: Device) -> PlanList:
    return make_plans(ranking.declared(ranking.GRAPHS[name])._draft.graph, device)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: f"{d.arch}-{d.sm_count}")
@pytest.mark.parametrize("name", FASTER)
def test_default_plan_is_of_the_engine_that_was_measured_to_be_faster(name: str, device: Device) -> None:
    plans = ranked(name, device)
    assert plans.entries[0].engine_name == FASTER[name]
    others = [e.estimate_us for e in plans.entries if e.engine_name != FASTER[name]]
    assert MARGIN * plans.entries[0].estimate_us <= min(others)


@pytest.mark.parametrize("name", ranking.GRAPHS)
def test_general_engine_is_first_where_it_is_twice_as_fast_and_last_elsewhere(name: str) -> None:
    entries = ranked(name, DEVICES[0]).entries
    (general,) = (e for e in entries if e.is_general)
    is_first = GENERAL_GAIN * general.estimate_us <= min(e.estimate_us for e in entries if e is not general)
    assert entries[0 if is_first else -1] is general
