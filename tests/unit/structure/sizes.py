"""Sizes of files, functions, classes, parameter lists and layers, with their limits.

A layer has a budget of lines and fails at a tenth more. Kernels that are source files of their own (a folder
``kernels`` of an engine) are counted beside it, without a limit. The package has a limit on tokens a line.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE_LINES, FUNCTION_LINES, CLASS_LINES, PARAMETERS, LINE_TOKENS = 400, 60, 300, 8, 10.0
MARK = "# table"
SOURCES = (".py", ".c", ".h")
BUDGETS = {  # table: name -> (lines when finished, folders and files of the package)
    "root, runtime, ir": (5000, ("*.py", "runtime", "ir")),
    "ops": (6500, ("ops",)),
    "lowering, codegen": (2700, ("lowering", "codegen")),
    "engines: base, array, null": (600, ("engines/*.py", "engines/array", "engines/null")),
    "cpu_c": (3500, ("engines/cpu_c",)),
    "triton, gluon": (5500, ("engines/triton", "engines/gluon")),
    "cudnn, cublaslt": (1800, ("engines/cudnn", "engines/cublaslt")),
    "plan": (2500, ("plan",)),
    "api": (3000, ("api",)),
    "gemm, nn, integrations": (2500, ("gemm.py", "nn.py", "integrations")),
    "testing, cli": (1600, ("testing", "cli")),
}
_BLANK = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                    tokenize.ENCODING, tokenize.ENDMARKER})  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Layer:
    """What was counted of one layer; tokens and code lines of Python alone, without docstrings and comments.

    Args:
        lines: of all files but kernels
    """

    lines: int = 0
    files: int = 0
    kernel_lines: int = 0
    tokens: int = 0
    code_lines: int = 0

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(1, self.code_lines)


@dataclass
class SizeReport:
    """What was measured: violations, exempt items, the largest of each kind, and the layers."""

    violations: list[str] = field(default_factory=list)
    exempt: list[str] = field(default_factory=list)
    largest: dict[str, tuple[int, str]] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)

    @property
    def total_lines(self) -> int:
        return sum(layer.lines + layer.kernel_lines for layer in self.layers.values())

    @property
    def tokens_per_line(self) -> float:
        layers = self.layers.values()
        return sum(layer.tokens for layer in layers) / max(1, sum(layer.code_lines for layer in layers))

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
            marked = lines[node.lineno - 1].rstrip().endswith(MARK)
            where = f"{file}:{node.lineno} {node.name}"
            report.measure("class lines", size, CLASS_LINES, where, marked and size >= CLASS_LINES)
        _measure_tree(report, node, lines, file, isinstance(node, ast.ClassDef))


def count_tokens(text: str) -> tuple[int, int]:
    """Tokens of Python text, and lines that hold any; docstrings and comments are neither."""
    docs = {
        (body[0].lineno, body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(body := getattr(node, "body", None), list) and body and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)
    }  # fmt: skip
    tokens, lines = 0, set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK and token.start not in docs:
            tokens += 1
            lines.add(token.start[0])
    return tokens, len(lines)


def _layer_of(path: Path) -> str:
    """The layer that a file of the package counts for. Raises KeyError for one that belongs to none."""
    for name, (_, parts) in BUDGETS.items():
        for part in parts:
            if (
                path.match(part)
                if part.endswith(".py") and len(path.parts) == part.count("/") + 1
                else (path.is_relative_to(part))
            ):
                return name
    raise KeyError(f"{path} belongs to no layer")


def _count(report: SizeReport, path: Path, text: str, is_kernel: bool) -> None:
    layer = report.layers.setdefault(_layer_of(path), Layer())
    size = len(text.splitlines())
    layer.lines += 0 if is_kernel else size
    layer.files += 1
    layer.kernel_lines += size if is_kernel else 0
    if path.suffix == ".py":
        tokens, code_lines = count_tokens(text)
        layer.tokens += tokens
        layer.code_lines += code_lines


def _check_layers(report: SizeReport) -> None:
    for name, layer in report.layers.items():
        budget = BUDGETS[name][0]
        if 10 * layer.lines >= 11 * budget:
            report.violations.append(f"{name}: {layer.lines} lines, the budget is {budget} and a tenth")


def _check_density(report: SizeReport) -> None:
    if report.tokens_per_line > LINE_TOKENS:
        report.violations.append(f"{report.tokens_per_line:.2f} tokens a line on average, at most {LINE_TOKENS:.0f}")


def measure_sizes(root: Path, folders: Sequence[str]) -> SizeReport:
    """Measure all sources in these folders of the repository; the first folder is the package."""
    report = SizeReport()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            text = path.read_text(encoding="utf-8")
            lines = text.splitlines()
            file = str(path.relative_to(root))
            is_kernel = "kernels" in path.relative_to(root).parts and folder == folders[0]
            marked = is_kernel or any(line.strip().startswith(MARK) for line in lines[:5])
            report.measure("file lines", len(lines), FILE_LINES, file, marked and len(lines) >= FILE_LINES)
            if folder == folders[0]:
                _count(report, path.relative_to(root / folder), text, is_kernel)
            if path.suffix == ".py":
                _measure_tree(report, ast.parse(text, file), lines, file)
    _check_layers(report)
    _check_density(report)
    return report
