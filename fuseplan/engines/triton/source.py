"""The text around a kernel's body: imports and helpers, signature, name; and the forms of a kernel for all extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.codegen.triton_expr import PRELUDE
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.kernel import Param, ParamKind, ParamList
from fuseplan.engines.triton.layout import bulk_operands, is_wide

_VECTOR_BYTES = 16
_PARTS = 8


@dataclass(frozen=True)
class Forms:
    """Which bodies a kernel for all extents has beyond the two that all have.

    Args:
        divides: positions are divided, which is slow in 64 bits: there is one with 32 bits, in parts like the first
        flat: whether the axes can be walked as one here; None if the values do not allow it at any extents
    """

    divides: bool = False
    flat: bool | None = None


def finish_source(
    name: str, params: ParamList, body: LineWriter, constants: Sequence[str]
) -> tuple[str, tuple[Param, ...]]:
    """The whole source file of a kernel, and its runtime parameters in order."""
    ordered = params.in_order()
    return f"{PRELUDE}\n\n{_function(name, [p.name for p in ordered], constants, body)}", ordered


def finish_shared(
    name: str, params: ParamList, body: LineWriter, constants: Sequence[str], forms: Forms | None = None
) -> tuple[str, tuple[Param, ...]]:
    """`finish_source`, for a kernel that runs at any extents if the region's graph is dynamic.

    Such a kernel holds its body more than once, and the number `form` picks one at launch:

        0   right for all extents
        1   32-bit positions, and numbers that vectors depend on are multiples of their length
        2   1, with all axes walked as one
        3   32-bit positions

    What a form relies on is written as arithmetic; nothing is promised to the compiler. Of an elementwise kernel
    (one with `forms`) 0 and 3 do a program's work in parts: in one piece they need so many registers that the
    other forms would share a processor with few others.
    """
    region = params.region
    if not region.graph.is_dynamic:
        return finish_source(name, params, body, constants)
    ordered = params.in_order()
    names = [p.name for p in ordered]
    length = max((_VECTOR_BYTES // o.dtype.itemsize for o in bulk_operands(region)), default=1)
    form = Param("form", "i32", ParamKind.NUMBER, value=_form(params, ordered, length, forms), is_shared=True)
    calls = _Calls(name, constants, forms)
    out = LineWriter("    ")
    if forms is not None and forms.flat is not None:
        calls.whole(out, "if form == 2:", [_plain(p, length) for p in ordered], is_flat=True)
    calls.whole(out, f"{'elif' if out.text().strip() else 'if'} form == 1:", [_plain(p, length) for p in ordered])
    if forms is not None and forms.divides:
        calls.in_parts(out, "elif form == 3:", [_plain(p) for p in ordered], "tl.int32")
    if forms is None:
        calls.whole(out, "else:", names, "tl.int64")
    else:
        calls.in_parts(out, "else:", names, "tl.int64")
    inner = _function(f"{name}_body", [*calls.pid, *names], (*constants, *calls.inner), body)
    return "\n\n".join([PRELUDE, inner, _function(name, [*names, "form"], constants, out)]), (*ordered, form)


def _form(params: ParamList, ordered: Sequence[Param], length: int, forms: Forms | None) -> int:
    """The form for the extents at hand."""
    if is_wide(params.region, params.region.domain):
        return 0
    if all(p.value % length == 0 for p in ordered if p.is_vector):
        return 2 if forms is not None and forms.flat else 1
    return 3 if forms is not None and forms.divides else 0


class _Calls:
    """Writes calls of a kernel's body."""

    def __init__(self, name: str, constants: Sequence[str], forms: Forms | None) -> None:
        self.name, self.constants = name, list(constants)
        self.pid = ["pid"] if forms is not None else []
        self.has_flat = forms is not None and forms.flat is not None
        self.inner = ("INDEX", "FLAT") if self.has_flat else ("INDEX",)

    def whole(
        self, out: LineWriter, when: str, arguments: Sequence[str], index: str = "tl.int32", *, is_flat: bool = False
    ) -> None:
        """The body as the program's only work."""
        pid = ["tl.program_id(0)"] if self.pid else []
        with out.indent(when):
            out.line(self._call([*pid, *arguments, *self.constants], index, is_flat))

    def in_parts(self, out: LineWriter, when: str, arguments: Sequence[str], index: str) -> None:
        """The body once per part of the program's positions."""
        constants = [f"BLOCK // {_PARTS} if BLOCK >= {_PARTS} else 1" if c == "BLOCK" else c for c in self.constants]
        with out.indent(when), out.indent(f"for part in tl.range(0, {_PARTS}, loop_unroll_factor=1):"):
            pid = f"tl.program_id(0).to({index}) * {_PARTS} + part"
            out.line(self._call([pid, *arguments, *constants], index, is_flat=False))

    def _call(self, arguments: Sequence[str], index: str, is_flat: bool) -> str:
        inner = [index, str(is_flat)] if self.has_flat else [index]
        return f"{self.name}_body({', '.join([*arguments, *inner])})"


def _function(name: str, params: Sequence[str], constants: Sequence[str], body: LineWriter) -> str:
    arguments = [*params, *(f"{c}: tl.constexpr" for c in constants)]
    inner = "".join(f"    {line}\n" if line else "\n" for line in body.text().splitlines())
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n{inner}"


def _plain(param: Param, length: int = 1) -> str:
    """A parameter with numbers in 32 bits, those that vectors depend on visibly a multiple of their length."""
    if param.kind is not ParamKind.NUMBER:
        return param.name
    return f"{param.name}.to(tl.int32)" + (f" // {length} * {length}" if param.is_vector and length > 1 else "")
