"""Matmul, scale, bias, gelu, stored, and the largest absolute value of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

import fuseplan
from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.setting import Outcome, Setting

#: batch, M, K, N
SIZES = {"tiny": (2, 16, 32, 16), "small": (4, 256, 512, 256), "tutorial": (16, 512, 1024, 512)}
FACTOR = 0.125


def run(at: Setting) -> Outcome:
    batch, m, k, n = SIZES[at.size]
    at.say("problem", f"({batch}, {m}, {k}) x ({batch}, {k}, {n}), * alpha, + bias, gelu, amax, {at.io.name}")
    a = at.normal(batch, m, k)
    b = at.normal(batch, k, n)
    bias = at.normal(1, 1, n)
    alpha = np.full((1, 1, 1), FACTOR, dtype=np.float32)  # one element in host memory: read at each call
    y = at.empty(batch, m, n)
    amax = at.empty(1, 1, 1, dtype="float32")

    g = at.graph("matmul_epilogue")
    A = g.tensor_like(a, name="a")
    B = g.tensor_like(b, name="b")
    BIAS = g.tensor_like(bias, name="bias")
    ALPHA = g.tensor_like(alpha, name="alpha")
    scaled = g.mul(a=g.matmul(A=A, B=B), b=ALPHA)
    Y = g.gelu(input=g.bias(input=scaled, bias=BIAS))
    Y.set_output(True).set_name("y")
    TOP = g.reduction(input=Y, mode=fuseplan.reduction_mode.AMAX)
    TOP.set_output(True).set_name("amax").set_data_type(fuseplan.data_type.FLOAT).set_dim([1, 1, 1])
    g.build()

    def in_torch(torch: Any) -> Any:
        x, w, shift = at.as_torch(a), at.as_torch(b), at.as_torch(bias).expand(batch, m, n)
        return lambda: torch.nn.functional.gelu(torch.baddbmm(shift, x, w, alpha=FACTOR)).abs().amax()

    want = formulas.matmul_gelu(at.host(a), at.host(b), FACTOR, at.host(bias))
    pack = {A: a, B: b, BIAS: bias, ALPHA: alpha, Y: y, TOP: amax}
    return at.measure(g, pack, {Y: want, TOP: np.max(np.abs(want)).reshape(1, 1, 1)}, in_torch)
