"""Gradients of norms against autograd and central differences, where the statistics are those of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.schema import Sample, schema_of
from tests.ops.cases import Case, make_case

ROWS, COLUMNS, EPS = 5, 11, 1e-3


def backward_case(op: str) -> Case:
    """A FLOAT case; its arrays are replaced by float64 ones."""
    ins: dict[str, tuple[Any, ...]] = {"grad": ((ROWS, COLUMNS), "FLOAT"), "input": ((ROWS, COLUMNS), "FLOAT")}
    ins["scale"] = ((1, COLUMNS), "FLOAT")
    if op == "layernorm_backward":
        ins["mean"] = ((ROWS, 1), "FLOAT")
    ins["inv_std"] = ((ROWS, 1), "FLOAT")
    attrs = {"has_dbias": True} if op == "rmsnorm_backward" else {}
    return make_case(schema_of(op), Sample("case", ins, attrs))


def arrays_of(op: str) -> dict[str, Any]:
    """Random input, gradient and scale, with the statistics of the input."""
    rng = np.random.default_rng(7)
    a: dict[str, Any] = {name: rng.standard_normal((ROWS, COLUMNS)) for name in ("grad", "input")}
    a["scale"] = rng.standard_normal((1, COLUMNS))
    centred = a["input"]
    if op == "layernorm_backward":
        a["mean"] = a["input"].mean(axis=1, keepdims=True)
        centred = centred - a["mean"]
    a["inv_std"] = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return a


def forward(op: str, x: Any, scale: Any, bias: Any) -> Any:
    if op == "layernorm_backward":
        return F.layer_norm(x, (COLUMNS,), scale[0], bias[0], EPS)
    return F.rms_norm(x, (COLUMNS,), scale[0], EPS) + bias


@pytest.mark.parametrize("op", ["layernorm_backward", "rmsnorm_backward"])
def test_norm_gradients_match_autograd(op: str) -> None:
    a = arrays_of(op)
    made = schema_of(op).reference(backward_case(op).view, numpy_namespace(), a)
    x, scale = (torch.tensor(a[name], requires_grad=True) for name in ("input", "scale"))
    bias = torch.zeros((1, COLUMNS), dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(forward(op, x, scale, bias), (x, scale, bias), torch.tensor(a["grad"]))
    for port, want in zip(("dx", "dscale", "dbias"), wanted, strict=True):
        np.testing.assert_allclose(made[port], want.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("op", ["layernorm_backward", "rmsnorm_backward"])
def test_norm_gradients_match_central_differences(op: str) -> None:
    a, step = arrays_of(op), 1e-5
    made = schema_of(op).reference(backward_case(op).view, numpy_namespace(), a)
    points = {"dx": a["input"], "dscale": a["scale"], "dbias": np.zeros((1, COLUMNS))}
    for port, point in points.items():
        for at in np.ndindex(point.shape):
            losses = []
            for sign in (1, -1):
                moved = {name: torch.tensor(value) for name, value in points.items()}
                moved[port][at] += sign * step
                y = forward(op, moved["dx"], moved["dscale"], moved["dbias"]).numpy()
                losses.append(float((y * a["grad"]).sum()))
            assert made[port][at] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-7)
