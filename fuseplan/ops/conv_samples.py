"""Cases of convolution for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import AttrValue
from fuseplan.ops.schema import Sample

X, W, Y = "image", "weight", "y"


def _attrs(
    pad: Any, stride: Any, dilation: Any, **more: AttrValue
) -> dict[str, AttrValue]:
    return {
        "pre_padding": pad,
        "post_padding": pad,
        "stride": stride,
        "dilation": dilation,
        **more,
    }


def conv_samples() -> Iterable[Sample]:  # table
    bad = InvalidGraphError
    nhwc = ((2, 4, 5, 6), "FLOAT", (120, 1, 24, 4))
    krsc = ((3, 4, 3, 3), "FLOAT", (36, 1, 12, 4))
    plain, one = _attrs((1, 1), (1, 1), (1, 1)), _attrs((0, 0), (1, 1), (1, 1))
    yield Sample("same-3x3", {"image": nhwc, W: krsc}, plain)
    yield Sample(
        "nchw", {"image": ((1, 3, 5, 7), "FLOAT"), W: ((2, 3, 3, 2), "FLOAT")}, plain
    )
    yield Sample(
        "stride-dilation",
        {"image": ((1, 3, 9, 8), "FLOAT"), W: ((2, 3, 3, 2), "FLOAT")},
        _attrs((2, 1), (2, 3), (2, 3)),
    )
    yield Sample(
        "flipped",
        {"image": nhwc, W: krsc},
        {**plain, "convolution_mode": "CONVOLUTION"},
    )
    yield Sample(
        "grouped", {"image": ((2, 6, 4, 4), "FLOAT"), W: ((4, 3, 2, 3), "FLOAT")}, plain
    )
    yield Sample(
        "depthwise",
        {"image": ((1, 5, 4, 4), "FLOAT"), W: ((5, 1, 3, 3), "FLOAT")},
        plain,
    )
    yield Sample(
        "one-by-one",
        {"image": ((2, 3, 4, 1), "FLOAT"), W: ((5, 3, 1, 1), "FLOAT")},
        one,
    )
    yield Sample(
        "asymmetric-pad",
        {"image": ((1, 2, 4, 5), "FLOAT"), W: ((3, 2, 3, 3), "FLOAT")},
        {
            "pre_padding": (0, 2),
            "post_padding": (1, 0),
            "stride": (1, 2),
            "dilation": (1, 1),
        },
    )
    yield Sample(
        "one-axis",
        {"image": ((2, 3, 11), "FLOAT"), W: ((4, 3, 3), "FLOAT")},
        _attrs((1,), (2,), (1,)),
    )
    yield Sample(
        "three-axes",
        {"image": ((1, 2, 3, 4, 5), "FLOAT"), W: ((2, 2, 2, 2, 3), "FLOAT")},
        _attrs((1,) * 3, (1,) * 3, (1,) * 3),
    )
    yield Sample(
        "half",
        {"image": (nhwc[0], "HALF", nhwc[2]), W: (krsc[0], "HALF", krsc[2])},
        plain,
        types={"y": "HALF"},
    )
    yield Sample(
        "bf16",
        {"image": (nhwc[0], "BFLOAT16"), W: (krsc[0], "BFLOAT16")},
        plain,
        types={"y": "BFLOAT16"},
    )
    yield Sample(
        "zero-stride", {"image": ((2, 4, 5, 6), "FLOAT", (0, 0, 6, 1)), W: krsc}, plain
    )
    yield Sample(
        "padding-form",
        {"image": nhwc, W: krsc},
        {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)},
    )
    yield Sample(
        "int8",
        {"image": (nhwc[0], "INT8"), W: (krsc[0], "INT8")},
        plain,
        types={"y": "INT32"},
        compute="INT32",
    )
    yield Sample(
        "pad-missing",
        {"image": nhwc, W: krsc},
        {"stride": (1, 1), "dilation": (1, 1)},
        fails=bad,
    )
    yield Sample(
        "stride-missing",
        {"image": nhwc, W: krsc},
        _attrs((1, 1), None, (1, 1)),
        fails=bad,
    )
    yield Sample(
        "dilation-zero",
        {"image": nhwc, W: krsc},
        _attrs((1, 1), (1, 1), (1, 0)),
        fails=bad,
    )
    yield Sample(
        "pad-negative",
        {"image": nhwc, W: krsc},
        _attrs((1, -1), (1, 1), (1, 1)),
        fails=bad,
    )
    yield Sample(
        "pad-too-short",
        {"image": nhwc, W: krsc},
        _attrs((1,), (1, 1), (1, 1)),
        fails=bad,
    )
    yield Sample(
        "both-pads", {"image": nhwc, W: krsc}, {**plain, "padding": (1, 1)}, fails=bad
    )
    yield Sample(
        "filter-too-large",
        {"image": ((1, 3, 2, 2), "FLOAT"), W: ((2, 3, 3, 3), "FLOAT")},
        one,
        fails=bad,
    )
    yield Sample(
        "groups-wrong",
        {"image": ((1, 5, 4, 4), "FLOAT"), W: ((2, 3, 3, 3), "FLOAT")},
        plain,
        fails=bad,
    )
    yield Sample(
        "rank-wrong",
        {"image": ((1, 5, 4, 4), "FLOAT"), W: ((2, 5, 3), "FLOAT")},
        plain,
        fails=bad,
    )
    yield Sample(
        "output-dims", {"image": nhwc, W: krsc}, plain, {"y": (2, 3, 4, 4)}, fails=bad
    )
