"""Kernels of `cpu_c` that graphs of all extents share: one text, one compile, right results."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.engines.cpu_c import engine as cpu_c
from fuseplan.engines.forms import Memo
from fuseplan.ops.judge import judge
from fuseplan.plan.plan import Builder
from fuseplan.runtime.device import cpu_device
from fuseplan.runtime.launch import Artifact
from fuseplan.testing.random_graphs import smooth_graph
from fuseplan.testing.run import judge_engines, random_inputs, run_on_host
from tests.kernels import dynamic_graphs as made

# table: graphs and the shapes at which they share kernels
CASES: dict[str, tuple[made.Maker, list[made.Shape]]] = {
    "conv-channels-first": (
        made.conv_bias_relu,
        [(2, 3, 8, 8, 4), (3, 3, 8, 8, 4), (8, 3, 8, 8, 4), (17, 3, 8, 8, 4), (2, 5, 7, 11, 65), (2, 2, 9, 70, 3)],
    ),
    "conv-channels-last": (
        made.conv_channels_last,
        [(2, 3, 8, 8, 4), (3, 3, 8, 8, 4), (8, 3, 8, 8, 4), (17, 3, 8, 8, 4), (2, 5, 7, 11, 65), (2, 64, 5, 5, 9)],
    ),
    "conv-groups": (partial(made.conv_bias_relu, groups=2), [(2, 4, 6, 6, 4), (3, 4, 5, 6, 8), (17, 6, 4, 4, 2)]),
    "matmul-epilogue": (
        made.matmul_epilogue,
        [(2, 5, 7, 9), (3, 5, 7, 9), (8, 5, 7, 9), (17, 5, 7, 9), (2, 33, 130, 65), (3, 64, 64, 64), (4, 2, 3, 2)],
    ),
    "layernorm": (made.layernorm, [(2, 16), (3, 16), (8, 16), (17, 16), (8, 33), (2, 1000), (64, 2)]),
    "softmax": (made.softmax, [(2, 16), (3, 16), (8, 16), (17, 16), (8, 33), (64, 2)]),
    "pointwise-broadcast": (
        made.pointwise_broadcast,
        [(2, 3, 4, 5), (3, 3, 4, 5), (8, 3, 4, 5), (17, 3, 4, 5), (2, 30, 4, 5), (2, 3, 31, 8), (2, 3, 4, 64)],
    ),
    "pointwise-chain": (made.pointwise_chain, [(2, 3, 4), (3, 3, 4), (8, 5, 4), (17, 3, 64), (2, 64, 2)]),
    "pitched": (made.pitched, [(2, 8), (3, 24), (8, 17), (40, 24), (40, 5)]),
    "totals": (made.totals, [(2, 3, 4), (3, 5, 7), (7, 30, 16)]),
    "column-sums": (made.column_sums, [(2, 3, 5), (3, 3, 5), (8, 30, 5), (17, 3, 64), (2, 64, 2)]),
}


class Counter:
    """Counts what is compiled, and the distinct texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[str] = []
        self._compile = cpu_c.compile_shared
        monkeypatch.setattr(cpu_c, "compile_shared", self.compile)
        monkeypatch.setattr(cpu_c.ENGINE, "_built", Memo())
        monkeypatch.setattr(cpu_c.ENGINE, "_compiled", Memo())

    def compile(self, source: str, *args: Any, **options: Any) -> Artifact:
        self.sources.append(source)
        return self._compile(source, *args, **options)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def run_and_judge(g: Any) -> int:
    """Build the graph on `cpu_c` alone, judge its results, and return the number of its regions."""
    device = cpu_device()
    parts = made.assignments(g, cpu_c.ENGINE, device)
    graph = g._draft.graph
    plan = Builder(graph, device).build("cpu_c", ("cpu_c", cpu_c.ENGINE.engine_ids[0]), {}, parts)
    inputs = random_inputs(graph, seed=3)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, run_on_host(plan, inputs))
    assert verdict.is_right, verdict.message
    return len({a.region.structure for a in parts})


@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_all_extents(counter: Counter, name: str) -> None:
    make, shapes = CASES[name]
    num_regions = {run_and_judge(make(shape)) for shape in shapes}
    assert len(num_regions) == 1
    assert len(counter.sources) == num_regions.pop(), "\n\n".join(counter.sources)


def test_extent_of_one_selects_another_kernel_which_the_others_of_its_kind_share(counter: Counter) -> None:
    for shape in ((4, 3), (4, 1), (9, 1), (5, 7)):
        run_and_judge(made.pointwise_chain(shape))
    assert len(counter.sources) == 2


def test_static_graphs_merge_axes_and_dynamic_ones_keep_a_loop_per_axis(counter: Counter) -> None:
    texts = []
    for is_dynamic in (False, True):
        g = made.begin(is_dynamic_shape_enabled=is_dynamic)
        made.output(g.abs(input=g.tensor(dim=[4, 5, 6])))
        run_and_judge(g)
        texts.append(counter.sources[-1])
    rows = [re.findall(r"struct position \{\n  int64_t (.*);", text) for text in texts]
    assert rows == [["task"], ["i0, i1, task"]]  # the axes around the loop over the fastest


def test_packed_axes_are_given_to_the_fastest_loop_at_launch() -> None:
    [part] = made.assignments(made.pointwise_chain((4, 5, 6)), cpu_c.ENGINE, cpu_device())
    built = cpu_c.ENGINE.build(part.region, cpu_device(), ())
    [launch], source = built.launches, built.source
    numbers = numbers_of(launch.template, source)
    assert (numbers["n0"], numbers["n1"], numbers["num_rows"], numbers["num_columns"]) == (1, 1, 1, 120)


def numbers_of(template: bytes, source: str) -> dict[str, int]:
    """The numbers in a parameter block, by the names that the source gives them."""
    [block] = re.findall(r"struct args \{\n(.*?)\} __attribute__", source, re.DOTALL)
    fields = [name.strip(" *;") for line in block.splitlines() for name in line.split(None, 1)[1].split(",")]
    names = [name.split("*")[-1] for name in fields]
    return {name: int.from_bytes(template[8 * k : 8 * k + 8], "little") for k, name in enumerate(names)}


@pytest.mark.parametrize("seed", range(8))
def test_random_dynamic_graph_is_right(seed: int) -> None:
    verdict = judge_engines(replace(smooth_graph(seed), is_dynamic=True), ["cpu_c"], seed)["cpu_c"]
    assert verdict.is_right, verdict.message


def test_dynamic_and_static_graphs_do_not_share_a_region_key() -> None:
    keys = set()
    for is_dynamic in (False, True):
        g = made.begin(is_dynamic_shape_enabled=is_dynamic)
        made.output(g.abs(input=g.tensor(dim=[4, 5, 6])))
        keys |= {a.region.key for a in made.assignments(g, cpu_c.ENGINE, cpu_device())}
    assert len(keys) == 2
    assert cudnn.pygraph(device="cpu")._draft.options.is_dynamic is False
