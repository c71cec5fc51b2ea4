"""The text of a kernel: a file of `kernels/` with its holes filled, the helpers it calls, and its entry.

A kernel file holds device functions. Some are holes; a generated kernel has a `Function` in the place of each, and
the rest word for word. The entry, whose parameters depend on the region, is written anew.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.kernel import Param, ParamKind, ParamList
from fuseplan.engines.triton.layout import index_bits, vector_length
from fuseplan.ir.region import Region

_FOLDER = Path(__file__).parent / "kernels"
_IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
_GLUON_IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
)
"""
INDEX_BITS = "INDEX_BITS"
Arguments = list[str | tuple[str, ...]]  # what a main loop takes: parameters, and tuples of them


@dataclass(frozen=True)
class FileFunction:
    """A device function of a kernel file: its header up to the docstring, and its whole text."""

    header: str
    text: str


@functools.cache
def file_functions(file: str) -> Mapping[str, FileFunction]:
    """Device functions of a kernel file by name, in order."""
    text = re.sub("  # (table|fmt: skip)$", "", (_FOLDER / f"{file}.py").read_text(encoding="utf-8"), flags=re.M)
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0].lineno - 1
            is_doc = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            end = node.body[0].end_lineno if is_doc else node.body[0].lineno - 1
            found[node.name] = FileFunction("\n".join(lines[first:end]), "\n".join(lines[first : node.end_lineno]))
    return found


class Function:
    """A device function in the making; what it takes of the kernel's parameters arrives as one tuple.

    Args:
        hole: the function of the kernel file whose header it has
        tuple_name: the header's name of the tuple
        name: its own name if it is one of several that fill a hole
    """

    def __init__(self, params: ParamList, hole: str, tuple_name: str = "params", name: str = "") -> None:
        self.hole, self.name, self.tuple_name = hole, name or hole, tuple_name
        self.params = ParamList(params.region, params)
        self.out = LineWriter("    ")

    def text(self, file: str) -> str:
        header = file_functions(file)[self.hole].header
        if self.name != self.hole:
            header = header.replace(f"def {self.hole}(", f"def {self.name}(")
        names = self.params.names
        unpack = f"    {tuple_text(names)} = {self.tuple_name}\n" if names else ""
        return f"{header}\n{unpack}" + _indented(self.out.text())


def tuple_text(items: Sequence[str]) -> str:
    """A tuple in parentheses."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


@dataclass(frozen=True)
class Entry:
    """The entry of a kernel file, and how it calls the main loop.

    Args:
        arguments: what the main loop takes before the constants: parameters, or tuples of them
        constants: compile-time parameters of both, `INDEX_BITS` aside
        is_gluon: whether the file, and so the whole text, is Gluon
        base: a file whose functions it calls as well, and whose holes are its own
    """

    file: str
    main: str
    arguments: Sequence[str | tuple[str, ...]]
    constants: Sequence[tuple[str, int]] = ()
    is_gluon: bool = False
    base: str = ""


@dataclass(frozen=True)
class KernelText:
    """Source, runtime parameters in order, and compile-time parameters with their values."""

    source: str
    params: tuple[Param, ...]
    constants: tuple[tuple[str, int], ...]


def kernel_text(entry: Entry, functions: Sequence[Function], params: ParamList) -> KernelText:
    """The whole source file of a kernel.

    A kernel for all extents takes its numbers in 64 bits. It is compiled with positions of 32 bits and, only where
    offsets need them, of 64: one text, chosen by the constant `INDEX_BITS`. Either has its body twice, and the number
    `vectorized` picks one at launch: with numbers that vectors depend on visibly multiples of their length, or
    without. Nothing is promised to the compiler, so all extents share a compiled kernel.
    """
    ordered = params.in_order()
    if params.is_dynamic and any(p.is_vector for p in ordered):
        length = vector_length(params.region)
        fits = all(p.value % length == 0 for p in ordered if p.is_vector)
        ordered = (*ordered, Param("vectorized", "i32", ParamKind.NUMBER, value=int(fits), is_dynamic=True))
    constants = (*entry.constants, (INDEX_BITS, index_bits(params.region)))
    texts = _texts(entry, functions)
    texts[entry.file] = _entry_text(entry, params.region, ordered)
    imports = _IMPORTS
    if entry.is_gluon:
        texts, imports = {name: _as_gluon(text) for name, text in texts.items()}, _IMPORTS + _GLUON_IMPORTS
    needed = _reachable(entry.file, texts)
    source = "\n\n".join([imports, *(text for name, text in texts.items() if name in needed)])
    return KernelText(source, ordered, constants)


def _as_gluon(source: str) -> str:
    """The text with Gluon's decorator and numbers: its `full` wants a layout, which a number has not."""
    return source.replace("@triton.jit", "@gluon.jit").replace("tl.full((), ", "full_scalar(")


def _texts(entry: Entry, functions: Sequence[Function]) -> dict[str, str]:
    """Helpers and the file's functions by name, in order, with holes filled."""
    texts = {name: f"{function.text}\n" for name, function in file_functions("helpers").items()}
    for file in filter(None, (entry.base, entry.file)):
        for name, function in file_functions(file).items():
            assert name not in texts, name
            filled = [f for f in functions if f.hole == name]
            texts.update({f.name: f.text(file) for f in filled} if filled else {name: f"{function.text}\n"})
    return texts


def _reachable(name: str, texts: Mapping[str, str]) -> set[str]:
    """Functions that a function calls, directly or not, and itself."""
    found, todo = {name}, [name]
    while todo:
        called = set(re.findall(r"\w+", texts[todo.pop()])) & set(texts)
        todo += sorted(called - found)
        found |= called
    return found


def _entry_text(entry: Entry, region: Region, ordered: Sequence[Param]) -> str:
    out = LineWriter("    ")
    out.line("@triton.jit")
    constants = [*(name for name, _ in entry.constants), INDEX_BITS]
    signature = [*(p.name for p in ordered), *(f"{c}: tl.constexpr" for c in constants)]
    with out.indent(f"def {entry.file}({', '.join(signature)}):"):
        if not region.graph.is_dynamic:
            out.line(_call(entry, constants, lambda name: name))
            return out.text()
        out.line("index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32")
        plain = {p.name: f"{p.name}.to(index)" if p.kind is ParamKind.NUMBER else p.name for p in ordered}
        if ordered[-1].name != "vectorized":
            out.line(_call(entry, constants, plain.__getitem__))
            return out.text()
        length = vector_length(region)
        multiples = {p.name: f"{plain[p.name]} // {length} * {length}" for p in ordered if p.is_vector}
        with out.indent("if vectorized:"):
            out.line(_call(entry, constants, {**plain, **multiples}.__getitem__))
        with out.indent("else:"):
            out.line(_call(entry, constants, plain.__getitem__))
    return out.text()


def _call(entry: Entry, constants: Sequence[str], value_of: Callable[[str], str]) -> str:
    """The call of the main loop."""
    arguments = [value_of(a) if isinstance(a, str) else tuple_text([value_of(x) for x in a]) for a in entry.arguments]
    return f"{entry.main}({', '.join([*arguments, *constants])})"
