"""Lines of a hole that evaluate values of the region at one position: offsets, definitions, stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.codegen.writer import LineWriter
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, INT64, DType
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.ir.region import Region, Role, Value


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides of an operand, or of an array of results, along the axes of a frame; `prefix` starts their names."""

    prefix: str
    along: tuple[int, ...]


def is_exp_down(region: Region, v: Value) -> bool:
    """Whether a value is the exponential of a float that is never positive: below a maximum, or against a magnitude."""
    if v.op != "exp" or v.compute is not FLOAT:
        return False
    x = region.values[v.args[0]]
    if x.op not in ("neg", "sub"):
        return False
    y = region.values[x.args[-1]]
    if not all(t is FLOAT for t in (x.dtype, x.compute, y.dtype, y.compute)):
        return False
    if x.op == "neg":
        return y.op == "abs"
    return y.op == "reduce" and y.mode == "max" and y.args == x.args[:1]


class Frame:
    """The body of one function while it is written.

    Args:
        axes: what the position runs over; `index[k]` is the C text of the position on the k-th
        labels: numbers that name the axes in the parameter block; an axis has one label in all frames of a kernel
    """

    def __init__(
        self,
        holes: Holes,
        axes: Sequence[MergedAxis],
        index: Sequence[str],
        labels: Sequence[int] | None = None,
    ) -> None:
        self.holes, self.region = holes, holes.region
        self.axes, self.index = tuple(axes), list(index)
        self.labels = tuple(range(len(self.axes)) if labels is None else labels)
        self.writer = LineWriter()
        self._strides: dict[int, Strides] = {}
        #: C text of which element of a pair is at hand, where a loop takes pairs of bfloat16 along the last axis
        self.half = ""
        #: values of half types that have a variable from before they are rounded
        self._unrounded: set[int] = set()

    def extent(self, loop: int) -> str:
        return self.holes.args.number(f"n{self.labels[loop]}", self.axes[loop].count)

    def open_loop(self, loop: int) -> None:
        i = self.index[loop]
        self.writer.open(f"for (int64_t {i} = 0; {i} < {self.extent(loop)}; ++{i}) {{")

    def strides(self, operand: int) -> Strides:
        """Strides of an operand over the axes: those of each one's fastest member."""
        found = self._strides.get(operand)
        if found is None:
            o = self.region.operands[operand]
            along = tuple([axis.stride(o) for axis in self.axes])
            found = self._strides[operand] = Strides(self.holes.names[operand], along)
        return found

    def offset(self, strides: Strides) -> str:
        """Element offset at the current position; a unit stride is baked in: the compiler sees contiguous memory."""
        terms = []
        for label, index, stride in zip(
            self.labels, self.index, strides.along, strict=True
        ):
            if stride and index != "0":
                name = f"{strides.prefix}_s{label}"
                terms.append(
                    index
                    if stride == 1
                    else f"{index} * {self.holes.args.number(name, stride)}"
                )
        return " + ".join(terms) or "0"

    def own_offset(self, strides: Strides) -> str:
        """The same in memory of the kernel, where in each block the second elements of pairs follow all first ones."""
        index = self.index
        if self.half:
            place = f"b + j + {self.half} * (SUM_BLOCK / 2)"
            self.index = [*index[:-1], place]
        text = self.offset(strides)
        self.index = index
        return text

    def is_paired(self, operand: int) -> bool:
        """Whether two elements of an operand are read or written at once."""
        o = self.region.operands[operand]
        return (
            bool(self.half)
            and o.dtype is BFLOAT16
            and self.strides(operand).along[-1] == 1
        )

    def element(self, operand: int) -> str:
        """The memory element of an operand at the current position."""
        pointer = self.holes.pointer(operand)
        return f"{pointer}[{self.offset(self.strides(operand))}]"

    def define(self, value: int, text: str) -> None:
        """The line that gives a value its name."""
        dtype = self.region.values[value].dtype
        carrier = c_expr.CARRIER[dtype.name]
        exact = c_expr.before_rounding(text, dtype)
        stored = [
            self.region.operands[k].dtype for i, k in self.region.stores if i == value
        ]
        # a pass before may have computed what this one reads
        self._unrounded.discard(value)
        if exact and stored and all(t is dtype for t in stored):
            self.writer.line(
                f"const float u{value} = {exact}; {self.holes.note(value)}"
            )
            self._unrounded.add(value)
            if not any(value in v.args for v in self.region.values):
                return
            text = c_expr.convert(f"u{value}", FLOAT, dtype)
        self.writer.line(f"const {carrier} v{value} = {text}; {self.holes.note(value)}")

    def value(self, value: int) -> None:
        """Define a value that is no anchor and no real reduction."""
        v = self.region.values[value]
        if v.op == "load":
            text = self._loaded(value)
        elif v.op == "const":
            text = c_expr.literal(v.attr("value"), v.dtype)  # type: ignore[arg-type]
        elif v.op == "index":
            text = self._counted(
                f"(int64_t){self._position(v.axis)}", v.compute, v.dtype
            )
        elif v.op == "count":
            dim = self.region.values[v.args[0]].dim
            number = self.holes.args.number(
                f"count{value}", prod([dim[a] for a in v.axes])
            )
            text = self._counted(number, v.compute, v.dtype)
        elif v.op in (
            "cast",
            "reduce",
        ):  # a reduction over extents of 1 keeps its argument
            source = self.region.values[v.args[0]].dtype
            text = c_expr.convert(
                c_expr.convert(f"v{v.args[0]}", source, v.compute), v.compute, v.dtype
            )
        else:
            types = [self.region.values[a].dtype for a in v.args]
            op = "exp_down" if is_exp_down(self.region, v) else v.op
            made = c_expr.evaluate(op, [f"v{a}" for a in v.args], types, v.compute)
            text = c_expr.result(made, v.compute, v.dtype)
        self.define(value, text)

    def converted(self, value: int, k: int) -> str:
        """The k-th argument of a value in its compute type."""
        v = self.region.values[value]
        dtype = self.region.values[v.args[k]].dtype
        return c_expr.argument(f"v{v.args[k]}", dtype, v.compute)

    def open_quotient(self, value: int) -> None:
        """Define what `quotient` needs of the divisor."""
        y = self.converted(value, 1)
        if self._is_coarse(value):
            self.writer.line(
                f"const float e{value} = divisor_scale({y}), d{value} = 1.0f / ({y} * e{value});"
            )
        else:
            self.writer.line(f"const double d{value} = 1.0 / (double){y};")

    def quotient(self, value: int) -> None:
        """Define a quotient of floats by a divisor that `open_quotient` has prepared."""
        v = self.region.values[value]
        x, y = self.converted(value, 0), self.converted(value, 1)
        made = f"quotient({x}, {y}, d{value})"
        if self._is_coarse(value):
            made = f"{x} * e{value} * d{value}"
        self.define(value, c_expr.result(made, v.compute, v.dtype))

    def _is_coarse(self, value: int) -> bool:
        """Whether a value is only seen rounded to a half type."""
        region = self.region
        if region.values[value].dtype in (HALF, BFLOAT16):
            return True
        seen = [v.dtype for v in region.values if v.op == "cast" and value in v.args]
        seen += [region.operands[k].dtype for i, k in region.stores if i == value]
        others = [v for v in region.values if v.op != "cast" and value in v.args]
        return not others and all(t in (HALF, BFLOAT16) for t in seen)

    def store(self, value: int, operand: int) -> None:
        o = self.region.operands[operand]
        dtype = self.region.values[value].dtype
        if self.is_paired(operand):
            exact = (
                (f"u{value}", FLOAT)
                if value in self._unrounded
                else (f"v{value}", dtype)
            )
            name = self.holes.names[operand]
            self.writer.line(
                f"w_{name}[{self.half}] = bits_of({c_expr.convert(*exact, BFLOAT16)});"
            )
            return
        if value in self._unrounded:  # rounded once, when it is stored
            text = c_expr.store(f"u{value}", FLOAT, dtype)
        else:
            text = c_expr.store(f"v{value}", dtype, o.dtype)
        self.writer.line(f"{self.element(operand)} = {text};")

    def argument(self, reduce: int) -> str:
        """The argument of a reduction in its compute type."""
        v = self.region.values[reduce]
        return c_expr.argument(
            f"v{v.args[0]}", self.region.values[v.args[0]].dtype, v.compute
        )

    def accumulator(self, reduce: int) -> c_expr.Accumulator:
        v = self.region.values[reduce]
        return c_expr.ACCUMULATORS[c_expr.KIND[v.compute.name]][v.mode]

    def update(self, reduce: int, place: str) -> None:
        """The line that adds an element into an accumulator."""
        text = self.accumulator(reduce).update.format(a=place, x=self.argument(reduce))
        self.writer.line(f"{place} = {text}; {self.holes.note(reduce)}")

    def finish(self, reduce: int, text: str) -> None:
        """Define a reduction's value from its accumulator."""
        v = self.region.values[reduce]
        self.define(
            reduce,
            c_expr.accumulated(text, self.accumulator(reduce), v.compute, v.dtype),
        )

    def finish_anchor(self, anchor: int, text: str) -> None:
        """Define an anchor's value from its sum."""
        v = self.region.values[anchor]
        acc = c_expr.MAIN_LOOP[c_expr.KIND[v.compute.name]]
        self.define(anchor, c_expr.accumulated(text, acc, v.compute, v.dtype))

    def _loaded(self, value: int) -> str:
        operand = self.region.operand_of[value]
        o = self.region.operands[operand]
        if o.role is Role.SCALAR:
            return c_expr.load(self.holes.host_scalar(operand), o.dtype)
        if self.is_paired(operand):
            return (
                f"bfloat_of_pair(&{self.element(operand)} - {self.half}, {self.half})"
            )
        return c_expr.load(self.element(operand), o.dtype)

    def _counted(self, text: str, compute: DType, dtype: DType) -> str:
        return c_expr.convert(c_expr.convert(text, INT64, compute), compute, dtype)

    def _position(self, axis: int) -> str:
        for k, merged in enumerate(self.axes):
            if axis in merged.axes:
                return self.index[k]
        return "0"
