"""Names of the API that are not there yet, and what to use instead.

`hasattr` sees them as missing, and using one says so by name; other unknown names are plain AttributeErrors.
"""

from __future__ import annotations

from typing import Any

from fuseplan.api.enums import read_data
from fuseplan.errors import NotYetAvailableError

_DATA = read_data("pending.json")
#: What a name belongs to -> the API's names in it that may be pending.
_OWNERS = {owner: frozenset(_DATA[owner]) for owner in ("pygraph", "fuseplan", "fuseplan.gemm", "fuseplan.ops")}
GRAPH_NAMES, MODULE_NAMES, GEMM_NAMES, OPS_NAMES = _OWNERS.values()
BLOCKED_ON_WRAPPER = frozenset(_DATA["steps of Graph"])  # steps that `Graph` takes itself
INSTEAD: dict[str, str] = _DATA["instead"]  # beginning of a name -> what to use; the first that fits counts
_NO_HINT = "a graph of the operations that are there, or pin the library that has it"


def missing(owner: str, name: str) -> AttributeError:
    """The error for an attribute that a graph, or a module of the API, does not have."""
    if name not in _OWNERS[owner]:
        kind = f"module {owner!r}" if owner.startswith("fuseplan") else f"{owner!r} object"
        return AttributeError(f"{kind} has no attribute {name!r}")
    hint = next((text for start, text in INSTEAD.items() if name.startswith(start)), _NO_HINT)
    return NotYetAvailableError(
        f"{owner}.{name} is part of the API, but fuseplan does not have it yet", fix=f"use {hint}"
    )


def get_module_name(name: str) -> Any:
    """`__getattr__` of the package. Raises NotYetAvailableError for a name of the API, else AttributeError."""
    raise missing("fuseplan", name)
