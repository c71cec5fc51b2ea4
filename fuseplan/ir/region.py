"""The unit of fusion: one SSA list of values, its operands in launch order, and its stores.

Meaning of a value: the arguments are converted to `compute`, the op is evaluated there, and the
result is rounded (nearest-even; saturating for integers and fp8) to `dtype`. Broadcasting follows
from dims alone: all values have the rank of the region, an extent of 1 is repeated.

Ops of a value:

    load                 an operand's elements (which one: `Region.loads`); dtype is the operand's
    const                attrs: value
    index                attrs: axis; the position along that axis
    count                attrs: axes; number of elements of args[0] over these axes, all dims 1
    cast                 x
    neg abs exp log log1p sqrt sin cos tan tanh erf floor ceil not_      x
    add sub mul div max min mod pow eq ne gt ge lt le and_ or_      x, y
    select               mask, x, y: x where mask is not 0, else y
    reduce               x; attrs: mode (add, mul, max, min), axes
    concat               x, y, ..; attrs: axis; only in front of an anchor (a stored one is several stores)
    pick                 a result of an anchor with several; attrs: result, its name
    <anchor>             see `ir.anchors`; attrs: ports where there are optional arguments, results where there are
                         several, and those of the op: of a convolution pre_pad, post_pad, stride, dilation, flip

Views: an operand is a window on a tensor's memory (offset, dims, strides), and one tensor may be read through
several, so slices, transposes and the like are loads of their own.

An axis is counted from 0 among the region's dims.

Exact rules shared by references and emitters: ``max(a, b) = a if a > b or a != a else b`` and
``min(a, b) = a if a < b or a != a else b`` (so NaN is propagated from either side), also inside
reductions with the accumulator as `b`; comparisons with NaN are false except `ne`; `not_`,
`and_`, `or_`, comparisons give 1 or 0; `mod` is C's fmod.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from fuseplan.dtypes import DType
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import Attrs, AttrValue, Graph
from fuseplan.ir.keys import canonical_key
from fuseplan.runtime.forks import cached_property

UNARY = frozenset("neg abs exp log log1p sqrt sin cos tan tanh erf floor ceil not_".split())
BINARY = frozenset("add sub mul div max min mod pow eq ne gt ge lt le and_ or_".split())
ELEMENTWISE = UNARY | BINARY | {"select", "cast"}


class Role(Enum):
    """What a kernel does with an operand."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"  # what was there before the call matters, and some of it is written
    SCALAR = "scalar"  # host scalar, read at call time
    SCRATCH = "scratch"  # private memory of the kernel; nothing is kept in it between calls

    @property
    def is_written(self) -> bool:
        """Whether stores may go there."""
        return self in (Role.OUT, Role.INOUT)


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value.

    Args:
        args: indices of earlier values of the region
        node: index in the source graph of the node it is a part of, -1 for inputs
        body: of an anchor, what it applies inside (a score modifier): its operands are first what the anchor hands to
            it, then the anchor's arguments at port ``mod``, in order; its stores are what it gives back
    """

    op: str
    args: tuple[int, ...]
    dim: tuple[int, ...]
    dtype: DType
    compute: DType
    attrs: Attrs = ()
    node: int = -1
    body: Region | None = None

    def attr(self, name: str) -> AttrValue:
        return dict(self.attrs)[name]

    @property
    def ports(self) -> tuple[str, ...]:
        """Name of each argument of an anchor; a list port stands there once per argument."""
        given = dict(self.attrs).get("ports") or [name for name, _ in ANCHORS[self.op].arguments]
        return tuple(given)  # type: ignore[arg-type]

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes of a `reduce` or `count`."""
        return self.attr("axes")  # type: ignore[return-value]

    @property
    def axis(self) -> int:
        """Axis of an `index`."""
        return self.attr("axis")  # type: ignore[return-value]

    @property
    def mode(self) -> str:
        """Mode of a `reduce`."""
        return self.attr("mode")  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Operand:
    """One kernel parameter, in launch order; dims have the region's rank, strides are in elements.

    Args:
        uid: tensor whose memory it is a window on; several operands may have the same
        offset: where the window starts, in elements
        rows: for a packed tensor, (operand with the starts of its sequences, elements that a start of 1 stands for)
        init: value that every element must have before the first store, None if it does not matter
        combine: how a store joins what is there (add, max, min); empty if it takes its place. With it, extents of
            the stored value that the operand lacks are folded
    """

    uid: int
    dim: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: DType
    role: Role
    offset: int = 0
    rows: tuple[int, int] | None = None
    init: float | int | None = None
    combine: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of a node or region: floating-point operations, and bytes read and written once."""

    flops: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.read_bytes + other.read_bytes, self.write_bytes + other.write_bytes)


@dataclass(frozen=True)
class Region:
    """One fused piece of a graph.

    Args:
        graph: the same piece as nodes (its own tensors and indices)
        values: SSA list; empty where the engine takes the whole graph and runs its nodes
        operands: inputs and scalars in order of first use, then outputs
        loads: (value, operand) for each value whose op is load
        stores: (value, operand) for each stored value
        cost: work of the piece

    Where `graph.is_dynamic`, an engine makes no choice by extents other than 1, so that all extents share a kernel.
    """

    graph: Graph = field(repr=False)
    values: tuple[Value, ...]
    operands: tuple[Operand, ...]
    loads: tuple[tuple[int, int], ...]
    stores: tuple[tuple[int, int], ...]
    cost: Cost = Cost()

    @cached_property
    def operand_of(self) -> dict[int, int]:
        """Load value -> operand index."""
        return dict(self.loads)

    @cached_property
    def outputs_of(self) -> dict[int, tuple[int, ...]]:
        """Stored value -> operands that it is stored to."""
        found: dict[int, tuple[int, ...]] = {}
        for value, operand in self.stores:
            found[value] = (*found.get(value, ()), operand)
        return found

    @cached_property
    def anchors(self) -> tuple[int, ...]:
        """Values that are anchors, in order."""
        return tuple(i for i, v in enumerate(self.values) if v.op in ANCHORS)

    @cached_property
    def reductions(self) -> tuple[int, ...]:
        """Values that are reductions, in order."""
        return tuple(i for i, v in enumerate(self.values) if v.op == "reduce")

    @cached_property
    def prologue(self) -> frozenset[int]:
        """Values that reach a store only through an anchor or a `concat`: those fix the iteration, not these."""
        found: set[int] = set()
        stored = {v for v, _ in self.stores}
        for i in range(len(self.values) - 1, -1, -1):
            through = (self.values[u].op in ANCHORS or self.values[u].op == "concat" for u in self.users[i])
            if i not in stored and all(u in found or t for u, t in zip(self.users[i], through, strict=True)):
                found.add(i)
        return frozenset(found)

    @cached_property
    def domain(self) -> tuple[int, ...]:
        """Iteration dims: the broadcast of all values but those of the prologue."""
        rank = max((len(v.dim) for v in self.values), default=0)
        dims = [1] * rank
        for i, v in enumerate(self.values):
            if i not in self.prologue:
                for axis, extent in enumerate(v.dim, rank - len(v.dim)):
                    dims[axis] = max(dims[axis], extent)
        return tuple(dims)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the values that read it."""
        found: list[list[int]] = [[] for _ in self.values]
        for i, v in enumerate(self.values):
            for a in v.args:
                if not found[a] or found[a][-1] != i:
                    found[a].append(i)
        return tuple(tuple(u) for u in found)

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """What a kernel bakes in and nothing else: no uids, names, source nodes; hashable."""
        if not self.values:
            return (canonical_key(self.graph),)
        return (
            tuple(
                (v.op, v.args, v.dim, v.dtype.name, v.compute.name, v.attrs, v.body and v.body.structure)
                for v in self.values
            ),
            tuple(_facts(o) for o in self.operands),
            self._shared_memory,
            self.loads,
            self.stores,
            self.graph.is_dynamic,
        )

    @property
    def _shared_memory(self) -> tuple[int, ...]:
        """For each operand the first one of the same tensor, where any two are of one."""
        first: dict[int, int] = {}
        found = tuple(first.setdefault(o.uid, k) for k, o in enumerate(self.operands))
        return found if len(first) < len(found) else ()

    @cached_property
    def key(self) -> str:
        """Hex digest of `structure`: equal kernels have equal keys."""
        return sha256(repr(self.structure).encode()).hexdigest()


def _facts(o: Operand) -> tuple[object, ...]:
    """What a kernel bakes in of an operand."""
    plain = (o.dim, o.stride, o.dtype.name, o.role.value)
    more = (o.offset, o.rows, o.init, o.combine)
    return (*plain, *more) if more != (0, None, None, "") else plain
