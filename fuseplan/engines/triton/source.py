"""The text around a kernel's body: imports and helpers, signature, name."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.codegen.triton_expr import PRELUDE
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.kernel import Param, ParamKind, ParamList
from fuseplan.engines.triton.layout import bulk_operands, is_wide

_VECTOR_BYTES = 16


def finish_source(
    name: str, params: ParamList, body: LineWriter, constants: Sequence[str]
) -> tuple[str, tuple[Param, ...]]:
    """The whole source file of a kernel, and its runtime parameters in order."""
    ordered = params.in_order()
    return f"{PRELUDE}\n\n{_function(name, ordered, constants, body)}", ordered


def finish_shared(
    name: str, params: ParamList, body: LineWriter, constants: Sequence[str], *, flat: bool | None = None
) -> tuple[str, tuple[Param, ...]]:
    """`finish_source`, for a kernel that runs at any extents if the region's graph is dynamic.

    Such a kernel holds its body more than once, and the number `form` picks one at launch: 0 is right for all
    extents; 1 has 32-bit positions, and numbers that vectors depend on are multiples of their length; 2 is 1 for
    axes that can be walked as one. What 1 relies on is written as arithmetic, so a wrong `form` is the only way to
    break it, and nothing is promised to the compiler.

    Args:
        flat: whether the axes can be walked as one; None if the body does not ask
    """
    region = params.region
    if not region.graph.is_dynamic:
        return finish_source(name, params, body, constants)
    ordered = params.in_order()
    length = max((_VECTOR_BYTES // o.dtype.itemsize for o in bulk_operands(region)), default=1)
    is_plain = not is_wide(region, region.domain) and all(p.value % length == 0 for p in ordered if p.is_vector)
    form = Param("form", "i32", ParamKind.NUMBER, value=int(is_plain) * (2 if flat else 1), is_shared=True)
    inner = ("INDEX",) if flat is None else ("INDEX", "FLAT")
    out = LineWriter("    ")
    for number, is_flat in ((2, True), (1, False)) if flat is not None else ((1, False),):
        with out.indent(f"if form == {number}:" if number == 2 or flat is None else f"elif form == {number}:"):
            out.line(_call(name, [_plain(p, length) for p in ordered], constants, ("tl.int32", str(is_flat)), inner))
    with out.indent("else:"):
        out.line(_call(name, [p.name for p in ordered], constants, ("tl.int64", "False"), inner))
    parts = (_function(f"{name}_body", ordered, (*constants, *inner), body),
             _function(name, (*ordered, form), constants, out))  # fmt: skip
    return "\n\n".join([PRELUDE, *parts]), (*ordered, form)


def _function(name: str, params: Sequence[Param], constants: Sequence[str], body: LineWriter) -> str:
    arguments = [p.name for p in params] + [f"{c}: tl.constexpr" for c in constants]
    inner = "".join(f"    {line}\n" if line else "\n" for line in body.text().splitlines())
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n{inner}"


def _plain(param: Param, length: int) -> str:
    """A parameter as form 1 takes it: numbers in 32 bits, multiples of the vectors' length visibly so."""
    if param.kind is not ParamKind.NUMBER:
        return param.name
    return f"{param.name}.to(tl.int32)" + (f" // {length} * {length}" if param.is_vector else "")


def _call(
    name: str, arguments: Sequence[str], constants: Sequence[str], values: Sequence[str], inner: Sequence[str]
) -> str:
    return f"{name}_body({', '.join([*arguments, *constants, *values[: len(inner)]])})"
