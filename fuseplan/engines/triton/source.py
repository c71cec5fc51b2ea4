"""The text around a kernel's body: imports and helpers, signature, name."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.codegen.triton_expr import PRELUDE
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.kernel import Param, ParamList


def finish_source(
    name: str, params: ParamList, body: LineWriter, constants: Sequence[str]
) -> tuple[str, tuple[Param, ...]]:
    """The whole source file of a kernel, and its runtime parameters in order."""
    ordered = params.in_order()
    arguments = [p.name for p in ordered] + [f"{c}: tl.constexpr" for c in constants]
    out = LineWriter("    ")
    out.line("@triton.jit")
    out.line(f"def {name}({', '.join(arguments)}):")
    inner = "".join(f"    {line}\n" if line else "\n" for line in body.text().splitlines())
    return f"{PRELUDE}\n\n{out.text()}{inner}", ordered
