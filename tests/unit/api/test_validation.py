"""Validation and freezing: defaults, repeatability, what changes when, and the cost per node."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import fuseplan as cudnn

DT = cudnn.data_type


def simple(**types: object) -> tuple[cudnn.pygraph, cudnn.Tensor, cudnn.Tensor, cudnn.Tensor]:
    g = cudnn.pygraph(name="g", device="cpu", **types)  # type: ignore[arg-type]
    x = g.tensor([2, 3], name="x")
    middle = g.add(x, x)
    return g, x, middle, g.relu(middle).set_output(True)


def test_types_follow_the_final_virtual_flag() -> None:
    g, x, middle, y = simple(io_data_type=DT.HALF, intermediate_data_type=DT.FLOAT, compute_data_type=DT.FLOAT)
    assert y.get_data_type() is DT.NOT_SET
    g.validate()
    assert [t.get_data_type() for t in (x, middle, y)] == [DT.HALF, DT.FLOAT, DT.HALF]


def test_unset_types_fall_back_to_the_io_type_and_then_to_float() -> None:
    g, _, middle, _ = simple(io_data_type=DT.BFLOAT16)
    g.validate()
    assert g._draft.graph is not None and g._draft.graph.nodes[0].compute.name == "BFLOAT16"
    assert middle.get_data_type() is DT.BFLOAT16
    g, x, middle, y = simple()
    x.set_data_type(DT.HALF)
    g.validate()
    assert [t.get_data_type() for t in (middle, y)] == [DT.FLOAT, DT.FLOAT]


def test_missing_type_and_io_type_names_the_tensor() -> None:
    g, *_ = simple()
    with pytest.raises(ValueError, match="tensor 'x' has no data type"):
        g.validate()


def test_validate_repeats_and_a_change_before_freezing_undoes_it() -> None:
    g, x, middle, y = simple(io_data_type=DT.FLOAT)
    g.validate()
    g.validate()
    assert y.get_dim() == [2, 3] and y.get_stride() == [3, 1]
    x.set_dim([4, 5])
    assert y.get_dim() == [] and y.get_stride() == []
    g.validate()
    assert (middle.get_dim(), y.get_dim(), y.get_stride()) == ([4, 5], [4, 5], [5, 1])


def test_failing_validate_fails_again_in_the_same_way_in_every_step() -> None:
    g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
    g.add(g.tensor([2, 3]), g.tensor([2, 4]), name="sum").set_output(True)
    for step in (g.validate, g.validate, g.build_operation_graph, g.create_execution_plans, g.build):
        with pytest.raises(ValueError, match="'sum'"):
            step()
        assert not g._draft.is_frozen


def test_empty_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        cudnn.pygraph(device="cpu").validate()


# table: changes of a frozen graph
CHANGES: list[Callable[[cudnn.pygraph, cudnn.Tensor], object]] = [
    lambda g, x: g.relu(x),
    lambda g, x: g.tensor([1]),
    lambda g, x: g.tensor_like(x),
    lambda g, x: g.tensor_scalar(1.0, cudnn.scalar_type.RUNTIME_PARAM),
    lambda g, x: x.set_dim([1]),
    lambda g, x: x.set_stride([1]),
    lambda g, x: x.set_name("z"),
    lambda g, x: x.set_uid(5),
    lambda g, x: x.set_output(False),
    lambda g, x: x.set_data_type(DT.HALF),
    lambda g, x: x.set_is_pass_by_value(True),
]


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_frozen_graph_raises_runtime_error(change: Callable[[cudnn.pygraph, cudnn.Tensor], object]) -> None:
    g, x, *_ = simple(io_data_type=DT.FLOAT)
    g.build_operation_graph()
    with pytest.raises(RuntimeError, match="graph 'g' is frozen"):
        change(g, x)
    g.validate()
    g.build_operation_graph()


def test_user_dims_and_strides_are_authoritative() -> None:
    g, _, _, y = simple(io_data_type=DT.FLOAT)
    y.set_stride([1, 2])
    g.validate()
    assert y.get_stride() == [1, 2]


def test_keys_depend_on_structure_and_names_as_they_should() -> None:
    def make(name: str = "x", dim: int = 3, uid: int = -1, **options: object) -> cudnn.pygraph:
        g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu", **options)  # type: ignore[arg-type]
        g.relu(g.tensor([2, dim], name=name, uid=uid)).set_output(True)
        return g

    same = make()
    assert same.key() == make().key() and isinstance(same.key(), int)
    assert same.key() != make(name="other").key() != make(uid=50).key()
    assert same.canonical_key == make(name="other", uid=50).canonical_key
    assert same.canonical_key != make(dim=4).canonical_key and same.key() != make(dim=4).key()
    dynamic = make(is_dynamic_shape_enabled=True)
    assert dynamic.key() == make(dim=4, is_dynamic_shape_enabled=True).key()


def test_introspection_shows_nodes_tensors_inputs_and_outputs() -> None:
    g, x, middle, y = simple(io_data_type=DT.FLOAT)
    y.set_name("y")
    g.tensor([1], name="x")
    assert [n.name for n in g.nodes] == ["add.0", "relu.0"]
    assert g.get_node("relu.0") is g.nodes[1] and g.get_node("none") is None
    assert g.nodes[0].node_type is cudnn.NodeType.POINTWISE and g.nodes[0].inputs == {"a": x, "b": x}
    assert g.get_inputs() == [x] and g.get_outputs() == [y]
    assert list(g.tensors) == ["x", "add.0::OUT_0", "y", "x#4"]
    assert g.find_tensor("y") is y and g.find_tensor(middle.get_uid()) is middle and g.find_tensor("none") is None
    assert g.query_tensor_attributes_of_uid(y.get_uid()) is y
    with pytest.raises(ValueError, match="uid 99"):
        g.query_tensor_attributes_of_uid(99)
    assert g.context == cudnn.GraphContext("g", DT.FLOAT)
    assert g.inspect()["state"] == "open" and g.inspect()["nodes"][1]["op"] == "relu"
    assert [n["op"] for n in json.loads(repr(g))["nodes"]] == ["add", "relu"]
    assert json.loads(repr(x))["name"] == "x"
    assert "build()" in g.explain()


def test_node_checks_and_infers_alone() -> None:
    g, _, middle, _ = simple(io_data_type=DT.FLOAT)
    node = g.nodes[0]
    node.validate()
    node.infer_properties(g.context)
    assert (middle.get_dim(), middle.get_data_type()) == ([2, 3], DT.FLOAT)
    bare = cudnn.Node("lonely", cudnn.NodeType.MATMUL)
    with pytest.raises(ValueError, match="'lonely'.*'A' is missing"):
        bare.validate()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda g, x: x.set_ragged_offset(g.tensor([3])), "ragged offsets"),
        (lambda g, x: x.set_reordering_type(cudnn.tensor_reordering.F8_128x4), "F8_128x4"),
        (lambda g, x: x.set_vector_count_and_dimension(4, 1), "vectors of 4"),
    ],
)
def test_layout_beyond_dims_and_strides_is_not_supported(
    change: Callable[[cudnn.pygraph, cudnn.Tensor], object], named: str
) -> None:
    g, x, *_ = simple(io_data_type=DT.FLOAT)
    change(g, x)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"'x' has .*{named}"):
        g.validate()
