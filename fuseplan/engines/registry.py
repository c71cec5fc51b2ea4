"""The engines: those in the tree, and those of other packages under the entry-point group `fuseplan.engines`.

An engine is imported on first use. Its module has one object, `ENGINE`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from fuseplan.engines.base import Engine

IN_TREE = (  # one line per engine, in the order in which equal estimates are ranked
    "fuseplan.engines.triton.engine",
    "fuseplan.engines.cpu_c.engine",
    "fuseplan.engines.array.engine",
    "fuseplan.engines.null.engine",
)
GENERAL = "array"  # takes any graph; last in the list, and what FALLBACK means
UNLISTED = frozenset({"null"})


@cache
def engine_at(module: str) -> Engine:
    """The engine of a module. Raises ImportError."""
    found: Engine = import_module(module).ENGINE
    return found


@cache
def all_engines() -> tuple[Engine, ...]:
    """Every engine, in-tree ones first."""
    found = [engine_at(module) for module in IN_TREE]
    found += [point.load() for point in entry_points(group="fuseplan.engines")]
    return tuple(found)


def engines_for(device_kind: str) -> tuple[Engine, ...]:
    """Engines that may be listed for a kind of device, the general one last."""
    fits = [e for e in all_engines() if device_kind in e.device_kinds and e.name not in UNLISTED]
    return tuple(sorted(fits, key=lambda e: e.name == GENERAL))


def engine_named(name: str) -> Engine:
    """The engine of this name. Raises KeyError."""
    for engine in all_engines():
        if engine.name == name:
            return engine
    raise KeyError(name)
