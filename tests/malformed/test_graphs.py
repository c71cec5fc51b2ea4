"""Bad graphs, tensors, steps and choices of plans: one error that names the culprit, from the step that sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fuseplan as cudnn
from fuseplan.errors import ArgumentError, BindError, DeviceError, InvalidGraphError
from tests.malformed.bench import FALLBACK, A, Row, filled, param, refused
from tests.malformed.graph_rows import GRAPHS, MODE, SCALAR, Graph, graph, ns, s, t, v


def check_works(g: Graph) -> None:
    """A new relu on this graph, on its own, gives the float64 result."""
    a = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    y = filled(2, 3)
    tensor = g.tensor([2, 3], name="x", uid=5)
    out = g.relu(tensor, name="act").set_output(True).set_name("y")
    g.build([FALLBACK])
    g.execute({"x": a, out: y})
    np.testing.assert_array_equal(y, np.maximum(a.astype(np.float64), 0))


@param(GRAPHS)
def test_bad_graph_is_refused_by_name(row: Row) -> None:
    g = graph()

    def declare_and_build() -> None:
        row.make(g)
        g.build([A, FALLBACK])

    refused(row, declare_and_build)
    assert g.get_execution_plan_count() == 0
    if g._draft.nodes and row.own is not ArgumentError:  # a refused graph stays refused in the same way
        with pytest.raises((row.error, InvalidGraphError)):
            g.build([A, FALLBACK])
    check_works(graph())


# table: declarations that are refused at once; a good graph can follow on the same object
REFUSED_CALLS: dict[str, Callable[[Graph], object]] = {
    "tensor-dim": lambda g: g.tensor([2.5], name="x"),
    "tensor-uid": lambda g: g.tensor([2], name="x", uid="u"),
    "tensor-alignment": lambda g: g.tensor([2], name="x", uid=5, alignment_value=0),
    "tensor-type": lambda g: g.tensor([2], name="x", data_type="float"),
    "scalar": lambda g: g.tensor_scalar([1], SCALAR.RUNTIME_PARAM, name="x"),
    "like": lambda g: g.tensor_like(np.zeros(3, "f4,u1")["f0"], name="x"),
    "op-argument": lambda g: g.relu(np.ones((2, 3), np.float32), name="act", negative_slope="a"),
    "op-input": lambda g: g.add(np.ones((2, 3), np.float32), True, name="act"),
    "op-dims": lambda g: g.reduction(np.ones((2, 3), np.float32), MODE.ADD, name="act", out_dims=5),
    "op-foreign": lambda g: g.relu(graph().tensor([2]), name="act"),
    "op-keyword": lambda g: g.relu(np.ones((2, 3), np.float32), name="act", slope=1),
    "sdpa-flags": lambda g: g.sdpa(*[np.ones((1, 1, 2, 2), np.float32)] * 3, is_inference=True, generate_stats=True),
}


@pytest.mark.parametrize("case", REFUSED_CALLS)
def test_refused_declaration_leaves_nothing_behind(case: str) -> None:
    g = graph()
    before = repr(g)
    with pytest.raises((ArgumentError, InvalidGraphError)):
        REFUSED_CALLS[case](g)
    assert repr(g) == before and g._draft.default_buffers == {}
    check_works(g)


def chain(g: Graph) -> tuple[Any, Any]:
    tensor = g.tensor([2, 3], name="x", uid=5)
    return tensor, g.relu(tensor, name="act").set_output(True).set_name("y")


CHAIN_STEPS: dict[str, Callable[[Graph], object]] = {
    "open": lambda g: None,
    "frozen": lambda g: g.build_operation_graph(),
    "planned": lambda g: g.create_execution_plans([A, FALLBACK]),
    "built": lambda g: g.build([A, FALLBACK]),
}

# table: (state, row); make(graph) on a graph with one relu in that state
STEPS: list[tuple[str, Row]] = [
    ("open", s("check-before-plans", lambda g: g.check_support(), "'shop' has no execution plans",
        "create_execution_plans")),
    ("open", s("select-before-plans", lambda g: g.select_plan(0), "'shop' has no execution plans",
        "create_execution_plans")),
    ("open", s("name-before-plans", lambda g: g.get_plan_name_at_index(0), "'shop' has no execution plans", "create")),
    ("open", s("build-index-before-plans", lambda g: g.build_plan_at_index(0), "'shop' has no execution plans",
        "create")),
    ("open", s("workspace-before-build", lambda g: g.get_workspace_size(), "'shop' is not built", r"build\(\)")),
    ("planned", s("workspace-of-planned", lambda g: g.get_workspace_size(), "'shop' is not built", r"build\(\)")),
    ("open", s("save-before-build", lambda g: g.serialize(), "'shop' is not built", r"build\(\)")),
    ("planned", s("plans-twice", lambda g: g.create_execution_plans(), "'shop' has execution plans already",
        "new graph")),
    ("built", s("plans-after-build", lambda g: g.create_execution_plans(), "'shop' has execution plans already",
        "new graph")),
    ("frozen", s("frozen-op", lambda g: g.relu(g._draft.tensors[0]), "'shop' is frozen", "new one")),
    ("frozen", s("frozen-tensor", lambda g: g.tensor([2]), "'shop' is frozen", "new one")),
    ("frozen", s("frozen-scalar", lambda g: g.tensor_scalar(1.0, SCALAR.RUNTIME_PARAM), "'shop' is frozen", "new one")),
    ("built", s("frozen-set-dim", lambda g: g._draft.tensors[0].set_dim([9, 9]), "set_dim on tensor 'x' is too late",
        "new one")),
    ("built", s("frozen-set-uid", lambda g: g._draft.tensors[0].set_uid(9), "set_uid on tensor 'x' is too late",
        "new one")),
    ("built", s("frozen-rename", lambda g: g._draft.tensors[0].set_name("z"), "set_name on tensor 'x' is too late",
        "new one")),
    ("built", s("frozen-output", lambda g: g._draft.tensors[1].set_output(False), "on tensor 'y' is too late",
        "new one")),
    ("built", s("load-into-used", lambda g: g.deserialize(b"PK"), "'shop' is not empty", "new pygraph")),
    ("open", t("modes-int", lambda g: g.create_execution_plans(1), "heuristics must be a list", "heur_mode.A")),
    ("open", t("modes-str", lambda g: g.create_execution_plans(["A"]), "heuristics must be a list", "heur_mode.A")),
    ("open", t("policy", lambda g: g.build_plans(3), "policy of build_plans", "HEURISTICS_CHOICE")),
    ("frozen", ns("engine-unknown", lambda g: g.create_execution_plan(7), "no engine has id 7", "20100: 'cpu_c'")),
    ("frozen", t("engine-str", lambda g: g.create_execution_plan("cpu_c"), "engine_id of create_exec", "int")),
    ("frozen", ns("knob-unknown", lambda g: g.create_execution_plan(20100, {"TEA": 1}), "'cpu_c' has no knob 'TEA'",
        "knobs are")),
    ("frozen", t("knob-key", lambda g: g.create_execution_plan(20100, {1.5: 1}), "knobs are named .*not 1.5",
        "STAGES")),
    ("frozen", t("knob-value", lambda g: g.create_execution_plan(20100, {"TEA": "x"}), "knob 'TEA' must be an int",
        "int")),
    ("frozen", t("knobs-list", lambda g: g.create_execution_plan(20100, [1]), "knobs must be a dict", "STAGES")),
    ("planned", v("pinned-and-barred", lambda g: g.select_plan(1).deselect_engines(["array"]).build_plans(),
                  r"plan 1 \(array\) of graph 'shop' is barred", "another index")),
    ("planned", v("built-barred", lambda g: g.deselect_engines(["array"]).build_plan_at_index(1), "barred",
        "another index")),
    ("planned", t("filter-str", lambda g: g.deselect_engines("array"), "engine names must be a list", r"\['array'\]")),
    ("planned", t("filter-int", lambda g: g.deselect_engines(5), "engine names must be a list", "list")),
    ("planned", t("filter-ints", lambda g: g.deselect_engines([5]), "list of str, not 5", r"\['5'\]")),
    ("planned", t("filter-notes", lambda g: g.deselect_behavior_notes(["X"]), "notes must be members", "list")),
    ("planned", t("filter-notes-int", lambda g: g.select_numeric_notes(5), "notes must be a list", "list")),
    ("planned", t("filter-workspace", lambda g: g.deselect_workspace_greater_than("1"), "workspace_limit must",
        "bytes")),
]  # fmt: skip


@pytest.mark.parametrize(("state", "row"), STEPS, ids=[row.id for _, row in STEPS])
def test_bad_step_is_refused_and_the_graph_still_runs(state: str, row: Row) -> None:
    g = graph()
    tensor, out = chain(g)
    CHAIN_STEPS[state](g)
    refused(row, lambda: row.make(g))
    g._plans.selected, g._plans.is_pinned = 0, False
    a, y = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), filled(2, 3)
    g.execute({tensor: a, out: y})
    np.testing.assert_array_equal(y, np.maximum(a.astype(np.float64), 0))


def test_every_plan_barred_lists_the_reason_of_each() -> None:
    g = graph()
    chain(g)
    g.create_execution_plans([A, FALLBACK])
    g.deselect_engines(["cpu_c", "array"])
    row = ns("all-barred", lambda g: None, "(?s)'shop'.*plan 0 cpu_c: .*plan 1 array: ", "drop filters")
    for step in (g.check_support, g.build_plans, g.build):
        refused(row, step)


# table: make(unused graph) makes a graph or a handle of the wrong kind
OBJECTS = [
    t("graph-name", lambda _: Graph(name=5), "name of a graph must be a str", "name="),
    t("graph-type", lambda _: Graph(io_data_type="float"), "io_data_type must be a data_type", "data_type.FLOAT"),
    t("graph-compute", lambda _: Graph(compute_data_type=3), "compute_data_type must be a data_type",
        "data_type.FLOAT"),
    ns("graph-torch-type", lambda _: Graph(io_data_type=torch.complex64), "io_data_type: torch.complex64", "float32"),
    t("graph-handle-int", lambda _: Graph(handle=5), "Handle is needed, not 5", "create_handle"),
    Row("graph-handle-dead", lambda _: Graph(handle=dead()), RuntimeError, DeviceError, "handle was destroyed",
        "create_handle"),
    t("graph-cache", lambda _: Graph(kernel_cache=5), "kernel_cache must come from", "create one"),
    t("graph-property", lambda _: Graph(device_property=5), "device_property must come from", "create one"),
    t("graph-retention", lambda _: Graph(cuda_graph_retention=5), "cuda_graph_retention must be", "PER_GRAPH"),
    Row("device-unknown", lambda _: cudnn.create_handle("tpu"), RuntimeError, DeviceError, "'tpu'", '"cpu"'),
    Row("device-absent", lambda _: cudnn.create_handle("cuda:99"), RuntimeError, DeviceError, "'cuda:99'", "cpu"),
    t("device-int", lambda _: cudnn.create_handle(3), "device must be a str, not 3", "cpu"),
    t("stream-str", lambda _: cudnn.set_stream(cudnn.create_handle("cpu"), "s"), "stream must be", "cuda_stream"),
    t("stream-negative", lambda _: cudnn.set_stream(cudnn.create_handle("cpu"), -5), "stream must be", "cuda_stream"),
    t("stream-of-handle", lambda _: cudnn.Handle(1, -1, "s"), "stream must be .*not 's'", "cuda_stream"),
    t("graph-sm-count", lambda _: Graph(sm_count="x"), "sm_count must be an int, not 'x'", "int"),
    t("stream-of-int", lambda _: cudnn.get_stream(5), "Handle is needed, not 5", "create_handle"),
    t("destroy-int", lambda _: cudnn.destroy_handle(5), "Handle is needed, not 5", "create_handle"),
]  # fmt: skip


def dead() -> cudnn.Handle:
    handle = cudnn.create_handle("cpu")
    cudnn.destroy_handle(handle)
    cudnn.destroy_handle(handle)
    return handle


@param(OBJECTS)
def test_object_of_the_wrong_kind_is_refused(row: Row) -> None:
    refused(row, lambda: row.make(None))
    check_works(graph())


def test_graph_without_outputs_runs_and_still_asks_for_its_inputs() -> None:
    g = graph()
    g.relu(g.tensor([2], name="x", uid=5))
    g.build([A, FALLBACK])
    refused(
        Row("none", lambda _: None, ValueError, BindError, r"'x' \(uid 5\)", "add an entry 5"), lambda: g.execute({})
    )
    g.execute({5: np.ones(2, np.float32)})
