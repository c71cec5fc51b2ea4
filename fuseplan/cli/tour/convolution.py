"""Convolution, bias and relu: one graph, one kernel."""

from __future__ import annotations

import math
from typing import Any

from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.setting import Outcome, Setting

#: N, C, H and W, K; the filter is 3x3
SIZES = {"tiny": (1, 8, 8, 16), "small": (4, 64, 56, 128), "tutorial": (32, 128, 56, 256)}


def conv_relu(at: Setting, n: int = 0, **options: Any) -> tuple[Any, dict[Any, Any], Any]:
    """The graph relu(conv(x, w) + b), not yet built, its pack, and what the result (last in the pack) should be."""
    default_n, c, size, k = SIZES[at.size]
    n = n or default_n
    x = at.normal(n, c, size, size, channels_last=True)
    w = at.normal(k, c, 3, 3, scale=1 / math.sqrt(9 * c), channels_last=True)
    b = at.normal(1, k, 1, 1)
    y = at.empty(n, k, size, size, channels_last=True)

    g = at.graph("conv_bias_relu", **options)
    X = g.tensor_like(x, name="x")
    W = g.tensor_like(w, name="w")
    B = g.tensor_like(b, name="b")
    conv = g.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    Y = g.relu(input=g.bias(input=conv, bias=B))
    Y.set_output(True).set_name("y")
    want = formulas.conv_bias_relu(at.host(x), at.host(w), at.host(b), pad=1)
    return g, {X: x, W: w, B: b, Y: y}, want


def run(at: Setting) -> Outcome:
    n, c, size, k = SIZES[at.size]
    at.say("problem", f"N{n} C{c} {size}x{size}, K{k} 3x3, pad 1, {at.io.name}, channels-last")
    g, pack, want = conv_relu(at)
    g.build()
    x, w, b, _ = (at.as_torch(buffer) if at.torch else buffer for buffer in pack.values())

    def in_torch(torch: Any) -> Any:
        return lambda: torch.relu(torch.nn.functional.conv2d(x, w, b.flatten(), padding=1))

    return at.measure(g, pack, {list(pack)[-1]: want}, in_torch)
