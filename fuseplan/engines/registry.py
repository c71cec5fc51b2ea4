"""The engines: those in the tree, and those of other packages under the entry-point group `fuseplan.engines`.

An engine is imported on first use. Its module `fuseplan.engines.<name>.engine` has one object, `ENGINE`; an
entry point names such an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from fuseplan.engines.base import Engine


@dataclass(frozen=True)
class Line:
    """One in-tree engine.

    Args:
        is_general: takes any graph: last in the list, and what FALLBACK means
        is_listed: may appear in lists of plans
    """

    name: str
    device_kinds: frozenset[str]
    is_general: bool = False
    is_listed: bool = True


CPU, CUDA = frozenset({"cpu"}), frozenset({"cuda"})
IN_TREE = (  # one line per engine, in the order in which equal estimates are ranked
    Line("triton", CUDA),
    Line("cpu_c", CPU),
    Line("array", CPU | CUDA, is_general=True),
    Line("null", CPU | CUDA, is_listed=False),
)
GENERAL = next(line.name for line in IN_TREE if line.is_general)
UNLISTED = frozenset(line.name for line in IN_TREE if not line.is_listed)


@cache
def _in_tree(name: str) -> Engine:
    found: Engine = import_module(f"fuseplan.engines.{name}.engine").ENGINE
    return found


@cache
def _installed() -> tuple[Engine, ...]:
    """Engines of other packages."""
    return tuple(point.load() for point in entry_points(group="fuseplan.engines"))


@cache
def engines_for(device_kind: str) -> tuple[Engine, ...]:
    """Engines that may be listed for a kind of device, the general one last."""
    own = [line for line in IN_TREE if line.is_listed and device_kind in line.device_kinds]
    made = [_in_tree(line.name) for line in own if not line.is_general]
    made += [e for e in _installed() if device_kind in e.device_kinds]
    return (*made, *(_in_tree(line.name) for line in own if line.is_general))


def engine_named(name: str) -> Engine:
    """The engine of this name. Raises KeyError."""
    if any(line.name == name for line in IN_TREE):
        return _in_tree(name)
    for engine in _installed():
        if engine.name == name:
            return engine
    raise KeyError(name)


def all_engines() -> tuple[Engine, ...]:
    """Every engine of this tree and of other packages, listed or not; imports them all."""
    return (*(_in_tree(line.name) for line in IN_TREE), *_installed())
