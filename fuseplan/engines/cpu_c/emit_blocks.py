"""Block form: an anchor fills a small row of accumulators, the epilogue follows per element, reductions close.

Reductions are added up in private scratch, one element per result, and get their values in last loops
of their own. Without an anchor this is the form for reductions over slow axes: memory is read in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order, reduced_axes, separate
from fuseplan.engines.cpu_c.emit_conv import block_axis_of_conv, fill_conv
from fuseplan.engines.cpu_c.emit_matmul import fill_matmul
from fuseplan.engines.cpu_c.emit_scope import Scope, Walk, depends_on, needed_for
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region, Role

BLOCK = 64  # accumulators of one block: a few vector registers' worth


def blocks_refusal(region: Region) -> str:
    """Why the region has no block form; empty if it has one."""
    if len(region.anchors) > 1:
        return "a region with two anchors has no single main loop"
    for i in region.anchors:
        for a in region.values[i].args:
            operand = region.operand_of.get(a)
            if operand is None or region.operands[operand].role is not Role.IN:
                return f"{region.values[i].op} reads value {a} ({region.values[a].op}), which is not in memory"
    real = [r for r in region.reductions if reduced_axes(region, r)]
    after = depends_on(region, real)
    for r in real:
        v = region.values[r]
        if after[v.args[0]]:
            return f"reduction {r} reads the result of another one"
        dim = region.values[v.args[0]].dim
        if dim != region.domain:
            return f"reduction {r} reads dims {list(dim)}, the loops walk {list(region.domain)}"
    return _reuse_refusal(region, real)


def _reuse_refusal(region: Region, real: list[int]) -> str:
    axes = {r: reduced_axes(region, r) for r in real}
    if len(set(axes.values())) > 1 and any(
        sum(depends_on(region, [r])[i] for r in real) > 1 for i in range(len(region.values))
    ):
        return "a value depends on reductions over different axes"
    for r in real:
        for i, found in enumerate(depends_on(region, [r])):
            if found and any(region.values[i].dim[a] != 1 for a in axes[r]):
                return f"value {i} uses the result of reduction {r} again over the reduced axes"
    return ""


def emit_blocks(region: Region) -> Scope:
    """The whole body of a kernel in block form."""
    scope = Scope(region, _loop_axes(region))
    live = needed_for(region, [i for i, _ in region.stores], [False] * len(region.values))
    real = [r for r in region.reductions if r in live and reduced_axes(region, r)]
    sums = {r: _scratch(scope, r) for r in real}
    last = len(scope.axes) - 1
    for k in range(last):
        scope.open_loop(k)
    if region.anchors:
        _open_block(scope, last)
    _elements(scope, sums, last)
    for _ in range(last + bool(region.anchors)):
        scope.writer.close()
    for group in {reduced_axes(region, r): None for r in real}:
        _closing(scope, {r: sums[r] for r in real if reduced_axes(region, r) == group}, group)
    return scope


def _loop_axes(region: Region) -> Sequence[MergedAxis]:
    """Loops in order; with an anchor the last one is walked in blocks and is always there."""
    rank = len(region.domain)
    if not region.anchors:
        return merge_in_memory_order(region, range(rank))
    is_conv = region.values[region.anchors[0]].op == "conv_fprop"
    block = block_axis_of_conv(region) if is_conv else rank - 1
    return separate(region.domain, [*(a for a in range(rank) if a != block), block], keep=(block,))


def _scratch(scope: Scope, reduce: int) -> Walk:
    """Private accumulators of a reduction, filled with the neutral element."""
    reduced = reduced_axes(scope.region, reduce)
    kept = [axis.axes[0] not in reduced for axis in scope.axes]
    extents = [axis.count if k else 1 for axis, k in zip(scope.axes, kept, strict=True)]
    moves = [k and axis.extent != 1 for axis, k in zip(scope.axes, kept, strict=True)]
    strides = [s if m else 0 for s, m in zip(packed_stride(extents), moves, strict=True)]
    acc = scope.accumulator(reduce)
    count = prod(extents)
    name = scope.args.scratch(f"r{reduce}", acc.ctype, count)
    length = scope.args.number(f"r{reduce}_n", count)
    scope.writer.line(f"for (int64_t i = 0; i < {length}; ++i) {name}[i] = {acc.init};")
    return Walk(name, tuple(strides))


def _open_block(scope: Scope, last: int) -> None:
    region, w = scope.region, scope.writer
    anchor = region.values[region.anchors[0]]
    n = scope.extent(last)
    ctype = c_expr.MAIN_LOOP[c_expr.KIND[anchor.compute.name]].ctype
    w.open(f"for (int64_t j0 = 0; j0 < {n}; j0 += {BLOCK}) {{")
    w.line(f"const int64_t width = {n} - j0 < {BLOCK} ? {n} - j0 : {BLOCK};")
    w.line(f"{ctype} acc[{BLOCK}] = {{0}};")
    fill = fill_conv if anchor.op == "conv_fprop" else fill_matmul
    fill(scope, region.anchors[0], last)


def _elements(scope: Scope, sums: dict[int, Walk], last: int) -> None:
    """The loop over the elements of a block (or of the last axis): values, stores, accumulation."""
    region, w = scope.region, scope.writer
    after = depends_on(region, sums)
    inside = depends_on(region, region.anchors)
    stores = [(i, operand) for i, operand in region.stores if not after[i]]
    roots = [i for i, _ in stores] + [region.values[r].args[0] for r in sums]
    members = scope.axes[last].axes if scope.axes else ()
    stop = [v.op in ANCHORS for v in region.values]
    needed = needed_for(region, roots, stop)
    moving = [i for i in needed if inside[i] or any(region.values[i].dim[a] != 1 for a in members)]
    for i in needed:
        if i not in moving:
            scope.value(i)
    local = {r: walk for r, walk in sums.items() if not walk.strides[last]}
    for r, walk in local.items():
        w.line(f"{scope.accumulator(r).ctype} t{r} = {walk.prefix}[{scope.offset(walk)}];")
    w.margin("#pragma omp simd" + "".join([f" reduction({scope.accumulator(r).clause} : t{r})" for r in local]))
    _open_elements(scope, last)
    for i in region.anchors:
        _define_anchor(scope, i)
    for i in moving:
        scope.value(i)
    for r, walk in sums.items():
        acc = scope.accumulator(r)
        place = f"t{r}" if r in local else f"{walk.prefix}[{scope.offset(walk)}]"
        w.line(f"{place} = {acc.update.format(a=place, x=scope.argument(r))}; {scope.note(r)}")
    for i, operand in stores:
        scope.store(i, operand)
    w.close()
    for r, walk in local.items():
        w.line(f"{walk.prefix}[{scope.offset(walk)}] = t{r};")


def _open_elements(scope: Scope, last: int) -> None:
    if scope.region.anchors:
        scope.writer.open("for (int64_t j = 0; j < width; ++j) {")
        scope.index[last] = "(j0 + j)"
    else:
        scope.open_loop(last)


def _define_anchor(scope: Scope, value: int) -> None:
    v = scope.region.values[value]
    acc = c_expr.MAIN_LOOP[c_expr.KIND[v.compute.name]]
    scope.define(value, c_expr.accumulated("acc[j]", acc, v.compute, v.dtype))


def _closing(scope: Scope, sums: dict[int, Walk], group: Sequence[int]) -> None:
    """Loops over the results of reductions over the same axes: their values, what follows, stores."""
    region = scope.region
    after = depends_on(region, sums)
    stores = [(i, operand) for i, operand in region.stores if after[i]]
    if not stores:
        return
    scope.index = [f"i{k}" for k in range(len(scope.axes))]
    loops = [k for k, axis in enumerate(scope.axes) if not set(axis.axes) & set(group) and axis.extent != 1]
    for k in loops:
        scope.open_loop(k)
    for r, walk in sums.items():
        scope.finish(r, f"{walk.prefix}[{scope.offset(walk)}]")
    behind = [i in sums for i in range(len(after))]
    for i in needed_for(region, [i for i, _ in stores], behind):
        scope.value(i)
    for i, operand in stores:
        scope.store(i, operand)
    for _ in loops:
        scope.writer.close()
