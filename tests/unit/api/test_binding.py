"""Call forms of op methods: both positional orders, keywords, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.api.tensor import Tensor

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
PHASE = cudnn.norm_forward_phase.TRAINING
Graph = cudnn.pygraph
Call = Callable[[Graph, list[Tensor]], Any]


def make_graph() -> tuple[Graph, list[Tensor]]:
    g = cudnn.pygraph(io_data_type=FLOAT, device="cpu")
    return g, [g.tensor([2, 3, 4, 4]) for _ in range(4)]


def node_of(call: Call) -> dict[str, Any]:
    """What the last node of a call holds, tensors by their position."""
    g, tensors = make_graph()
    call(g, tensors)
    node = g.nodes[-1]
    inputs = {port: tensors.index(t) for port, t in node.inputs.items()}
    return {**inputs, **node.params, "name": node.name, "compute": node.compute_data_type}


# table: calls that mean the same
SAME: dict[str, list[Call]] = {
    "relu": [
        lambda g, t: g.relu(t[0], 0.1, 0.0, 6.0, FLOAT, "n"),
        lambda g, t: g.relu(t[0], 0.1, 0.0, 6.0, "n", FLOAT),
        lambda g, t: g.relu(
            input=t[0], negative_slope=0.1, lower_clip=0, upper_clip=6, name="n", compute_data_type=FLOAT
        ),
    ],
    "add": [
        lambda g, t: g.add(t[0], t[1], FLOAT, "n"),
        lambda g, t: g.add(t[0], t[1], name="n", compute_data_type=FLOAT),
        lambda g, t: g.add(b=t[1], a=t[0], name="n", compute_data_type=FLOAT),
    ],
    "reduction": [
        lambda g, t: g.reduction(t[0], cudnn.reduction_mode.ADD, FLOAT, "n"),
        lambda g, t: g.reduction(t[0], None, cudnn.reduction_mode.ADD, name="n", compute_data_type=FLOAT),
        lambda g, t: g.reduction(input=t[0], mode=cudnn.reduction_mode.ADD, name="n", compute_data_type=FLOAT),
    ],
    "layernorm": [
        lambda g, t: g.layernorm(PHASE, t[0], t[1], t[2], t[3], FLOAT, "n"),
        lambda g, t: g.layernorm(t[0], t[1], t[2], t[3], PHASE, name="n", compute_data_type=FLOAT),
        lambda g, t: g.layernorm(
            norm_forward_phase=PHASE, input=t[0], scale=t[1], bias=t[2], epsilon=t[3], name="n", compute_data_type=FLOAT
        ),
    ],
    "rmsnorm without scale": [
        lambda g, t: g.rmsnorm(PHASE, t[0], None, None, t[3], FLOAT, "n"),
        lambda g, t: g.rmsnorm(t[0], None, None, t[3], PHASE, name="n", compute_data_type=FLOAT),
        lambda g, t: g.rmsnorm(
            norm_forward_phase=PHASE, input=t[0], epsilon=t[3], name="n", compute_data_type=FLOAT, bias=None
        ),
    ],
    "rmsnorm_backward": [
        lambda g, t: g.rmsnorm_backward(t[0], t[1], None, t[2], False, FLOAT, "n"),
        lambda g, t: g.rmsnorm_backward(t[0], t[1], None, t[2], False, name="n", compute_data_type=FLOAT),
        lambda g, t: g.rmsnorm_backward(
            grad=t[0], input=t[1], inv_variance=t[2], has_dbias=False, name="n", compute_data_type=FLOAT
        ),
    ],
    "conv_fprop": [
        lambda g, t: g.conv_fprop(t[0], t[1], [1, 1], [2, 2], [1, 1], name="n"),
        lambda g, t: g.conv_fprop(t[0], t[1], [1, 1], None, None, [2, 2], [1, 1], name="n"),
        lambda g, t: g.conv_fprop(image=t[0], weight=t[1], padding=(1, 1), stride=(2, 2), dilation=(1, 1), name="n"),
        lambda g, t: g.conv_fprop(t[0], t[1], [1, 1], [1, 1], [2, 2], [1, 1], name="n"),
        lambda g, t: g.conv_fprop(t[0], t[1], None, [1, 1], [1, 1], [2, 2], [1, 1], name="n"),
    ],
    "matmul": [
        lambda g, t: g.matmul(t[0], t[1], FLOAT, 0.5, "n"),
        lambda g, t: g.matmul(A=t[0], B=t[1], compute_data_type=FLOAT, padding=0.5, name="n"),
    ],
    "sdpa": [
        lambda g, t: g.sdpa(t[0], t[1], t[2], False, 0.125, None, None, False, False, None, None, True, name="n"),
        lambda g, t: g.sdpa(
            q=t[0], k=t[1], v=t[2], generate_stats=True, attn_scale=0.125, diagonal_band_right_bound=0, name="n"
        ),
    ],
}


@pytest.mark.parametrize("name", sorted(SAME))
def test_call_forms_make_the_same_node(name: str) -> None:
    first, *others = [node_of(call) for call in SAME[name]]
    assert first["name"] == "n"
    for other in others:
        assert other == first


def test_conv_split_padding_by_position_keeps_both_sides() -> None:
    node = node_of(lambda g, t: g.conv_fprop(t[0], t[1], [0, 0], [1, 1], [2, 2], [1, 1]))
    assert (node["pre_padding"], node["post_padding"], node["stride"]) == ((0, 0), (1, 1), (2, 2))


def test_unknown_keyword_raises_type_error_naming_it() -> None:
    g, t = make_graph()
    with pytest.raises(TypeError, match="'beta'"):
        g.relu(t[0], beta=1.0)
    with pytest.raises(TypeError):
        cudnn.pygraph(no_such_option=1)  # type: ignore[call-arg]


def test_argument_given_twice_raises_type_error() -> None:
    g, t = make_graph()
    with pytest.raises(TypeError, match="'input' is given twice"):
        g.relu(t[0], input=t[1])


def test_too_many_positionals_raise_type_error() -> None:
    g, t = make_graph()
    with pytest.raises(TypeError, match="at most 4"):
        g.add(t[0], t[1], FLOAT, "n", 1)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda g, t: g.relu(t[0], "wide"), "negative_slope"),
        (lambda g, t: g.reduction(t[0], mode=3), "mode"),
        (lambda g, t: g.add(t[0], True), "b must be a graph tensor"),
        (lambda g, t: g.add(t[0], b="3"), "b must be a graph tensor"),
        (lambda g, t: g.relu(t[0], name=7), "name must be a str"),
        (lambda g, t: g.conv_fprop(t[0], t[1], stride=2), "stride"),
    ],
)
def test_wrong_type_raises_type_error_naming_the_argument(call: Call, named: str) -> None:
    g, t = make_graph()
    with pytest.raises(TypeError, match=named):
        call(g, t)


def test_none_for_optional_equals_leaving_it_out() -> None:
    given = node_of(lambda g, t: g.relu(t[0], None, None, None, None, None))
    assert given == node_of(lambda g, t: g.relu(t[0]))


def test_unnamed_nodes_count_from_zero_per_op_and_results_carry_the_label() -> None:
    g, t = make_graph()
    g.relu(t[0], name="named")
    a, b = g.relu(t[0]), g.relu(t[1])
    y, mean, inv = g.layernorm(PHASE, t[0], t[1], t[2], t[3])
    assert (a.get_name(), b.get_name()) == ("relu.0::OUT_0", "relu.1::OUT_0")
    names = [y.get_name(), mean.get_name(), inv.get_name()]
    assert names == ["layernorm.0::Y", "layernorm.0::MEAN", "layernorm.0::INV_VARIANCE"]
    assert a.get_is_virtual()


def test_absent_results_are_none_in_a_list_of_fixed_length() -> None:
    g, t = make_graph()
    assert g.layernorm(cudnn.norm_forward_phase.INFERENCE, *t)[1:] == [None, None]
    o, stats = g.sdpa(t[0], t[1], t[2], is_inference=True)
    assert stats is None and o.get_name() == "sdpa.0::O"


def test_norm_gradients_are_none_where_nothing_asks_for_them() -> None:
    g, t = make_graph()
    dx, dscale, dbias = g.layernorm_backward(*t)
    assert [r.get_name() for r in (dx, dscale, dbias)] == [
        f"layernorm_backward.0::{n}" for n in ("DX", "DSCALE", "DBIAS")
    ]
    assert g.layernorm_backward(t[0], t[1], mean=t[2], inv_variance=t[3])[1:] == [None, None]
    _, dscale, dbias = g.rmsnorm_backward(*t[:3], inv_variance=t[3], has_dbias=True)
    assert [dscale.get_name(), dbias.get_name()] == ["rmsnorm_backward.0::Dscale", "rmsnorm_backward.0::Dbias"]
    assert g.rmsnorm_backward(*t[:3], inv_variance=t[3], has_dbias=False)[2] is None
    assert g.rmsnorm_backward(t[0], t[1], None, t[3], has_dbias=False)[1:] == [None, None]


def test_result_passed_as_argument_becomes_an_output_of_the_node() -> None:
    g, t = make_graph()
    largest = g.tensor([2, 3, 4, 1], data_type=FLOAT)
    results = g.sdpa(t[0], t[1], t[2], generate_stats=True, score_max=largest)
    assert len(results) == 2
    assert g.nodes[-1].outputs["score_max"] is largest and not largest.get_is_virtual()


def test_out_dims_sets_dims_by_list_or_by_name() -> None:
    g, t = make_graph()
    y = g.reduction(t[0], cudnn.reduction_mode.MAX, out_dims=[2, 1, 1, 1])
    assert y.get_dim() == [2, 1, 1, 1]
    _, mean, _ = g.layernorm(PHASE, *t, out_dims={"mean": [2, 1, 1, 1]})
    assert mean.get_dim() == [2, 1, 1, 1]
    with pytest.raises(TypeError, match="out_dims must be a dict"):
        g.layernorm(PHASE, *t, out_dims=[2, 3, 4, 4])
    with pytest.raises(TypeError, match="names 'sum'"):
        g.layernorm(PHASE, *t, out_dims={"sum": [1]})


def test_array_passed_to_an_op_is_wrapped_and_remembered() -> None:
    g, t = make_graph()
    array = np.zeros((2, 3, 4, 4), np.float16)
    g.add(t[0], array)
    made = g.nodes[-1].inputs["b"]
    assert (made.get_dim(), made.get_data_type(), made.get_stride()) == ([2, 3, 4, 4], HALF, [48, 16, 4, 1])
    assert g._draft.default_buffers[made] is array and not made.get_is_pass_by_value()


def test_tensor_of_another_graph_is_refused_by_name() -> None:
    g, _ = make_graph()
    other = cudnn.pygraph(name="elsewhere", device="cpu").tensor([1], name="stranger")
    with pytest.raises(ValueError, match="'stranger' of graph 'elsewhere'"):
        g.relu(other)


def test_signature_and_docstring_come_from_the_schema() -> None:
    names = list(inspect.signature(cudnn.pygraph.layernorm).parameters)
    assert names[:6] == ["self", "norm_forward_phase", "input", "scale", "bias", "epsilon"]
    assert "mean" in (cudnn.pygraph.layernorm.__doc__ or "").lower()
