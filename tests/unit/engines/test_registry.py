"""Engines of the tree and of other packages: one that is installed plans, runs and is saved like those of the tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.engines import registry
from fuseplan.errors import EngineError, cudnnGraphNotSupportedError
from fuseplan.plan.plan_file import dump, load
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import cpu_device
from fuseplan.testing.conformance import reached_rung
from fuseplan.testing.run import random_inputs, run_on_host
from tests.unit.engines.conftest import Install, chain, forget

SOURCE = (Path(__file__).parent / "toy_engine.py").read_text(encoding="utf-8")


def test_engines_of_the_tree_say_what_their_lines_say() -> None:
    engines = [registry.engine_named(line.name) for line in registry.IN_TREE]
    assert [(e.name, e.device_kinds) for e in engines] == [(line.name, line.device_kinds) for line in registry.IN_TREE]
    assert len({e.engine_ids for e in engines}) == len(engines)


def test_installed_engine_is_listed_before_the_general_one(install: Install) -> None:
    install("toy_out_of_tree", SOURCE)
    names = [e.name for e in registry.engines_for("cpu")]
    assert names[-2:] == ["toy", registry.GENERAL]
    assert "toy" not in [e.name for e in registry.engines_for("cuda")]
    assert registry.engine_named("toy") in registry.all_engines()


def test_installed_engine_is_chosen_and_right_through_the_api(install: Install) -> None:
    install("toy_out_of_tree", SOURCE)
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    y = np.empty_like(x)
    g = cudnn.pygraph(name="roots", io_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle(device="cpu"))
    source = g.tensor_like(x, name="x")
    result = g.sqrt(input=g.abs(input=source)).set_output(True)
    g.build()
    g.execute({source: x, result: y}, None)
    np.testing.assert_allclose(y, np.sqrt(np.abs(x.astype(np.float64))), rtol=1e-6)
    assert "region 0 [toy] 2 node(s)" in g.explain()
    assert g.get_engine_and_knobs_at_index(0)[0] == 70000


def test_installed_engine_is_judged_by_the_shipped_runner(install: Install) -> None:
    install("toy_out_of_tree", SOURCE)
    assert reached_rung(chain("abs", "sqrt", "neg"), "toy") == "correct"
    assert reached_rung(chain("exp"), "toy") == "refused"


def test_refusal_of_an_installed_engine_is_explained(install: Install) -> None:
    install("toy_out_of_tree", SOURCE)
    plans = make_plans(chain("exp"), cpu_device())
    assert any(r.startswith("toy: node ") and "is exp in FLOAT" in r for r in plans.refusals)


def test_saved_plan_needs_the_package_of_its_engine(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("toy_out_of_tree", SOURCE)
    graph = chain("abs", "sqrt")
    plan = make_plans(graph, cpu_device()).build(0)
    assert plan.engine_name == "toy"
    data, inputs = dump(plan, "1.0"), random_inputs(graph, 0)
    (before,), (after,) = run_on_host(plan, inputs).values(), run_on_host(load(data, cpu_device()), inputs).values()
    (x,) = (b.view.astype(np.float64) for b in inputs.values())
    np.testing.assert_allclose(before, np.sqrt(np.abs(x)), rtol=1e-6)
    np.testing.assert_array_equal(after, before)
    monkeypatch.undo()
    forget()
    with pytest.raises(cudnnGraphNotSupportedError, match="needs engine 'toy'.*\n.*install the package"):
        load(data, cpu_device())


@pytest.mark.parametrize(
    ("was", "now", "wrong"),
    [
        ("import ctypes", "import ctypes_is_missing", "ModuleNotFoundError: No module named 'ctypes_is_missing'"),
        ("ENGINE = ToyEngine()", "", "AttributeError: .*ENGINE"),
        ("def notes", "def remarks", "it lacks notes"),
        ('name = "toy"', "", "it lacks name"),
        ('name = "toy"', 'name = "array"', "its name 'array' is that of engine 'array'"),
        ("range(70000, 70001)", "range(20100, 20101)", "its engine_id 20100 is that of engine 'cpu_c'"),
    ],
)
def test_unusable_engine_is_named_with_its_fault(install: Install, was: str, now: str, wrong: str) -> None:
    assert was in SOURCE
    install("toy_broken", SOURCE.replace(was, now))
    with pytest.raises(EngineError, match=rf"engine 'toy_broken_point' \(toy_broken:ENGINE\).*{wrong}") as caught:
        registry.engines_for("cpu")
    assert "uninstall it" in str(caught.value)


def test_two_packages_with_one_engine_name_are_refused(install: Install) -> None:
    install("toy_a", SOURCE)
    install("toy_b", SOURCE)
    with pytest.raises(EngineError, match=r"'toy_b_point'.*its name 'toy' is that of engine 'toy'"):
        registry.all_engines()
