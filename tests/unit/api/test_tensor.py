"""Tensors: defaults, setters that chain, types, uids, scalars, tensors like arrays."""

from __future__ import annotations

import enum

import ml_dtypes
import numpy as np
import pytest
import torch

import fuseplan as cudnn
from fuseplan.api.datatypes import to_dtype
from fuseplan.dtypes import BFLOAT16

DT = cudnn.data_type


@pytest.fixture
def g() -> cudnn.pygraph:
    return cudnn.pygraph(name="g", io_data_type=DT.HALF, intermediate_data_type=DT.FLOAT, device="cpu")


def test_tensor_defaults(g: cudnn.pygraph) -> None:
    t = g.tensor(dim=(2, 3))
    assert (t.get_dim(), t.get_stride(), t.get_name(), t.get_uid()) == ([2, 3], [3, 1], "tensor_0", 1)
    assert t.get_data_type() is DT.NOT_SET and not t.get_is_virtual() and not t.get_is_pass_by_value()
    assert (t.get_reordering_type(), t.get_alignment(), t.alignment_value) == (None, 16, 1)
    assert g.tensor([1]).get_name() == "tensor_1"


def test_virtual_tensor_gets_the_intermediate_type_at_once(g: cudnn.pygraph) -> None:
    assert g.tensor([1], is_virtual=True).get_data_type() is DT.FLOAT


def test_setters_chain_and_getters_return_copies(g: cudnn.pygraph) -> None:
    t = g.tensor([1])
    offset = g.tensor([3])
    chained = (
        t.set_dim(torch.Size([4, 5])).set_stride((5, 1)).set_data_type(torch.bfloat16).set_name("n").set_uid(77)
        .set_is_virtual(True).set_output(True).set_is_pass_by_value(False).set_alignment(32).set_alignment_value(8)
        .set_ragged_offset(offset).set_ragged_offset_multiplier(64)
        .set_reordering_type(cudnn.tensor_reordering.F8_128x4).set_vector_count_and_dimension(4, 1)
    )  # fmt: skip
    assert chained is t
    t.get_dim().append(9)
    assert (t.dim, t.stride, t.data_type, t.name, t.uid) == ([4, 5], [5, 1], DT.BFLOAT16, "n", 77)
    assert (t.get_is_virtual(), t.get_alignment(), t.alignment_value) == (False, 32, 8)
    assert t.ragged_offset is offset and t.get_ragged_offset_multiplier() == 64
    assert t.get_reordering_type() is cudnn.tensor_reordering.F8_128x4
    assert (t.get_vector_count(), t.get_vector_dimension()) == (4, 1)


def test_tensors_hash_by_identity(g: cudnn.pygraph) -> None:
    a, b = g.tensor([1]), g.tensor([1])
    b.set_uid(5)
    held = {a: "a", b: "b"}
    a.set_name("other").set_dim([2])
    assert held[a] == "a" and a != b


@pytest.mark.parametrize(
    ("given", "member"),
    [
        (torch.float16, DT.HALF), (torch.float32, DT.FLOAT), (torch.float64, DT.DOUBLE), (torch.bool, DT.BOOLEAN),
        (torch.int8, DT.INT8), (torch.uint8, DT.UINT8), (torch.int32, DT.INT32), (torch.int64, DT.INT64),
        (torch.float8_e4m3fn, DT.FP8_E4M3), (torch.float8_e5m2, DT.FP8_E5M2), (DT.INT4, DT.INT4), (None, DT.NOT_SET),
    ],
)  # fmt: skip
def test_data_types_are_accepted(g: cudnn.pygraph, given: object, member: DT) -> None:
    assert g.tensor([1], data_type=given).get_data_type() is member


def test_unmappable_torch_dtype_is_not_supported(g: cudnn.pygraph) -> None:
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="complex64"):
        g.tensor([1], data_type=torch.complex64)


@pytest.mark.parametrize("wrong", [np.float32, np.dtype("f4"), "FLOAT", 1, []])
def test_other_objects_as_data_type_raise_type_error(g: cudnn.pygraph, wrong: object) -> None:
    with pytest.raises(TypeError, match="data_type"):
        g.tensor([1], data_type=wrong)


def test_torch_dtypes_are_accepted_for_the_graph_and_its_nodes() -> None:
    g = cudnn.pygraph(io_data_type=torch.bfloat16, compute_data_type=torch.float32, device="cpu")
    g.relu(g.tensor([1]), compute_data_type=torch.float64)
    assert g.context.io_data_type is DT.BFLOAT16 and g.nodes[0].compute_data_type is DT.DOUBLE
    assert to_dtype(torch.bfloat16, "x") is BFLOAT16


def test_automatic_uids_count_from_one_and_skip_reserved_ones(g: cudnn.pygraph) -> None:
    first = g.tensor([1])
    g.tensor([1], uid=2)
    g.tensor([1], uid=3)
    assert (first.get_uid(), g.tensor([1]).get_uid(), g.tensor([1]).get_uid()) == (1, 4, 5)


def test_user_uid_displaces_an_automatic_holder(g: cudnn.pygraph) -> None:
    first = g.tensor([1])
    second = g.tensor([1], uid=1)
    assert second.get_uid() == 1 and first.get_uid() not in (1, -1)
    assert g.find_tensor(1) is second and g.find_tensor(first.get_uid()) is first


def test_zero_negative_and_enum_uids_are_ordinary(g: cudnn.pygraph) -> None:
    class Uid(enum.IntEnum):
        X = 40

    uids = [g.tensor([1], uid=uid).get_uid() for uid in (0, -7, Uid.X)]
    assert uids == [0, -7, 40]
    assert g.tensor([1], uid=None).get_uid() == 4


def test_equal_user_uids_are_refused_by_validate_until_one_moves(g: cudnn.pygraph) -> None:
    a, b = g.tensor([4], uid=9, name="a"), g.tensor([4], uid=9, name="b")
    g.add(a, b).set_output(True)
    with pytest.raises(ValueError, match="'a' and 'b' have the same uid 9"):
        g.validate()
    a.set_uid(10)
    g.validate()
    assert g.find_tensor(9) is b and g.find_tensor(10) is a


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.set_alignment_value(0), ValueError),
        (lambda t: t.set_ragged_offset_multiplier(0), ValueError),
        (lambda t: t.set_uid("x"), TypeError),
        (lambda t: t.set_dim(3), TypeError),
        (lambda t: t.set_dim([1.5]), TypeError),
        (lambda t: t.set_name(3), TypeError),
        (lambda t: t.set_reordering_type(3), TypeError),
        (lambda t: t.set_ragged_offset(3), TypeError),
        (lambda t: t.set_dim([0]).validate(), ValueError),
        (lambda t: t.set_ragged_offset_multiplier(2).validate(), ValueError),
        (lambda t: t.set_is_virtual(True).set_is_pass_by_value(True).validate(), ValueError),
        (lambda t: t.set_dim([2, 2]).set_stride([1]).validate(), ValueError),
    ],
)
def test_contradictions_raise(g: cudnn.pygraph, call: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(g.tensor([1]))  # type: ignore[operator]


def test_scalars_are_owned_by_the_graph(g: cudnn.pygraph) -> None:
    run, bake = cudnn.scalar_type.RUNTIME_PARAM, cudnn.scalar_type.COMPILE_TIME_CONST
    made = [g.tensor_scalar(v, run) for v in (1.5, 3, 2**40, True, "7", "0.5")]
    types = [DT.FLOAT, DT.INT32, DT.INT64, DT.BOOLEAN, DT.INT32, DT.FLOAT]
    assert [t.get_data_type() for t in made] == types
    assert [t.pass_by_value_data for t in made] == [1.5, 3, 2**40, True, 7, 0.5]
    assert all(t.get_is_pass_by_value() and t.get_dim() == [1] for t in made)
    assert not made[0].get_has_compile_time_constant()
    assert g.tensor_scalar(1.0, bake).get_has_compile_time_constant()
    with pytest.raises(TypeError, match="scalar_type"):
        g.tensor_scalar(1.0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="value"):
        g.tensor_scalar([1], run)


def test_tensor_like_of_a_graph_tensor_copies_the_declaration(g: cudnn.pygraph) -> None:
    t = g.tensor([2, 3], stride=[1, 2], data_type=DT.INT8, is_pass_by_value=True)
    for like in (g.tensor_like(t), g.tensor_like(input=t), g.tensor_like(template=t, name="n")):
        assert (like.get_dim(), like.get_stride(), like.get_data_type()) == ([2, 3], [1, 2], DT.INT8)
        assert like.get_is_pass_by_value() and like.get_uid() != t.get_uid()


@pytest.mark.parametrize(
    ("array", "dim", "stride", "member", "by_value"),
    [
        (torch.zeros(2, 3).t(), [3, 2], [1, 3], DT.FLOAT, False),
        (torch.zeros(2, 3, dtype=torch.bfloat16), [2, 3], [3, 1], DT.BFLOAT16, False),
        (np.zeros((2, 3), np.float64)[:, ::2], [2, 2], [3, 2], DT.DOUBLE, False),
        (np.zeros((4,), ml_dtypes.float8_e4m3fn), [4], [1], DT.FP8_E4M3, False),
        (torch.full((1, 1, 1), 0.5), [1, 1, 1], [1, 1, 1], DT.FLOAT, True),
        (torch.tensor(2.0, dtype=torch.float64), [1], [1], DT.DOUBLE, True),
    ],
)
def test_tensor_like_of_an_array_takes_its_layout(
    g: cudnn.pygraph, array: object, dim: list[int], stride: list[int], member: DT, by_value: bool
) -> None:
    t = g.tensor_like(array)
    assert (t.get_dim(), t.get_stride(), t.get_data_type(), t.get_is_pass_by_value()) == (dim, stride, member, by_value)


def test_tensor_like_of_anything_else_raises_type_error(g: cudnn.pygraph) -> None:
    with pytest.raises(TypeError, match="DLPack"):
        g.tensor_like([1.0, 2.0])


def test_large_host_array_on_a_gpu_graph_is_refused_by_name() -> None:
    facts = cudnn.create_device_properties(-1).serialize().replace('"kind": "cpu"', '"kind": "cuda"')
    g = cudnn.pygraph(device_property=cudnn.create_device_properties(facts))
    assert g.tensor_like(torch.zeros(1)).get_is_pass_by_value()
    with pytest.raises(ValueError, match="tensor 'weights'.*host memory"):
        g.tensor_like(torch.zeros(2), name="weights")
