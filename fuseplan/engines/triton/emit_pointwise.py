"""Elementwise regions, and those that reductions over everything close.

One flat index runs over the domain, merged to as few axes as the operands allow. Closing reductions add
up with atomics; what still has to be computed from them runs in a second, tiny kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.closing import Closing, closing_gap, emit_finish
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import (
    by_stride,
    has_group,
    index_cast,
    is_adjacent,
    is_wide,
    largest_operand,
    merge,
)
from fuseplan.engines.triton.source import Forms, finish_shared
from fuseplan.ir.region import Region, Role

_FEW_ELEMENTS = 1 << 15  # below this one block reduces faster than a second launch starts


def is_flat(region: Region) -> bool:
    """Whether a region without anchor takes this form rather than the one by rows."""
    if not region.reductions:
        return True
    is_large = region.graph.is_dynamic or prod(region.domain) > _FEW_ELEMENTS
    return is_large and not closing_gap(region)


def emit_pointwise(region: Region, knobs: Mapping[str, int]) -> Emitted:
    """One kernel, `BLOCK` positions per program; fills and a finishing kernel where reductions close it."""
    closing = Closing(region)
    steps: list[Kernel | Fill] = [*closing.fills(), _emit_flat(region, knobs, closing)]
    if closing.needs_finish:
        steps.append(emit_finish(region, closing))
    return Emitted(tuple(steps), closing.scratch_bytes)


def _emit_flat(region: Region, knobs: Mapping[str, int], closing: Closing) -> Kernel:
    domain, rank = region.domain, len(region.domain)
    axes = by_stride(range(rank), largest_operand(region, Role.OUT))
    params, out = ParamList(region, "i64" if is_wide(region, domain) else "i32"), LineWriter("    ")
    total = prod(domain)
    tile = TileAxis("i", merge(region, axes, domain), mask="inside", first="(pid == 0)")
    body = Body(region, [tile], params, out)
    flat = _flatness(region, tile)
    if not region.graph.is_dynamic:  # else an argument
        out.line("pid = tl.program_id(0)")
    if total > 1:
        out.line(f"i = pid{index_cast(region)} * BLOCK + tl.arange(0, BLOCK)")
        last = tile.groups[-1].axes[-1]
        one = len(tile.groups) == 1
        count = body.extent(tile.groups[0]) if one else params.number("n", total, is_vector=is_adjacent(region, last))
        out.line(f"inside = i < {count}")
        body.split_index(tile, is_flat=flat is not None)
    for index, value in enumerate(region.values):
        if value.op == "reduce":
            _close(body, tile, index, closing)
        elif index not in closing.dependent:
            body.define(index)
    for index, operand in region.stores:  # after all loads: an output may lie in the buffer of an input
        if index not in closing.dependent and region.values[index].op != "reduce":
            body.store(index, operand)
    block = knobs["BLOCK"]
    source, ordered = finish_shared("pointwise", params, out, ("BLOCK",), Forms(len(tile.groups) > 1, flat))
    return Kernel("pointwise", source, ordered, (("BLOCK", block),), -(-total // block), knobs["num_warps"])


def _close(body: Body, tile: TileAxis, index: int, closing: Closing) -> None:
    """Add the program's part of a closing reduction to its accumulator."""
    reduction = body.region.values[index]
    source = body.region.values[reduction.args[0]]
    work, mode = expr.work_type(reduction.compute), reduction.mode
    x = expr.to_work(f"v{reduction.args[0]}", source.dtype, reduction.compute)
    seen = [tile] if any(has_group(source.dim, g) for g in tile.groups) else []
    guards = " & ".join(body.guards(source.dim, seen))
    body.out.line(f"t{index} = tl.where({guards}, tl.broadcast_to({x}, (BLOCK,)), {expr.neutral(mode, work)})")
    body.out.line(f"t{index} = {expr.fold(mode, f't{index}', '0', work)}")
    closing.add_atomic(index, body, rank=1)


def _flatness(region: Region, tile: TileAxis) -> bool | None:
    """Whether a shared kernel's axes are one here; None if its values do not allow it at any extents."""
    if not region.graph.is_dynamic or len(tile.groups) < 2 or any(v.op == "index" for v in region.values):
        return None
    for dim in (*(v.dim for v in region.values), *(o.dim for o in region.operands)):
        if len({has_group(dim, g) for g in tile.groups}) > 1:
            return None
    return all(g.count == 1 for g in tile.groups[:-1])
