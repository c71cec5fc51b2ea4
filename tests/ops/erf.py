"""Error function over NumPy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Any) -> Any:
    """erf elementwise, in x's type."""
    return _ERF(x).astype(x.dtype)
