"""Dims and strides that inference fills in, and what users' own dims and strides do to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuseplan.ops  # noqa: F401 - registers the ops
from fuseplan import dtypes
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import DraftNode, DraftTensor, GraphBuilder
from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import NodeView, schema_of
from tests.ops.primitive_interpreter import run_decomposition

Dims = tuple[int, ...]


def build(
    op: str, inputs: dict[str, tuple[Any, ...]], outputs: dict[str, dict[str, Any]], attrs: dict[str, Any] | None = None
) -> tuple[DraftNode, GraphBuilder]:
    """A completed node; inputs are (dims, strides or nothing), outputs keywords of `DraftTensor`."""
    ins = {
        port: DraftTensor(i + 1, port, dim, stride[0] if stride else None, dtypes.FLOAT)
        for i, (port, (dim, *stride)) in enumerate(inputs.items())
    }
    outs = {port: DraftTensor(50 + i, port, **known) for i, (port, known) in enumerate(outputs.items())}
    known = {a.name: a.default for a in schema_of(op).attrs} | (attrs or {})
    node = DraftNode(op, "n", ins, outs, known)
    builder = GraphBuilder("g", io_dtype=dtypes.FLOAT, compute_dtype=dtypes.FLOAT, nodes=[node])
    complete(builder)
    return node, builder


def result(node: DraftNode, port: str = "y") -> tuple[Dims | None, Dims | None]:
    return node.outputs[port].dim, node.outputs[port].stride


VIRTUAL = {"y": {"is_virtual": True}}
PLAIN: dict[str, dict[str, Any]] = {"y": {}}


@pytest.mark.parametrize(
    ("a", "b", "out", "expected"),
    [
        (((2, 3, 4, 5), (60, 1, 15, 3)), ((1, 3, 1, 1),), PLAIN, ((2, 3, 4, 5), (60, 1, 15, 3))),
        (((1, 3, 1, 1),), ((2, 3, 4, 5), (60, 1, 15, 3)), PLAIN, ((2, 3, 4, 5), (60, 1, 15, 3))),
        (((3, 4), (1, 3)), ((3, 4), (4, 1)), PLAIN, ((3, 4), (1, 3))),
        (((3, 4), (0, 1)), ((3, 4), (1, 3)), PLAIN, ((3, 4), (4, 1))),
        (((4, 1),), ((1, 5),), VIRTUAL, ((4, 5), (5, 1))),
        (((4, 1, 3), (1, 12, 4)), ((1, 5, 1),), VIRTUAL, ((4, 5, 3), (1, 12, 4))),
        (((5,),), ((2, 1, 5),), PLAIN, ((2, 1, 5), (5, 5, 1))),
        (((4, 1),), ((1, 5),), {"y": {"stride": (1, 4)}}, ((4, 5), (1, 4))),
        (((4, 1),), ((1, 5),), {"y": {"dim": (2, 4, 5), "stride": (20, 5, 1)}}, ((2, 4, 5), (20, 5, 1))),
        (((4, 1),), ((1, 5),), {"y": {"dim": (2, 4, 5), "is_virtual": True}}, ((2, 4, 5), (20, 5, 1))),
    ],
    ids=["same-first", "same-second", "order-of-first", "overlap-is-packed", "keep-rows", "keep-order", "ranks",
         "user-stride", "user-dims", "user-dims-virtual"],
)  # fmt: skip
def test_pointwise_result_layout(a: Any, b: Any, out: dict[str, Any], expected: tuple[Dims, Dims]) -> None:
    node, _ = build("add", {"a": a, "b": b}, out)
    assert result(node) == expected


def test_pointwise_output_larger_than_broadcast_is_filled() -> None:
    node, builder = build("sub", {"a": ((4, 1),), "b": ((1, 5),)}, {"y": {"dim": (2, 4, 5), "stride": (20, 5, 1)}})
    graph = builder.freeze()
    view = NodeView(graph.nodes[0], graph)
    arrays = {"a": np.arange(4.0).reshape(4, 1), "b": np.arange(5.0).reshape(1, 5) ** 2}
    want = np.broadcast_to(arrays["a"] - arrays["b"], (2, 4, 5))
    schema = schema_of("sub")
    np.testing.assert_array_equal(schema.reference(view, numpy_namespace(), arrays)["y"], want)
    made = run_decomposition(schema, view, arrays, scalar=lambda t: np.float64)
    np.testing.assert_array_equal(made["y"], want)


def test_gen_index_has_the_dims_of_its_input() -> None:
    node, _ = build("gen_index", {"input": ((3, 4), (1, 3))}, PLAIN, {"axis": -1})
    assert result(node) == ((3, 4), (1, 3))
    with pytest.raises(InvalidGraphError, match="make them equal"):
        build("gen_index", {"input": ((1, 4),)}, {"y": {"dim": (3, 4), "stride": (4, 1)}}, {"axis": 0})


def test_matmul_result_is_row_major() -> None:
    node, _ = build("matmul", {"A": ((2, 1, 4, 5), (20, 20, 1, 4)), "B": ((1, 3, 5, 6),)}, {"C": {}})
    assert result(node, "C") == ((2, 3, 4, 6), (72, 24, 6, 1))


@pytest.mark.parametrize(
    ("x", "w", "attrs", "dims"),
    [
        ((2, 8, 9, 7), (4, 8, 3, 3), {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)}, (2, 4, 9, 7)),
        ((2, 8, 9, 7), (4, 8, 3, 2), {"padding": (1, 0), "stride": (2, 3), "dilation": (1, 2)}, (2, 4, 5, 2)),
        (
            (1, 4, 10), (6, 2, 3),
            {"pre_padding": (2,), "post_padding": (0,), "stride": (1,), "dilation": (4,)}, (1, 6, 4),
        ),
    ],
    ids=["same", "stride-dilation", "one-axis"],
)  # fmt: skip
def test_conv_result_is_channels_last(x: Dims, w: Dims, attrs: dict[str, Any], dims: Dims) -> None:
    node, _ = build("conv_fprop", {"image": (x,), "weight": (w,)}, {"y": {}}, attrs)
    order = (1, *range(len(dims) - 1, 1, -1), 0)
    assert node.outputs["y"].dim == dims
    stride = node.outputs["y"].stride
    assert stride is not None
    step = 1
    for axis in order:
        assert stride[axis] == step
        step *= dims[axis]


def test_reduction_result_is_channels_last() -> None:
    node, _ = build("reduction", {"input": ((2, 3, 4, 5),)}, {"y": {"dim": (2, 3, 4, 1)}}, {"mode": "ADD"})
    assert result(node) == ((2, 3, 4, 1), (12, 1, 3, 3))


def test_layernorm_statistics_follow_scale() -> None:
    x = ((2, 3, 4, 5), (60, 1, 15, 3))
    node, _ = build(
        "layernorm", {"input": x, "scale": ((1, 3, 1, 5),), "eps": ((1, 1, 1, 1),)},
        {"y": {}, "mean": {}, "inv_std": {}}, {"phase": "TRAINING"},
    )  # fmt: skip
    assert result(node, "y") == x
    assert result(node, "mean") == result(node, "inv_std") == ((2, 1, 4, 1), (4, 1, 1, 1))


def test_layernorm_stat_dims_pass_to_the_other_stat() -> None:
    node, _ = build(
        "layernorm", {"input": ((2, 3, 4),), "eps": ((1, 1, 1),)},
        {"y": {}, "mean": {}, "inv_std": {"dim": (2, 3, 1)}}, {"phase": "TRAINING"},
    )  # fmt: skip
    assert node.outputs["mean"].dim == (2, 3, 1)


def test_layernorm_without_scale_normalises_all_but_the_first_axis() -> None:
    node, _ = build(
        "layernorm", {"input": ((2, 3, 4),), "eps": ((1, 1, 1),)},
        {"y": {}, "mean": {}, "inv_std": {}}, {"phase": "TRAINING"},
    )  # fmt: skip
    assert node.outputs["mean"].dim == node.outputs["inv_std"].dim == (2, 1, 1)


def test_norm_gradients_are_laid_out_as_what_they_belong_to() -> None:
    x, scale = ((2, 3, 4, 5), (60, 1, 15, 3)), ((1, 3, 1, 5), (30, 2, 30, 6))
    stats = ((2, 1, 4, 1),)
    node, _ = build(
        "layernorm_backward", {"grad": ((2, 3, 4, 5),), "input": x, "scale": scale, "mean": stats, "inv_std": stats},
        {"dx": {}, "dscale": {}, "dbias": {"stride": (15, 5, 5, 1)}},
    )  # fmt: skip
    assert result(node, "dx") == x
    assert result(node, "dscale") == scale
    assert result(node, "dbias") == ((1, 3, 1, 5), (15, 5, 5, 1))


def test_sdpa_results_are_packed_and_statistics_float() -> None:
    q = ((2, 4, 5, 8), (160, 8, 32, 1))
    node, _ = build(
        "sdpa", {"q": q, "k": ((2, 2, 7, 8),), "v": ((2, 1, 7, 3),)},
        {"o": {"dtype": dtypes.HALF}, "stats": {}, "score_max": {}}, {"generate_stats": True},
    )  # fmt: skip
    assert result(node, "o") == ((2, 4, 5, 3), (60, 15, 3, 1))
    assert result(node, "stats") == result(node, "score_max") == ((2, 4, 5, 1), (20, 5, 1, 1))
    assert node.outputs["stats"].dtype is dtypes.FLOAT


def test_inference_twice_gives_the_same() -> None:
    node, builder = build("add", {"a": ((4, 1),), "b": ((1, 5),)}, VIRTUAL)
    before = result(node)
    node.outputs["y"].is_virtual = True
    complete(builder)
    assert result(node) == before
