"""Reductions that close a tiled kernel: accumulators, atomics, and the finishing kernel.

Sums, and maxima of values that are never negative, may add up in the output itself; then the reduction
may keep some axes. Everything else adds up in a word of scratch, which the finishing kernel reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.writer import LineWriter
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.triton.body import Body
from fuseplan.engines.triton.kernel import Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import has_group, reduced_axes
from fuseplan.engines.triton.source import finish_source
from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import Region

_START = {"add": 0, "max": 0x80000000, "min": 0x7FFFFFFF}  # words; max and min keep ordered integers


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Where a closing reduction adds up.

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


class Closing:
    """The closing reductions of a region.

    `dependent` are the values computed from them; `finished` is what only the finishing kernel knows:
    those, and the reductions that add up in scratch.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.dependent = dependent_values(region)
        self.accumulators: dict[int, Accumulator] = {}
        self.scratch_bytes = 0
        for index in region.reductions:
            mode = region.values[index].mode
            bits = mode == "max" and is_never_negative(region, region.values[index].args[0])
            operand = direct_output(region, index)
            self.accumulators[index] = Accumulator(mode, operand, self.scratch_bytes, bits)
            self.scratch_bytes += 4 if operand < 0 else 0
        self.finished = self.dependent | {i for i, a in self.accumulators.items() if a.operand < 0}
        self.needs_finish = any(value in self.finished for value, _ in region.stores)

    def fills(self) -> list[Fill]:
        """Starting values of the accumulators."""
        found = []
        for acc in self.accumulators.values():
            word = 0 if acc.is_bits else _START[acc.mode]
            if acc.operand >= 0:
                found.append(Fill(acc.operand, 0, word, prod(self.region.operands[acc.operand].dim)))
            else:
                found.append(Fill(-1, acc.offset, word))
        return found

    def add_atomic(self, index: int, body: Body, *, rank: int) -> None:
        """Add ``t<index>``, a tile folded over the reduced axes, to its accumulator."""
        acc, reduction = self.accumulators[index], self.region.values[index]
        element = "fp32" if acc.mode == "add" else "i32"
        if acc.operand >= 0:
            terms = [body.params.operand(acc.operand, as_type=element)]
        else:
            terms = [body.params.scratch(acc.offset, element)]
        kept = [(a, g) for a in body.axes for g in a.groups if g.extent > 1 and has_group(reduction.dim, g)]
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

    def finished_value(self, index: int, params: ParamList) -> str:
        """Expression of a reduction's result, in the finishing kernel."""
        acc, value = self.accumulators[index], self.region.values[index]
        loaded = f"tl.load({params.scratch(acc.offset, 'fp32' if acc.mode == 'add' else 'i32')})"
        if acc.is_bits:
            loaded = f"{loaded}.to(tl.float32, bitcast=True)"
        elif acc.mode != "add":
            loaded = f"float_of_order({loaded})"
        return expr.from_work(loaded, value.compute, value.dtype)


def direct_output(region: Region, index: int) -> int:
    """The output that a closing reduction can add up in, or -1."""
    value = region.values[index]
    mode = value.mode
    if mode != "add" and not (mode == "max" and is_never_negative(region, value.args[0])):
        return -1
    outputs = region.outputs_of.get(index, ())
    if len(outputs) != 1 or region.users[index] or value.dtype is not FLOAT or value.compute is not FLOAT:
        return -1
    target = region.operands[outputs[0]]
    is_dense = span_elements(target.dim, target.stride) == prod(target.dim)  # it is filled as one block
    return outputs[0] if target.dtype is FLOAT and is_dense else -1


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


def closing_gap(region: Region) -> str:
    """Why the region's reductions do not close it in the way of this module; empty if they do."""
    rank = len(region.domain)
    wide = {axis for axis in range(rank) if region.domain[axis] > 1}
    later = dependent_values(region)
    for index in region.reductions:
        value = region.values[index]
        source = region.values[value.args[0]]
        axes = reduced_axes(region, value)
        if not axes or (axes != wide and not (region.anchors and direct_output(region, index) >= 0)):
            return "a reduction that closes a region runs over all axes, or adds up in a dense FLOAT output"
        if index in later:
            return "a reduction of a reduction cannot close a region"
        if value.mode == "mul":
            return "a product over all elements has no atomic form"
        if value.compute not in (FLOAT, HALF, BFLOAT16):
            return f"a closing reduction in compute type {value.compute} has no atomic form"
        if max(source.dim[-2:] if region.anchors else source.dim) == 1:
            return "a closing reduction of something that does not extend over the tile"
    for index in later:
        if any(extent > 1 for extent in region.values[index].dim):
            return "the result of a closing reduction is used again over the tile"
        if any(a in region.anchors for a in region.values[index].args):
            return "the matmul's result is used again after a reduction"
    return ""


def finishing_values(region: Region, closing: Closing) -> list[int]:
    """Values that the finishing kernel computes, in order."""
    found: set[int] = set()
    todo = [value for value, _ in region.stores if value in closing.finished]
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            if region.values[index].op not in ("reduce", "count"):
                todo += region.values[index].args
    return sorted(found)


def emit_finish(region: Region, closing: Closing) -> Kernel:
    """One program that computes what follows from the finished reductions."""
    params, out = ParamList(region, "i32"), LineWriter("    ")
    body = Body(region, [], params, out)
    for index in finishing_values(region, closing):
        if region.values[index].op == "reduce":
            out.line(f"v{index} = {closing.finished_value(index, params)}")
        else:
            body.define(index)
        if index in closing.finished:
            for operand in region.outputs_of.get(index, ()):
                body.store(index, operand)
    source, ordered = finish_source("finish", params, out, ())
    return Kernel("finish", source, ordered, (), 1, 1)
