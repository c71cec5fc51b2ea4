"""What the loops of a kernel share: arguments, names, offsets, and the lines that define and store values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.codegen.writer import LineWriter, node_numbers, operand_names
from fuseplan.dtypes import INT64, DType
from fuseplan.ir.region import Region, Role, Value
from fuseplan.runtime.launch import Patch, PatchKind

_SCRATCH_ALIGN = 64


class Arguments:
    """Fields of the parameter block: pointers and numbers of 8 bytes, then host scalars of any size."""

    def __init__(self) -> None:
        self._pointers: dict[str, tuple[str, Patch]] = {}
        self._numbers: dict[str, int] = {}
        self._scalars: dict[str, tuple[str, Patch]] = {}
        self.scratch_bytes = 0

    def number(self, name: str, value: int) -> str:
        """An extent or stride; its text in the kernel."""
        self._numbers.setdefault(name, value)
        return f"p.{name}"

    def pointer(self, name: str, ctype: str, slot: int) -> str:
        """Address of an operand, as a local pointer of the kernel."""
        if name not in self._pointers:
            self._pointers[name] = (ctype, Patch(PatchKind.POINTER, 0, slot))
        return name

    def scratch(self, name: str, ctype: str, num_elements: int) -> str:
        """Private memory of the kernel, 8 bytes per element."""
        self._pointers[name] = (ctype, Patch(PatchKind.SCRATCH, 0, -1, self.scratch_bytes))
        size = 8 * num_elements
        self.scratch_bytes += -(-size // _SCRATCH_ALIGN) * _SCRATCH_ALIGN
        return name

    def scalar(self, name: str, ctype: str, slot: int, size: int) -> str:
        """A host scalar; its text in the kernel."""
        self._scalars[name] = (f"{ctype} {name}", Patch(PatchKind.SCALAR, 0, slot, size=size))
        return f"p.{name}"

    def struct_lines(self) -> list[str]:
        """Declaration of the block."""
        numbers = list(self._numbers)
        lines = [f"  {ctype} *{name};" for name, (ctype, _) in self._pointers.items()]
        lines += [f"  int64_t {', '.join(numbers[k : k + 10])};" for k in range(0, len(numbers), 10)]
        lines += [f"  {text};" for text, _ in self._scalars.values()]
        return ["struct args {", *lines, "} __attribute__((packed));"]

    def pointer_lines(self) -> list[str]:
        """Local pointers, so that the loops read like ordinary C."""
        return [f"{ctype} *const {name} = p.{name};" for name, (ctype, _) in self._pointers.items()]

    def block(self) -> tuple[bytes, tuple[Patch, ...]]:
        """The block before patching, and its patches."""
        patches = [Patch(p.kind, 8 * k, p.slot, p.addend) for k, (_, p) in enumerate(self._pointers.values())]
        numbers = struct.pack(f"<{len(self._numbers)}q", *self._numbers.values())
        data = bytes(8 * len(self._pointers)) + numbers
        for _, patch in self._scalars.values():
            patches.append(Patch(patch.kind, len(data), patch.slot, size=patch.size))
            data += bytes(patch.size)
        return data, tuple(patches)


@dataclass(slots=True)
class Walk:
    """Strides of one operand, or of a scratch array, over the loops; `prefix` starts their argument names."""

    prefix: str
    strides: tuple[int, ...]


class Scope:
    """One kernel while it is written.

    Args:
        axes: loops of the kernel; `index[k]` is the C text of loop k's position
    """

    def __init__(self, region: Region, axes: Sequence[MergedAxis]) -> None:
        self.region, self.axes = region, tuple(axes)
        self.writer = LineWriter()
        self.args = Arguments()
        self.names = operand_names(region.operands)
        self.numbers = node_numbers(region.values)
        self.index = [f"i{k}" for k in range(len(self.axes))]
        self._walks: dict[int, Walk] = {}
        self._fastest = [axis.axes[-1] for axis in self.axes]

    def extent(self, loop: int) -> str:
        return self.args.number(f"n{loop}", self.axes[loop].count)

    def open_loop(self, loop: int) -> None:
        i = self.index[loop]
        self.writer.open(f"for (int64_t {i} = 0; {i} < {self.extent(loop)}; ++{i}) {{")

    def walk(self, operand: int) -> Walk:
        """Strides of an operand over the loops: those of each loop's fastest axis."""
        found = self._walks.get(operand)
        if found is None:
            o = self.region.operands[operand]
            strides = tuple([o.stride[a] if o.dim[a] != 1 else 0 for a in self._fastest])
            found = self._walks[operand] = Walk(self.names[operand], strides)
        return found

    def offset(self, walk: Walk) -> str:
        """Element offset at the current position."""
        terms = []
        for k, stride in enumerate(walk.strides):
            if stride:
                terms.append(self.term(self.index[k], f"{walk.prefix}_s{k}", stride))
        return " + ".join(terms) or "0"

    def term(self, index: str, name: str, stride: int) -> str:
        """``index * stride``; a unit stride is baked in, so that the compiler sees contiguous memory."""
        return index if stride == 1 else f"{index} * {self.args.number(name, stride)}"

    def pointer(self, operand: int) -> str:
        """Local pointer of an operand."""
        o = self.region.operands[operand]
        const = "" if o.role is Role.OUT else "const "
        return self.args.pointer(self.names[operand], const + c_expr.STORAGE[o.dtype.name], operand)

    def note(self, value: int) -> str:
        number, op = self.numbers[value], self.region.values[value].op
        return f"/* node {number}: {op} */" if number >= 0 else f"/* {op} */"

    def define(self, value: int, text: str) -> None:
        """The line that gives a value its name."""
        carrier = c_expr.CARRIER[self.region.values[value].dtype.name]
        self.writer.line(f"const {carrier} v{value} = {text}; {self.note(value)}")

    def value(self, value: int) -> None:
        """Define a value that is no anchor and no real reduction."""
        v = self.region.values[value]
        if v.op == "load":
            text = self._loaded(value)
        elif v.op == "const":
            text = c_expr.literal(v.attr("value"), v.dtype)  # type: ignore[arg-type]
        elif v.op == "index":
            text = self._counted(f"(int64_t){self._position(v.axis)}", v.compute, v.dtype)
        elif v.op == "count":
            dim = self.region.values[v.args[0]].dim
            number = prod([dim[a] for a in v.axes])
            text = self._counted(self.args.number(f"count{value}", number), v.compute, v.dtype)
        elif v.op in ("cast", "reduce"):  # a reduction over extents of 1 keeps its argument
            source = self.region.values[v.args[0]].dtype
            text = c_expr.convert(c_expr.convert(f"v{v.args[0]}", source, v.compute), v.compute, v.dtype)
        else:
            types = [self.region.values[a].dtype for a in v.args]
            made = c_expr.evaluate(v.op, [f"v{a}" for a in v.args], types, v.compute)
            text = c_expr.result(made, v.compute, v.dtype)
        self.define(value, text)

    def store(self, value: int, operand: int) -> None:
        o = self.region.operands[operand]
        text = c_expr.store(f"v{value}", self.region.values[value].dtype, o.dtype)
        self.writer.line(f"{self.pointer(operand)}[{self.offset(self.walk(operand))}] = {text};")

    def argument(self, reduce: int) -> str:
        """The argument of a reduction in its compute type."""
        v = self.region.values[reduce]
        return c_expr.argument(f"v{v.args[0]}", self.region.values[v.args[0]].dtype, v.compute)

    def accumulator(self, reduce: int) -> c_expr.Accumulator:
        v = self.region.values[reduce]
        return c_expr.ACCUMULATORS[c_expr.KIND[v.compute.name]][v.mode]

    def finish(self, reduce: int, text: str) -> None:
        """Define a reduction's value from its accumulator."""
        v = self.region.values[reduce]
        self.define(reduce, c_expr.accumulated(text, self.accumulator(reduce), v.compute, v.dtype))

    def _loaded(self, value: int) -> str:
        operand = self.region.operand_of[value]
        o = self.region.operands[operand]
        if o.role is Role.SCALAR:
            name = self.args.scalar(self.names[operand], c_expr.STORAGE[o.dtype.name], operand, o.dtype.itemsize)
            return c_expr.load(name, o.dtype)
        return c_expr.load(f"{self.pointer(operand)}[{self.offset(self.walk(operand))}]", o.dtype)

    def _counted(self, text: str, compute: DType, dtype: DType) -> str:
        return c_expr.convert(c_expr.convert(text, INT64, compute), compute, dtype)

    def _position(self, axis: int) -> str:
        for k, loop in enumerate(self.axes):
            if axis in loop.axes:
                return self.index[k]
        return "0"


def reads(value: Value) -> tuple[int, ...]:
    """Arguments whose elements a value reads; counting and indexing need only their dims."""
    return () if value.op in ("count", "index") else value.args


def depends_on(region: Region, roots: Iterable[int]) -> list[bool]:
    """For each value, whether it is one of `roots` or is computed from one."""
    found = [False] * len(region.values)
    for r in roots:
        found[r] = True
    for i, v in enumerate(region.values):
        if not found[i]:
            found[i] = any(found[a] for a in reads(v))
    return found


def needed_for(region: Region, roots: Iterable[int], stop: Sequence[bool]) -> list[int]:
    """Values to compute for `roots`, in order, not looking behind values where `stop` is true."""
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        i = pending.pop()
        if i not in seen and not stop[i]:
            seen.add(i)
            pending.extend(reads(region.values[i]))
    return sorted(seen)
