"""The loop over the elements of a row or block, and reductions that add all elements up: global reductions.

Each task adds into results of its own, in private memory; the last task to finish folds them in the order of tasks,
which makes the sum independent of the number of threads, and computes what follows from the reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from fuseplan.codegen.axes import MergedAxis, reduced_axes
from fuseplan.codegen.writer import LineWriter
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.cpu_c.dataflow import (
    depends_on,
    element_values,
    live_values,
    needed_for,
)
from fuseplan.engines.cpu_c.frame import Frame, Strides
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.engines.cpu_c.tiling import BLOCK_AND_TASK, Tiling
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region

_RESULT_BYTES = 4 << 20  # that all tasks together may take for their results


def global_reductions(region: Region) -> tuple[int, ...]:
    """Reductions that a store needs and that really reduce."""
    live = set(live_values(region))
    return tuple(r for r in region.reductions if r in live and reduced_axes(region, r))


def reductions_refusal(region: Region) -> Support:
    """What keeps the reductions of a region from being global ones, or YES."""
    real = [r for r in region.reductions if reduced_axes(region, r)]
    after = depends_on(region, real)
    for r in real:
        v = region.values[r]
        if after[v.args[0]]:
            return no(f"reduction {r} reads the result of another one", at=r)
        dim = region.values[v.args[0]].dim
        if dim != region.domain:
            return no(
                f"reduction {r} reads dims {list(dim)}, the loops walk {list(region.domain)}",
                at=r,
            )
    return _reuse_refusal(region, real)


def _reuse_refusal(region: Region, real: list[int]) -> Support:
    axes = {r: reduced_axes(region, r) for r in real}
    depends = {r: depends_on(region, [r]) for r in real}
    for i in range(len(region.values)):
        found = [r for r in real if depends[r][i]]
        if len({axes[r] for r in found}) > 1:
            return no(f"value {i} depends on reductions over different axes", at=i)
        for r in found:
            if any(region.values[i].dim[a] != 1 for a in axes[r]):
                return no(
                    f"value {i} uses the result of reduction {r} again over the reduced axes",
                    at=i,
                )
    return YES


def most_tasks(region: Region, reduces: Sequence[int]) -> int:
    """How many tasks there is memory for, each with results of its own."""
    num_results = sum([prod(region.values[r].dim) for r in reduces])
    return max(1, min(64, _RESULT_BYTES // (8 * max(1, num_results))))


class GlobalReductions:
    """Results of some reductions, one set for each task, and the holes `begin` and `finish`.

    Args:
        axes, labels: loops of the kernel, as in a `Frame`
        num_leading: so many axes in front have results of their own at each position, which follow one another
    """

    def __init__(
        self,
        holes: Holes,
        axes: Sequence[MergedAxis],
        labels: Sequence[int],
        reduces: Sequence[int],
        tiling: Tiling,
        num_leading: int = 0,
    ) -> None:
        self.num_leading = num_leading
        self.holes, self.region = holes, holes.region
        self.axes, self.labels, self.reduces = (
            tuple(axes),
            tuple(labels),
            tuple(reduces),
        )
        self.results = {r: self._allocate(r, tiling.num_tasks) for r in reduces}
        self.in_lanes: list[
            int
        ] = []  # those that have a result for each column of a block until a task ends

    def _allocate(self, reduce: int, num_tasks: int) -> tuple[Strides, str]:
        """Where the results of a reduction lie, and how many it has."""
        reduced = reduced_axes(self.region, reduce)
        kept = [
            k >= self.num_leading and axis.axes[0] not in reduced
            for k, axis in enumerate(self.axes)
        ]
        extents = [
            axis.count if k else 1 for axis, k in zip(self.axes, kept, strict=True)
        ]
        moves = [
            k and axis.extent != 1 for axis, k in zip(self.axes, kept, strict=True)
        ]
        strides = [
            s if m else 0 for s, m in zip(packed_stride(extents), moves, strict=True)
        ]
        count = prod(extents)
        acc = Frame(self.holes, (), ()).accumulator(reduce)
        self.holes.args.scratch(f"r{reduce}", acc.ctype, count * num_tasks)
        return Strides(f"r{reduce}", tuple(strides)), self.holes.args.number(
            f"r{reduce}_n", count
        )

    def write_pointers(self, frame: Frame) -> None:
        """Local pointers to the results of the task at hand, one ``r<value>`` for each reduction."""
        for r in (r for r in self.reduces if r not in self.in_lanes):
            count = self.results[r][1]
            frame.writer.line(
                f"{frame.accumulator(r).ctype} *const r{r} = p->r{r} + at->task * {count};"
            )

    def place(self, frame: Frame, reduce: int) -> str:
        """The result of a reduction at the position of a frame, behind `write_pointers`."""
        return f"r{reduce}[{frame.own_offset(self.results[reduce][0])}]"

    def write_lanes(self) -> None:
        """The holes `struct lanes`, `start` and `fold`, for reductions to one result."""
        found = self.in_lanes = [
            r for r in self.reduces if not any(self.results[r][0].along)
        ]
        fields, start, fold = LineWriter(), LineWriter(), LineWriter()
        for r in found:
            acc = Frame(self.holes, (), ()).accumulator(r)
            fields.line(f"  {acc.ctype} r{r}[BLOCK];")
            start.line(f"for (int j = 0; j < BLOCK; ++j) lanes->r{r}[j] = {acc.init};")
            place = f"p->r{r}[task * {self.results[r][1]}]"
            update = acc.update.format(a=place, x=f"lanes->r{r}[j]")
            fold.line(f"for (int j = 0; j < BLOCK; ++j) {place} = {update};")
        text = fields.text() if found else "  int unused;\n"
        self.holes.texts.append(f"\nstruct lanes {{\n{text}}};\n")
        lanes = "struct lanes *lanes"
        self.holes.function("void", "start", [lanes], start)
        self.holes.function("void", "fold", (*BLOCK_AND_TASK, lanes), fold)

    def write_begin(self) -> None:
        """The hole `begin`: the neutral elements."""
        w = LineWriter()
        for r, (_, count) in self.results.items():
            init = Frame(self.holes, (), ()).accumulator(r).init
            w.line(
                f"for (int64_t i = 0; i < {count}; ++i) p->r{r}[task * {count} + i] = {init};"
            )
        self.holes.function("void", "begin", BLOCK_AND_TASK, w)

    def write_finish(self) -> None:
        """The hole `finish`: results of all tasks folded, and what follows; nothing where a task has whole groups."""
        frame = Frame(
            self.holes, self.axes, [f"i{label}" for label in self.labels], self.labels
        )
        for r, (_, count) in [] if self.num_leading else self.results.items():
            acc = frame.accumulator(r)
            w = frame.writer
            w.open("for (int64_t task = 1; task < num_tasks; ++task) {")
            x = f"p->r{r}[task * {count} + i]"
            w.line(
                f"for (int64_t i = 0; i < {count}; ++i) p->r{r}[i] = {acc.update.format(a=f'p->r{r}[i]', x=x)};"
            )
            w.close()
        if not self.num_leading:
            self.write_follow(frame)
        self.holes.function(
            "void",
            "finish",
            ("const struct args *p", "int64_t num_tasks"),
            frame.writer,
        )

    def write_follow(self, frame: Frame, block: str = "p->") -> None:
        """What follows from the results, for each group of reductions over equal axes."""
        for group in {reduced_axes(self.region, r): None for r in self.reduces}:
            members = [r for r in self.reduces if reduced_axes(self.region, r) == group]
            self._follow(frame, members, group, block)

    def _follow(
        self,
        frame: Frame,
        reduces: Sequence[int],
        group: Sequence[int],
        block: str = "p->",
    ) -> None:
        """Values of reductions over the same axes, what follows from them, and stores.

        Args:
            block: C text in front of the name of an array of results
        """
        after = depends_on(self.region, reduces)
        stores = [(i, operand) for i, operand in self.region.stores if after[i]]
        if not stores:
            return
        loops = [
            k
            for k, axis in enumerate(self.axes)
            if k >= self.num_leading
            and not set(axis.axes) & set(group)
            and axis.extent != 1
        ]
        for k in loops:
            frame.open_loop(k)
        needed = needed_for(
            self.region,
            [i for i, _ in stores],
            [i in reduces for i in range(len(after))],
        )
        for r in reduces:
            frame.finish(r, f"{block}{self.place(frame, r)}")
        for i in needed:
            frame.value(i)
        for i, operand in stores:
            frame.store(i, operand)
        for _ in loops:
            frame.writer.close()


def element_stores(region: Region, reduces: Sequence[int]) -> list[tuple[int, int]]:
    """Stores that do not wait for a reduction."""
    after = depends_on(region, reduces)
    return [(i, operand) for i, operand in region.stores if not after[i]]


def write_elements(
    frame: Frame,
    loop: str,
    sums: GlobalReductions,
    anchors: Mapping[int, str],
) -> None:
    """The loop over the frame's last axis: values, stores, and what is added into the results of reductions.

    Args:
        loop: the line that opens it
        anchors: the text of each anchor's sum
    """
    region, w, reduces = frame.region, frame.writer, sums.reduces
    stores = element_stores(region, reduces)
    roots = [i for i, _ in stores] + [region.values[r].args[0] for r in reduces]
    needed = needed_for(region, roots, [v.op in ANCHORS for v in region.values])
    inside = depends_on(region, region.anchors)
    last = frame.axes[-1]
    moving = [i for i in needed if inside[i] or last.varies(region.values[i].dim)]
    for i in needed:
        if i not in moving:
            frame.value(i)
    sums.write_pointers(frame)
    local = [
        r
        for r in reduces
        if r not in sums.in_lanes and not sums.results[r][0].along[-1]
    ]
    for r in local:
        w.line(f"{frame.accumulator(r).ctype} t{r} = {sums.place(frame, r)};")
    w.margin(
        "#pragma omp simd"
        + "".join([f" reduction({frame.accumulator(r).clause} : t{r})" for r in local])
    )
    w.open(loop)
    for i, text in anchors.items():
        frame.finish_anchor(i, text)
    for i in moving:
        frame.value(i)
    for r in reduces:
        place = f"lanes->r{r}[j]" if r in sums.in_lanes else sums.place(frame, r)
        frame.update(r, f"t{r}" if r in local else place)
    for i, operand in stores:
        frame.store(i, operand)
    w.close()
    for r in local:
        w.line(f"{sums.place(frame, r)} = t{r};")


def domain_refusal(region: Region) -> Support:
    """Whether all elements are walked by one domain: what is not in front of an anchor broadcasts to it, or why not."""
    for i in [*element_values(region), *region.anchors]:
        for axis, extent in enumerate(region.values[i].dim):
            if extent not in (1, region.domain[axis]):
                dims = f"{list(region.values[i].dim)}, the loops walk {list(region.domain)}"
                return no(f"value {i} ({region.values[i].op}) has dims {dims}", at=i)
    return YES
