"""The tour's own formulas in plain NumPy and `math`, float64; they share no code with the package's references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def conv_bias_relu(x: Any, w: Any, b: Any, pad: int) -> F64:
    """relu(conv(x, w) + b) with unit stride, one filter tap at a time.

    Shapes:
        x: (N, C, H, W); w: (K, C, R, S); b: (1, K, 1, 1)
    """
    x64, w64 = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64)
    n, _, height, width = x64.shape
    k, _, r, s = w64.shape
    padded = np.pad(x64, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    p, q = height + 2 * pad - r + 1, width + 2 * pad - s + 1
    y = np.zeros((k, n, p, q))
    for i in range(r):
        for j in range(s):
            y += np.tensordot(w64[:, :, i, j], padded[:, :, i : i + p, j : j + q], axes=(1, 1))
    biased: F64 = y.transpose(1, 0, 2, 3) + np.asarray(b, dtype=np.float64)
    return np.maximum(biased, 0.0)


def matmul_gelu(a: Any, b: Any, alpha: float, bias: Any) -> F64:
    """gelu(alpha * a @ b + bias), one matrix of the batch at a time, with the C library's erf."""
    out = np.empty((a.shape[0], a.shape[1], b.shape[2]))
    erf = np.frompyfunc(math.erf, 1, 1)
    for i in range(a.shape[0]):
        z = alpha * np.dot(np.asarray(a[i], dtype=np.float64), np.asarray(b[i], dtype=np.float64))
        z = z + np.asarray(bias, dtype=np.float64)[0]
        out[i] = 0.5 * z * (1.0 + erf(z / math.sqrt(2.0)).astype(np.float64))
    return out


def matmul(a: Any, b: Any) -> F64:
    """a @ b, one matrix of the batch at a time."""
    pairs = zip(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64), strict=True)
    return np.stack([np.dot(x, y) for x, y in pairs])


def causal_attention(q: Any, k: Any, v: Any, scale: float) -> F64:
    """softmax(scale * q @ k^T, no key later than the query) @ v, one head at a time.

    Shapes:
        q, k, v: (b, h, s, d)
    """
    out = np.empty(q.shape)
    length = q.shape[2]
    later = np.arange(length)[None, :] > np.arange(length)[:, None]
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            score = scale * np.dot(np.asarray(q[i, h], dtype=np.float64), np.asarray(k[i, h], dtype=np.float64).T)
            weight = np.where(later, 0.0, np.exp(score - np.where(later, -np.inf, score).max(axis=1)[:, None]))
            out[i, h] = np.dot(weight / weight.sum(axis=1)[:, None], np.asarray(v[i, h], dtype=np.float64))
    return out
