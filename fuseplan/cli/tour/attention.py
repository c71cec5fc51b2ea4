"""Attention where no query sees a later key."""

from __future__ import annotations

import math
from typing import Any

from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.setting import Outcome, Setting

#: b, h, s, d
SIZES = {"tiny": (1, 2, 16, 8), "small": (1, 8, 512, 64), "tutorial": (4, 16, 1024, 64)}


def run(at: Setting) -> Outcome:
    b, h, s, d = SIZES[at.size]
    scale = 1 / math.sqrt(d)
    at.say("problem", f"b{b} h{h} s{s} d{d}, causal, {at.io.name}")
    q = at.normal(b, h, s, d)
    k = at.normal(b, h, s, d)
    v = at.normal(b, h, s, d)
    o = at.empty(b, h, s, d)

    g = at.graph("causal_attention")
    Q = g.tensor_like(q, name="q")
    K = g.tensor_like(k, name="k")
    V = g.tensor_like(v, name="v")
    O, _ = g.sdpa(q=Q, k=K, v=V, is_inference=True, attn_scale=scale, use_causal_mask=True)  # noqa: E741
    O.set_output(True).set_name("o")
    g.build()

    def in_torch(torch: Any) -> Any:
        x, y, z = (at.as_torch(t) for t in (q, k, v))
        return lambda: torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=True, scale=scale)

    want = formulas.causal_attention(at.host(q), at.host(k), at.host(v), scale)
    return at.measure(g, {Q: q, K: k, V: v, O: o}, {O: want}, in_torch)
