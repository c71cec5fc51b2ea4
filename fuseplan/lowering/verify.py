"""The legal forms of regions; tests run these checks after every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuseplan.dtypes import BOOLEAN, DType
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import BINARY, ELEMENTWISE, UNARY, Operand, Region, Role, Value

Args = tuple[Value, ...]
Rule = Callable[
    [Value, Args], str
]  # what is wrong with a value that has these arguments, or ""
Dims = dict[str, tuple[int, ...]]


def _elementwise(v: Value, args: Args) -> str:
    count = 1 if v.op in UNARY or v.op == "cast" else 2 if v.op in BINARY else 3
    if len(args) != count:
        return f"{len(args)} arguments, it takes {count}"
    wrong = next((a.dim for a in args if not _broadcasts(a.dim, v.dim)), None)
    return (
        ""
        if wrong is None
        else f"argument dims {list(wrong)} do not broadcast to {list(v.dim)}"
    )


def _without_arguments(v: Value, args: Args) -> str:
    return f"{len(args)} arguments, it takes none" if args else ""


def _load(v: Value, args: Args) -> str:
    return _without_arguments(v, args) or (
        "" if v.compute is v.dtype else f"computed in {v.compute}"
    )


def _const(v: Value, args: Args) -> str:
    return _without_arguments(v, args) or (
        "" if set(v.dim) <= {1} else "a constant has one element"
    )


def _index(v: Value, args: Args) -> str:
    return _without_arguments(v, args) or _axes_gap(v, (v.axis,))


def _count(v: Value, args: Args) -> str:
    if len(args) != 1:
        return f"{len(args)} arguments, it takes 1"
    return _axes_gap(v, v.axes) or (
        "" if set(v.dim) <= {1} else "a count has one element"
    )


def _reduce(v: Value, args: Args) -> str:
    if len(args) != 1:
        return f"{len(args)} arguments, it takes 1"
    if reason := _axes_gap(v, v.axes):
        return reason
    if v.mode not in ("add", "mul", "max", "min"):
        return f"mode {v.mode!r}"
    want = tuple(1 if a in v.axes else d for a, d in enumerate(args[0].dim))
    return (
        ""
        if v.dim == want
        else f"argument dims {list(args[0].dim)} over axes {v.axes} give {list(want)}"
    )


def _concat(v: Value, args: Args) -> str:
    if not args or (reason := _axes_gap(v, (v.axis,))):
        return reason if args else "no arguments"
    total = sum(a.dim[v.axis] for a in args)
    for a in args:
        if (
            a.dim[: v.axis] + (total,) + a.dim[v.axis + 1 :] != v.dim
            or a.dtype is not v.dtype
        ):
            return f"{a.dtype}{list(a.dim)} is no part of it along axis {v.axis}"
    return ""


def _pick(v: Value, args: Args) -> str:
    if (
        len(args) != 1
        or args[0].op not in ANCHORS
        or not ANCHORS[args[0].op].has_many_results
    ):
        return "it reads no anchor with several results"
    held = args[0].attr("results")
    if v.attr("result") not in held:  # type: ignore[operator]
        return f"the anchor has no result {v.attr('result')!r}, only {held}"
    return ""


def _check_matmul(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    a, b, c = given["a"], given["b"], made["c"]
    if a[-1] != b[-2]:
        return f"a has {a[-1]} columns, b {b[-2]} rows"
    batches = zip(a[:-2], b[:-2], c[:-2], strict=True)
    if c[-2:] != (a[-2], b[-1]) or not all(
        x in (1, z) and y in (1, z) for x, y, z in batches
    ):
        return f"the result has dims {list(c)}"
    return ""


def _check_conv(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    """One rule for the three: image, weights and result of the forward convolution, whichever are given."""
    rank = 2 + len(attrs["stride"])
    x, w, y = (({**given, **made}[name])[-rank:] for name in ("x", "w", "y"))
    if len(x) != rank or not 3 <= rank <= 5:
        return f"{rank - 2} strides for an image of rank {len(x)}"
    if x[1] % w[1] or w[0] % (x[1] // w[1]):
        return f"{x[1]} channels and weights {list(w)} make no groups"
    if y[:2] != (x[0], w[0]):
        return f"image {list(x)} and weights {list(w)} do not make {list(y)}"
    return ""


def _check_attention(given: Dims, made: Dims, attrs: Mapping[str, Any]) -> str:
    q, k, v = given["q"], given["k"], given["v"]
    in_pages = "page_table_k" in given or "page_table_v" in given
    if q[-1] != k[-1] or (k[-2] != v[-2] and not in_pages):
        return f"q {list(q)}, k {list(k)}, v {list(v)}"
    if q[-3] % k[-3] or q[-3] % v[-3]:
        return f"{q[-3]} query heads share {k[-3]} and {v[-3]} heads"
    for name, dim in made.items():
        width = {"o": v[-1], "dq": q[-1]}.get(name, 1)
        like = {"dk": k, "dv": v}.get(name, (*q[:-1], width))
        if name in ("o", "dq", "dk", "dv", "stats", "max", "sum") and dim != like:
            return f"{name} has dims {list(dim)}, not {list(like)}"
    return ""


def _anchor(v: Value, args: Args) -> str:
    anchor = ANCHORS[v.op]
    ports = v.ports
    names = [name for name, _ in anchor.arguments]
    if len(ports) != len(args) or tuple(p for p in ports if p in names) != tuple(names):
        return f"its arguments are {list(ports)}, it takes {names} and of {list(anchor.optional)}"
    if unknown := [p for p in ports if p not in names and p not in anchor.optional]:
        return f"it takes no argument {unknown[0]!r}"
    if v.compute is BOOLEAN:
        return "computed in BOOLEAN, which has no sum of products"
    results = {} if anchor.has_many_results else {anchor.results[0][0]: v.dim}
    given = {p: a.dim for p, a in zip(ports, args, strict=True)}
    return _ANCHOR_RULES[v.op](given, results, dict(v.attrs)) or _body_gap(v, args)


def _body_gap(v: Value, args: Args) -> str:
    outer = [a for p, a in zip(v.ports, args, strict=True) if p == "mod"]
    if v.body is None:
        return "it has tensors for a body and no body" if outer else ""
    held = [o for o in v.body.operands if o.role in (Role.IN, Role.SCALAR)]
    if len(held) <= len(outer):
        return f"its body reads {len(held)} operands, {len(outer)} of them from outside"
    for o, a in zip(held[len(held) - len(outer) :], outer, strict=True):
        if o.dtype is not a.dtype:
            return f"its body reads {o.dtype} where it is given {a.dtype}"
    return ""


def _axes_gap(v: Value, axes: Sequence[int]) -> str:
    rank = len(v.dim)
    return (
        f"axes {tuple(axes)} in a region of rank {rank}"
        if any(not 0 <= a < rank for a in axes)
        else ""
    )


def _broadcasts(dim: Sequence[int], to: Sequence[int]) -> bool:
    return len(dim) == len(to) and all(
        d in (1, t) for d, t in zip(dim, to, strict=True)
    )


_ANCHOR_RULES: dict[str, Callable[[Dims, Dims, Mapping[str, Any]], str]] = {
    "matmul": _check_matmul, "conv_fprop": _check_conv, "conv_dgrad": _check_conv, "conv_wgrad": _check_conv,
    "sdpa": _check_attention, "sdpa_backward": _check_attention,
}  # fmt: skip
RULES: dict[str, Rule] = {  # table: every op of a value
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(ANCHORS, _anchor),
    "load": _load, "const": _const, "index": _index, "count": _count, "reduce": _reduce, "concat": _concat,
    "pick": _pick,
}  # fmt: skip


def verify_region(region: Region) -> None:
    """Raises InvalidGraphError naming the first value or operand that breaks a rule of the IR."""
    _verify_values(region)
    for v in region.values:
        if v.body is not None:
            verify_region(v.body)
    _verify_space(region)
    for k, o in enumerate(region.operands):
        if reason := _operand_gap(region, o):
            raise InvalidGraphError(f"operand {k} ({o.role.value}): {reason}")
    for i, k in region.loads:
        v, o = region.values[i], region.operands[k]
        if o.dim != v.dim or o.dtype is not v.dtype:
            raise InvalidGraphError(
                f"operand {k} is {o.dtype}{o.dim}, value v{i} is {v.dtype}{v.dim}"
            )
    _verify_stores(region)


def _verify_values(region: Region) -> None:
    values, loads = region.values, region.operand_of
    rank = len(values[0].dim) if values else 0
    for i, v in enumerate(values):
        where = f"value v{i} ({v.op})"
        rule = RULES.get(v.op)
        if rule is None:
            raise InvalidGraphError(f"value v{i}: unknown op {v.op!r}")
        if any(not 0 <= a < i for a in v.args):
            raise InvalidGraphError(f"{where}: arguments {v.args}")
        if len(v.dim) != rank or any(d < 1 for d in v.dim):
            raise InvalidGraphError(f"{where}: dims {v.dim} in a region of rank {rank}")
        if not isinstance(v.dtype, DType) or not isinstance(v.compute, DType):
            raise InvalidGraphError(f"{where}: types {v.dtype!r} and {v.compute!r}")
        if (v.op == "load") != (i in loads):
            raise InvalidGraphError(f"{where}: a load names exactly one operand")
        many = [
            a
            for a in v.args
            if values[a].op in ANCHORS and ANCHORS[values[a].op].has_many_results
        ]
        if many and v.op != "pick":
            raise InvalidGraphError(
                f"{where}: reads v{many[0]}, whose results only `pick` reads"
            )
        if reason := rule(v, tuple([values[a] for a in v.args])):
            raise InvalidGraphError(f"{where}: {reason}")


def _verify_space(region: Region) -> None:
    """All values but those in front of an anchor walk one space; what follows an anchor with many results may not."""
    free: set[int] = set(region.prologue)
    for i, v in enumerate(region.values):
        if (v.op in ANCHORS and ANCHORS[v.op].has_many_results) or any(
            a in free and a not in region.prologue for a in v.args
        ):
            free.add(i)
        if i not in free and not _broadcasts(v.dim, region.domain):
            raise InvalidGraphError(
                f"value v{i} ({v.op}): dims {v.dim} in the space {region.domain}"
            )


def _operand_gap(region: Region, o: Operand) -> str:
    rank = len(region.values[0].dim) if region.values else len(o.dim)
    if len(o.dim) != rank or len(o.stride) != rank:
        return f"dims {o.dim} and strides {o.stride} in a region of rank {rank}"
    if o.offset < 0:
        return f"it starts {-o.offset} elements before its tensor"
    if o.rows is not None:
        starts, multiplier = o.rows
        if (
            not 0 <= starts < len(region.operands)
            or region.operands[starts].dtype.is_float
            or multiplier < 1
        ):
            return f"its sequences start at operand {starts} times {multiplier}"
    if o.combine not in ("", "add", "max", "min"):
        return f"stores are joined by {o.combine!r}"
    if (o.init is not None or o.combine) and not o.role.is_written:
        return "only what is written has a value before, or joins stores"
    if o.combine and o.init is None and o.role is not Role.INOUT:
        return f"stores are joined by {o.combine!r} with nothing there before"
    return ""


def _verify_stores(region: Region) -> None:
    for i, k in region.stores:
        v, o = region.values[i], region.operands[k]
        fits = _broadcasts(o.dim, v.dim) if o.combine else o.dim == v.dim
        if not fits or o.dtype is not v.dtype:
            raise InvalidGraphError(
                f"operand {k} is {o.dtype}{o.dim}, value v{i} is {v.dtype}{v.dim}"
            )
        if v.op in ANCHORS and ANCHORS[v.op].has_many_results:
            raise InvalidGraphError(
                f"value v{i} ({v.op}) is stored, but only `pick` reads its results"
            )
    stored = {k for _, k in region.stores}
    outs = {k for k, o in enumerate(region.operands) if o.role.is_written}
    if stored != outs or not stored:
        raise InvalidGraphError(
            f"stores go to operands {sorted(stored)}, outputs are {sorted(outs)}"
        )
    plain = [k for _, k in region.stores if not region.operands[k].combine]
    if len(set(plain)) < len(plain):
        raise InvalidGraphError(f"two values are stored to one operand: {plain}")
