"""Passes over a row: which reductions are a row's, in which order they come, and what is kept between passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order, reduced_axes
from fuseplan.dtypes import BFLOAT16, DOUBLE, HALF
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.cpu_c.dataflow import depends_on, live_values, needed_for, reads
from fuseplan.engines.cpu_c.tiling import rows_of
from fuseplan.ir.region import Region

_KEPT_BYTES = 1 << 18  # of one thread: what is kept should be found in its own cache
_WORTH_KEEPING = 8  # in the unit of `_WEIGHT`: what a store and a load cost
# table: what an operation costs, where it is not 1
_WEIGHT = {"exp": 12, "log": 16, "log1p": 18, "tanh": 18, "erf": 24, "sin": 40, "cos": 40, "tan": 44, "pow": 60,
           "mod": 40, "div": 8, "sqrt": 8, "load": 0, "const": 0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over some of the inner loops.

    Args:
        stage: how many passes must be done before it
        reduces, stores: what it computes
        sums: reductions over other axes that it adds to
        keeps: values that it keeps for later passes
    """

    stage: int
    loops: tuple[int, ...]
    reduces: tuple[int, ...]
    stores: tuple[tuple[int, int], ...]
    sums: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()

    def roots(self, region: Region) -> list[int]:
        """Values that it is there for."""
        reduced = [region.values[r].args[0] for r in (*self.reduces, *self.sums)]
        return reduced + [i for i, _ in self.stores]


def divide_reductions(region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Reductions over rows, and those that only close the region and are over other axes."""
    live = set(live_values(region))
    real = [r for r in region.reductions if r in live and reduced_axes(region, r)]
    inner = {
        a for r in real if not _closes(region, r, real) for a in reduced_axes(region, r)
    }
    if not inner and len({reduced_axes(region, r) for r in real}) > 1:
        last = merge_in_memory_order(region, range(len(region.domain)))[-1].axes[-1]
        over_last = [
            reduced_axes(region, r) for r in real if last in reduced_axes(region, r)
        ]
        inner = set((over_last or [reduced_axes(region, real[0])])[0])
    if not inner:
        return tuple(real), ()
    over_row = [r for r in real if set(reduced_axes(region, r)) <= inner]
    return tuple(over_row), tuple([r for r in real if r not in over_row])


def _closes(region: Region, reduce: int, real: Sequence[int]) -> bool:
    """Whether nothing is computed from a reduction for each element that it reduces, nor by another reduction."""
    after = depends_on(region, [reduce])
    axes = reduced_axes(region, reduce)
    return not any(
        after[i] and i != reduce and (i in real or any(v.dim[a] != 1 for a in axes))
        for i, v in enumerate(region.values)
    )


def sums_refusal(region: Region, sums: Sequence[int], inner: Sequence[int]) -> Support:
    """Whether these reductions can be added up beside the last pass, or why not."""
    real = [r for r in region.reductions if reduced_axes(region, r)]
    others = [r for r in real if r not in sums]
    after_row, after_sum = depends_on(region, others), depends_on(region, sums)
    for r in sums:
        axes = reduced_axes(region, r)
        if region.values[region.values[r].args[0]].dim != region.domain:
            return no(
                f"reduction {r} is over {list(axes)} of a part of the domain, other ones over {list(inner)}",
                at=r,
            )
        if not _closes(region, r, real):
            return no(
                f"reductions over different axes share the region: {list(inner)} and {list(axes)} (value {r})",
                at=r,
            )
    for i, v in enumerate(region.values):
        if after_sum[i] and i not in sums:
            over = {reduced_axes(region, r) for r in sums if depends_on(region, [r])[i]}
            if len(over) > 1 or any(
                after_row[a] and not after_sum[a] for a in reads(v)
            ):
                return no(f"value {i} depends on reductions over different axes", at=i)
    return YES


def axes_refusal(
    region: Region, over_row: Sequence[int], inner: Sequence[int]
) -> Support:
    for r in over_row:
        dim = region.values[region.values[r].args[0]].dim
        varying = [a for a in inner if dim[a] != 1]
        real = reduced_axes(region, r)
        if list(real) != varying:
            differ = f"{list(inner)} and {list(real)} (value {r})"
            return no(
                f"reductions over different axes share the region: {differ}", at=r
            )
    return YES


def plan_row(
    region: Region, axes: Sequence[MergedAxis], num_outer: int, sums: Sequence[int]
) -> tuple[tuple[Pass, ...], tuple[tuple[int, int], ...]]:
    """The passes of a row, and its scalars with their stages."""
    values = region.values
    inner = range(num_outer, len(axes))
    walked = [tuple([k for k in inner if axes[k].varies(v.dim)]) for v in values]
    is_real = [
        v.op == "reduce" and bool(reduced_axes(region, i)) for i, v in enumerate(values)
    ]
    stage = [0] * len(values)
    reduces: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    live, after = live_values(region), depends_on(region, sums)
    for i, v in enumerate(values):
        stage[i] = max([stage[a] for a in reads(v)], default=0)
        if is_real[i] and i in live and not after[i]:
            reduces.setdefault((stage[i], walked[v.args[0]]), []).append(i)
        stage[i] += is_real[i]
    stores: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    wanted = [(i, o) for i, o in region.stores if walked[i] and not after[i]]
    added = [values[r].args[0] for r in sums]
    last = max(
        [stage[i] for i in (*(i for i, _ in wanted), *added)]
        + [level for level, _ in reduces],
        default=0,
    )
    # no pass reads after the first store: an output may lie in an input's buffer
    for i, operand in wanted:
        stores.setdefault((last, walked[i]), []).append((i, operand))
    if sums:
        stores.setdefault((last, tuple(inner)), [])
    keys = sorted({**reduces, **stores}, key=lambda key: key[0])
    passes = tuple(
        [
            Pass(
                *key,
                tuple(reduces.get(key, ())),
                tuple(stores.get(key, ())),
                tuple(sums) if key == (last, tuple(inner)) else (),
            )
            for key in keys
        ]
    )
    scalars = [i for i in live if not (walked[i] or is_real[i] or after[i])]
    return passes, tuple([(i, stage[i]) for i in scalars])


def keep_values(
    region: Region,
    axes: Sequence[MergedAxis],
    num_outer: int,
    passes: Sequence[Pass],
    is_scalar: Sequence[bool],
    *,
    is_paired: bool,
) -> tuple[Pass, ...]:
    """The passes with values that they keep because they cost more than a load."""
    inner = tuple(range(num_outer, len(axes)))
    known, found = list(is_scalar), list(passes)
    row = rows_of([axes[k] for k in inner])
    room = float("inf") if region.graph.is_dynamic else float(_KEPT_BYTES)
    for n, one in enumerate(found):
        kept = []
        for i in reversed(needed_for(region, one.roots(region), tuple(known))):
            dim, later = region.values[i].dim, found[n + 1 :]
            is_whole = one.loops == inner and all(axes[k].varies(dim) for k in inner)
            again = any(i in needed_for(region, q.roots(region), known) for q in later)
            size = row * _carrier_bytes(region, i)
            costs = _weight(region, i, known, is_paired) >= _WORTH_KEEPING
            if is_whole and again and costs and size <= room:
                known[i], room = True, room - size
                kept.append(i)
        found[n] = replace(one, keeps=tuple(sorted(kept)))
    return tuple(found)


def _carrier_bytes(region: Region, value: int) -> int:
    dtype = region.values[value].dtype
    return dtype.itemsize if not dtype.is_float else 8 if dtype is DOUBLE else 4


def _weight(region: Region, value: int, known: Sequence[bool], is_paired: bool) -> int:
    """What it costs to compute a value from what is in memory."""
    total = 0
    for i in needed_for(region, [value], known):
        v = region.values[i]
        if v.dtype in (HALF, BFLOAT16):
            total += 2 if v.op == "load" and is_paired else 8
        total += _WEIGHT.get(v.op, 1)
    return total
