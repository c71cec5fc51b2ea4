"""The API's enumerations: plain `Enum`, with the API's values; their members stand in the data file beside this one."""

from __future__ import annotations

import importlib.resources
import json
from enum import Enum
from typing import Any

FRONTEND_KNOB_TYPE_BASE = 1000


def is_frontend_knob_type(knob_type: Enum) -> bool:
    """Whether a knob belongs to this library's own engines rather than to libcudnn's."""
    return int(knob_type.value) >= FRONTEND_KNOB_TYPE_BASE


def read_data(name: str) -> dict[str, Any]:
    """A data file of this folder."""
    data: dict[str, Any] = json.loads(importlib.resources.files("fuseplan.api").joinpath(name).read_text("utf-8"))
    return data


KINDS = read_data("enums.json")
for _name, _kind in KINDS.items():
    globals()[_name] = Enum(_name, _kind["members"], module=__name__)
    globals()[_name].__doc__ = _kind["doc"]
