"""Reductions over rows: added up in the memory of a thread, a few rows at a time, and then into the results of a task.

Floats are added up as floats over at most some hundreds of elements and in double beyond, so that the error of a sum
does not grow with its length. Results of tasks are folded as `elements.GlobalReductions` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.codegen.writer import LineWriter
from fuseplan.dtypes import DOUBLE
from fuseplan.engines.cpu_c.elements import GlobalReductions
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.engines.cpu_c.tiling import Tiling
from fuseplan.ir.region import Region

_LONG = frozenset({"log", "log1p", "tanh", "erf"})
_TASK = ("const struct args *p", "int64_t task", "void *scratch")


def is_float_sum(frame: Frame, reduce: int) -> bool:
    """Whether a reduction may add up a few elements as floats."""
    v = frame.region.values[reduce]
    return c_expr.KIND[v.compute.name] == "f32" and v.mode == "add"


def in_block(frame: Frame, reduce: int, *, is_whole: bool) -> c_expr.Accumulator:
    """How a reduction adds up in one block; in one that is not whole a sum is in double."""
    v = frame.region.values[reduce]
    if c_expr.KIND[v.compute.name] != "f32" or v.mode == "mul":
        return frame.accumulator(reduce)
    is_wide = v.mode == "add" and not is_whole
    return frame.accumulator(reduce) if is_wide else c_expr.BLOCK[v.mode]


def add_into(frame: Frame, reduce: int, place: str, text: str = "") -> None:
    """The line that adds an element, or the partial result `text`, into an accumulator."""
    update = frame.accumulator(reduce).update
    x = text or frame.argument(reduce)
    frame.writer.line(
        f"{place} = {update.format(a=place, x=x)}; {frame.holes.note(reduce)}"
    )


@dataclass(frozen=True, slots=True)
class Block:
    """The innermost loop of a pass, cut in blocks; if it adds up floats, what is left behind them adds up in double.

    Args:
        index, first, past: of the loop, as C text
        reduces: reductions that each block has in a variable ``q<value>``
        beside: type of the column beside it, see `beside_of`
        pairs: operands that are stored in pairs of elements, if blocks are walked in pairs
        is_joined: whether the only reduction, a sum of floats, takes the sum of a pair, so that it waits once
    """

    index: str
    first: str
    past: str
    reduces: tuple[int, ...]
    beside: str
    pairs: tuple[int, ...] | None = None
    is_joined: bool = False

    def write(
        self,
        frame: Frame,
        element: Callable[[], None],
        merge: Callable[[int, str], None],
        ahead: Callable[[], None] = lambda: None,
    ) -> None:
        """The loops.

        Args:
            element: writes what is done at one position, without what the block's own reductions add up
            merge: writes what is done with the result of a block, given as text
            ahead: writes what is done before a block
        """
        w = frame.writer
        w.line(f"{self.beside} beside[SUM_BLOCK];")
        w.line(f"int64_t b = {self.first};")
        w.open(f"for (; b + SUM_BLOCK <= {self.past}; b += SUM_BLOCK) {{")
        ahead()
        self._write_loop(frame, ("b", "b + SUM_BLOCK"), element, merge, is_whole=True)
        w.close()
        w.line("IS_READ(beside);")
        self._write_loop(frame, ("b", self.past), element, merge, is_whole=False)

    def _write_loop(
        self,
        frame: Frame,
        bounds: tuple[str, str],
        element: Callable[[], None],
        merge: Callable[[int, str], None],
        *,
        is_whole: bool,
    ) -> None:
        w, accumulators, clauses = frame.writer, {}, []
        for r in self.reduces:
            acc = in_block(frame, r, is_whole=is_whole)
            accumulators[r] = acc
            w.line(f"{acc.ctype} q{r} = {acc.init};")
            clauses.append(f" reduction({acc.clause} : q{r})")
        w.margin("#pragma omp simd" + "".join(clauses))
        i, pairs = self.index, self.pairs if is_whole else None

        def add(text: str = "") -> None:
            for r, acc in accumulators.items():
                added = acc.update.format(a=f"q{r}", x=text or frame.argument(r))
                w.line(f"q{r} = {added}; {frame.holes.note(r)}")

        def write_one() -> None:
            element()
            if pairs is not None and self.is_joined:
                w.line(f"both[h] = {frame.argument(self.reduces[0])};")
            else:
                add()

        if pairs is not None:
            w.open("for (int64_t j = 0; j < SUM_BLOCK / 2; ++j) {")
            w.line("beside[j] = 0;")
            if self.is_joined:
                w.line("float both[2];")
            self._write_pair(frame, pairs, write_one)
            if self.is_joined:
                add("(both[0] + both[1])")
            w.close()
        else:
            w.open(f"for (int64_t {i} = {bounds[0]}; {i} < {bounds[1]}; ++{i}) {{")
            if is_whole:
                w.line(f"beside[{i} - b] = 0;")
            write_one()
            w.close()
        for r, acc in accumulators.items():
            merge(r, acc.result.format(a=f"q{r}"))

    def _write_pair(
        self, frame: Frame, stored: Sequence[int], write_one: Callable[[], None]
    ) -> None:
        """What is done with the two neighbours at 2 j in a block."""
        w, last = frame.writer, len(frame.index) - 1
        for k in stored:
            w.line(f"uint32_t w_{frame.holes.names[k]}[2];")
        w.margin("#pragma GCC unroll 2")
        w.open("for (int h = 0; h < 2; ++h) {")
        # not read where all values were kept by passes before
        w.line(f"const int64_t {self.index} = b + 2 * j + h; (void){self.index};")
        frame.half = "h"
        write_one()
        frame.half = ""
        w.close()
        frame.index[last] = "b + 2 * j"
        for k in stored:
            name = f"w_{frame.holes.names[k]}"
            w.line(f"store_pair(&{frame.element(k)}, {name}[0], {name}[1]);")
        frame.index[last] = self.index


def beside_of(region: Region, values: Sequence[int]) -> str:
    """The type of the column beside a loop over these values, which says how many vectors stand side by side.

    Long functions of floats are worth four vectors of floats, an exponential or less two: a core then finds enough.
    """
    long = [v for v in (region.values[i] for i in values) if v.op in _LONG]
    return "uint8_t" if any(v.compute is not DOUBLE for v in long) else "uint16_t"


class RowSums(GlobalReductions):
    """Results of reductions that are added up row by row.

    Args:
        inner: numbers of the axes that a row consists of
        has_buffers: whether floats are added up as floats, in the memory of the thread, over `FLUSH_ROWS` rows
    """

    def __init__(
        self,
        holes: Holes,
        axes: Sequence[MergedAxis],
        reduces: Sequence[int],
        tiling: Tiling,
        inner: Sequence[int],
        num_leading: int = 0,
        *,
        has_buffers: bool,
    ) -> None:
        super().__init__(holes, axes, range(len(axes)), reduces, tiling, num_leading)
        self.frame = Frame(holes, axes, [f"i{k}" for k in range(len(axes))])
        self.buffers: dict[int, str] = {}
        self.inner = tuple(inner)
        self.is_paired = False
        for r in reduces:
            along = self.results[r][0].along
            moves_inside = all(k in inner for k, s in enumerate(along) if s)
            if (
                has_buffers
                and any(along)
                and moves_inside
                and is_float_sum(self.frame, r)
            ):
                kept = [k for k in inner if along[k]]
                count = prod([axes[k].count for k in kept])
                self.buffers[r] = holes.args.of_thread(f"s{r}", "float", count)

    @property
    def in_row(self) -> tuple[int, ...]:
        """Reductions of which a row has one result."""
        found = self.results.items()
        return tuple(
            [
                r
                for r, (strides, _) in found
                if not any(strides.along[k] for k in self.inner)
            ]
        )

    def write_pointers(self, frame: Frame) -> None:
        """Local pointers ``r<value>`` to where a row is added."""
        for r, (_, count) in self.results.items():
            if r in self.buffers:
                frame.writer.line(f"float *const r{r} = {self.buffers[r]};")
            else:
                ctype = frame.accumulator(r).ctype
                frame.writer.line(
                    f"{ctype} *const r{r} = p->r{r} + at->task * {count};"
                )

    def update(self, frame: Frame, reduce: int, text: str = "") -> None:
        """The line that adds an element, or the partial result `text`, at the position of a frame."""
        self.add(frame, reduce, self.place(frame, reduce), text)

    def add(self, frame: Frame, reduce: int, place: str, text: str = "") -> None:
        """The line that adds an element, or the partial result `text`, at a place."""
        if reduce not in self.buffers:
            add_into(frame, reduce, place, text)
            return
        added = c_expr.BLOCK["add"].update.format(
            a=place, x=text or frame.argument(reduce)
        )
        frame.writer.line(f"{place} = {added}; {frame.holes.note(reduce)}")

    def write_flush(self) -> None:
        """The holes `begin` and `flush`: neutral elements; what a thread has in its memory added into its task's."""
        begin, flush = LineWriter(), LineWriter()
        for r, (_, count) in self.results.items():
            init = self.frame.accumulator(r).init
            whole = f"p->r{r}[task * {count} + i]"
            begin.line(f"for (int64_t i = 0; i < {count}; ++i) {whole} = {init};")
            if r not in self.buffers:
                continue
            begin.line(f"float *const s{r} = {self.buffers[r]};")
            begin.line(f"for (int64_t i = 0; i < {count}; ++i) s{r}[i] = 0.0f;")
            flush.line(f"float *const s{r} = {self.buffers[r]};")
            if self.is_paired:
                flush.line(f"UNPAIR(p->r{r} + task * {count}, s{r}, {count});")
                continue
            flush.margin("#pragma omp simd")
            flush.open(f"for (int64_t i = 0; i < {count}; ++i) {{")
            flush.line(f"{whole} += (double)s{r}[i];")
            flush.line(f"s{r}[i] = 0.0f;")
            flush.close()
        self.holes.function("void", "begin", _TASK, begin)
        self.holes.function("void", "flush", _TASK, flush)

    def write_close(self) -> None:
        """The hole `close`: what follows from the results at one position on the leading axes, if a task has all."""
        index = [
            f"at->i{k}" if k < self.num_leading else f"i{k}"
            for k in range(len(self.axes))
        ]
        frame = Frame(self.holes, self.axes, index)
        if self.num_leading:
            for r, (_, count) in self.results.items():
                ctype = frame.accumulator(r).ctype
                frame.writer.line(
                    f"{ctype} *const r{r} = p->r{r} + at->task * {count};"
                )
            self.write_follow(frame, "")
        head = ("const struct args *p", "const struct position *at")
        self.holes.function("void", "close_group", head, frame.writer)
