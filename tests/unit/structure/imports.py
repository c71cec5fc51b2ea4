"""The direction of imports, read from the source: layers, engines, and imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Layers from the bottom; a module imports from layers below its own and from its own package.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"dtypes", "errors", "settings"}),
    frozenset({"runtime"}),
    frozenset({"ir"}),
    frozenset({"ops"}),
    frozenset({"lowering", "codegen"}),
    frozenset({"engines"}),
    frozenset({"plan"}),
    frozenset({"api"}),
    frozenset({"gemm", "nn", "integrations", "testing"}),
    frozenset({"cli"}),
)
LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}
BOTTOM = LAYERS[0]
#: What an engine's folder may import besides itself.
ENGINE_MAY = BOTTOM | {"ir", "codegen", "runtime", "engines.base", "engines.forms"}
ENGINE_EXTRA = {"array": frozenset({"ops"})}
#: The package's own name (`import fuseplan`) is for what stands above the API.
ABOVE_API = LAYERS[-1] | LAYERS[-2]
OPTIONAL = frozenset({"torch", "triton", "jax"})
#: Modules that import an optional package themselves.
NEED_OPTIONAL = frozenset({"array_api_compat.torch"})
REASON = "# import here:"


@dataclass(frozen=True)
class Import:
    """One import: who asks (dotted, without the package), for what, and where."""

    module: str
    target: str
    where: str
    is_inside_function: bool
    is_typing_only: bool
    has_reason: bool


def module_name(path: Path, package: Path) -> str:
    """Dotted name below the package; "" for the package's own __init__."""
    parts = list(path.relative_to(package).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _targets(node: ast.Import | ast.ImportFrom, path: Path, package: Path) -> list[str]:
    """Full dotted targets; `from package import name` counts as package.name where that is a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parent = path.parent
        for _ in range(node.level - 1):
            parent = parent.parent
        inside = parent.relative_to(package.parent).parts
        base = ".".join((*inside, *([base] if base else [])))
    found = []
    for alias in node.names:
        full = f"{base}.{alias.name}"
        file = package.parent.joinpath(*full.split("."))
        found.append(full if file.with_suffix(".py").is_file() or (file / "__init__.py").is_file() else base)
    return found


def _walk(tree: ast.AST, in_function: bool = False, typing_only: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    for child in ast.iter_child_nodes(tree):
        inside = in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        yield child, inside, typing
        yield from _walk(child, inside, typing)


def read_imports(package: Path) -> list[Import]:
    """All imports of the package's files, those inside functions included."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node, inside, typing in _walk(ast.parse(text, str(path))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                where = f"{path.relative_to(package.parent)}:{node.lineno}"
                reason = any(REASON in line for line in lines[node.lineno - 1 : node.end_lineno])
                for target in _targets(node, path, package):
                    found.append(Import(module_name(path, package), target, where, inside, typing, reason))
    return found


def _is_within(target: str, allowed: frozenset[str] | set[str]) -> bool:
    return any(target == name or target.startswith(name + ".") for name in allowed)


def _direction(one: Import, target: str) -> str:
    """Why this import inside the package is wrong; "" if it is right. `target` is without the package's name."""
    top, goal = one.module.split(".")[0], target.split(".")[0]
    if goal == "cli" and top != "cli":
        return "nothing imports cli"
    if not one.module or (one.module == "__main__" and goal == "cli"):
        return ""
    if not target:
        return "" if top in ABOVE_API else "only what stands above the API imports the package itself"
    if top not in LAYER_OF or goal not in LAYER_OF:
        return f"{top if top not in LAYER_OF else goal} has no layer"
    parts = one.module.split(".")
    if top == "engines" and len(parts) > 1 and parts[1] not in ("base", "forms", "registry"):
        may = ENGINE_MAY | ENGINE_EXTRA.get(parts[1], frozenset()) | {f"engines.{parts[1]}"}
        return (
            ""
            if _is_within(target, may)
            else "an engine sees ir, codegen, runtime, the bottom layer, engines.base and engines.forms"
        )
    if goal == top or LAYER_OF[goal] < LAYER_OF[top] or (top in BOTTOM and goal in BOTTOM):
        return ""
    return f"{top} may not import {goal}"


def import_cycles(package: Path) -> list[str]:
    """Circles of modules inside one folder of the package; imports for type checkers count like any other."""
    arrows: dict[str, set[str]] = {}
    for one in read_imports(package):
        root, _, goal = one.target.partition(".")
        if root == package.name and goal != one.module and _top(goal) == _top(one.module):
            arrows.setdefault(one.module, set()).add(goal)
    found: dict[frozenset[str], str] = {}
    for start in sorted(arrows):
        path = _way_back(start, arrows)
        if path:
            found.setdefault(frozenset(path), " -> ".join((*path, start)))
    return list(found.values())


def _top(module: str) -> str:
    return module.partition(".")[0]


def _way_back(start: str, arrows: dict[str, set[str]]) -> list[str]:
    """The shortest way from a module back to itself; empty if there is none."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for goal in sorted(arrows.get(way[-1], ())):
            if goal == start:
                return way
            if goal not in seen:
                seen.add(goal)
                ways.append([*way, goal])
    return []


def import_violations(package: Path) -> list[str]:
    """Wrong arrows, imports inside functions without need, and optional packages at module level."""
    bad = []
    for one in read_imports(package):
        root, _, rest = one.target.partition(".")
        is_own = root == package.name
        is_optional = root in OPTIONAL or one.target in NEED_OPTIONAL
        if is_own and (why := _direction(one, rest)):
            bad.append(f"{one.where}: imports {one.target}: {why}")
        if one.is_inside_function and not is_optional and not one.has_reason:
            bad.append(f"{one.where}: imports {one.target} inside a function: only optional packages, or say why")
        if is_optional and not (one.is_inside_function or one.is_typing_only or one.has_reason):
            bad.append(
                f"{one.where}: imports the optional {one.target} at module level: the core must import without it"
            )
    return bad
