"""The team in whole processes: with PyTorch's threads and without, in forked children, at the end of a program."""

from __future__ import annotations

import pytest

from tests.kernels.team_harness import run_script

HEAD = """
import os, sys, threading
from fuseplan.runtime import team
from tests.kernels.team_harness import TeamCase, num_threads, pool_threads

def ran():

    return {0: "nothing", 1: "alone", 2: "pool", 3: "openmp"}[team.library().fp_team_last()]

def check(case, times=20):
    for _ in range(times):
        case.run()
        case.check()
    return ran()

def in_child(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
"""
TORCH = """
import torch
torch.set_num_threads(4)
def parallel():
    a = torch.rand(256, 256)
    for _ in range(10):
        a = (a @ a).sigmoid()
parallel()
"""


def needs_torch() -> None:
    pytest.importorskip("torch")


def test_whose_threads_run_and_how_many() -> None:
    needs_torch()
    text = (
        HEAD
        + """
case = TeamCase()
print(check(case))  # nobody else's threads are there
"""
        + TORCH
        + """
print(check(case))
print(check(TeamCase(num_threads=5)), pool_threads())  # PyTorch has fewer

from dataclasses import replace
from tests.kernels.dispatch_harness import dispatcher_of
case.dispatcher = dispatcher_of(replace(case.program, num_threads=0))  # as many as PyTorch has now: 4
torch.set_num_threads(3)
print(team.number(), check(case), case.threads().max() < 3)
torch.set_num_threads(1)
print(team.number(), check(case), case.size())
print(team.number(5))
"""
    )
    env = [("OMP_NUM_THREADS", ""), ("FUSEPLAN_NUM_THREADS", "")]
    assert run_script(text, env=env).splitlines() == ["pool", "openmp", "pool 4", "3 openmp True", "1 alone 1", "5"]


@pytest.mark.parametrize(
    ("torch", "used"),
    [("", ""), ("", "check(case)\n"), (TORCH, "check(case)\n")],
    ids=["unused before", "used before", "with torch, used before"],
)
def test_forked_child_has_threads_of_its_own(torch: str, used: str) -> None:
    if torch:
        needs_torch()
    text = (
        HEAD
        + torch
        + "case = TeamCase(num_threads=3)\n"
        + used
        + """
def child():
    print("child", check(case), pool_threads(), num_threads())
in_child(child)
print("parent", check(case))
"""
    )
    child, parent = (line.split() for line in run_script(text).splitlines())
    print(f"threads of the forked child: {child[3]}")
    assert child == ["child", "pool", "2", "3"]
    assert parent == ["parent", "openmp" if torch else "pool"]


def test_child_that_imports_us_first_leaves_openmp_alone() -> None:
    needs_torch()
    text = (
        TORCH
        + """
import os
pid = os.fork()
if pid == 0:
    try:
"""
        + "\n".join("        " + line for line in (HEAD + "print(check(TeamCase(num_threads=2)))").splitlines())
        + """
        sys.stdout.flush()
    finally:
        os._exit(0)
os.waitpid(pid, 0)
"""
    )
    assert run_script(text).split() == ["pool"]


@pytest.mark.parametrize("torch", ["", TORCH], ids=["without torch", "with torch"])
def test_fork_in_a_thread_while_another_one_runs(torch: str) -> None:
    if torch:
        needs_torch()
    text = (
        HEAD
        + torch
        + """
stop = threading.Event()
busy, mine = TeamCase(rounds=2000), TeamCase(seed=1)

def keep_running():
    while not stop.is_set():
        busy.run()
        busy.check()

def fork_often():
    for _ in range(8):
        in_child(lambda: print(check(mine, 3), pool_threads()))
    print("forked", check(mine, 1) != "nothing")

runner, forker = threading.Thread(target=keep_running), threading.Thread(target=fork_often)
runner.start()
forker.start()
forker.join()
stop.set()
runner.join()
"""
    )
    lines = run_script(text).splitlines()
    assert lines[:8] == ["pool 3"] * 8 and lines[8:] == ["forked True"]


def test_torch_busy_in_other_threads() -> None:
    needs_torch()
    text = (
        HEAD
        + TORCH
        + """
stop, failed, before = threading.Event(), [], num_threads()

def keep_torch_busy():
    while not stop.is_set():
        parallel()

def call(seed):
    try:
        check(TeamCase(seed=seed, num_threads=2))
    except BaseException as problem:
        failed.append(problem)

busy = [threading.Thread(target=keep_torch_busy) for _ in range(2)]
callers = [threading.Thread(target=call, args=(k,)) for k in range(4)]
for t in busy + callers:
    t.start()
how = check(TeamCase(num_threads=2))
for t in callers:
    t.join()
stop.set()
for t in busy:
    t.join()
print(len(failed), pool_threads(), num_threads() - before)
"""
    )
    failed, own, more = map(int, run_script(text, env=[("OMP_NUM_THREADS", "2")]).split())
    print(f"{own} threads of the pool, {more} threads more than before in all")
    assert failed == 0 and own <= 1 and more <= 7  # the pool's, and three of OpenMP for each of the two busy threads


def test_program_ends_while_a_launch_runs() -> None:
    text = (
        HEAD
        + """
case = TeamCase(rounds=1_000_000)
started = threading.Event()
def run():
    started.set()
    case.run()
threading.Thread(target=run, daemon=True).start()
started.wait()
print("end", flush=True)
"""
    )
    assert run_script(text).split() == ["end"]


def test_thread_counts_of_two_programs_do_not_add_up() -> None:
    text = (
        HEAD
        + """
cases = [TeamCase(num_threads=n, seed=n) for n in (2, 4, 3)]
for case in cases * 3:
    check(case, 2)
print(pool_threads(), num_threads())
"""
    )
    own, total = map(int, run_script(text).split())
    print(f"{own} threads of the pool, {total} in all")
    assert own == 3 and total <= own + 2  # the process's own, and one of NumPy's at most


LOADER = """
import numpy as np
import torch
import fuseplan
from fuseplan.runtime import team

h = fuseplan.create_handle("cpu")
n = 1 << 20

def make():
    FLOAT = fuseplan.data_type.FLOAT
    graph = fuseplan.pygraph(handle=h, io_data_type=FLOAT, compute_data_type=FLOAT)
    x = graph.tensor(name="x", dim=[1, 1, n], stride=[n, n, 1])
    y = graph.sigmoid(graph.mul(x, x))
    y.set_output(True).set_name("y")
    graph.build()
    return graph

graph = make()
def run(seed):
    data = np.random.default_rng(seed).standard_normal(n, dtype=np.float32)
    y = np.zeros_like(data)
    workspace = np.zeros(max(1, graph.get_workspace_size()), np.uint8)
    graph.execute({"x": data, "y": y}, workspace)
    return float(np.abs(y - 1 / (1 + np.exp(-data.astype(np.float64) ** 2))).max())

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, k):
        worst = run(k)
        names = [open(f"/proc/self/task/{t}/comm").read() for t in __import__("os").listdir("/proc/self/task")]
        return worst, float(sum(name == "fuseplan\\n" for name in names))

worst = [run(100)]
(torch.rand(512, 512) @ torch.rand(512, 512)).sum()
worst.append(run(101))
loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
for error, own in loader:
    worst.append(float(error))
    assert own == 0  # a worker's PyTorch is set to one thread, which holds for our kernels too
print(len(worst), max(worst) < 1e-6)
"""


def test_data_loader_runs_a_plan_in_each_worker() -> None:
    needs_torch()
    assert run_script(LOADER).split() == ["10", "True"]
