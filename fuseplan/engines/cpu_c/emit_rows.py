"""Row form: loops over the kept axes around passes over the reduced ones.

Each pass walks the reduced axes once and computes again, from the inputs and from the row's scalars,
what its reductions and stores need. A softmax is three passes: maximum, sum, quotient. Pure pointwise
is the case without reductions: one pass over the innermost axis.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fuseplan.codegen.axes import merge_in_memory_order, reduced_axes
from fuseplan.engines.cpu_c.emit_scope import Scope, needed_for, reads
from fuseplan.ir.region import Region


@dataclass(slots=True)
class Pass:
    """Work of one walk over some of the inner loops."""

    loops: tuple[int, ...]
    reduces: list[int] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)


def inner_axes(region: Region) -> tuple[int, ...]:
    """Axes that the reductions of the region reduce, or () if none does."""
    return tuple(sorted({a for r in region.reductions for a in reduced_axes(region, r)}))


def rows_refusal(region: Region) -> str:
    """Why the region has no row form; empty if it has one."""
    inner = inner_axes(region)
    for r in region.reductions:
        dim = region.values[region.values[r].args[0]].dim
        varying = [a for a in inner if dim[a] != 1]
        real = reduced_axes(region, r)
        if real and list(real) != varying:
            return f"reductions over different axes share the region: {list(inner)} and {list(real)} (value {r})"
    return ""


def emit_rows(region: Region) -> Scope:
    """The whole body of a kernel in row form."""
    inner = inner_axes(region)
    rank = len(region.domain)
    if inner:
        outer_loops = merge_in_memory_order(region, [a for a in range(rank) if a not in inner])
        inner_loops = merge_in_memory_order(region, inner)
    else:
        loops = merge_in_memory_order(region, range(rank))
        outer_loops, inner_loops = loops[:-1], loops[-1:]
    scope = Scope(region, outer_loops + inner_loops)
    num_outer = len(outer_loops)
    for k in range(num_outer):
        scope.open_loop(k)
    _emit_row(scope, num_outer)
    for _ in range(num_outer):
        scope.writer.close()
    return scope


def _emit_row(scope: Scope, num_outer: int) -> None:
    region = scope.region
    walked = [_loops_of(scope, i, num_outer) for i in range(len(region.values))]
    is_real = [v.op == "reduce" and bool(reduced_axes(region, i)) for i, v in enumerate(region.values)]
    stage = [0] * len(walked)
    passes: dict[tuple[int, tuple[int, ...]], Pass] = {}
    live = set(needed_for(region, [i for i, _ in region.stores], [False] * len(walked)))
    for i, v in enumerate(region.values):
        stage[i] = max([stage[a] for a in reads(v)], default=0)
        if is_real[i] and i in live:
            key = (stage[i], walked[v.args[0]])
            passes.setdefault(key, Pass(key[1])).reduces.append(i)
        stage[i] += is_real[i]
    last = max([stage[i] for i, _ in region.stores if walked[i]] + [level for level, _ in passes], default=0)
    for i, operand in region.stores:  # no pass reads after the first store: an output may lie in an input's buffer
        if walked[i]:
            passes.setdefault((last, walked[i]), Pass(walked[i])).stores.append((i, operand))
    row_values: dict[int, list[int]] = defaultdict(list)
    for i in sorted(live):
        if not walked[i] and not is_real[i]:
            row_values[stage[i]].append(i)
    is_row = [not w for w in walked]
    done = -1
    for (level, _), one in sorted(passes.items(), key=lambda item: item[0]):
        for s in range(done + 1, level + 1):
            _define(scope, row_values[s])
        done = max(done, level)
        emit_pass(scope, one, is_row)
    for s in range(done + 1, max(stage, default=0) + 1):
        _define(scope, row_values[s])
    for i, operand in region.stores:
        if not walked[i]:
            scope.store(i, operand)


def _define(scope: Scope, values: list[int]) -> None:
    for i in values:
        scope.value(i)


def _loops_of(scope: Scope, value: int, first: int) -> tuple[int, ...]:
    """Loops from `first` on over which the value changes."""
    dim = scope.region.values[value].dim
    return tuple([k for k in range(first, len(scope.axes)) if any(dim[a] != 1 for a in scope.axes[k].axes)])


def emit_pass(scope: Scope, one: Pass, is_outside: list[bool]) -> None:
    """Accumulators, the loops of a pass, and the values of its reductions."""
    w, region = scope.writer, scope.region
    clauses = []
    for r in one.reduces:
        acc = scope.accumulator(r)
        w.line(f"{acc.ctype} r{r} = {acc.init};")
        clauses.append(f" reduction({acc.clause} : r{r})")
    for k in one.loops[:-1]:
        scope.open_loop(k)
    w.margin("#pragma omp simd" + "".join(clauses))
    scope.open_loop(one.loops[-1])
    roots = [region.values[r].args[0] for r in one.reduces] + [i for i, _ in one.stores]
    for i in needed_for(region, roots, is_outside):
        scope.value(i)
    for r in one.reduces:
        acc = scope.accumulator(r)
        w.line(f"r{r} = {acc.update.format(a=f'r{r}', x=scope.argument(r))}; {scope.note(r)}")
    for i, operand in one.stores:
        scope.store(i, operand)
    for _ in one.loops:
        w.close()
    for r in one.reduces:
        scope.finish(r, f"r{r}")
