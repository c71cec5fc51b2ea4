"""Matmul, scale, bias, gelu, stored, and the largest absolute value of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

import fuseplan
from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.setting import Outcome, Setting

#: batch, M, K, N
SIZES = {"tiny": (2, 16, 32, 16), "small": (4, 256, 512, 256), "tutorial": (16, 512, 1024, 512)}
ALPHA = 0.125


def run(at: Setting) -> Outcome:
    batch, m, k, n = SIZES[at.size]
    at.say("problem", f"({batch}, {m}, {k}) x ({batch}, {k}, {n}), * alpha, + bias, gelu, amax, {at.io.name}")
    a, b, bias = at.normal(batch, m, k), at.normal(batch, k, n), at.normal(1, 1, n)
    alpha = np.full((1, 1, 1), ALPHA, dtype=np.float32)  # one element in host memory: read at each call
    y, amax = at.empty(batch, m, n), at.empty(1, 1, 1, dtype="float32")

    g = at.graph("matmul_epilogue")
    A, B, BIAS, ALPHA_ = (g.tensor_like(t, name=s) for t, s in ((a, "a"), (b, "b"), (bias, "bias"), (alpha, "alpha")))
    Y = g.gelu(input=g.bias(input=g.mul(a=g.matmul(A=A, B=B), b=ALPHA_), bias=BIAS)).set_output(True).set_name("y")
    TOP = g.reduction(input=Y, mode=fuseplan.reduction_mode.AMAX).set_output(True).set_name("amax")
    TOP.set_dim([1, 1, 1]).set_data_type(fuseplan.data_type.FLOAT)
    g.build()

    def in_torch(torch: Any) -> Any:
        x, w, shift = at.as_torch(a), at.as_torch(b), at.as_torch(bias).expand(batch, m, n)
        return lambda: torch.nn.functional.gelu(torch.baddbmm(shift, x, w, alpha=ALPHA)).abs().amax()

    want = formulas.matmul_gelu(at.host(a), at.host(b), ALPHA, at.host(bias))
    pack = {A: a, B: b, BIAS: bias, ALPHA_: alpha, Y: y, TOP: amax}
    return at.measure(g, pack, {Y: want, TOP: np.max(np.abs(want)).reshape(1, 1, 1)}, in_torch)
