"""Attention from PyTorch's own function, with the mask written element by element."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from fuseplan.ops.schema import NodeView

T = Any  # a torch.Tensor


def _slope(head: int, heads: int) -> float:
    n = 2 ** math.floor(math.log2(heads))
    return math.pow(2, -8 * (head + 1) / n) if head < n else math.pow(2, -8 * (2 * (head - n) + 1) / (2 * n))


def additive_mask(attrs: dict[str, Any], a: dict[str, T], shape: tuple[int, int, int, int]) -> T:
    """What is added to the scaled scores: bias, ALiBi, and minus infinity where a key is out of reach."""
    heads, num_q, num_kv = shape[1:]
    mask = torch.zeros(shape, dtype=a["q"].dtype)
    if "bias" in a:
        mask = mask + a["bias"]
    right, left = attrs["diagonal_band_right_bound"], attrs["diagonal_band_left_bound"]
    for b, h, r, c in product(*map(range, shape)):
        len_q, len_kv = num_q, num_kv
        if attrs["use_padding_mask"]:
            len_q, len_kv = int(a["seq_len_q"].flatten()[b]), int(a["seq_len_kv"].flatten()[b])
        shift = len_kv - len_q if attrs["diagonal_alignment"] == "BOTTOM_RIGHT" else 0
        if attrs["use_alibi_mask"]:
            mask[b, h, r, c] += _slope(h, heads) * (c - r)
        if attrs["use_padding_mask"] and (r >= len_q or c >= len_kv):
            mask[b, h, r, c] = -math.inf
        if "block_mask" in a and not int(a["block_mask"][b, h, r // 128, c // 1024]) >> c // 128 % 8 & 1:
            mask[b, h, r, c] = -math.inf
        if right is not None and c > r + right + shift:
            mask[b, h, r, c] = -math.inf
        if left is not None and c + left <= r + shift:
            mask[b, h, r, c] = -math.inf
    return mask


def from_pages(pages: T, table: T, most: int) -> T:
    """Keys or values of each sequence, row by row."""
    size = pages.shape[2]
    rows = [[pages[int(turns[c // size]), :, c % size] for c in range(most)] for turns in table[:, 0, :, 0]]
    return torch.stack([torch.stack(x, dim=1) for x in rows])


def sdpa(view: NodeView, a: dict[str, T]) -> dict[str, T]:
    """O and the row statistics."""
    attrs: dict[str, Any] = dict(view.node.attrs)
    for port in "kv":
        if (name := f"paged_attention_{port}_table") in a:
            a = {**a, port: from_pages(a[port], a[name], attrs["paged_attention_max_seq_len_kv"])}
    q = a["q"]
    heads = q.shape[1]
    k, v = (a[p].repeat_interleave(heads // a[p].shape[1], dim=1) for p in "kv")
    scale = float(a["attn_scale"]) if "attn_scale" in a else attrs["attn_scale_value"]
    scale = 1.0 if scale is None else scale
    mask = additive_mask(attrs, a, (q.shape[0], heads, q.shape[2], k.shape[2]))
    if "sink_token" in a:  # one more key with score `sink` and a value row of zeros
        column = a["sink_token"].expand(q.shape[0], heads, q.shape[2], 1)
        mask = torch.cat([mask, column], dim=3)
        k = torch.cat([k, torch.zeros_like(k[:, :, :1])], dim=2)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], dim=2)
    scores = torch.einsum("bhrd,bhcd->bhrc", q, k) * scale + mask
    empty = (mask == -math.inf).all(dim=3, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(empty, 0.0, mask), scale=scale)
    top = scores.amax(dim=3, keepdim=True)
    stats = torch.logsumexp(scores, dim=3, keepdim=True)
    if attrs["use_padding_mask"]:
        rows = torch.arange(q.shape[2]).reshape(1, 1, -1, 1)
        stats = torch.where(rows >= a["seq_len_q"].reshape(-1, 1, 1, 1), -math.inf, stats)
    if attrs["stats_use_log2"]:
        stats = stats * math.log2(math.e)
    total = torch.exp(scores - torch.where(top == -math.inf, 0.0, top)).sum(dim=3, keepdim=True)
    return {"o": torch.where(empty, 0.0, out), "stats": stats, "score_max": top, "score_sum_exp": total}


def sdpa_backward(view: NodeView, a: dict[str, T]) -> dict[str, T]:
    """By autograd, of a sum whose derivative by the scores is P (dP - D) for statistics that are as they are given."""
    attrs: dict[str, Any] = dict(view.node.attrs)
    a = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in a.items()}
    q = a["q"]
    heads = q.shape[1]
    k, v = (a[p].repeat_interleave(heads // a[p].shape[1], dim=1) for p in "kv")
    scale = a.get("attn_scale", attrs["attn_scale_value"])
    mask = additive_mask(attrs, a, (q.shape[0], heads, q.shape[2], k.shape[2]))
    scores = torch.einsum("bhrd,bhcd->bhrc", q, k) * (1.0 if scale is None else scale) + mask
    p = torch.exp(scores - a["stats"].detach())
    delta = (a["do"] * a["o"]).sum(dim=3, keepdim=True).detach()
    if attrs["use_padding_mask"]:
        rows = torch.arange(q.shape[2]).reshape(1, 1, -1, 1)
        delta = torch.where(rows < a["seq_len_q"].reshape(-1, 1, 1, 1), delta, 0.0)
    total = (p @ v * a["do"].detach()).sum() - (p.sum(dim=3, keepdim=True) * delta).sum()
    if "sink_token" in a:
        total = total - (torch.exp(a["sink_token"] - a["stats"].detach()) * delta).sum()
    total.backward()
    names = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsink": "sink_token"}
    return {result: a[port].grad for result, port in names.items() if port in a}
