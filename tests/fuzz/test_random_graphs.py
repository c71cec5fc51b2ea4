"""Random graphs: every engine agrees with the source graph, exactly or by the rule of "right"."""

from __future__ import annotations

import pytest

from fuseplan.ir.verify import verify_graph
from fuseplan.ops.schema import all_schemas
from fuseplan.plan.graph_json import dumps
from fuseplan.testing.fuzz import KINDS, MAX_UNDECIDED, repeat_command
from fuseplan.testing.run import judge_engines

ENGINES = ("array", "cpu_c")
BATCH = 20
QUICK_BATCH = {"exact": 20, "smooth": 5, "wide": 5}
MANY = {"exact": 500, "smooth": 500, "wide": 1500}
FULL = [(kind, start) for kind in KINDS for start in range(QUICK_BATCH[kind], MANY[kind], BATCH)]


DRAWN = {
    "exact": lambda op: op.is_exact or op.exact_when is not None,
    "smooth": lambda op: op.draws.is_continuous,
    "wide": lambda op: True,
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_draw_every_op_that_belongs_there(kind: str) -> None:
    found = {node.op for seed in range(250) for node in KINDS[kind](seed).nodes}
    wanted = {op.name for op in all_schemas() if DRAWN[kind](op)}
    assert len(wanted) > 25 and wanted <= found, wanted - found


@pytest.mark.parametrize("seed", range(40))
def test_random_graph_is_the_same_each_time_and_valid(seed: int) -> None:
    for make in KINDS.values():
        graph = make(seed)
        verify_graph(graph)
        assert dumps(graph) == dumps(make(seed)) and graph.nodes and graph.output_uids


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


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_agree_with_the_source_graph(kind: str) -> None:
    run_batch(kind, range(QUICK_BATCH[kind]))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "start"), FULL)
def test_many_random_graphs_agree_with_the_source_graph(kind: str, start: int) -> None:
    run_batch(kind, range(start, start + BATCH))
