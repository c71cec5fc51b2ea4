"""Lazy attributes of the package: what is loaded at first use, and names that are not there yet."""

from __future__ import annotations

from typing import Any

from fuseplan.api import wrappers
from fuseplan.api.handles import Handle
from fuseplan.api.pending import missing_module_name

_LAZY: dict[str, Any] = {"Graph": wrappers.Graph, "handle": Handle, "wrapper": wrappers}


def get_attribute(name: str) -> Any:
    """The attribute of the package with this name. Raises AttributeError, or NotYetAvailableError for pending names."""
    try:
        return _LAZY[name]
    except KeyError:
        raise missing_module_name(name) from None
