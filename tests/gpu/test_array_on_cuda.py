"""Convolution and attention run on CUDA memory through the general engine, also inside a captured graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import fuseplan as cudnn  # noqa: E402


def output(t: Any, dtype: Any) -> Any:
    return t.set_output(True).set_data_type(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_conv_bias_relu_matches_float64_eagerly_and_replayed(dtype: Any, handle: Any) -> None:
    x = torch.randn(2, 8, 9, 9, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    w = torch.randn(5, 8, 3, 3, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    b = torch.randn(1, 5, 1, 1, device="cuda").to(dtype)
    g = cudnn.pygraph(handle=handle, io_data_type=dtype, intermediate_data_type=torch.float32,
                      compute_data_type=torch.float32)  # fmt: skip
    X, W, B = g.tensor_like(x), g.tensor_like(w), g.tensor_like(b)
    conv = g.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[2, 1], dilation=[1, 1])
    Y = output(g.relu(input=g.bias(input=conv, bias=B)), dtype)
    g.build()
    y = torch.full((2, 5, 5, 9), float("nan"), device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    pack = {X: x, W: w, B: b, Y: y}
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    ref = torch.relu(torch.nn.functional.conv2d(x.double(), w.double(), b.double().flatten(), stride=(2, 1), padding=1))
    tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype] * float(ref.abs().max())
    g.execute(pack, workspace, handle)
    torch.cuda.synchronize()
    assert (y.double() - ref).abs().max().item() <= tolerance
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        g.execute(pack, workspace, handle)
    cudnn.set_stream(handle=handle, stream=0)
    y.fill_(float("nan"))
    captured.replay()
    torch.cuda.synchronize()
    assert (y.double() - ref).abs().max().item() <= tolerance


def test_causal_attention_with_stats_matches_float64(handle: Any) -> None:
    q, k, v = (torch.randn(2, 4, 33, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    g = cudnn.pygraph(handle=handle, io_data_type=torch.bfloat16, intermediate_data_type=torch.float32,
                      compute_data_type=torch.float32)  # fmt: skip
    Q, K, V = (g.tensor_like(t) for t in (q, k, v))
    out, S = g.sdpa(q=Q, k=K, v=V, is_inference=False, attn_scale=0.25, use_causal_mask=True)
    output(out, torch.bfloat16)
    output(S, torch.float32)
    g.build()
    o, s = torch.empty_like(q), torch.empty(2, 4, 33, 1, device="cuda")
    workspace = torch.empty(max(g.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    g.execute({Q: q, K: k, V: v, out: o, S: s}, workspace, handle)
    torch.cuda.synchronize()
    scores = q.double() @ k.double().transpose(-1, -2) * 0.25
    scores = scores.masked_fill(~torch.ones(33, 33, dtype=torch.bool, device="cuda").tril(), float("-inf"))
    assert torch.allclose(s.double(), scores.logsumexp(-1, keepdim=True), atol=1e-5)
    ref = scores.softmax(-1) @ v.double()
    assert (o.double() - ref).abs().max().item() <= 2**-8 * float(ref.abs().max())
