"""Main loop of a matmul: fills the accumulators of one block of columns."""

from __future__ import annotations

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import effective_stride
from fuseplan.engines.cpu_c.emit_scope import Scope

PARTIAL = 256  # terms of one partial sum: added up one by one, 4096 floats lose more than a library's sum does


def anchor_base(scope: Scope, operand: int, prefix: str, skip: tuple[int, ...]) -> list[str]:
    """Pointer and offset terms of an anchor's operand at the outer loops, without the region's axes in `skip`."""
    stride = effective_stride(scope.region.operands[operand])
    terms = [scope.pointer(operand)]
    for k, axis in enumerate(scope.axes):
        a = axis.axes[0]
        if a not in skip and stride[a]:
            terms.append(scope.term(scope.index[k], f"{prefix}_s{a}", stride[a]))
    return terms


def fill_matmul(scope: Scope, value: int, last: int) -> None:
    """Lines that leave ``sum over k of a[k] * b[k][j0 + j]`` in ``acc[j]`` for j below ``width``."""
    region, w = scope.region, scope.writer
    v = region.values[value]
    a_operand, b_operand = (region.operand_of[i] for i in v.args)
    a, b = region.operands[a_operand], region.operands[b_operand]
    rank = len(a.dim)
    a_type, b_type = (f"const {c_expr.STORAGE[o.dtype.name]}" for o in (a, b))
    a_stride, b_stride = effective_stride(a), effective_stride(b)
    w.line(f"{a_type} *const a = {' + '.join(anchor_base(scope, a_operand, 'a', (rank - 1,)))};")
    base = anchor_base(scope, b_operand, "b", (rank - 2, rank - 1))
    if b_stride[-1]:
        base.append(scope.term("j0", f"b_s{rank - 1}", b_stride[-1]))
    w.line(f"{b_type} *const b = {' + '.join(base)}; {scope.note(value)}")
    depth = scope.args.number("depth", a.dim[-1])
    acc = c_expr.MAIN_LOOP[c_expr.KIND[v.compute.name]]
    carrier = c_expr.CARRIER[c_expr.KIND_TYPE[c_expr.KIND[v.compute.name]].name]
    a_text = c_expr.argument(c_expr.load(f"a[{_step(scope, 'k', 'a_k', a_stride[-1])}]", a.dtype), a.dtype, v.compute)
    b_index = f"{_step(scope, 'k', 'b_k', b_stride[-2])} + {_step(scope, 'j', f'b_s{rank - 1}', b_stride[-1])}"
    b_text = c_expr.argument(c_expr.load(f"b[{b_index}]", b.dtype), b.dtype, v.compute)
    if b_stride[-2] == 1 and b_stride[-1] != 1:
        _dot(scope, acc, depth, a_text, b_text)
    else:
        _columns(scope, acc, depth, carrier, a_text, b_text)


def _columns(scope: Scope, acc: c_expr.Accumulator, depth: str, carrier: str, a_text: str, b_text: str) -> None:
    w = scope.writer
    open_partial_sums(scope, acc, "k", depth)
    w.open("for (int64_t k = k0; k < past_k; ++k) {")
    w.line(f"const {carrier} x = {a_text};")
    w.margin("#pragma omp simd")
    w.line(f"for (int64_t j = 0; j < width; ++j) part[j] = {acc.update.format(a='part[j]', x='x', y=b_text)};")
    w.close()
    add_partial(scope)
    w.close()


def open_partial_sums(scope: Scope, acc: c_expr.Accumulator, index: str, count: str) -> None:
    """A loop over pieces ``k0`` to ``past_k`` of the terms, with zeros in ``part``, which is as long as ``acc``."""
    w = scope.writer
    w.open(f"for (int64_t {index}0 = 0; {index}0 < {count}; {index}0 += {PARTIAL}) {{")
    w.line(f"const int64_t past_{index} = {count} - {index}0 < {PARTIAL} ? {count} : {index}0 + {PARTIAL};")
    w.line(f"{acc.ctype} part[sizeof acc / sizeof acc[0]] = {{0}};")


def add_partial(scope: Scope) -> None:
    """``part`` added into ``acc``."""
    scope.writer.margin("#pragma omp simd")
    scope.writer.line("for (int64_t j = 0; j < width; ++j) acc[j] += part[j];")


def _dot(scope: Scope, acc: c_expr.Accumulator, depth: str, a_text: str, b_text: str) -> None:
    w = scope.writer
    w.open("for (int64_t j = 0; j < width; ++j) {")
    write_dot(scope, acc, "k", depth, (a_text, b_text))
    w.line("acc[j] = sum;")
    w.close()


def write_dot(scope: Scope, acc: c_expr.Accumulator, index: str, count: str, factors: tuple[str, str]) -> None:
    """A loop that leaves the sum of products in the new variable ``sum``."""
    w = scope.writer
    carrier = c_expr.CARRIER[acc.dtype.name]
    w.line(f"{acc.ctype} sum = 0;")
    w.margin(f"#pragma omp simd reduction({acc.clause} : sum)")
    w.open(f"for (int64_t {index} = 0; {index} < {count}; ++{index}) {{")
    w.line(f"const {carrier} left = {factors[0]}, right = {factors[1]};")
    w.line(f"sum = {acc.update.format(a='sum', x='left', y='right')};")
    w.close()


def _step(scope: Scope, index: str, name: str, stride: int) -> str:
    return scope.term(index, name, stride) if stride else "0"
