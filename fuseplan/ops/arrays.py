"""The array namespace that references are written against: the array API standard plus what it lacks.

`ArrayNamespace` wraps NumPy or PyTorch through array-api-compat. Beyond the standard it has `erf`,
`fmod`, C's integer division, casts that round once, strided views of raw memory and stores into them.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import array_api_compat.numpy
import ml_dtypes
import numpy as np

from fuseplan.dtypes import DType

Array = Any
_erf = np.frompyfunc(math.erf, 1, 1)


class ArrayNamespace:
    """An array-API namespace by attribute, plus the adapter's own functions."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    @property
    def is_torch(self) -> bool:
        return bool(array_api_compat.is_torch_namespace(self.base))

    def dtype(self, t: DType) -> Any:
        """The library's dtype object for `t`. Raises KeyError if the library has none."""
        return torch_dtype(t) if self.is_torch else numpy_dtype(t)

    def erf(self, x: Array) -> Array:
        """Error function, elementwise, in x's type."""
        if self.is_torch:
            import torch

            return torch.erf(x)
        return np.asarray(
            _erf(np.asarray(x, dtype=np.float64)), dtype=np.float64
        ).astype(x.dtype)

    def fmod(self, x: Array, y: Array) -> Array:
        """C's fmod: the result has the sign of x; for integers x fmod 0 is 0."""
        if self.is_integer(x):
            none = y == 0
            return self.where(
                none,
                self.base.zeros_like(x),
                self.fmod_nonzero(x, self.where(none, y + 1, y)),
            )
        return self.fmod_nonzero(x, y)

    def fmod_nonzero(self, x: Array, y: Array) -> Array:
        """fmod of the library, which may raise for an integer y of 0."""
        if self.is_torch:
            import torch

            return torch.fmod(x, y)
        return np.fmod(x, y)

    def held_in(self, x: Array, t: DType) -> Array:
        """x, a factor of a product inside of an op, which an engine may hold in the type of the other factor."""
        return x

    def sqrt(self, x: Array) -> Array:
        """Square root, correctly rounded; PyTorch's float32 kernel for CPUs is not, so it goes through float64."""
        if self.is_torch and x.device.type == "cpu" and x.dtype == self.base.float32:
            return self.astype(
                self.base.sqrt(self.astype(x, self.base.float64)), x.dtype
            )
        return self.base.sqrt(x)

    def is_integer(self, x: Array) -> bool:
        """Whether x has an integer type."""
        return bool(self.base.isdtype(x.dtype, "integral"))

    def divide(self, a: Array, b: Array) -> Array:
        """Quotient; for integers truncated towards zero as in C, and 0 where b is 0."""
        if not self.is_integer(a):
            return a / b
        none = b == 0
        safe = self.where(none, b + 1, b)
        rest = self.fmod_nonzero(a, safe)
        return self.where(none, self.base.zeros_like(a), (a - rest) // safe)

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product of the last two axes; through float64 where the library has no kernel for integers."""
        if self.is_torch and a.device.type != "cpu" and self.is_integer(a):
            wide = self.base.float64
            return self.astype(
                self.base.matmul(self.astype(a, wide), self.astype(b, wide)), a.dtype
            )
        return self.base.matmul(a, b)

    def positions(self, n: int, like: Array, dtype: Any = None) -> Array:
        """0, 1, ... n-1 beside `like`, in int64 unless `dtype` says otherwise."""
        return self.base.arange(
            n, dtype=dtype or self.base.int64, device=array_api_compat.device(like)
        )

    def maximum(self, a: Array, b: Array) -> Array:
        """``a if a > b or a is NaN else b``, the rule of `ir.region`."""
        return self.where((a > b) | (a != a), a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        """``a if a < b or a is NaN else b``."""
        return self.where((a < b) | (a != a), a, b)

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        return self.base.where(mask, a, b)


def numpy_dtype(t: DType) -> np.dtype[Any]:
    """NumPy's dtype for `t`, from ml_dtypes where NumPy has none. Raises KeyError."""
    if not t.numpy_name:
        raise KeyError(t.name)
    if t.numpy_name == "bool" or hasattr(np, t.numpy_name):
        return np.dtype(t.numpy_name)
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, t.numpy_name))
    return found


def torch_dtype(t: DType) -> Any:
    """PyTorch's dtype for `t`. Raises KeyError."""
    import torch

    found = getattr(torch, t.numpy_name, None) if t.numpy_name else None
    if found is None:
        raise KeyError(t.name)
    return found


def numpy_namespace() -> ArrayNamespace:
    """The adapter over NumPy."""
    return ArrayNamespace(array_api_compat.numpy)


def torch_namespace() -> ArrayNamespace:
    """The adapter over PyTorch. Raises ImportError without PyTorch."""
    import array_api_compat.torch as base

    return ArrayNamespace(base)
