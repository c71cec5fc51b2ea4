"""Region to C source: picks the form, adds arguments, helpers and name, and says what cannot be emitted."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from fuseplan.codegen.axes import merge_in_memory_order, reduced_axes
from fuseplan.codegen.c_helpers import prelude
from fuseplan.engines.cpu_c.emit_blocks import blocks_refusal, emit_blocks
from fuseplan.engines.cpu_c.emit_rows import emit_rows, inner_axes, rows_refusal
from fuseplan.engines.cpu_c.emit_scope import Scope, depends_on
from fuseplan.ir.region import Region
from fuseplan.runtime.launch import Patch


@dataclass(frozen=True, slots=True)
class Kernel:
    """Source of one function and the block it is called with."""

    source: str
    symbol: str
    template: bytes
    patches: tuple[Patch, ...]
    scratch_bytes: int


def form_refusal(region: Region) -> str:
    """Why no form of this module fits the region; empty if one does."""
    if region.anchors or is_column_reduction(region):
        return blocks_refusal(region)
    return rows_refusal(region)


def is_column_reduction(region: Region) -> bool:
    """Reductions that only close the region and leave the fastest axis alone: added up in memory order."""
    if not region.reductions or blocks_refusal(region):
        return False
    inner = inner_axes(region)
    loops = merge_in_memory_order(region, range(len(region.domain)))
    return bool(inner and loops) and not any(a in inner for a in loops[-1].axes)


def family_of(region: Region) -> str:
    """What kind of kernel it is, for its name."""
    if region.anchors:
        return "conv" if region.values[region.anchors[0]].op == "conv_fprop" else "matmul"
    real = [r for r in region.reductions if reduced_axes(region, r)]
    if not real:
        return "pointwise"
    inner = inner_axes(region)
    after = depends_on(region, real)
    reuses = any(after[i] and any(v.dim[a] != 1 for a in inner) for i, v in enumerate(region.values))
    return "norm" if reuses else "reduction"


def emit(region: Region) -> Kernel:
    """The kernel of a region that `form_refusal` has nothing against."""
    is_blocks = region.anchors or is_column_reduction(region)
    scope = emit_blocks(region) if is_blocks else emit_rows(region)
    return _assemble(scope, family_of(region))


def _assemble(scope: Scope, family: str) -> Kernel:
    """Headers, helpers, argument block and function around the loops; the name is a hash of the text."""
    body = scope.writer.text()
    parts = [prelude(body), "\n".join(scope.args.struct_lines())]
    lead = ["const struct args p = *(const struct args *)block;", *scope.args.pointer_lines()]
    head = "\n".join(["  " + line for line in lead])
    indented = "\n".join([line if line.startswith("#") or not line else "  " + line for line in body.split("\n")])
    inside = f"{head}\n{indented.rstrip()}\n  (void)task;\n  return 0;\n}}\n"
    digest = sha256("\n".join([*parts, inside]).encode()).hexdigest()[:12]
    symbol = f"fp_{family}_{digest}"
    signature = f"int {symbol}(const void *block, const struct fp_task *task)"
    declaration = f"{signature};\n{signature} {{\n"
    source = "\n".join([parts[0], parts[1], "", declaration]) + inside
    template, patches = scope.args.block()
    return Kernel(source, symbol, template, patches, scope.args.scratch_bytes)
