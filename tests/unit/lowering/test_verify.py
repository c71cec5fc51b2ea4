"""Every rule of regions sees one that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuseplan.dtypes import BOOLEAN, FLOAT, HALF, DType
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import Graph, packed_stride
from fuseplan.ir.region import Operand, Region, Role, Value
from fuseplan.lowering.verify import RULES, verify_region

Dims = tuple[int, ...]
CONV = {"pre_pad": (1, 1), "post_pad": (1, 1), "stride": (1, 1), "dilation": (1, 1), "flip": False}


def value(op: str, *args: int, dim: Dims, dtype: DType = FLOAT, **attrs: Any) -> Value:
    return Value(op, args, dim, dtype, dtype, tuple(sorted(attrs.items())))


def region_of(inputs: list[Dims], values: list[Value], *stored: int, dtype: DType = FLOAT) -> Region:
    """Loads of these dims, then the values (numbered behind the loads); the last one is stored unless others are."""
    every = [*(Value("load", (), dim, dtype, dtype) for dim in inputs), *values]
    operands = [Operand(k, dim, packed_stride(dim), dtype, Role.IN) for k, dim in enumerate(inputs)]
    stores = []
    for v in stored or (len(every) - 1,):
        stores.append((v, len(operands)))
        dim = every[v].dim
        operands.append(Operand(len(operands), dim, packed_stride(dim), every[v].dtype, Role.OUT))
    loads = tuple((k, k) for k in range(len(inputs)))
    return Region(Graph("hand", {}, ()), tuple(every), tuple(operands), loads, tuple(stores))


def attention(dim: Dims = (1, 4, 5, 8), **attrs: Any) -> Region:
    """q, k, v and two results."""
    inputs = [(1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6)]
    anchor = value("sdpa", 0, 1, 2, dim=(1, 4, 5, 6), **{"results": ("o", "stats"), **attrs})
    picks = [value("pick", 3, dim=(1, 4, 5, 6), result="o"), value("pick", 3, dim=(1, 4, 5, 1), result="stats")]
    return region_of(inputs, [anchor, *picks], 4, 5)


GOOD = {
    "add": region_of([(2, 3), (1, 3)], [value("add", 0, 1, dim=(2, 3))]),
    "constant": region_of([(2, 3)], [value("const", dim=(1, 1), value=1.0), value("add", 0, 1, dim=(2, 3))]),
    "select": region_of([(2, 3), (1, 3), (2, 1)], [value("select", 0, 1, 2, dim=(2, 3))]),
    "index": region_of([(2, 3)], [value("index", dim=(2, 3), axis=1), value("mul", 0, 1, dim=(2, 3))]),
    "reduce": region_of([(2, 3)], [value("reduce", 0, dim=(2, 1), mode="add", axes=(1,))]),
    "count": region_of(
        [(2, 3)], [value("count", 0, dim=(1, 1), axes=(0, 1)), value("mul", 0, 1, dim=(2, 3))]
    ),
    "matmul": region_of([(2, 3, 4), (1, 4, 5)], [value("matmul", 0, 1, dim=(2, 3, 5))]),
    "conv_fprop": region_of([(2, 8, 6, 6), (4, 8, 3, 3)], [value("conv_fprop", 0, 1, dim=(2, 4, 6, 6), **CONV)]),
    "conv_dgrad": region_of([(2, 4, 6, 6), (4, 8, 3, 3)], [value("conv_dgrad", 0, 1, dim=(2, 8, 6, 6), **CONV)]),
    "conv_wgrad": region_of([(2, 8, 6, 6), (2, 4, 6, 6)], [value("conv_wgrad", 0, 1, dim=(4, 8, 3, 3), **CONV)]),
    "concat": region_of(
        [(2, 3), (2, 5), (8, 4)],
        [value("concat", 0, 1, dim=(2, 8), axis=1), value("matmul", 3, 2, dim=(2, 4))],
    ),
    "sdpa": attention(),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_legal_region_passes(name: str) -> None:
    verify_region(GOOD[name])


def test_every_op_has_a_rule() -> None:
    assert set(ANCHORS) < set(RULES)
    assert {"load", "const", "cast", "select", "reduce", "count", "index", "concat", "pick"} < set(RULES)


def changed(name: str, at: int, **fields: Any) -> Region:
    """A legal region with one value changed (numbered from the loads)."""
    region = GOOD[name]
    values = list(region.values)
    attrs = fields.pop("attrs", None)
    if attrs is not None:
        fields["attrs"] = tuple(sorted({**dict(values[at].attrs), **attrs}.items()))
    values[at] = replace(values[at], **fields)
    return replace(region, values=tuple(values))


def operand_changed(name: str, at: int, **fields: Any) -> Region:
    operands = list(GOOD[name].operands)
    operands[at] = replace(operands[at], **fields)
    return replace(GOOD[name], operands=tuple(operands))


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (changed("add", 2, op="frobnicate"), "unknown op 'frobnicate'"),
        (changed("add", 2, args=(0,)), "1 arguments, it takes 2"),
        (changed("add", 2, args=(0, 5)), r"arguments \(0, 5\)"),
        (changed("add", 2, dim=(2, 4)), r"argument dims \[2, 3\] do not broadcast to \[2, 4\]"),
        (changed("add", 2, dim=(2, 3, 1)), "in a region of rank 2"),
        (changed("add", 2, dim=(2, 0)), r"dims \(2, 0\)"),
        (changed("add", 0, compute=HALF), "computed in HALF"),
        (changed("constant", 1, dim=(2, 3)), "a constant has one element"),
        (changed("select", 3, args=(0, 1)), "2 arguments, it takes 3"),
        (changed("index", 1, attrs={"axis": 2}), r"axes \(2,\) in a region of rank 2"),
        (changed("index", 1, args=(0,)), "1 arguments, it takes none"),
        (changed("reduce", 1, attrs={"mode": "median"}), "mode 'median'"),
        (changed("reduce", 1, dim=(2, 3)), r"argument dims \[2, 3\] over axes \(1,\) give \[2, 1\]"),
        (changed("reduce", 1, attrs={"axes": (3,)}), r"axes \(3,\)"),
        (changed("count", 1, dim=(2, 1)), "a count has one element"),
        (changed("matmul", 2, dim=(2, 3, 4)), r"the result has dims \[2, 3, 4\]"),
        (changed("matmul", 2, args=(0, 0)), "a has 4 columns, b 3 rows"),
        (changed("matmul", 2, compute=BOOLEAN), "computed in BOOLEAN"),
        (changed("conv_fprop", 2, dim=(2, 5, 6, 6)), "do not make"),
        (changed("conv_dgrad", 2, dim=(2, 7, 6, 6)), "make no groups"),
        (changed("conv_wgrad", 2, attrs={"stride": (1, 1, 1)}), "3 strides for an image of rank 4"),
        (changed("concat", 3, dim=(2, 7)), "is no part of it along axis 1"),
        (changed("concat", 3, attrs={"axis": 2}), r"axes \(2,\)"),
        (changed("concat", 3, args=()), "no arguments"),
        (changed("sdpa", 4, attrs={"result": "max"}), "no result 'max'"),
        (changed("sdpa", 4, op="neg", attrs={}), "whose results only `pick` reads"),
        (changed("sdpa", 3, args=(0, 1)), "its arguments are"),
        (attention(ports=("q", "k", "other")), "its arguments are"),
        (attention(ports=("q", "k", "v", "mod")), "its arguments are"),
        (changed("sdpa", 3, args=(0, 2, 1)), r"q \[1, 4, 5, 8\], k \[1, 2, 7, 6\]"),
        (operand_changed("add", 0, dim=(3, 2)), "operand 0 is FLOAT"),
        (operand_changed("add", 0, dtype=HALF), "operand 0 is HALF"),
        (operand_changed("add", 0, stride=(1,)), "in a region of rank 2"),
        (operand_changed("add", 0, offset=-4), "starts 4 elements before"),
        (operand_changed("add", 0, rows=(9, 1)), "start at operand 9"),
        (operand_changed("add", 0, rows=(1, 1)), "start at operand 1"),
        (operand_changed("add", 0, init=0), "only what is written"),
        (operand_changed("add", 2, combine="mul", init=0), "joined by 'mul'"),
        (operand_changed("add", 2, combine="add"), "with nothing there before"),
        (operand_changed("add", 2, role=Role.IN), "outputs are"),
        (operand_changed("add", 2, dim=(1, 3)), "operand 2 is FLOAT"),
        (replace(GOOD["add"], stores=()), "outputs are"),
        (replace(GOOD["add"], loads=GOOD["add"].loads[:1]), "a load names exactly one operand"),
        (replace(GOOD["sdpa"], stores=((3, 3), (5, 4))), "only `pick` reads its results"),
        (replace(GOOD["add"], stores=((2, 2), (2, 2))), "two values are stored to one operand"),
    ],
)  # fmt: skip
def test_broken_rule_is_named(region: Region, message: str) -> None:
    with pytest.raises(InvalidGraphError, match=message):
        verify_region(region)


def test_two_iteration_spaces_in_one_region_are_refused() -> None:
    values = [value("neg", 0, dim=(4, 6)), value("matmul", 0, 1, dim=(4, 3))]
    verify_region(region_of([(4, 6), (6, 3)], values, 3))
    with pytest.raises(InvalidGraphError, match=r"dims \(4, 3\) in the space \(4, 6\)"):
        verify_region(region_of([(4, 6), (6, 3)], values, 2, 3))


def test_domain_leaves_out_what_stands_in_front_of_an_anchor() -> None:
    values = [value("neg", 0, dim=(4, 6)), value("matmul", 2, 1, dim=(4, 3)), value("exp", 3, dim=(4, 3))]
    region = region_of([(4, 6), (6, 3)], values)
    assert region.prologue == {0, 1, 2} and region.domain == (4, 3)


def test_split_sum_starts_from_a_value_and_folds_the_split_axis() -> None:
    """Each part of a product over K adds to the output, which starts at 0; with `combine` a store may fold an axis."""
    parts = region_of([(4, 5, 8), (4, 8, 3)], [value("matmul", 0, 1, dim=(4, 5, 3))])
    operands = list(parts.operands)
    operands[2] = replace(operands[2], dim=(1, 5, 3), stride=(15, 3, 1), init=0.0, combine="add")
    split = replace(parts, operands=tuple(operands))
    verify_region(split)
    assert split.key != parts.key
    other = replace(split, operands=(*operands[:2], replace(operands[2], init=1.0)))
    assert other.key != split.key
    with pytest.raises(InvalidGraphError, match="operand 2 is FLOAT"):
        verify_region(replace(split, operands=(*operands[:2], replace(operands[2], combine="", init=None))))


def test_body_is_verified_and_gets_what_the_anchor_hands_in() -> None:
    body = region_of([(1, 4, 5, 7), (1, 4, 1, 1)], [value("mul", 0, 1, dim=(1, 4, 5, 7))])
    plain = attention()
    loads = [*plain.values[:3], Value("load", (), (1, 4, 1, 1), FLOAT, FLOAT)]
    anchor = replace(
        plain.values[3], args=(0, 1, 2, 3), body=body,
        attrs=(("ports", ("q", "k", "v", "mod")), ("results", ("o", "stats"))),
    )  # fmt: skip
    picks = [replace(v, args=(4,)) for v in plain.values[4:]]
    slope = Operand(9, (1, 4, 1, 1), (4, 1, 1, 1), FLOAT, Role.IN)
    region = replace(
        plain, values=(*loads, anchor, *picks), operands=(*plain.operands, slope),
        loads=(*plain.loads, (3, 5)), stores=((5, 3), (6, 4)),
    )  # fmt: skip
    verify_region(region)
    assert region.key != replace(region, values=(*loads, replace(anchor, body=None), *picks)).key

    def with_body(other: Region | None) -> Region:
        return replace(region, values=(*loads, replace(anchor, body=other), *picks))

    with pytest.raises(InvalidGraphError, match="tensors for a body and no body"):
        verify_region(with_body(None))
    short = region_of([(1, 4, 1, 1)], [value("neg", 0, dim=(1, 4, 1, 1))])
    with pytest.raises(InvalidGraphError, match="its body reads 1 operands, 1 of them from outside"):
        verify_region(with_body(short))
    broken = replace(body, values=(*body.values[:2], replace(body.values[2], args=(0,))))
    with pytest.raises(InvalidGraphError, match="it takes 2"):
        verify_region(with_body(broken))
