"""The API as programs of others use it: keys, engines by position, indices, names that are missing, plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.errors import BindError

DT = cudnn.data_type
Array = np.ndarray[Any, Any]
KINDS = {"io_data_type": DT.FLOAT, "compute_data_type": DT.FLOAT, "intermediate_data_type": DT.FLOAT}


def new(**options: Any) -> cudnn.pygraph:
    return cudnn.pygraph(device="cpu", **{**KINDS, **options})


def run(g: cudnn.pygraph, pack: dict[Any, Any]) -> None:
    g.build()
    g.execute(pack, np.empty(max(1, g.get_workspace_size()), np.uint8))


def test_output_keeps_its_first_name_as_a_key_beside_the_one_it_was_given() -> None:
    x, handle = np.ones((4, 16), np.float32), cudnn.create_handle(device="cpu")
    with cudnn.Graph(**KINDS, handle=handle, inputs=["r::input"], outputs=["r::OUT_0"]) as g:
        g.relu(name="r", input=x).set_output(True).set_name("out")
    assert np.asarray(g(x)).sum() == 64
    pack = g({"r::input": x})
    assert {"r::OUT_0", "out"} < pack.keys() and pack["r::OUT_0"] is pack["out"]
    mine = np.zeros_like(x)
    g({"r::input": x, "r::OUT_0": mine})
    assert mine.sum() == 64


def test_engines_are_counted_asked_and_run_by_position_before_plans_are_listed() -> None:
    g = new()
    a, b = (g.tensor(name=n, dim=[1, 8, 8], stride=[64, 8, 1]) for n in "ab")
    c = g.matmul(A=a, B=b).set_output(True)
    g.build_operation_graph()
    count = g.get_engine_count()
    assert count >= 2 and g.get_execution_plan_count() == 0
    names = []
    for k in range(count):
        assert all(knob.min_value <= knob.max_value for knob in g.get_knobs_for_engine(k))
        g.create_execution_plan(k, {})
        g.check_support()
        g.build_plan_at_index(k)
        out, one = np.zeros((1, 8, 8), np.float32), np.ones((1, 8, 8), np.float32)
        workspace = np.empty(max(1, g.get_workspace_size_plan_at_index(k)), np.uint8)
        g.execute_plan_at_index({a: one, b: one, c: out}, workspace, k)
        np.testing.assert_array_equal(out, 8)
        names.append(g.get_plan_name_at_index(k))
    assert len(set(names)) == count == g.get_engine_count()


@pytest.mark.parametrize("index", [99, -1])
def test_bad_plan_index_is_an_index_error_and_a_runtime_error(index: int) -> None:
    g = new()
    x = g.tensor([4])
    y = g.exp(x).set_output(True)
    g.build()
    pack = {x: np.ones(4, np.float32), y: np.zeros(4, np.float32)}
    calls: list[Callable[[], object]] = [
        lambda: g.build_plan_at_index(index),
        lambda: g.get_workspace_size_plan_at_index(index),
        lambda: g.execute_plan_at_index(pack, None, index),
        lambda: g.get_plan_name_at_index(index),
        lambda: g.select_plan(index),
    ]
    for call in calls:
        with pytest.raises(RuntimeError) as caught:
            call()
        assert isinstance(caught.value, IndexError)
    assert (pack[y] == 0).all()


@pytest.mark.parametrize("how", ["execute", "bind", "index"])
def test_tensors_of_another_graph_are_no_keys_although_their_uids_are_equal(how: str) -> None:
    def make(op: str) -> tuple[cudnn.pygraph, Any, Any]:
        g = new(name=op)
        x = g.tensor([4])
        y = getattr(g, op)(input=x).set_output(True)
        g.build()
        return g, x, y

    (_, x1, y1), (g2, x2, y2) = make("exp"), make("neg")
    out = np.zeros(4, np.float32)
    calls = {"execute": g2.execute, "bind": g2.bind, "index": g2.execute_plan_at_index}
    with pytest.raises(BindError, match="graph 'neg' is tensor .* of graph 'exp'"):
        calls[how]({x1: np.ones(4, np.float32), y1: out})
    assert (out == 0).all()
    other = np.zeros(4, np.float32)
    g2.execute({x1: out, y1: out, x2: np.ones(4, np.float32), y2: other})  # a pack may serve both graphs
    np.testing.assert_array_equal(other, -1)


@pytest.mark.parametrize("compute", [DT.FLOAT, DT.DOUBLE])
def test_number_stands_for_a_tensor_of_one_element_in_any_op(compute: Any) -> None:
    kind = np.float64 if compute is DT.DOUBLE else np.float32
    g = new(io_data_type=compute, compute_data_type=compute, intermediate_data_type=compute)
    x, s = g.tensor([2, 8, 1, 1]), g.tensor([1, 8, 1, 1])
    y, _ = g.rmsnorm(norm_forward_phase=cudnn.norm_forward_phase.INFERENCE, input=x, scale=s, epsilon=0.1)
    z = g.max(g.sub(1, g.mul(a=g.add(a=y, b=0.1), b=3)), -2.5).set_output(True)
    a = np.random.default_rng(0).standard_normal((2, 8, 1, 1)).astype(kind)
    out = np.empty_like(a)
    run(g, {x: a, s: np.ones((1, 8, 1, 1), kind), z: out})
    wide = a.astype(np.float64)
    wanted = np.maximum(1 - (wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 0.1) + 0.1) * 3, -2.5)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-14 if compute is DT.DOUBLE else 2e-6)
    assert len(g.get_inputs()) == 7 and all(t.get_dim() == [1, 1, 1, 1] for t in g.get_inputs()[2:])


def test_number_stands_for_an_additive_bias_of_attention() -> None:
    g, rng = new(), np.random.default_rng(1)
    q, k, v = (g.tensor([1, 2, 3, 4]) for _ in range(3))
    o, _ = g.sdpa(q, k, v, generate_stats=False, attn_scale=0.5, bias=7.0)
    o.set_output(True)
    arrays = [rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3)]
    out = np.empty((1, 2, 3, 4), np.float32)
    run(g, {**dict(zip((q, k, v), arrays, strict=True)), o: out})
    wq, wk, wv = (a.astype(np.float64) for a in arrays)
    p = np.exp(wq @ wk.swapaxes(2, 3) * 0.5)
    np.testing.assert_allclose(out, p / p.sum(-1, keepdims=True) @ wv, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [True, "1.0", 1j, [1.0]], ids=repr)
def test_what_is_no_number_stands_for_no_tensor(wrong: object) -> None:
    g = new()
    x = g.tensor([4])
    for call in (lambda: g.add(x, wrong), lambda: g.add(a=x, b=wrong), lambda: g.sdpa(x, x, x, score_max=0.5)):
        with pytest.raises(TypeError):
            call()
    assert g.nodes == [] and list(g.tensors.values()) == [x]


@pytest.mark.parametrize("flag", ["is_inference", "generate_stats"])
def test_number_is_no_flag(flag: str) -> None:
    g = new()
    q = g.tensor([1, 2, 3, 4])
    with pytest.raises(ValueError, match=flag):
        g.sdpa(q, q, q, **{flag: 1})
