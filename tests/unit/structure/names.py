"""Exported names, and the places where an engine may be named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

#: Says that a string is the name of a package or of an operation that an engine happens to share.
NOT_AN_ENGINE = "# not an engine"

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            if isinstance(node.value, (ast.List, ast.Tuple)):
                return [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return None


def _bound(tree: ast.Module) -> set[str]:
    """Names that the module's top level binds."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names


def export_violations(package: Path) -> list[str]:
    """`__all__` is sorted and names what exists; an __init__ that hands names on from other modules lists every one."""
    bad = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        file, exported, bound = path.relative_to(package.parent), _exported(tree), _bound(tree)
        public = {n for n in bound if not n.startswith("_")}
        is_front = path.name == "__init__.py" and not any(isinstance(n, DEFINITIONS) for n in tree.body)
        if exported is None:
            if is_front and public:
                bad.append(f"{file}: binds {', '.join(sorted(public))} but has no __all__")
            continue
        if exported != sorted(exported):
            bad.append(f"{file}: __all__ is not sorted")
        if missing := sorted(set(exported) - bound):
            bad.append(f"{file}: __all__ names what is not there: {', '.join(missing)}")
        if is_front and (left := sorted(public - set(exported))):
            bad.append(f"{file}: __all__ leaves out {', '.join(left)}")
    return bad


def engine_names(package: Path) -> list[str]:
    """Folders of engines."""
    return sorted(p.parent.name for p in (package / "engines").glob("*/__init__.py"))


def _names_engine(node: ast.AST, names: frozenset[str]) -> str:
    """The engine that this piece of syntax names by a whole string or by a module path; "" if none."""
    dotted: list[str] = []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in names:
            return node.value
        dotted = re.findall(r"\bengines[.:/](\w+)", node.value)
    elif isinstance(node, ast.ImportFrom) and node.module:
        dotted = re.findall(r"\bengines\.(\w+)", node.module)
        if node.module.endswith("engines"):
            dotted += [alias.name for alias in node.names]
    elif isinstance(node, ast.Import):
        dotted = [m for alias in node.names for m in re.findall(r"\bengines\.(\w+)", alias.name)]
    return next((name for name in dotted if name in names), "")


def engine_name_violations(package: Path) -> list[str]:
    """An engine is named in its own folder and on one line of engines/registry.py, nowhere else."""
    names = frozenset(engine_names(package))
    bad: list[str] = []
    lines_of: dict[str, set[int]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines), str(path))):
            name = _names_engine(node, names)
            if not name or parts[:2] == ("engines", name):
                continue
            line = getattr(node, "lineno", 0)
            if parts == ("engines", "registry.py"):
                lines_of.setdefault(name, set()).add(line)
            elif NOT_AN_ENGINE not in lines[line - 1] and "find_spec(" not in lines[line - 1]:
                bad.append(f"{path.relative_to(package.parent)}:{line}: names the engine {name!r}")
    bad += [f"engines/registry.py: names {n!r} on {len(at)} lines" for n, at in lines_of.items() if len(at) > 1]
    return bad
