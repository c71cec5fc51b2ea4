"""The engines: those in the tree, and those of other packages under the entry-point group `fuseplan.engines`.

An engine is imported on first use. Its module `fuseplan.engines.<name>.engine` has one object, `ENGINE`; an
entry point names such an object (docs/design/0004-engines-of-other-packages.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from fuseplan.engines.base import Engine
from fuseplan.errors import EngineError
from fuseplan.runtime import forks

GROUP = "fuseplan.engines"


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
    Line("cublaslt", CUDA),
    Line("cpu_c", CPU),
    Line("array", CPU | CUDA, is_general=True),
    Line("null", CPU | CUDA, is_listed=False),
)
GENERAL = next(line.name for line in IN_TREE if line.is_general)


@cache
def _in_tree(name: str) -> Engine:
    with forks.loading:
        found: Engine = import_module(f"fuseplan.engines.{name}.engine").ENGINE
    return found


@cache
def _installed() -> tuple[Engine, ...]:
    """Engines of other packages, in the order of their entry points' names.

    Raises:
        EngineError: one cannot be imported, lacks a method, or has the name or an id of another engine
    """
    points = sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value))
    found: list[Engine] = []
    known = [_in_tree(line.name) for line in IN_TREE] if points else []
    for point in points:
        engine = _loaded(point)
        for other in (*known, *found):
            if taken := overlap(engine, other):
                raise _unusable(point, f"{taken} of engine {other.name!r}", "choose another in the package")
        found.append(engine)
    return tuple(found)


def overlap(engine: Engine, other: Engine) -> str:
    """What an engine has in common with another that must differ; empty if nothing."""
    if engine.name == other.name:
        return f"its name {engine.name!r} is that"
    ids, taken = engine.engine_ids, other.engine_ids
    first, last = max(ids.start, taken.start), min(ids.stop, taken.stop) - 1
    if first > last:
        return ""
    return f"its engine_id {first} is that" if first == last else f"its engine_ids {first} to {last} are those"


def _loaded(point: EntryPoint) -> Engine:
    try:
        with forks.loading:
            engine: Engine = point.load()
    except Exception as e:  # whatever a foreign module raises while it is imported
        raise _unusable(point, f"{type(e).__name__}: {e}") from e
    missing = [m for m in (*Engine.__annotations__, *vars(Engine)) if m[0] != "_" and not hasattr(engine, m)]
    if missing:
        raise _unusable(point, f"it lacks {', '.join(missing)} (see fuseplan.engines.base.Engine)")
    return engine


def _unusable(point: EntryPoint, wrong: str, fix: str = "update the package that has it") -> EngineError:
    return EngineError(
        f"engine {point.name!r} ({point.value}) of another package cannot be used: {wrong}",
        fix=f"{fix}, or uninstall it",
    )


@cache
def engines_for(device_kind: str) -> tuple[Engine, ...]:
    """Engines that may be listed for a kind of device, the general one last. Raises EngineError."""
    own = [line for line in IN_TREE if line.is_listed and device_kind in line.device_kinds]
    made = [_in_tree(line.name) for line in own if not line.is_general]
    made += [e for e in _installed() if device_kind in e.device_kinds]
    return (*made, *(_in_tree(line.name) for line in own if line.is_general))


def engine_named(name: str) -> Engine:
    """The engine of this name. Raises KeyError, EngineError."""
    if any(line.name == name for line in IN_TREE):
        return _in_tree(name)
    for engine in _installed():
        if engine.name == name:
            return engine
    raise KeyError(name)


def all_engines() -> tuple[Engine, ...]:
    """Every engine of this tree and of other packages, listed or not; imports them all."""
    return (*(_in_tree(line.name) for line in IN_TREE), *_installed())
