"""Sections on what is fused: convolution, autotuning, a matmul with a long epilogue, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import fuseplan
from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.stage import Outcome, Stage, TourError, stride_of
from fuseplan.errors import ToolchainError, cudnnGraphNotSupportedError

#: (N, C, H, W, K) of the 3x3 convolution; (batch, M, K, N) of the matmul; (b, h, s, d) of attention.
CONV = {"tiny": (1, 8, 8, 8, 16), "small": (4, 64, 56, 56, 128), "tutorial": (32, 128, 56, 56, 256)}
MATMUL = {"tiny": (2, 16, 32, 16), "small": (4, 256, 512, 256), "tutorial": (16, 512, 1024, 512)}
ATTENTION = {"tiny": (1, 2, 16, 8), "small": (1, 8, 512, 64), "tutorial": (4, 16, 1024, 64)}
ALPHA = 0.125


def conv_graph(stage: Stage, x: Any, w: Any, b: Any, y: Any, name: str, **options: Any) -> tuple[Any, dict[Any, Any]]:
    """The graph relu(conv(x, w) + b) and its pack, not built; without a bias if b is None."""
    g = stage.graph(name, **options)
    image, weight = stage.tensor(g, x, "x"), stage.tensor(g, w, "w")
    pack = {image: x, weight: w}
    acc = g.conv_fprop(image=image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    if b is not None:
        bias = stage.tensor(g, b, "b")
        pack[bias] = b
        acc = g.bias(input=acc, bias=bias)
    out = g.relu(input=acc, name="relu")
    out.set_output(True).set_name("y").set_dim(list(y.shape)).set_stride(stride_of(y))
    pack[out] = y
    return g, pack


def conv_buffers(stage: Stage, n: int) -> tuple[Any, Any, Any, Any]:
    """x, w, b, y of the convolution at batch size n, channels-last."""
    _, c, height, width, k = CONV[stage.size]
    x = stage.normal(n, c, height, width, channels_last=True)
    w = stage.normal(k, c, 3, 3, scale=1 / math.sqrt(9 * c), channels_last=True)
    b = stage.normal(1, k, 1, 1)
    return x, w, b, stage.empty(n, k, height, width, channels_last=True)


def conv_fusion(stage: Stage) -> Outcome:
    """Convolution, bias and relu as one region."""
    n, c, height, width, k = CONV[stage.size]
    stage.say("problem", f"N{n} C{c} {height}x{width}, K{k} 3x3, pad 1, {stage.io.name}, channels-last")
    x, w, b, y = conv_buffers(stage, n)
    g, pack = conv_graph(stage, x, w, b, y, "conv_bias_relu")
    want = formulas.conv_bias_relu(stage.host(x), stage.host(w), stage.host(b), pad=1)

    def in_torch(torch: Any) -> Any:
        tx, tw, tb = stage.as_torch(x), stage.as_torch(w), stage.as_torch(b).flatten()
        return lambda: torch.relu(torch.nn.functional.conv2d(tx, tw, tb, padding=1))

    found = stage.measure(g, pack, {list(pack)[-1]: want}, in_torch, 2.0 * n * k * c * 9 * height * width)
    stage.kept["conv"] = (g, pack, stage.workspace(g.get_workspace_size()), want)
    return found


def autotuning(stage: Stage) -> Outcome:
    """Every plan of the convolution: checked, timed, listed."""
    if "conv" not in stage.kept:
        raise TourError("section 2 left no convolution to tune")
    _, old, _, want = stage.kept["conv"]
    x, w, b, y = old.values()
    g, pack = conv_graph(stage, x, w, b, y, "conv_autotune")
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([fuseplan.heur_mode.A, fuseplan.heur_mode.B, fuseplan.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans(fuseplan.build_plan_policy.ALL)
    count, out = g.get_execution_plan_count(), list(pack)[-1]
    stage.say("plans", f"{count} in the ranked list, checked before they are timed")
    found: list[tuple[float, int]] = []
    worst = 0.0
    for i in range(count):
        try:
            workspace = stage.workspace(g.get_workspace_size_plan_at_index(i))
            pack[out][...] = math.nan
            g.execute_plan_at_index(pack, workspace, i, stage.handle)
        except (cudnnGraphNotSupportedError, ToolchainError) as no:
            stage.say(f"plan {i}", f"cannot run: {str(no).splitlines()[0]}")
            continue
        stage.wait()
        error = float(np.max(np.abs(stage.host(pack[out]) - want)) / np.max(np.abs(want)))
        if not error <= stage.tolerance:
            raise TourError(f"plan {i} has error {error:.2e}, over {stage.tolerance:.0e}")
        worst = max(worst, error)
        ms = stage.time(lambda i=i, ws=workspace: g.execute_plan_at_index(pack, ws, i, stage.handle))  # type: ignore[misc]
        found.append((ms, i))
        stage.say(f"plan {i}", f"{ms:9.3f} ms   error {error:.1e}   {g.get_plan_name_at_index(i)}")
    if not found:
        raise TourError("no plan ran")
    best, last = min(found), max(found)
    stage.say("fastest", f"plan {best[1]}, {best[0]:.3f} ms; the slowest takes {last[0] / best[0]:.1f} times as long")
    return Outcome(worst, best[0], None, f"best of {len(found)}: {g.get_plan_name_at_index(best[1])}")


def matmul_epilogue(stage: Stage) -> Outcome:
    """Matmul, scale, bias, gelu, stored, and the largest absolute value of the result."""
    batch, m, k, n = MATMUL[stage.size]
    stage.say("problem", f"({batch}, {m}, {k}) x ({batch}, {k}, {n}), * alpha, + bias, gelu, amax, {stage.io.name}")
    a, b = stage.normal(batch, m, k), stage.normal(batch, k, n)
    bias, alpha = stage.normal(1, 1, n), np.full((1, 1, 1), ALPHA, dtype=np.float32)
    y, amax = stage.empty(batch, m, n), stage.empty(1, 1, 1, dtype="float32")
    g = stage.graph("matmul_epilogue")
    ta, tb, tbias = stage.tensor(g, a, "a"), stage.tensor(g, b, "b"), stage.tensor(g, bias, "bias")
    flt = fuseplan.data_type.FLOAT
    talpha = g.tensor(dim=[1, 1, 1], stride=[1, 1, 1], data_type=flt, is_pass_by_value=True, name="alpha")
    act = g.gelu(input=g.bias(input=g.mul(a=g.matmul(A=ta, B=tb), b=talpha), bias=tbias))
    act.set_output(True).set_name("y")
    top = g.reduction(input=act, mode=fuseplan.reduction_mode.AMAX)
    top.set_output(True).set_name("amax").set_data_type(flt).set_dim([1, 1, 1]).set_stride([1, 1, 1])
    pack = {ta: a, tb: b, tbias: bias, talpha: alpha, act: y, top: amax}
    want = formulas.matmul_gelu(stage.host(a), stage.host(b), ALPHA, stage.host(bias))

    def in_torch(torch: Any) -> Any:
        xa, xb, xbias = stage.as_torch(a), stage.as_torch(b), stage.as_torch(bias).expand(batch, m, n)
        gelu = torch.nn.functional.gelu
        return lambda: gelu(torch.baddbmm(xbias, xa, xb, alpha=ALPHA)).abs().amax()

    wanted = {act: want, top: np.max(np.abs(want)).reshape(1, 1, 1)}
    return stage.measure(g, pack, wanted, in_torch, 2.0 * batch * m * n * k)


def causal_attention(stage: Stage) -> Outcome:
    """Attention where no query sees a later key."""
    b, h, s, d = ATTENTION[stage.size]
    scale = 1 / math.sqrt(d)
    stage.say("problem", f"b{b} h{h} s{s} d{d}, causal, {stage.io.name}")
    q, k, v = (stage.normal(b, h, s, d) for _ in range(3))
    o = stage.empty(b, h, s, d)
    g = stage.graph("causal_attention")
    tq, tk, tv = stage.tensor(g, q, "q"), stage.tensor(g, k, "k"), stage.tensor(g, v, "v")
    out, _ = g.sdpa(q=tq, k=tk, v=tv, is_inference=True, attn_scale=scale, use_causal_mask=True, name="sdpa")
    out.set_output(True).set_name("o").set_dim([b, h, s, d]).set_stride([h * s * d, s * d, d, 1])
    want = formulas.causal_attention(stage.host(q), stage.host(k), stage.host(v), scale)

    def in_torch(torch: Any) -> Any:
        xq, xk, xv = (stage.as_torch(t) for t in (q, k, v))
        return lambda: torch.nn.functional.scaled_dot_product_attention(xq, xk, xv, is_causal=True, scale=scale)

    return stage.measure(g, {tq: q, tk: k, tv: v, out: o}, {out: want}, in_torch, 2.0 * b * h * s * s * d)
