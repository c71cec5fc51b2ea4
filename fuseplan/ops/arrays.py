"""The array namespace that references are written against: the array API standard plus what it lacks.

`ArrayNamespace` wraps NumPy or PyTorch through array-api-compat. Beyond the standard it has `erf`,
`fmod`, casts that round once, strided views of raw memory and stores into them.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
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
        return np.asarray(_erf(np.asarray(x, dtype=np.float64)), dtype=np.float64).astype(x.dtype)

    def fmod(self, x: Array, y: Array) -> Array:
        """C's fmod: the result has the sign of x."""
        if self.is_torch:
            import torch

            return torch.fmod(x, y)
        return np.fmod(x, y)

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
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, t.numpy_name))


def torch_dtype(t: DType) -> Any:
    """PyTorch's dtype for `t`. Raises KeyError."""
    import torch

    found = getattr(torch, t.numpy_name, None) if t.numpy_name else None
    if found is None:
        raise KeyError(t.name)
    return found


def numpy_namespace() -> ArrayNamespace:
    """The adapter over NumPy."""
    import array_api_compat.numpy as base

    return ArrayNamespace(base)


def torch_namespace() -> ArrayNamespace:
    """The adapter over PyTorch. Raises ImportError without PyTorch."""
    import array_api_compat.torch as base

    return ArrayNamespace(base)
