"""Ops; importing this package registers all of them."""

from __future__ import annotations

from fuseplan.ops import (
    attention,
    attention_backward,
    conv,
    matmul,
    norm,
    norm_backward,
    pointwise_binary,
    pointwise_unary,
    reduction,
)

__all__ = [
    "attention",
    "attention_backward",
    "conv",
    "matmul",
    "norm",
    "norm_backward",
    "pointwise_binary",
    "pointwise_unary",
    "reduction",
]
