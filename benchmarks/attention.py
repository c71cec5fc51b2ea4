"""Attention as a work of the GPU benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fuseplan as cudnn
from benchmarks import works
from benchmarks.works import Work, declare, new_graph, output, poisoned, random


@dataclass(frozen=True)
class Shape:
    """Extents and options of an attention.

    Args:
        left, right: bounds, from the upper left corner or with `is_bottom` from the lower right one
        is_by_rows: the heads of a row lie next to each other in memory
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    columns: int
    width: int
    right: int | None = None
    left: int | None = None
    is_bottom: bool = False
    is_by_rows: bool = False
    is_backward: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        rows = f"{self.rows}" if self.rows == self.columns else f"{self.rows}x{self.columns}"
        mask = "causal" if self.right == 0 else "no mask" if self.right is None else f"right {self.right}"
        mask += "" if self.left is None else f" left {self.left}"
        places = (" bottom" if self.is_bottom else "") + (" bshd" if self.is_by_rows else "")
        places += " backward" if self.is_backward else ""
        return f"b{self.batch} h{heads} s{rows} d{self.width} {mask}{places}"

    def tensor(self, heads: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
        if self.is_by_rows:
            return random(self.batch, rows, heads, self.width, dtype=dtype).transpose(1, 2)
        return random(self.batch, heads, rows, self.width, dtype=dtype)

    def options(self, lib: Any) -> dict[str, Any]:
        corner = lib.diagonal_alignment.BOTTOM_RIGHT if self.is_bottom else lib.diagonal_alignment.TOP_LEFT
        found = {"diagonal_band_right_bound": self.right, "diagonal_band_left_bound": self.left}
        return {name: value for name, value in found.items() if value is not None} | {"diagonal_alignment": corner}

    def keep(self, device: torch.device) -> torch.Tensor:
        """True where a score counts."""
        rows = torch.arange(self.rows, device=device)[:, None]
        rows = rows + (self.columns - self.rows if self.is_bottom else 0)
        columns = torch.arange(self.columns, device=device)[None, :]
        found = torch.ones(self.rows, self.columns, dtype=torch.bool, device=device)
        if self.right is not None:
            found &= columns <= rows + self.right
        if self.left is not None:
            found &= columns + self.left > rows
        return found


def attention(shape: Shape, dtype: torch.dtype = torch.bfloat16) -> Work:
    """Attention with statistics, which NVIDIA's frontend is spared, or its gradient by q, k and v."""
    if shape.is_backward:
        return _backward(shape, dtype)
    q = shape.tensor(shape.heads, shape.rows, dtype)
    k, v = (shape.tensor(shape.kv_heads, shape.columns, dtype) for _ in range(2))
    scale = shape.width**-0.5

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "attention")
        Q, K, V = declare(g, lib, q, "q"), declare(g, lib, k, "k"), declare(g, lib, v, "v")
        is_own = lib is cudnn
        y, stats = g.sdpa(q=Q, k=K, v=V, generate_stats=is_own, attn_scale=scale, **shape.options(lib))
        out = poisoned(*q.shape, dtype=dtype) if not shape.is_by_rows else torch.full_like(q, float("nan"))
        output(y, lib, dtype).set_dim(list(out.shape)).set_stride(list(out.stride()))
        pack = {Q: q, K: k, V: v, y: out}
        if is_own:
            pack[output(stats, lib, torch.float32)] = poisoned(*q.shape[:3], 1, dtype=torch.float32)
        works.finish(lib, g)
        return g, pack, out

    return Work("attention", str(shape), build, _eager(shape, q, k, v, scale),
                lambda: exact(shape, q, k, v, scale)[0])  # fmt: skip


def _backward(shape: Shape, dtype: torch.dtype) -> Work:
    """Gradients from the results of PyTorch's function; the one by q is looked at."""
    q = shape.tensor(shape.heads, shape.rows, dtype)
    k, v = (shape.tensor(shape.kv_heads, shape.columns, dtype) for _ in range(2))
    scale, grad = shape.width**-0.5, torch.randn_like(q)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = _eager(shape, *leaves, scale)()
    made = o.detach().contiguous()
    stats = exact(shape, q, k, v, scale)[1].float()

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "attention_backward")
        given = {n: declare(g, lib, x, n) for n, x in (("q", q), ("k", k), ("v", v), ("o", made), ("dO", grad))}
        given["stats"] = declare(g, lib, stats, "stats")
        gradients = g.sdpa_backward(**given, attn_scale=scale, **shape.options(lib))
        outs = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        for y, out in zip(gradients, outs, strict=True):
            output(y, lib, dtype).set_dim(list(out.shape)).set_stride(list(out.stride()))
        pack = dict(zip((*given.values(), *gradients), (q, k, v, made, grad, stats, *outs), strict=True))
        works.finish(lib, g)
        return g, pack, outs[0]

    def eager() -> torch.Tensor:
        return torch.autograd.grad(o, leaves, grad, retain_graph=True)[0]

    return Work("attention", str(shape), build, eager, lambda: _exact_dq(shape, q, k, v, made, grad, stats, scale))


def _exact_dq(
    shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, grad: torch.Tensor,
    stats: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    """The gradient by q in float64, a head at a time."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h, g, scores in _scores(shape, q, k, scale):
        delta = (grad[b, h].double() * o[b, h].double()).sum(-1, keepdim=True)
        p = torch.exp(scores - stats[b, h].double())
        out[b, h] = p * (grad[b, h].double() @ v[b, g].double().T - delta) @ k[b, g].double() * scale
    return out


def _eager(shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Callable[[], torch.Tensor]:
    """PyTorch's function; a mask as a tensor where it has no word for it."""
    is_plain = shape.left is None and (shape.right is None or shape.right == 0 and shape.rows == shape.columns)
    mask = None if is_plain else shape.keep(q.device)
    is_causal, is_grouped = is_plain and shape.right == 0, shape.heads > shape.kv_heads
    return lambda: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
    )


def exact(
    shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and statistics in float64, a head at a time."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    stats = torch.empty(*q.shape[:3], 1, dtype=torch.float64, device=q.device)
    for b, h, g, scores in _scores(shape, q, k, scale):
        stats[b, h, :, 0] = torch.logsumexp(scores, -1)
        out[b, h] = torch.softmax(scores, -1).nan_to_num_(0.0) @ v[b, g].double()
    return out, stats


def _scores(
    shape: Shape, q: torch.Tensor, k: torch.Tensor, scale: float
) -> Iterator[tuple[int, int, int, torch.Tensor]]:
    """Batch, head, head of keys, and the masked scores of these in float64."""
    keep, group = shape.keep(q.device), shape.heads // shape.kv_heads
    for b in range(shape.batch):
        for h in range(shape.heads):
            scores = q[b, h].double() @ k[b, h // group].double().T * scale
            yield b, h, h // group, scores.masked_fill_(~keep, float("-inf"))
