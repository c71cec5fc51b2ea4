"""Rows: pointwise chains, softmax, norms and other reductions over the same axes, in passes over each row.

Each pass walks the reduced axes once and computes again, from the inputs and from the row's scalars, what its
reductions and stores need. A softmax is three passes: maximum, sum, quotient. Pure pointwise is the case without
reductions: one pass over the fastest axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.codegen.axes import MergedAxis, merge_in_memory_order, reduced_axes
from fuseplan.engines.base import YES, Config, KnobSpace, Support, no
from fuseplan.engines.cpu_c.dataflow import depends_on, live_values, needed_for, reads
from fuseplan.engines.cpu_c.estimate import expected_us, work_us
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.cpu_c.tiling import Tiling, rows_of, stores_vary, write_positions
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over some of the inner loops.

    Args:
        stage: how many passes must be done before it
        reduces, stores: what it computes
    """

    stage: int
    loops: tuple[int, ...]
    reduces: tuple[int, ...]
    stores: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RowSchedule:
    """How a region is computed row by row.

    Args:
        axes: loops; the first `num_outer` lead to a row, the others are walked inside of it
        passes: in order
        scalars: values that are the same in the whole row, with the stage after which each is known
    """

    region: Region
    family: str
    axes: tuple[MergedAxis, ...]
    num_outer: int
    passes: tuple[Pass, ...]
    scalars: tuple[tuple[int, int], ...]
    tiling: Tiling
    work_us: float
    expected_us: float

    @property
    def divides_columns(self) -> bool:
        """Whether a task may cover a part of the fastest axis."""
        return self.family == "pointwise" and self.num_outer < len(self.axes)


class RowsForm:
    """Loops over the kept axes around passes over the reduced ones."""

    name = "rows"

    def match(self, region: Region, device: Device) -> RowSchedule | Support:
        if region.anchors:
            return NOT_THIS
        inner = inner_axes(region)
        fit = _axes_refusal(region, inner)
        if not fit.is_supported:
            return fit
        rank = len(region.domain)
        if inner:
            outer = merge_in_memory_order(
                region, [a for a in range(rank) if a not in inner]
            )
            axes = outer + merge_in_memory_order(region, inner)
        else:
            axes = merge_in_memory_order(region, range(rank))
            outer = axes[:-1]
        passes, scalars = _plan_row(region, axes, len(outer))
        work = work_us(region)
        whole = Tiling(rows_of(outer), axes[-1].count if axes and not inner else 1)
        stored = [i for i, _ in region.stores]
        shared = not stores_vary(region, stored, outer if inner else axes)
        tiling = whole if shared else whole.divided(work, rows_only=bool(inner))
        us = expected_us(region, device, tiling.num_tasks)
        return RowSchedule(
            region,
            _family(region, inner),
            axes,
            len(outer),
            passes,
            scalars,
            tiling,
            work,
            us,
        )

    def configs(self, schedule: RowSchedule) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: RowSchedule, config: Config) -> float:
        return schedule.expected_us

    def notes(self, schedule: RowSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: RowSchedule, config: Config) -> Source:
        holes = Holes(schedule.region)
        outer = schedule.axes[: schedule.num_outer]
        write_positions(holes, schedule.tiling, outer, range(len(outer)))
        index = [
            f"at->i{k}" if k < len(outer) else f"i{k}"
            for k in range(len(schedule.axes))
        ]
        frame = Frame(holes, schedule.axes, index)
        _write_row(frame, schedule)
        head = (
            "const struct args *p",
            "const struct position *at",
            "int64_t first",
            "int64_t past",
        )
        holes.function("void", "compute_row", head, frame.writer)
        return assemble(
            "rows", schedule.family, holes, schedule.tiling.num_tasks, schedule.work_us
        )


def inner_axes(region: Region) -> tuple[int, ...]:
    """Axes that the reductions of the region reduce, or () if none does."""
    return tuple(
        sorted({a for r in region.reductions for a in reduced_axes(region, r)})
    )


def _axes_refusal(region: Region, inner: Sequence[int]) -> Support:
    for r in region.reductions:
        dim = region.values[region.values[r].args[0]].dim
        varying = [a for a in inner if dim[a] != 1]
        real = reduced_axes(region, r)
        if real and list(real) != varying:
            differ = f"{list(inner)} and {list(real)} (value {r})"
            return no(
                f"reductions over different axes share the region: {differ}", at=r
            )
    return YES


def _family(region: Region, inner: Sequence[int]) -> str:
    """What kind of kernel it is, for its name."""
    real = [r for r in region.reductions if reduced_axes(region, r)]
    if not real:
        return "pointwise"
    after = depends_on(region, real)
    reuses = any(
        after[i] and any(v.dim[a] != 1 for a in inner)
        for i, v in enumerate(region.values)
    )
    return "norm" if reuses else "reduction"


def _plan_row(
    region: Region, axes: Sequence[MergedAxis], num_outer: int
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
    live = live_values(region)
    for i, v in enumerate(values):
        stage[i] = max([stage[a] for a in reads(v)], default=0)
        if is_real[i] and i in live:
            reduces.setdefault((stage[i], walked[v.args[0]]), []).append(i)
        stage[i] += is_real[i]
    stores: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    last = max(
        [stage[i] for i, _ in region.stores if walked[i]]
        + [level for level, _ in reduces],
        default=0,
    )
    for (
        i,
        operand,
    ) in (
        region.stores
    ):  # no pass reads after the first store: an output may lie in an input's buffer
        if walked[i]:
            stores.setdefault((last, walked[i]), []).append((i, operand))
    keys = sorted({**reduces, **stores}, key=lambda key: key[0])
    passes = tuple(
        [
            Pass(*key, tuple(reduces.get(key, ())), tuple(stores.get(key, ())))
            for key in keys
        ]
    )
    return passes, tuple(
        [(i, stage[i]) for i in live if not walked[i] and not is_real[i]]
    )


def _write_row(frame: Frame, schedule: RowSchedule) -> None:
    region = schedule.region
    pending = list(schedule.scalars)
    for one in schedule.passes:
        for i, stage in pending:
            if stage <= one.stage:
                frame.value(i)
        pending = [(i, stage) for i, stage in pending if stage > one.stage]
        _write_pass(frame, schedule, one)
    for i, _ in pending:
        frame.value(i)
    inner = schedule.axes[schedule.num_outer :]
    for i, operand in region.stores:
        if not any(axis.varies(region.values[i].dim) for axis in inner):
            frame.store(i, operand)


def _write_pass(frame: Frame, schedule: RowSchedule, one: Pass) -> None:
    """Accumulators, the loops of a pass, and the values of its reductions."""
    w, region = frame.writer, frame.region
    clauses = []
    for r in one.reduces:
        acc = frame.accumulator(r)
        w.line(f"{acc.ctype} r{r} = {acc.init};")
        clauses.append(f" reduction({acc.clause} : r{r})")
    for k in one.loops[:-1]:
        frame.open_loop(k)
    w.margin("#pragma omp simd" + "".join(clauses))
    if schedule.divides_columns:
        column = frame.index[one.loops[-1]]
        w.open(f"for (int64_t {column} = first; {column} < past; ++{column}) {{")
    else:
        frame.open_loop(one.loops[-1])
    inner = schedule.axes[schedule.num_outer :]
    is_scalar = [not any(axis.varies(v.dim) for axis in inner) for v in region.values]
    roots = [region.values[r].args[0] for r in one.reduces] + [i for i, _ in one.stores]
    for i in needed_for(region, roots, is_scalar):
        frame.value(i)
    for r in one.reduces:
        frame.update(r, f"r{r}")
    for i, operand in one.stores:
        frame.store(i, operand)
    for _ in one.loops:
        w.close()
    for r in one.reduces:
        frame.finish(r, f"r{r}")
