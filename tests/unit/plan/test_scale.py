"""The five steps are linear in the number of nodes: counted in function calls, which no load of the machine changes.

Times are measured by ``python -m benchmarks.planning``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import fuseplan as cudnn
from benchmarks import planning

GRAPHS = (planning.chain, planning.wide_shared, planning.wide_separate)


def count_calls(run: Callable[[], object]) -> int:
    """Calls of Python and C functions inside `run`."""
    count = 0

    def on_event(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def plan(graph: Any) -> None:
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_calls_of_the_five_steps_grow_with_the_nodes(make: Callable[[int], Any]) -> None:
    plan(make(300))  # imports, compiles, fills caches
    small, large = make(300), make(3000)
    few, many = count_calls(lambda: plan(small)), count_calls(lambda: plan(large))
    assert few > 300
    assert many <= 10.5 * few, f"{many} calls for 3000 nodes, {few} for 300"


def test_counting_sees_a_quadratic_step() -> None:
    def quadratic(n: int) -> Callable[[], object]:
        return lambda: [len(str(k)) for j in range(n) for k in range(j)]

    assert count_calls(quadratic(300)) > 50 * count_calls(quadratic(30))
