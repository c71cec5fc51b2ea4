"""Reductions across programs: accumulators in memory, atomics, and the kernel that finishes.

Sums, and maxima of values that are never negative, may add up in the output itself; then the reduction may keep
some axes. Everything else adds up in a word of scratch, which the finishing kernel reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import reduced_axes
from fuseplan.engines.triton.source import Entry, Function, kernel_text
from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import Region, Role

_START = {"add": 0, "max": 0x80000000, "min": 0x7FFFFFFF}  # words; max and min keep ordered integers


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Where a reduction across programs adds up.

    Args:
        mode: add, max or min
        operand: output it is directly, else -1
        offset: byte offset in the scratch otherwise
        is_bits: integers are the float's own bits (values that are never negative)
    """

    mode: str
    operand: int
    offset: int
    is_bits: bool


@dataclass(frozen=True)
class AtomicReductions:
    """The reductions of a region, each added up by all programs.

    Args:
        accumulators: by reduction
        dependent: values computed from the results of reductions
        scratch_bytes: of those accumulators that are not outputs
    """

    region: Region
    accumulators: Mapping[int, Accumulator]
    dependent: frozenset[int]
    scratch_bytes: int

    @property
    def finished(self) -> frozenset[int]:
        """What only the finishing kernel knows: what depends on reductions, and those that add up in scratch."""
        return self.dependent | {i for i, a in self.accumulators.items() if a.operand < 0}

    @property
    def is_deterministic(self) -> bool:
        """Whether the order in which programs add does not matter: that of maxima and minima does not."""
        return all(a.mode != "add" for a in self.accumulators.values())

    def fills(self) -> list[Fill]:
        """Starting values of the accumulators."""
        found = []
        for acc in self.accumulators.values():
            word = 0 if acc.is_bits else _START[acc.mode]
            if acc.operand >= 0:
                target = self.region.operands[acc.operand]
                found.append(Fill(acc.operand, target.offset * target.dtype.itemsize, word, prod(target.dim)))
            else:
                found.append(Fill(-1, acc.offset, word))
        return found

    def around(self, main: Kernel) -> Emitted:
        """Fills, the kernel that adds up, and a finishing kernel where one is needed."""
        steps: list[Kernel | Fill] = [*self.fills(), main]
        if any(value in self.finished for value, _ in self.region.stores):
            steps.append(_finish(self))
        return Emitted(tuple(steps), self.scratch_bytes)

    def add(self, index: int, body: Body, seen: Sequence[TileAxis], sides: Sequence[str]) -> None:
        """Add a tile's part of a reduction to its accumulator.

        Args:
            seen: tile axes that its argument extends over
            sides: extents of the tile, one for each axis that is folded or kept
        """
        reduction = self.region.values[index]
        source = self.region.values[reduction.args[0]]
        work, mode, out = expr.work_type(reduction.compute), reduction.mode, body.out
        x = f"tl.broadcast_to({body.argument(index)}, ({', '.join(sides)}{',' if len(sides) == 1 else ''}))"
        guards = body.guards(source.dim, seen)
        out.line(f"t{index} = tl.where({' & '.join(guards)}, {x}, {expr.neutral(mode, work)})" if guards else
                 f"t{index} = {x}")  # fmt: skip
        first = len(self.region.domain) - len(sides)
        kept = [axis for axis in range(len(sides)) if len(sides) > 1 and reduction.dim[first + axis] > 1]
        if len(kept) < len(sides):
            over = str(1 - kept[0]) if kept else "None" if len(sides) > 1 else "0"
            out.line(f"t{index} = {expr.fold(mode, f't{index}', over, work)}")
        self._add_atomic(index, body, rank=len(sides))

    def _add_atomic(self, index: int, body: Body, *, rank: int) -> None:
        """Add ``t<index>``, a tile folded over the reduced axes, to its accumulator."""
        acc, reduction = self.accumulators[index], self.region.values[index]
        element = "fp32" if acc.mode == "add" else "i32"
        if acc.operand >= 0:
            terms = [body.params.operand(acc.operand, as_type=element)]
        else:
            terms = [body.params.scratch(acc.offset, element)]
        kept = [(a, g) for a in body.axes for g in a.groups if g.extent > 1 and g.varies(reduction.dim)]
        terms += [f"{a.index_of(g)} * {body.stride(acc.operand, g)}" for a, g in kept]
        terms.append(f"tl.zeros(({'1, ' * rank}), tl.int32)")
        masks = dict.fromkeys(a.mask for a, _ in kept if a.mask)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        x = f"t{index}"
        if acc.is_bits:
            x = f"{x}.to(tl.int32, bitcast=True)"
        elif acc.mode == "max":
            x = f"order_bits({x})"
        elif acc.mode == "min":
            x = f"tl.where({x} != {x}, -2147483648, order_bits({x}))"
        body.out.line(f'tl.atomic_{acc.mode}({" + ".join(terms)}, {x}{mask}, sem="relaxed")')

    def result(self, index: int, params: ParamList) -> str:
        """Expression of a reduction's result, in the finishing kernel."""
        acc, value = self.accumulators[index], self.region.values[index]
        loaded = f"tl.load({params.scratch(acc.offset, 'fp32' if acc.mode == 'add' else 'i32')})"
        if acc.is_bits:
            loaded = f"{loaded}.to(tl.float32, bitcast=True)"
        elif acc.mode != "add":
            loaded = f"float_of_order({loaded})"
        return expr.from_work(loaded, value.compute, value.dtype)


def atomic_reductions(region: Region) -> AtomicReductions:
    """Where the reductions of a region add up; the region has passed `atomic_support`."""
    found: dict[int, Accumulator] = {}
    offset = 0
    for index in region.reductions:
        mode = region.values[index].mode
        bits = mode == "max" and is_never_negative(region, region.values[index].args[0])
        operand = direct_output(region, index)
        found[index] = Accumulator(mode, operand, offset, bits)
        offset += 4 if operand < 0 else 0
    return AtomicReductions(region, found, dependent_values(region), offset)


def direct_output(region: Region, index: int) -> int:
    """The output that a reduction can add up in, or -1."""
    value = region.values[index]
    mode = value.mode
    if mode != "add" and not (mode == "max" and is_never_negative(region, value.args[0])):
        return -1
    outputs = region.outputs_of.get(index, ())
    if len(outputs) != 1 or region.users[index] or value.dtype is not FLOAT or value.compute is not FLOAT:
        return -1
    target = region.operands[outputs[0]]
    is_dense = span_elements(target.dim, target.stride) == prod(target.dim)  # it is filled as one block
    return outputs[0] if target.dtype is FLOAT and is_dense and target.role is Role.OUT else -1


def is_never_negative(region: Region, index: int) -> bool:
    """Whether a value has no sign bit (NaN aside) whatever its inputs are."""
    value = region.values[index]
    if value.op == "cast":
        return is_never_negative(region, value.args[0])
    return value.op in ("abs", "exp") or (value.op == "mul" and value.args[0] == value.args[1])


def dependent_values(region: Region) -> frozenset[int]:
    """Values computed from the results of reductions."""
    found: set[int] = set()
    for index, value in enumerate(region.values):
        if any(a in found or region.values[a].op == "reduce" for a in value.args):
            found.add(index)
    return frozenset(found)


def atomic_support(region: Region) -> Support:
    """Whether all reductions of a region can be added up across programs; it has at most one tile per program."""
    later = dependent_values(region)
    for index in region.reductions:
        if reason := _reduction_gap(region, index, is_dependent=index in later):
            return no(reason, at=index)
    for index in sorted(later):
        if any(extent > 1 for extent in region.values[index].dim):
            return no("the result of a reduction across programs is used again over the tile", at=index)
        if any(a in region.anchors for a in region.values[index].args):
            return no("the matmul's result is used again after a reduction", at=index)
    return YES


def _reduction_gap(region: Region, index: int, *, is_dependent: bool) -> str:
    value = region.values[index]
    source = region.values[value.args[0]]
    all_axes = {axis for axis, extent in enumerate(region.domain) if extent > 1}
    axes = reduced_axes(region, index)
    if not axes or (axes != all_axes and not (region.anchors and direct_output(region, index) >= 0)):
        return "a reduction across programs runs over all axes, or adds up in a dense FLOAT output"
    if is_dependent:
        return "a reduction of a reduction cannot be added up across programs"
    if value.mode == "mul":
        return "a product over all elements has no atomic form"
    if value.compute not in (FLOAT, HALF, BFLOAT16):
        return f"a reduction in compute type {value.compute} has no atomic form"
    if max(source.dim[-2:] if region.anchors else source.dim) == 1:
        return "a reduction across programs of something that does not extend over the tile"
    return ""


def _finish(reductions: AtomicReductions) -> Kernel:
    """One program that computes what follows from the finished reductions."""
    region, finished = reductions.region, reductions.finished
    params = ParamList(region)
    results = Function(params, "results")
    body = Body(region, [], results)
    roots = [value for value, _ in region.stores if value in finished]
    for index in needed_for(region, roots, frozenset(region.reductions)):
        if index in reductions.accumulators:
            results.out.line(f"v{index} = {reductions.result(index, results.params)}")
        else:
            body.define(index)
        if index in finished:
            for operand in region.outputs_of.get(index, ()):
                body.store(index, operand)
    text = kernel_text(Entry("finish", "results", [results.params.names]), [results], params)
    return Kernel("finish", text.source, text.params, text.constants, 1, 1)
