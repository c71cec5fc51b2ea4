"""Random graphs: every engine agrees with the source graph, exactly or by the rule of "right"."""

from __future__ import annotations

import pytest

from fuseplan.testing.fuzz import KINDS, MAX_UNDECIDED, repeat_command
from fuseplan.testing.run import judge_engines

ENGINES = ("array", "cpu_c")
BATCH = 20
QUICK = [(kind, start) for kind in KINDS for start in (0, 10)]
MANY = {"exact": 500, "smooth": 500, "wide": 1500}
FULL = [(kind, start) for kind in KINDS for start in range(20, MANY[kind], BATCH)]


def run_batch(kind: str, seeds: range) -> None:
    """Judge each graph on each engine; undecided elements are counted over the batch."""
    undecided = elements = 0
    for seed in seeds:
        for engine, verdict in judge_engines(KINDS[kind](seed), ENGINES, seed).items():
            assert verdict.is_right, f"{verdict.message}\nrepeat: {repeat_command(kind, seed, engine)}"
            undecided += verdict.num_undecided
            elements += verdict.num_elements
    assert elements > 0
    assert undecided <= MAX_UNDECIDED[kind] * elements, f"{undecided} of {elements} elements are undecided"


@pytest.mark.parametrize(("kind", "start"), QUICK)
def test_random_graphs_agree_with_the_source_graph(kind: str, start: int) -> None:
    run_batch(kind, range(start, start + 10))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "start"), FULL)
def test_many_random_graphs_agree_with_the_source_graph(kind: str, start: int) -> None:
    run_batch(kind, range(start, start + BATCH))
