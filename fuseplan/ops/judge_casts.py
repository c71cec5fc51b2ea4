"""The judge's own conversions, plain and in float64 or int64: `casts` takes no part, so that its faults show."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ops.arrays import ArrayNamespace

Array = Any
_SATURATING = ("FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FP4_E2M1")
#: exponent of the least normal value
_LEAST_EXPONENT = {
    "HALF": -14, "BFLOAT16": -126, "FP8_E4M3": -6, "FP8_E5M2": -14, "FP8_E8M0": -127, "FP4_E2M1": 0,
}  # fmt: skip


def widen(
    xp: ArrayNamespace, x: Array, compute: DType, *, judge: bool = False
) -> Array:
    """An input in the type that references run in; for BOOLEAN compute 0 or 1."""
    if compute.is_float:
        target = dtypes.DOUBLE if judge or compute is dtypes.DOUBLE else dtypes.FLOAT
    else:
        target = dtypes.INT64 if judge or compute is dtypes.INT64 else dtypes.INT32
        x = x != 0 if compute is dtypes.BOOLEAN else _whole(xp, x, target)
    return xp.astype(x, xp.dtype(target))


def narrow(xp: ArrayNamespace, x: Array, t: DType) -> Array:
    """A result rounded once to a value of `t`: NumPy's float64 for float types under 32 bits, else in `t` itself."""
    if t.is_float and t.bits < 32:
        return _on_grid(np.asarray(x, dtype=np.float64), t)
    if not t.is_float:
        x = x != 0 if t is dtypes.BOOLEAN else _whole(xp, x, t)
    return xp.astype(x, xp.dtype(t))


def _whole(xp: ArrayNamespace, x: Array, t: DType) -> Array:
    """Nearest even in int64, saturating at the limits of `t`; NaN becomes 0."""
    if not x.dtype.is_floating_point if xp.is_torch else x.dtype.kind in "iub":
        x = xp.astype(x, xp.dtype(dtypes.INT64))
        above, below = x > t.high, x < t.low
    else:
        x = xp.astype(x, xp.dtype(dtypes.DOUBLE))
        x = xp.round(xp.where(x != x, xp.zeros_like(x), x))
        above, below = (
            x >= float(t.high + 1),
            x < float(t.low),
        )  # float64 holds both limits
        x = xp.astype(
            xp.where(above | below, xp.zeros_like(x), x), xp.dtype(dtypes.INT64)
        )
    zero = xp.zeros_like(x)
    return xp.where(above, zero + t.high, xp.where(below, zero + t.low, x))


def _on_grid(x: Array, t: DType) -> Array:
    """The nearest value of `t`, of two the even one: a whole number of steps, which are powers of two."""
    exponent = np.frexp(x)[1] - 1
    step = np.ldexp(
        1.0, np.maximum(exponent, _LEAST_EXPONENT[t.name]) - t.mantissa_bits
    )
    near = np.rint(x / step) * step
    if t is dtypes.FP8_E8M0:  # no sign and no zero
        near = np.where(x >= 0, np.maximum(near, 2.0**-127), np.nan)
    if t is dtypes.FP4_E2M1:  # no NaN
        near = np.where(x == x, near, 0.0)
    if t.name in _SATURATING:
        return np.clip(near, -t.max_finite, t.max_finite)
    return np.where(np.abs(near) > t.max_finite, np.copysign(np.inf, x), near)
