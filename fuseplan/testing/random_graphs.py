"""Seeded random graphs, drawn from the entries of all ops: exact, smooth and wide ones.

Exact graphs hold correctly rounded operations in FLOAT, so engines must agree bit for bit. Smooth graphs hold
continuous operations on values of a moderate range, so honest candidates differ from the judge by rounding only.
Wide graphs hold every op, with types, ranks, strides and scalars mixed; some of their elements stay undecided.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod

from fuseplan import dtypes
from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, HALF, INT8, INT32, INT64, UINT8, DType, dtype_of
from fuseplan.ir.graph import AttrValue, DraftNode, DraftTensor, Graph, GraphBuilder, Node, packed_stride
from fuseplan.ops.draws import Dims, Draw
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import OpSchema, Sample, all_schemas, schema_of


@dataclass
class GraphMaker:
    """A draft graph with a pool of tensors to draw from."""

    rng: random.Random
    io: DType = dtypes.FLOAT
    intermediate: DType = dtypes.FLOAT
    builder: GraphBuilder = field(init=False)
    pool: list[DraftTensor] = field(default_factory=list)
    num_tensors: int = 0

    def __post_init__(self) -> None:
        self.builder = GraphBuilder("random", self.io, self.intermediate, dtypes.FLOAT)

    def input(
        self, dim: tuple[int, ...], dtype: DType | None = None, stride: tuple[int, ...] | None = None
    ) -> DraftTensor:
        """A graph input; without `stride`, packed in a random axis order, sometimes with gaps or a zero stride."""
        self.num_tensors += 1
        if stride is None:
            order = list(range(len(dim)))[::-1]
            if self.rng.random() < 0.3:
                self.rng.shuffle(order)
            stride = packed_stride(dim, order)
            if self.rng.random() < 0.1:
                stride = tuple(2 * s for s in stride)
            if self.rng.random() < 0.05:
                axis = self.rng.randrange(len(dim))
                stride = tuple(0 if i == axis else s for i, s in enumerate(stride))
        made = DraftTensor(self.num_tensors, f"t{self.num_tensors}", dim, stride, dtype or self.io)
        self.pool.append(made)
        return made

    def node(self, op: str, inputs: Mapping[str, DraftTensor], dims: Mapping[str, Dims | None] | None = None,
             **attrs: AttrValue) -> list[DraftTensor]:  # fmt: skip
        """Append a node; it has the results named in `dims`, or all, with these dims or those of inference."""
        schema = schema_of(op)
        stored = {a.name: attrs.get(a.name, a.default) for a in schema.attrs}
        outs: dict[str, DraftTensor] = {}
        for port in [p.name for p in schema.outputs] if dims is None else dims:
            self.num_tensors += 1
            outs[port] = DraftTensor(self.num_tensors, f"t{self.num_tensors}", is_virtual=True)
            outs[port].dim = dims[port] if dims is not None else None
        node = DraftNode(op, f"{op}.{len(self.builder.nodes)}", dict(inputs), outs, stored)
        if any(t.dim is None for t in outs.values()):
            schema.infer(node)
        for t in outs.values():
            t.stride = packed_stride(t.need_dim())
        self.builder.nodes.append(node)
        self.pool.extend(outs.values())
        return list(outs.values())

    def finish(self, max_outputs: int = 3) -> Graph:
        """Mark leaves (and a random inner tensor) as outputs, infer, freeze; at least one node is made."""
        leaves, inner = self.results()
        for t in leaves[-max_outputs:] + ([self.rng.choice(inner)] if inner and self.rng.random() < 0.5 else []):
            t.is_virtual = False
        complete(self.builder)
        return self.builder.freeze()

    def results(self) -> tuple[list[DraftTensor], list[DraftTensor]]:
        """What nodes make: tensors that no node reads, and the others; at least one node is made."""
        if not self.builder.nodes:
            self.node("identity", {"input": self.pool[0]})
        read = {id(t) for n in self.builder.nodes for t in n.inputs.values()}
        made = [t for n in self.builder.nodes for t in n.outputs.values()]
        return [t for t in made if id(t) not in read], [t for t in made if id(t) in read]


@dataclass(frozen=True)
class Profile:
    """Types of inputs and outputs, of virtual tensors, and of arithmetic."""

    io: tuple[DType, ...]
    virtual: tuple[DType, ...] = (FLOAT,)
    compute: tuple[DType, ...] = (FLOAT,)

    @property
    def is_whole(self) -> bool:
        return not any(t.is_float for t in self.compute)


@dataclass(frozen=True)
class Kind:
    """What one kind of graph holds: types, ops, and whether values are kept where rounding alone can differ."""

    profiles: tuple[Profile, ...]
    takes: Callable[[OpSchema], bool]
    is_exact: bool = False
    is_smooth: bool = False


EXACT = Kind((Profile((FLOAT,)),), lambda op: op.is_exact or op.exact_when is not None, is_exact=True)
SMOOTH = Kind(
    (*(Profile((t,)) for t in (FLOAT, FLOAT, HALF, BFLOAT16)), Profile((HALF,), (HALF,)),
     Profile((BFLOAT16,), (BFLOAT16,))),
    lambda op: op.draws.is_continuous, is_smooth=True,
)  # fmt: skip
WIDE = Kind(
    (
        Profile((FLOAT,)),
        Profile((HALF, FLOAT), (FLOAT, HALF)),
        Profile((BFLOAT16, FLOAT), (FLOAT, BFLOAT16)),
        Profile((HALF, BFLOAT16, FLOAT), (FLOAT, HALF, BFLOAT16), (FLOAT, HALF, BFLOAT16)),
        Profile((DOUBLE, FLOAT), (DOUBLE, FLOAT), (DOUBLE,)),
        Profile((FLOAT, DOUBLE, HALF, BFLOAT16, INT8, UINT8, INT32, BOOLEAN), (FLOAT, DOUBLE, HALF), (FLOAT, DOUBLE)),
        Profile((INT32, INT8, UINT8, INT64, BOOLEAN), (INT32, INT64), (INT32, INT64)),
    ),
    lambda op: True,
)


def exact_graph(seed: int, max_nodes: int = 24) -> Graph:
    """A graph whose engines must agree bit for bit."""
    return _Growth(random.Random(seed), EXACT).grow(max_nodes)


def smooth_graph(seed: int, max_nodes: int = 24) -> Graph:
    """A graph of well-conditioned operations, in FLOAT, HALF or BFLOAT16."""
    return _Growth(random.Random(seed), SMOOTH).grow(max_nodes)


def wide_graph(seed: int, max_nodes: int = 16) -> Graph:
    """A graph of any ops and types."""
    return _Growth(random.Random(seed), WIDE).grow(max_nodes)


@cache
def _good_samples(samples: Callable[[], Iterable[Sample]], is_whole: bool) -> tuple[Sample, ...]:
    """Samples of float (or whole) arithmetic whose operands are all of such types, so that any values do."""

    def fits(name: str) -> bool:
        return dtype_of(name).is_float is not is_whole

    good = (s for s in samples() if s.fails is None and fits(s.compute))
    return tuple(s for s in good if all(fits(kind) for _, kind, *_ in s.inputs.values()))


class _Growth:
    """A graph that grows; what draws of ops take their operands from (see `ops.draws.Pool`)."""

    def __init__(self, rng: random.Random, kind: Kind) -> None:
        self.rng, self.kind, self.profile = rng, kind, rng.choice(kind.profiles)
        self.maker = GraphMaker(rng, rng.choice(self.profile.io), rng.choice(self.profile.virtual))
        self.maker.builder.compute_dtype = self.profile.compute[0]
        rank = rng.choice((1, 2, 3, 3, 4, 4, 5))
        self.dim: Dims = tuple(rng.choice((1, 1, 2, 3, 4, 5, 9, 17) if rank < 4 else (1, 2, 3, 5)) for _ in range(rank))
        self.moderate: dict[DraftTensor, DraftTensor] = {}  # what `bounded` made of a tensor
        self.ops = [op for op in all_schemas() if kind.takes(op) and _good_samples(op.samples, self.is_whole)]

    @property
    def is_whole(self) -> bool:
        return self.profile.is_whole

    def grow(self, max_nodes: int) -> Graph:
        self.input(self.dim)
        for _ in range(self.rng.randint(1, max_nodes)):
            (op,) = self.rng.choices(self.ops, [op.draws.weight for op in self.ops])
            drawn = op.draws.draw(self) if op.draws.draw is not None else self._sampled(op)
            if drawn is not None and (not self.kind.is_exact or _is_exact(op, drawn)):
                self._append(op.name, drawn)
        return self._finish()

    def _append(self, op: str, drawn: Draw) -> None:
        """A drawn node; a result of other dims may become what later nodes look like."""
        made = self.node(op, drawn.inputs, drawn.outputs or None, **drawn.attrs)
        for port, t in self.maker.builder.nodes[-1].outputs.items():
            if self.kind is WIDE and port in drawn.types and self.rng.random() < 0.4:
                t.dtype = drawn.types[port]
        if not _fits(made.need_dim(), self.dim) and self.rng.random() < 0.6:
            self.dim = made.need_dim()

    def _sampled(self, op: OpSchema) -> Draw:
        """A node as in one of the entry's samples, with operands of the same dims."""
        sample = self.rng.choice(_good_samples(op.samples, self.is_whole))
        inputs: dict[str, DraftTensor] = {}
        for port, (dim, *_) in sample.inputs.items():
            found = [t for t in self.maker.pool if t.dim == dim]
            x = self.rng.choice(found) if found and self.rng.random() < 0.6 else self.input(dim)
            low, _ = sample.ranges.get(port, (sample.low, sample.high))
            inputs[port] = self.positive(x) if low > 0 else self.bounded(x)
        outputs = {p.name: sample.outputs.get(p.name) for p in op.outputs if p.name not in sample.absent}
        return Draw(inputs, outputs, sample.attrs)

    def node(self, op: str, inputs: Mapping[str, DraftTensor], dims: Mapping[str, Dims | None] | None = None,
             **attrs: AttrValue) -> DraftTensor:  # fmt: skip
        made = self.maker.node(op, inputs, dims, **attrs)
        self.maker.builder.nodes[-1].compute = self.rng.choice(self.profile.compute)
        for t in made:
            if self.rng.random() < 0.3:
                t.dtype = self.rng.choice(self.profile.virtual)
        return made[0]

    def input(self, dim: Dims) -> DraftTensor:
        """An input of any type, sometimes with gaps, zero strides and any order of axes."""
        rng, stride = self.rng, None
        if rng.random() < 0.15:
            step, found = rng.choice((1, 1, 2, 3)), [0] * len(dim)
            for axis in rng.sample(range(len(dim)), len(dim)):
                found[axis] = step if rng.random() > 0.15 else 0
                step = step * dim[axis] + rng.choice((0, 0, 1, 3))
            stride = tuple(found)
        return self.maker.input(dim, rng.choice(self.profile.io), stride)

    def scalar(self, rank: int, value: float | None = None, dtype: DType | None = None) -> DraftTensor:
        """A host scalar: baked in, owned by the graph, or passed by the caller; with a value, never the last."""
        rng, ones, floats = self.rng, (1,) * rank, (FLOAT,) if self.kind is not WIDE else (FLOAT, DOUBLE)
        made = self.maker.input(ones, dtype or (INT32 if self.is_whole else rng.choice(floats)), ones)
        made.is_pass_by_value, passed = True, rng.random()
        if value is not None or passed < 0.7:
            value = rng.choice((-1.0, 2.0, 3.0, 0.0)) if value is None else value
            made.value, made.is_constant = value if made.dtype in (FLOAT, DOUBLE) else int(value), passed < 0.35
        self.maker.pool.remove(made)
        return made

    def like(self) -> DraftTensor:
        """Something that broadcasts to `dim`: of the pool, a scalar, or a new input of the same or a lower rank."""
        rng, dim = self.rng, self.dim
        if rng.random() < 0.06:
            return self.scalar(rng.choice((1, len(dim))))
        fits = [t for t in self.maker.pool[-rng.choice((6, 99)) :] if _fits(t.need_dim(), dim)]
        if fits and rng.random() < 0.8:
            return rng.choice(fits)
        dim = tuple(1 if rng.random() < 0.25 else d for d in dim)
        return self.input(dim[rng.randrange(len(dim)) :] if rng.random() < 0.12 else dim)

    def of_rank(self, ranks: range) -> DraftTensor:
        """A tensor of the pool, or an input, of one of these ranks."""
        found = [t for t in self.maker.pool[-8:] if len(t.need_dim()) in ranks and prod(t.need_dim()) < 4000]
        if found and self.rng.random() < 0.6:
            x = self.rng.choice(found)
        else:
            x = self.input(tuple(self.rng.choice((2, 3, 4, 6)) for _ in range(self.rng.choice(ranks))))
        return self.bounded(x) if self.is_whole or self.kind.is_smooth else x

    def bounded(self, x: DraftTensor) -> DraftTensor:
        if self.kind.is_exact:
            return x
        if x not in self.moderate:
            made = (
                self.node("mod", {"input0": x, "input1": self.scalar(1, 7, INT32)})
                if self.is_whole
                else self.node("tanh", {"input": x})
            )
            self.moderate |= {x: made, made: made}
        return self.moderate[x]

    def positive(self, x: DraftTensor) -> DraftTensor:
        if self.kind.is_exact:
            return self.node("abs", {"input": x})
        if self.is_whole:
            return self.node("add", {"a": self.node("abs", {"input": self.bounded(x)}), "b": self.scalar(1, 1, INT32)})
        return self.node("exp", {"input": self.bounded(x)})

    def _finish(self) -> Graph:
        """Choose outputs among leaves and inner tensors, with strides of their own; infer, freeze."""
        rng = self.rng
        leaves, inner = self.maker.results()
        outputs = rng.sample(leaves, rng.randint(1, len(leaves)))[:5]
        outputs += rng.sample(inner, min(len(inner), rng.choice((0, 0, 1, 2))))
        for t in outputs:
            t.is_virtual, t.dtype = False, t.dtype or rng.choice(self.profile.io)
        for t in (*leaves, *inner):
            if rng.random() < 0.4:
                dim = t.need_dim()
                gap = rng.choice((1, 1, 2))
                t.stride = tuple(gap * s for s in packed_stride(dim, rng.sample(range(len(dim)), len(dim))))
        complete(self.maker.builder)
        return self.maker.builder.freeze()


def _is_exact(op: OpSchema, drawn: Draw) -> bool:
    return op.is_exact_at(Node(0, op.name, op.name, (), (), tuple(drawn.attrs.items()), FLOAT))


def _fits(small: Dims, dim: Dims) -> bool:
    return len(small) <= len(dim) and all(s in (1, d) for s, d in zip(small[::-1], dim[::-1], strict=False))
