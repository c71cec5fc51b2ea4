"""Factors of products: how an argument of a product lies in memory, and the holes that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import separate
from fuseplan.dtypes import BFLOAT16, FLOAT, DType
from fuseplan.engines.cpu_c.blocks import (
    AT,
    BlockSchedule,
    largest_load,
    outer_index,
)
from fuseplan.engines.cpu_c.dataflow import needed_for
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.ir.region import Region, Role

Q = "const int q"


@dataclass(frozen=True)
class Factors:
    """One argument of a product: how it is read.

    Args:
        value: of the region
        is_along_k: its neighbours along k are next to each other in memory, else those along M or N
        is_plain: its elements in memory are the factors
        is_bfloat: they are but for their type, which is bfloat16 in memory
    """

    value: int
    is_along_k: bool
    is_plain: bool
    is_bfloat: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether rows are read where they are."""
        return self.is_along_k and self.is_plain


def factors_of(region: Region, anchor: int, argument: int, dtype: DType) -> Factors:
    """How argument 0 or 1 of a product is read into factors of a type."""
    v = region.values[anchor]
    value = v.args[argument]
    operand = largest_load(region, value)
    if operand < 0:
        return Factors(value, True, False)
    o = region.operands[operand]
    last_two = [
        s if d != 1 else 0 for s, d in zip(o.stride[-2:], o.dim[-2:], strict=True)
    ]
    along_k, across = last_two[::-1] if argument == 0 else last_two
    is_along_k = along_k == 1 or (argument == 0 and across != 1)
    factor = region.values[value]
    is_loaded = (
        factor.op == "load"
        and o.role is not Role.SCALAR
        and (along_k if is_along_k else across) == 1
        and o.dtype is factor.dtype
        and (dtype is BFLOAT16 or c_expr.argument("x", o.dtype, v.compute) == "x")
    )
    is_bfloat = is_loaded and o.dtype is BFLOAT16 and dtype is FLOAT
    return Factors(value, is_along_k, is_loaded and o.dtype is dtype, is_bfloat)


def write_factors(
    holes: Holes,
    blocks: BlockSchedule,
    name: str,
    factors: tuple[Factors, ...],
    dtype: DType,
) -> None:
    """The holes that say how one argument of each product is read, as factors of a type."""
    rank = len(holes.region.domain)
    ctype = c_expr.STORAGE[dtype.name]
    outer = outer_index(blocks)
    forms, places, loops = [], [], []
    for anchor, f in zip(blocks.anchors, factors, strict=True):
        at = (
            {**outer, rank - 1: "k"}
            if name == "a"
            else {**outer, rank - 2: "k", rank - 1: "j"}
        )
        forms.append(f"return {f.is_along_k | f.is_plain << 1 | f.is_bfloat << 2};")
        places.append("return 0;")
        if f.is_plain:
            element = _frame(holes, f.value, at).element(
                holes.region.operand_of[f.value]
            )
            places[-1] = f"return &{element};"
        moving = rank - 1 if f.is_along_k == (name == "a") else rank - 2
        loops.append(
            _read_loop(holes, anchor, f, {**at, moving: f"({at[moving]} + e)"}, dtype)
        )
    index = ("int64_t k",) if name == "a" else ("int64_t k", "int64_t j")
    holes.per_anchor("int", f"{name}_form", (Q,), forms)
    if name == "a":
        same = [loops.index(text) for text in loops]
        holes.per_anchor("int", "a_from", (Q,), [f"return {q};" for q in same])
    holes.per_anchor(f"const {ctype} *", f"{name}_at", (*AT, Q, *index), places)
    if name == "b":
        lines = [_line(holes, f, at) for f in factors]
        holes.per_anchor("const void *", "b_line", (*AT, Q, *index), lines)
    out = ("int64_t count", f"{ctype} *restrict out")
    holes.per_anchor("void", f"read_{name}", (*AT, Q, *index, *out), loops)


def _line(holes: Holes, factors: Factors, index: Mapping[int, str]) -> str:
    """The body of `b_line`."""
    region = holes.region
    operand = largest_load(region, factors.value)
    if operand < 0 or region.operands[operand].role is Role.SCALAR:
        return "return 0;"
    value = next(i for i, k in region.loads if k == operand)
    return f"return &{_frame(holes, value, index).element(operand)};"


def _frame(holes: Holes, value: int, index: Mapping[int, str]) -> Frame:
    """A frame over the axes that a value has."""
    dim = holes.region.values[value].dim
    axes = separate(dim, range(len(dim)))
    labels = [axis.axes[0] for axis in axes]
    return Frame(holes, axes, [index[label] for label in labels], labels)


def _read_loop(
    holes: Holes, anchor: int, factors: Factors, index: Mapping[int, str], dtype: DType
) -> str:
    """The body of a read hole: a loop over neighbours, with what is computed in front of the product."""
    region = holes.region
    value = region.values[factors.value]
    frame = _frame(holes, factors.value, index)
    w = frame.writer
    w.margin("#pragma omp simd")
    w.open("for (int64_t e = 0; e < count; ++e) {")
    operand = region.operand_of.get(factors.value, -1)
    if (
        dtype is BFLOAT16
        and operand >= 0
        and region.operands[operand].role is not Role.SCALAR
    ):
        text = frame.element(operand)
    else:
        for i in needed_for(region, [factors.value], [False] * len(region.values)):
            frame.value(i)
        text = c_expr.argument(
            f"v{factors.value}", value.dtype, region.values[anchor].compute
        )
        if dtype is BFLOAT16:
            text = c_expr.store(text, BFLOAT16, BFLOAT16)
    w.line(f"out[e] = {text};")
    w.close()
    return w.text()
