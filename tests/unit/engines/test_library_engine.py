"""An engine that calls a library: stream, status with the library's text, owner, a plan that was saved and loaded."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseplan.errors import DeviceError, PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.plan import plan_file
from fuseplan.plan.planner import PlanList, make_plans
from fuseplan.runtime import toolchain
from fuseplan.runtime.device import cpu_device
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.runtime.launch import LaunchKind, Program
from tests.unit.engines.conftest import Install, chain, forget
from tests.unit.plan.test_plan_file import edit

SOURCE = (Path(__file__).parent / "library_engine.py").read_text(encoding="utf-8")
MODULE = "toy_library_out_of_tree"


@pytest.fixture
def library(install: Install) -> None:
    """The package with the engine, installed by its entry point."""
    if not toolchain.has_compiler():
        pytest.skip("needs a C compiler for the library")
    install(MODULE, SOURCE)


def handles() -> list[Any]:
    """Handles that the engine has made and that live."""
    return [h for r in sys.modules[MODULE].LibraryEngine.made if (h := r()) is not None]


def plans_of(graph: Graph) -> tuple[PlanList, int]:
    plans = make_plans(graph, cpu_device())
    return plans, next(k for k, e in enumerate(plans.entries) if e.name.startswith("toy_library"))


def dispatcher_of(program: Program) -> Any:
    keys = [(s.uid,) for s in program.slots]
    return make_dispatcher(program, keys, [None] * len(keys), dict)  # type: ignore[arg-type]


def buffers(program: Program) -> tuple[dict[object, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    y = np.full_like(x, 7)
    return {s.uid: y if s.is_output else x for s in program.slots}, x, y


@pytest.mark.usefixtures("library")
def test_library_is_planned_called_with_the_stream_and_right() -> None:
    plans, index = plans_of(chain("neg"))
    program = plans.build(index).program
    assert [x.kind for x in program.launches] == [LaunchKind.LIBRARY]
    pack, x, y = buffers(program)
    dispatcher_of(program).execute(pack, None, 5)
    np.testing.assert_array_equal(y, -x)
    (handle,) = handles()
    assert handle.state == (1, 1, 5)


@pytest.mark.usefixtures("library")
def test_status_of_the_library_is_an_error_with_its_text() -> None:
    plans, _ = plans_of(chain("neg"))
    program = plans.build(plans.append(70100, {"LIMIT": 16})).program
    pack, _, y = buffers(program)
    with pytest.raises(DeviceError, match="launch 'toy' failed with status 7: TOY_TOO_LONG: more elements than LIMIT"):
        dispatcher_of(program).execute(pack, None, 0)
    assert (y == 7).all()


@pytest.mark.usefixtures("library")
def test_handle_lives_as_long_as_what_calls_it() -> None:
    plans, index = plans_of(chain("neg"))
    d = dispatcher_of(plans.build(index).program)
    pack, x, y = buffers(plans.build(index).program)
    del plans
    gc.collect()
    bound = d.bind(pack, None, 0)
    del d
    gc.collect()
    assert len(handles()) == 1
    bound()
    np.testing.assert_array_equal(y, -x)
    del bound
    gc.collect()
    assert handles() == []


@pytest.mark.usefixtures("library")
def test_saved_plan_makes_its_handle_again() -> None:
    plans, _ = plans_of(chain("neg"))
    built = plans.build(plans.append(70100, {"LIMIT": 16}))
    data = plan_file.dump(built, "1.0")
    before = handles()
    loaded = plan_file.load(data, cpu_device())
    (launch,) = loaded.program.launches
    assert launch.owner in handles() and launch.owner not in before
    pack, _, _ = buffers(loaded.program)
    with pytest.raises(DeviceError, match="status 7"):  # the config came back as well
        dispatcher_of(loaded.program).execute(pack, None, 0)
    with pytest.raises(cudnnGraphNotSupportedError, match="'toy_library' would have to build a part"):
        plan_file.load(data, cpu_device(), enforce_precompiled=True)


@pytest.mark.usefixtures("library")
def test_saved_plan_with_another_config_or_without_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, index = plans_of(chain("neg"))
    data = plan_file.dump(plans.build(index), "1.0")
    edited = edit(data, lambda m: m["regions"][0]["config"].update(LIMIT=99))
    with pytest.raises(PlanFileError, match="cannot set knob 'LIMIT' to 99"):
        plan_file.load(edited, cpu_device())
    other = edit(data, lambda m: m["regions"][0]["config"].update(LIMIT=16))
    pack, _, y = buffers(plans.build(index).program)
    with pytest.raises(DeviceError, match="TOY_TOO_LONG"):
        dispatcher_of(plan_file.load(other, cpu_device()).program).execute(pack, None, 0)
    assert (y == 7).all()
    monkeypatch.undo()
    forget()
    with pytest.raises(cudnnGraphNotSupportedError, match="needs engine 'toy_library'"):
        plan_file.load(data, cpu_device())
