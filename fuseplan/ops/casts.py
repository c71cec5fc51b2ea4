"""Conversions that round once: to nearest even, saturating for integers and 8-bit floats.

NumPy's and PyTorch's own float64-to-bfloat16 conversions go through float32 and round twice; here
the detour through float32 rounds to odd, after which the second rounding is the only one.
"""

from __future__ import annotations

from typing import Any

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ops.arrays import ArrayNamespace

Array = Any

_SATURATING = (dtypes.FP8_E4M3, dtypes.FP8_E5M2, dtypes.FP8_E8M0, dtypes.FP4_E2M1)
_LEAST_E8M0 = 2.0**-127
_COMPUTE = {
    "DOUBLE": dtypes.DOUBLE, "INT64": dtypes.INT64, "INT32": dtypes.INT32, "INT8": dtypes.INT32,
    "UINT8": dtypes.INT32, "BOOLEAN": dtypes.INT32,
}  # fmt: skip


def compute_type(compute: DType, *, judge: bool) -> DType:
    """The type that references run in: float64 or int64 for the judge, else the declared one or a wider."""
    if judge:
        return dtypes.DOUBLE if compute.is_float else dtypes.INT64
    return _COMPUTE.get(compute.name, dtypes.FLOAT)


def widen(
    xp: ArrayNamespace, x: Array, compute: DType, *, judge: bool = False
) -> Array:
    """An input in the type that references run in; for BOOLEAN compute 0 or 1."""
    target = xp.dtype(compute_type(compute, judge=judge))
    if compute is dtypes.BOOLEAN:
        return xp.astype(x != 0, target)
    if not compute.is_float and _is_floating(xp, x):
        return float_to_int(
            xp, x, dtypes.INT64 if judge else _COMPUTE.get(compute.name, dtypes.INT32)
        )
    if x.dtype == target:
        return x
    if not compute.is_float:
        return _int_to_int(xp, x, compute_type(compute, judge=judge))
    return xp.astype(x, target)


def narrow(xp: ArrayNamespace, x: Array, t: DType) -> Array:
    """A result rounded to the storage type `t`, once."""
    target = xp.dtype(t)
    if x.dtype == target:
        return x
    if t is dtypes.BOOLEAN:
        return xp.astype(x != 0, target)
    if t.kind in ("int", "uint"):
        return float_to_int(xp, x, t) if _is_floating(xp, x) else _int_to_int(xp, x, t)
    if t.bits < 32 and not _is_floating(xp, x):
        x = _int_to_float64_odd(xp, x)
    if t in _SATURATING:
        x = xp.where(xp.abs(x) > t.max_finite, xp.sign(x) * t.max_finite, x)
    if (
        t is dtypes.FP8_E8M0
    ):  # it has no zero; its least values are float32's subnormal ones, which are rounded here
        low = _LEAST_E8M0
        x = xp.where((x >= 0) & (x <= 1.5 * low), xp.full_like(x, low), x)
        x = xp.where((x > 1.5 * low) & (x < 2 * low), xp.full_like(x, 2 * low), x)
    if t.bits < 32 and x.dtype == xp.dtype(dtypes.DOUBLE):
        x = _to_float32_odd(xp, x)
    return xp.astype(x, target)


def _int_to_float64_odd(xp: ArrayNamespace, x: Array) -> Array:
    """Integers to float64, rounding to odd, so that a second rounding is the only one that counts."""
    wide = xp.astype(x, xp.dtype(dtypes.INT64))
    high = wide >> 12  # 52 bits, which float64 holds
    odd = xp.where((wide & 4095) != 0, high | 1, high)
    is_small = (wide >= -(1 << 52)) & (wide <= 1 << 52)
    double = xp.dtype(dtypes.DOUBLE)
    return xp.where(is_small, xp.astype(wide, double), xp.astype(odd, double) * 4096.0)


def _int_to_int(xp: ArrayNamespace, x: Array, t: DType) -> Array:
    """Saturating; exact where the type is no narrower."""
    high, low = t.high, t.low
    wide = xp.astype(x, xp.dtype(dtypes.INT64))
    full = xp.zeros_like(wide)
    return xp.astype(
        xp.where(wide > high, full + high, xp.where(wide < low, full + low, wide)),
        xp.dtype(t),
    )


def _is_floating(xp: ArrayNamespace, x: Array) -> bool:
    if xp.is_torch:
        return bool(x.dtype.is_floating_point)
    return bool(x.dtype.kind == "f" or x.dtype.name.startswith(("bfloat", "float")))


def float_to_int(xp: ArrayNamespace, x: Array, t: DType) -> Array:
    """Nearest even, saturating; NaN becomes 0."""
    x = xp.astype(x, xp.dtype(dtypes.DOUBLE))
    x = xp.round(xp.where(x != x, xp.zeros_like(x), x))
    high, low = t.high, t.low
    inside = xp.where(
        x >= float(high),
        xp.zeros_like(x),
        xp.where(x <= float(low), xp.zeros_like(x), x),
    )
    made = xp.astype(inside, xp.dtype(dtypes.INT64))
    full = xp.zeros_like(made)
    made = xp.where(
        x >= float(high), full + high, xp.where(x <= float(low), full + low, made)
    )
    return xp.astype(made, xp.dtype(t))


def _to_float32_odd(xp: ArrayNamespace, x: Array) -> Array:
    """float64 to float32, rounding to odd: truncated, with the last bit set if anything was cut off."""
    near = xp.astype(x, xp.dtype(dtypes.FLOAT))
    back = xp.astype(near, x.dtype)
    int32 = xp.dtype(dtypes.INT32)
    bits = near.view(int32)
    # a step towards zero is one less in the bit pattern, for either sign
    bits = xp.where(
        (xp.abs(back) > xp.abs(x)) & (xp.abs(near) < float("inf")), bits - 1, bits
    )
    is_finite = xp.abs(near) < float(
        "inf"
    )  # beyond float32's range there is no bit to set: infinity stays
    bits = xp.where((back != x) & (x == x) & is_finite, bits | 1, bits)
    return bits.view(near.dtype)
