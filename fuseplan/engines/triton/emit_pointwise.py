"""Elementwise regions: one flat index over the domain, merged to as few axes as the operands allow."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.layout import by_stride, is_wide, merge
from fuseplan.engines.triton.source import finish_source
from fuseplan.ir.region import Operand, Region, Role


def emit_pointwise(region: Region, knobs: Mapping[str, int]) -> Emitted:
    """One kernel; `BLOCK` positions per program."""
    domain, rank = region.domain, len(region.domain)
    axes = by_stride(range(rank), _guide(region), rank)
    wide = is_wide(region, domain)
    params, out = ParamList(region, "i64" if wide else "i32"), LineWriter("    ")
    total = prod(domain)
    tile = TileAxis("i", merge(region, axes, domain), mask="inside", first="(pid == 0)")
    body = Body(region, [tile], params, out)
    out.line("pid = tl.program_id(0)")
    if total > 1:
        out.line(f"i = pid{'.to(tl.int64)' if wide else ''} * BLOCK + tl.arange(0, BLOCK)")
        count = body.extent(tile.groups[0]) if len(tile.groups) == 1 else params.number("n", total)
        out.line(f"inside = i < {count}")
        body.split_index(tile)
    outputs: dict[int, list[int]] = {}
    for value, operand in region.stores:
        outputs.setdefault(value, []).append(operand)
    for value in range(len(region.values)):
        body.define(value)
        for operand in outputs.get(value, []):
            body.store(value, operand)
    block = knobs["BLOCK"]
    source, ordered = finish_source("pointwise", params, out, ("BLOCK",))
    grid = -(-total // block)
    return Emitted((Kernel("pointwise", source, ordered, (("BLOCK", block),), grid, knobs["num_warps"]),))


def _guide(region: Region) -> Operand | None:
    """The operand whose memory order the walk follows: the largest, outputs first."""
    tensors = [o for o in region.operands if o.role is not Role.SCALAR]
    return max(tensors, key=lambda o: (prod(o.dim), o.role is Role.OUT), default=None)
