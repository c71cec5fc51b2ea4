"""Interrupts, lost caches, small cuts and threads: what runs around a plan must not change its results."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuseplan import settings
from fuseplan.engines.cpu_c.engine import ENGINE, CpuCEngine
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ops.judge import judge
from fuseplan.plan.plan import BuiltPlan
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.random_graphs import wide_graph
from fuseplan.testing.run import build_on, random_inputs, run_on_host

SEEDS = range(100, 112)

INTERRUPTED = """
import sys, time
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import cpu_device
from fuseplan.testing.run import build_on, judge_engines
from fuseplan.testing.random_graphs import wide_graph
stopped = seed = 0
print("ready", flush=True)
while not stopped:
    try:
        graph = wide_graph(seed)
        seed += 1
        make_plans(graph, cpu_device()).build(0)
    except KeyboardInterrupt:
        stopped = 1
assert judge_engines(graph, ["array"], seed)["array"].is_right
make_plans(graph, cpu_device()).build(0)
print("fine", flush=True)
"""


def plan_of(graph: Graph) -> BuiltPlan | None:
    try:
        return build_on(graph, "cpu_c")
    except cudnnGraphNotSupportedError:
        return None


def results(plan: BuiltPlan, seed: int) -> dict[int, bytes]:
    return {uid: a.tobytes() for uid, a in run_on_host(plan, random_inputs(plan.graph, seed)).items()}


@pytest.mark.parametrize("max_nodes", [*(pytest.param(n, marks=pytest.mark.full) for n in (1, 2)), 3])
def test_graph_cut_into_small_regions_stays_right_on_a_dirty_workspace(
    max_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ENGINE.limits(cpu_device())

    def limits(self: CpuCEngine, device: Device) -> Any:
        return replace(whole, max_nodes=max_nodes)

    monkeypatch.setattr(CpuCEngine, "limits", limits)
    used = 0
    for seed in SEEDS:
        plan = plan_of(wide_graph(seed))
        if plan is not None:
            used += plan.workspace_bytes > 0
            buffers = random_inputs(plan.graph, seed)
            arrays = {uid: b.view.copy() for uid, b in buffers.items()}
            verdict = judge(plan.graph, arrays, run_on_host(plan, buffers))
            assert verdict.is_right, (seed, verdict)
    assert used > len(SEEDS) // 3


def test_plan_runs_after_its_cache_folder_is_gone(tmp_path: Path) -> None:
    before = settings.current()
    settings.use(replace(before, cache_dir=tmp_path / "cache"))
    try:
        for seed in SEEDS[:3]:
            plan = plan_of(wide_graph(seed))
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            if plan is not None:
                assert results(plan, seed) == results(plan, seed)
    finally:
        settings.use(before)


def test_threads_that_build_and_run_agree_with_one_thread() -> None:
    def work(seed: int) -> dict[int, bytes] | None:
        plan = plan_of(wide_graph(seed))
        return None if plan is None else results(plan, seed)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, [*SEEDS, *SEEDS]))
    alone = [work(seed) for seed in SEEDS]
    assert together == alone + alone


def test_interrupt_while_building_leaves_a_usable_process_and_no_partial_files(tmp_path: Path) -> None:
    env_code = f"import os; os.environ['FUSEPLAN_CACHE_DIR'] = {str(tmp_path / 'cache')!r}; "
    env_code += f"os.environ['TMPDIR'] = {str(tmp_path / 'tmp')!r}; "
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen([sys.executable, "-c", env_code + INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("fine\n", 0)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert {p.suffix for p in (tmp_path / "cache" / "artifacts").rglob("*") if p.is_file()} <= {".so", ".version"}
