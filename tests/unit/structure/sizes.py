"""Sizes of files, functions, classes and parameter lists, with their limits."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

FILE_LINES, FUNCTION_LINES, CLASS_LINES, PARAMETERS, PACKAGE_LINES = 400, 50, 200, 8, 20_000
MARK = "# table"
SOURCES = (".py", ".c", ".h")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class SizeReport:
    """What was measured: violations, exempt items, and the largest of each kind."""

    violations: list[str] = field(default_factory=list)
    exempt: list[str] = field(default_factory=list)
    largest: dict[str, tuple[int, str]] = field(default_factory=dict)
    total_lines: int = 0

    def measure(self, kind: str, size: int, limit: int, where: str, is_exempt: bool) -> None:
        """Count one item; `size` must be under `limit` unless the item is marked."""
        if is_exempt:
            self.exempt.append(f"{where}: {kind} of {size}")
            return
        if size > self.largest.get(kind, (0, ""))[0]:
            self.largest[kind] = (size, where)
        if size >= limit:
            self.violations.append(f"{where}: {kind} of {size}, the limit is under {limit}")


def _num_parameters(node: Function, is_method: bool) -> int:
    a = node.args
    count = len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs) + (a.vararg is not None) + (a.kwarg is not None)
    is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    return count - (is_method and not is_static and bool(a.posonlyargs or a.args))


def _measure_tree(report: SizeReport, tree: ast.AST, lines: list[str], file: str, in_class: bool = False) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            where = f"{file}:{node.lineno} {node.name}"
            header = lines[node.lineno - 1 : node.body[0].lineno]
            marked = any(line.rstrip().endswith(MARK) for line in header)
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            report.measure("function lines", size, FUNCTION_LINES, where, marked and size >= FUNCTION_LINES)
            count = _num_parameters(node, in_class)
            report.measure("parameters", count, PARAMETERS + 1, where, marked and count > PARAMETERS)
        elif isinstance(node, ast.ClassDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            report.measure("class lines", size, CLASS_LINES, f"{file}:{node.lineno} {node.name}", False)
        _measure_tree(report, node, lines, file, isinstance(node, ast.ClassDef))


def measure_sizes(root: Path, folders: tuple[str, ...]) -> SizeReport:
    """Measure all sources in these folders of the repository; the first folder is the package."""
    report = SizeReport()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            lines = path.read_text(encoding="utf-8").splitlines()
            file = str(path.relative_to(root))
            marked = any(line.strip().startswith(MARK) for line in lines[:5])
            report.measure("file lines", len(lines), FILE_LINES, file, marked and len(lines) >= FILE_LINES)
            if folder == folders[0]:
                report.total_lines += len(lines)
            if path.suffix == ".py":
                _measure_tree(report, ast.parse("\n".join(lines), file), lines, file)
    if report.total_lines >= PACKAGE_LINES:
        report.violations.append(f"{folders[0]}: {report.total_lines} lines, the limit is under {PACKAGE_LINES}")
    return report
