"""Sizes of files, functions, classes and parameter lists, with their limits."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

FILE_LINES, FUNCTION_LINES, CLASS_LINES, PARAMETERS = 400, 50, 200, 8
#: lines that each layer of the package is planned to have; a layer fails at a tenth more
BUDGETS = {
    ("", "runtime", "ir"): 5_000,
    ("ops",): 6_500,
    ("lowering", "codegen"): 2_700,
    ("engines", "engines/array", "engines/null"): 600,
    ("engines/cpu_c",): 3_500,
    ("engines/triton", "engines/gluon"): 5_500,
    ("engines/cudnn", "engines/cublaslt"): 1_800,
    ("plan",): 2_500,
    ("api",): 3_800,
    ("gemm", "nn", "integrations"): 2_500,
    ("testing", "cli"): 1_800,
}
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
    layer_lines: dict[tuple[str, ...], int] = field(default_factory=lambda: dict.fromkeys(BUDGETS, 0))

    def measure(self, kind: str, size: int, limit: int, where: str, is_exempt: bool) -> None:
        """Count one item; `size` must be under `limit` unless the item is marked."""
        if is_exempt:
            self.exempt.append(f"{where}: {kind} of {size}")
            return
        if size > self.largest.get(kind, (0, ""))[0]:
            self.largest[kind] = (size, where)
        if size >= limit:
            self.violations.append(f"{where}: {kind} of {size}, the limit is under {limit}")


def _layer_of(path: Path) -> tuple[str, ...]:
    """The layer of a file, whose path begins in the package."""
    folders = path.parts[:-1]
    name = "/".join(folders[:2]) if folders[:1] == ("engines",) else "/".join(folders[:1])
    return next((layer for layer in BUDGETS if name in layer), (name,))


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
                layer = _layer_of(path.relative_to(root / folder))
                report.layer_lines[layer] = report.layer_lines.get(layer, 0) + len(lines)
            if path.suffix == ".py":
                _measure_tree(report, ast.parse("\n".join(lines), file), lines, file)
    for layer, size in report.layer_lines.items():
        limit = BUDGETS.get(layer, 0) * 11 // 10
        if size >= limit and size:
            report.violations.append(f"{', '.join(layer)}: {size} lines, the limit is under {limit}")
    return report
