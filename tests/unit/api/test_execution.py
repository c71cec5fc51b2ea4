"""Running graphs: packs in every form, streams, overrides, threads, saving; values compared in float64."""

from __future__ import annotations

import enum
import threading
from typing import Any

import numpy as np
import pytest
import torch

import fuseplan as cudnn
from fuseplan.engines import registry

pytestmark = pytest.mark.usefixtures("no_compiler")
DT, FALLBACK = cudnn.data_type, [cudnn.heur_mode.FALLBACK]
Array = np.ndarray[Any, Any]


class Uid(enum.IntEnum):
    X = 11
    B = 12
    Y = 13


class Case:
    """relu(x + b) with arrays that fit, and its float64 result."""

    def __init__(self, rows: int = 5, **options: Any) -> None:
        rng = np.random.default_rng(rows)
        self.x = rng.normal(size=(rows, 4)).astype(np.float32)
        self.b = rng.normal(size=(1, 4)).astype(np.float32)
        self.y = np.full((rows, 4), np.nan, np.float32)
        self.g = cudnn.pygraph(name="case", io_data_type=DT.FLOAT, **{"device": "cpu", **options})
        self.X = self.g.tensor([rows, 4], name="x", uid=11)
        self.B = self.g.tensor([1, 4], name="b", uid=12)
        self.Y = self.g.relu(self.g.add(self.X, self.B)).set_output(True).set_name("y").set_uid(13)

    def build(self) -> Case:
        self.g.build(FALLBACK)
        return self

    def check(self, y: Array | None = None) -> None:
        wanted = np.maximum(self.x.astype(np.float64) + self.b, 0)
        found = self.y if y is None else y
        np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=0)


# table: the same pack in every form
PACKS = {
    "tensors": lambda c: {c.X: c.x, c.B: c.b, c.Y: c.y},
    "uids": lambda c: {11: c.x, 12: c.b, 13: c.y},
    "enum uids": lambda c: {Uid.X: c.x, Uid.B: c.b, Uid.Y: c.y},
    "names": lambda c: {"x": c.x, "b": c.b, "y": c.y},
    "mixed": lambda c: {c.X: c.x, 12: c.b, "y": c.y},
    "ignored keys": lambda c: {c.X: c.x, 12: c.b, "y": c.y, None: c.x, 99: c.x},
    "another graph's tensors": lambda c: (lambda o: {o.X: c.x, o.B: c.b, o.Y: c.y})(Case()),
    "torch": lambda c: {c.X: torch.from_numpy(c.x), c.B: torch.from_numpy(c.b), c.Y: torch.from_numpy(c.y)},
    "addresses": lambda c: {11: c.x.ctypes.data, 12: c.b.ctypes.data, 13: c.y.ctypes.data},
}


@pytest.mark.parametrize("form", sorted(PACKS))
def test_pack_forms_give_the_same_result(form: str) -> None:
    case = Case().build()
    assert case.g.execute(PACKS[form](case), None) is None
    case.check()


def test_list_of_buffers_goes_with_tensor_uids() -> None:
    case = Case().build()
    case.g.execute([case.y, case.x, case.b], tensor_uids=[13, 11, 12])
    case.check()
    case.y[:] = 0
    case.g.execute_plan_at_index((case.y, case.x, case.b), None, 0, tensor_uids=[13, 11, 12])
    case.check()
    for uids in ([13, 11], [13, 11, 11]):
        with pytest.raises(ValueError):
            case.g.execute([case.y, case.x, case.b], tensor_uids=uids)
    with pytest.raises(TypeError):
        case.g.execute([case.y, case.x, case.b])


def test_missing_unknown_and_ambiguous_keys_are_refused_by_name() -> None:
    case = Case()
    case.g.tensor([1], name="x")
    case.build()
    with pytest.raises(ValueError, match="'y'"):
        case.g.execute({case.X: case.x, case.B: case.b})
    with pytest.raises(KeyError, match="no tensor named 'z'"):
        case.g.execute({case.X: case.x, case.B: case.b, case.Y: case.y, "z": case.x})
    with pytest.raises(ValueError, match="several tensors.*'x'"):
        case.g.execute({"x": case.x, case.B: case.b, case.Y: case.y})
    with pytest.raises(TypeError):
        case.g.execute({case.X: case.x, case.B: case.b, 1.5: case.y})
    assert np.isnan(case.y).all()


def test_buffer_of_a_forgotten_output_is_refused_and_autotuned_neither() -> None:
    g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
    x = np.ones((3, 4), np.float32)
    inner = g.relu(input=g.tensor_like(x, name="x"), name="r").set_uid(7)
    y = g.exp(input=inner, name="e").set_output(True)
    g.build(FALLBACK)
    pack = {"x": x, y: np.empty_like(x)}
    for call in (g.execute, g.bind, g.autotune):
        for key in (inner, 7, "r::OUT_0"):
            with pytest.raises(ValueError, match=r"'r::OUT_0' \(uid 7\).*virtual.*\n.*set_output"):
                call({**pack, key: np.empty_like(x)})
    g.execute({**pack, 99: x, inner: None})
    np.testing.assert_allclose(pack[y], np.exp(x.astype(np.float64)), rtol=1e-6)


def test_uid_that_a_virtual_tensor_was_given_is_an_unknown_one() -> None:
    """A pack may serve several graphs: under the number it can have another graph's tensor."""
    g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
    x, y = np.ones((3, 4), np.float32), np.empty((3, 4), np.float32)
    inner = g.relu(input=g.tensor([3, 4], name="x", uid=1))
    g.exp(input=inner).set_output(True).set_uid(2)
    g.build(FALLBACK)
    g.execute({1: x, 2: y, inner.get_uid(): x})
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=1e-6)


def test_execute_builds_an_unbuilt_graph() -> None:
    case = Case()
    case.g.create_execution_plans(FALLBACK)
    case.g.execute(PACKS["tensors"](case))
    case.check()
    assert case.g.selected_engine is not None


def test_execute_plan_at_index_leaves_the_selection() -> None:
    case = Case()
    case.g.create_execution_plans()
    last = case.g.get_execution_plan_count() - 1
    case.g.execute_plan_at_index(PACKS["uids"](case), index=last)
    case.check()
    assert case.g._plans.selected == 0


def test_bound_call_reads_the_buffers_again() -> None:
    case = Case().build()
    call = case.g.bind(PACKS["tensors"](case))
    case.x[:] = -case.x
    call()
    case.check()


def test_framework_tensors_given_to_ops_are_used_unless_the_pack_has_them() -> None:
    g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    y = g.add(a, b).set_output(True)
    g.build(FALLBACK)
    out = torch.empty(3, 4)
    g.execute({y: out})
    np.testing.assert_allclose(out.numpy(), (a.double() + b.double()).numpy(), rtol=3e-7)
    g.execute({y: out, g.nodes[0].inputs["b"]: a})
    np.testing.assert_allclose(out.numpy(), 2 * a.double().numpy(), rtol=3e-7)


def test_scalars_are_read_at_each_call_or_owned_by_the_graph() -> None:
    g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
    x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    factor = torch.full((1,), 2.0)
    X = g.tensor_like(x)
    kept = [g.tensor_scalar(3.0, kind) for kind in cudnn.scalar_type]
    out = g.mul(g.mul(g.mul(X, factor), kept[0]), kept[1]).set_output(True)
    g.build(FALLBACK)
    g.execute({X: x, out: y})
    np.testing.assert_array_equal(y, x.astype(np.float64) * 18)
    factor[0] = 5.0
    g.execute({X: x, out: y})
    np.testing.assert_array_equal(y, x.astype(np.float64) * 45)


def test_overrides_run_other_shapes_for_one_call() -> None:
    case, other = Case(is_override_shape_enabled=True).build(), Case(rows=9)
    given = ([11, 13], [[9, 4], [9, 4]], [[4, 1], [4, 1]])
    pack = {11: other.x, 12: other.b, 13: other.y}
    assert case.g.get_workspace_size(None, *given) == 0
    case.g.execute(pack, None, None, *given)
    other.check()
    other.y[:] = 0
    case.g.execute_plan_at_index(pack, None, 0, None, *given)
    other.check()
    case.g.execute(PACKS["uids"](case))
    case.check()
    assert len(case.g._runners.siblings) == 1 and case.X.get_dim() == [5, 4]


def test_overrides_plan_the_selected_engine_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    case, other = Case(is_override_shape_enabled=True).build(), Case(rows=9)
    planned: list[str] = []
    for engine in registry.engines_for("cpu"):
        monkeypatch.setattr(
            engine, "limits", lambda device, e=engine: planned.append(e.name) or type(e).limits(e, device)
        )
    case.g.execute({11: other.x, 12: other.b, 13: other.y}, None, None, [11, 13], [[9, 4], [9, 4]], [[4, 1], [4, 1]])
    other.check()
    assert planned == [case.g.selected_engine]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (([11], None, [[4, 1]]), ValueError),
        (([11], [[9, 4]], []), ValueError),
        (([11], [[9, 4]], [[1]]), ValueError),
        (([99], [[9, 4]], [[4, 1]]), ValueError),
        (([11], [[36]], [[1]]), ValueError),
        (([11], [[9, 3]], [[3, 1]]), ValueError),
    ],
)
def test_overrides_that_do_not_fit_are_refused(given: Any, error: type[Exception]) -> None:
    case = Case(is_override_shape_enabled=True).build()
    with pytest.raises(error):
        case.g.execute(PACKS["uids"](case), None, None, *given)


def test_overrides_need_the_option() -> None:
    case = Case().build()
    with pytest.raises(RuntimeError, match="is_override_shape_enabled"):
        case.g.execute(PACKS["uids"](case), None, None, [11], [[5, 4]], [[4, 1]])


def test_handle_of_another_device_or_a_dead_one_is_refused() -> None:
    handle = cudnn.create_handle("cpu")
    case = Case(device=None, handle=handle).build()
    case.g.execute(PACKS["uids"](case), None, cudnn.create_handle("cpu"))
    case.check()
    with pytest.raises(ValueError, match="cuda:3"):
        case.g.execute(PACKS["uids"](case), None, cudnn.Handle(1, 3))
    with pytest.raises(TypeError):
        case.g.execute(PACKS["uids"](case), None, 1)  # type: ignore[arg-type]
    cudnn.destroy_handle(handle)
    with pytest.raises(RuntimeError, match="destroyed"):
        case.g.execute(PACKS["uids"](case))


def test_built_graph_runs_from_several_threads() -> None:
    case = Case().build()
    results = [np.empty_like(case.y) for _ in range(8)]
    failures: list[BaseException] = []

    def run(y: Array) -> None:
        try:
            for _ in range(20):
                case.g.execute({11: case.x, 12: case.b, 13: y}, None, cudnn.create_handle("cpu"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(y,)) for y in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for y in results:
        case.check(y)


def test_autotune_selects_a_right_plan_and_leaves_its_result() -> None:
    case = Case()
    case.g.create_execution_plans(FALLBACK)
    rows: list[Any] = []
    report = case.g.autotune(PACKS["tensors"](case), progress=lambda row, done, total: rows.append((row, done, total)))
    case.check()
    assert report.best == case.g._plans.selected and len(rows) == len(report.rows) == rows[-1][2]


# table: both call forms of deserialize, with their data
LOADS = {
    "data": lambda h, data: h.deserialize(data),
    "keyword": lambda h, data: h.deserialize(pyobj=data),
    "handle first": lambda h, data: h.deserialize(cudnn.create_handle("cpu"), data),
    "none first": lambda h, data: h.deserialize(None, data, False),
    "keywords": lambda h, data: h.deserialize(handle_=None, pyobj=data, enforce_precompiled=True),
    "list": lambda h, data: h.deserialize(list(data)),
}


@pytest.mark.parametrize("form", sorted(LOADS))
def test_plan_round_trips_in_every_call_form(form: str) -> None:
    case = Case().build()
    data = case.g.serialize(as_bytes=True)
    assert isinstance(data, bytes) and case.g.serialize() == list(data)
    h = cudnn.pygraph(device="cpu")
    LOADS[form](h, data)
    assert h.get_execution_plan_count() == 1 and h.selected_engine == case.g.selected_engine
    assert h.get_plan_name_at_index(0) == case.g.get_plan_name_at_index(0)
    assert h.get_workspace_size() == 0 and h.nodes == [] and h.tensors == {}
    for pack in (PACKS["uids"](case), PACKS["tensors"](case), PACKS["names"](case)):
        case.y[:] = np.nan
        h.execute(pack)
        case.check()
    assert h.key() == case.g.key() and "loaded" in h.explain()
    assert h.autotune(PACKS["uids"](case)).best == 0


def test_structure_round_trips_as_json() -> None:
    case = Case()
    h = cudnn.pygraph(device="cpu")
    h.deserialize(repr(case.g))
    assert h.name == "case" and repr(h) == repr(case.g)
    h.build(FALLBACK)
    h.execute(PACKS["names"](case))
    case.check()
    case.g.validate()
    assert h.key() == case.g.key()


def test_what_cannot_be_loaded_is_refused_and_leaves_the_graph_empty() -> None:
    case = Case().build()
    data = case.g.serialize(as_bytes=True)
    assert isinstance(data, bytes)
    h = cudnn.pygraph(device="cpu")
    for wrong in (b"", b"nonsense", data[: len(data) // 2], "", "{}", repr(case.g)[:-40]):
        with pytest.raises(ValueError):
            h.deserialize(wrong)
    with pytest.raises(ValueError, match="structure is damaged"):
        h.deserialize(repr(case.g).replace('"op"', '"po"'))
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no compiled kernels"):
        h.deserialize(repr(case.g), True)
    for args, kwargs in [
        ((), {}),
        ((1.5,), {}),
        ((data, True, 3), {}),
        ((data,), {"pyobj": data}),
        ((data,), {"x": 1}),
    ]:
        with pytest.raises(TypeError):
            h.deserialize(*args, **kwargs)
    h.deserialize(data)
    with pytest.raises(RuntimeError, match="not empty"):
        h.deserialize(data)
    with pytest.raises(RuntimeError):
        h.relu(case.X)
    with pytest.raises(RuntimeError):
        h.create_execution_plan(20000)
    with pytest.raises(RuntimeError, match="loaded"):
        cudnn_override = cudnn.pygraph(device="cpu", is_override_shape_enabled=True)
        cudnn_override.deserialize(data)
        cudnn_override.execute(PACKS["uids"](case), None, None, [11], [[5, 4]], [[4, 1]])
