"""Matrix-multiply functions of the API (`cudnn.gemm`); the module is importable, its functions are not there yet."""

from __future__ import annotations

from typing import Any

from fuseplan.api.pending import missing


def __getattr__(name: str) -> Any:
    """Raises NotYetAvailableError for a function of the API, AttributeError for another name."""
    raise missing("fuseplan.gemm", name)
