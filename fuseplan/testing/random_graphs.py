"""Seeded random graphs: exact ones (correctly rounded operations in FLOAT) and smooth ones (any type).

Smooth graphs keep every value in a range where no operation is ill-conditioned, so that honest
candidates differ from the judge by rounding only.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import AttrValue, DraftNode, DraftTensor, Graph, GraphBuilder, packed_stride
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import broadcast, schema_of

EXACT_UNARY = ("abs", "neg", "floor", "ceil", "identity", "relu")
EXACT_BINARY = ("add", "sub", "mul", "max", "min", "cmp_gt", "cmp_le", "cmp_eq", "bias", "scale", "div")
SMOOTH_UNARY = ("tanh", "sigmoid", "gelu", "gelu_approx_tanh", "erf", "sin", "cos", "softplus", "swish", "neg", "elu")
SMOOTH_BINARY = ("add", "sub", "mul", "bias", "scale", "max", "min")


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

    def node(self, op: str, inputs: dict[str, DraftTensor], dims: dict[str, tuple[int, ...]] | None = None,
             **attrs: AttrValue) -> list[DraftTensor]:  # fmt: skip
        """Append a node; results get these dims, or the broadcast of the inputs."""
        schema = schema_of(op)
        stored = {a.name: attrs.get(a.name, a.default) for a in schema.attrs}
        outs: dict[str, DraftTensor] = {}
        for port in schema.outputs:
            if dims is not None and port.name not in dims:
                continue
            self.num_tensors += 1
            dim = dims[port.name] if dims is not None else broadcast(t.need_dim() for t in inputs.values())
            name = f"t{self.num_tensors}"
            outs[port.name] = DraftTensor(self.num_tensors, name, dim, packed_stride(dim), is_virtual=True)
        self.builder.nodes.append(DraftNode(op, f"{op}.{len(self.builder.nodes)}", inputs, outs, stored))
        made = list(outs.values())
        self.pool.extend(made)
        return made

    def finish(self, max_outputs: int = 3) -> Graph:
        """Mark leaves (and a random inner tensor) as outputs, infer, freeze; at least one node is made."""
        if not self.builder.nodes:
            self.node("identity", {"input": self.pool[0]})
        read = {id(t) for n in self.builder.nodes for t in n.inputs.values()}
        made = [t for n in self.builder.nodes for t in n.outputs.values()]
        leaves = [t for t in made if id(t) not in read]
        inner = [t for t in made if id(t) in read]
        for t in leaves[-max_outputs:] + ([self.rng.choice(inner)] if inner and self.rng.random() < 0.5 else []):
            t.is_virtual = False
        complete(self.builder)
        return self.builder.freeze()


def _dims(rng: random.Random) -> tuple[int, ...]:
    rank = rng.choice((2, 3, 3, 4))
    return tuple(rng.choice((1, 2, 3, 5, 8, 9)) for _ in range(rank))


def _draw(maker: GraphMaker, dim: tuple[int, ...]) -> DraftTensor:
    """A tensor that broadcasts into `dim`: one of the pool, or a new input, sometimes with extents of 1."""
    rng = maker.rng
    if rng.random() < 0.8:
        fits = [t for t in maker.pool[-12:] if _fits(t.need_dim(), dim)]
        if fits:
            return rng.choice(fits)
    return maker.input(tuple(1 if rng.random() < 0.25 else d for d in dim))


def _fits(small: tuple[int, ...], dim: tuple[int, ...]) -> bool:
    return len(small) == len(dim) and all(s in (1, d) for s, d in zip(small, dim, strict=True))


def exact_graph(seed: int, max_nodes: int = 24) -> Graph:
    """A graph whose engines must agree bit for bit."""
    rng = random.Random(seed)
    maker = GraphMaker(rng)
    dim = _dims(rng)
    maker.input(dim)
    for _ in range(rng.randint(1, max_nodes)):
        x = _draw(maker, dim)
        kind = rng.random()
        if kind < 0.3:
            maker.node(rng.choice(EXACT_UNARY), {"input": x})
        elif kind < 0.35:
            (size,) = maker.node("abs", {"input": x})
            maker.node("sqrt", {"input": size})
        elif kind < 0.85:
            op = rng.choice(EXACT_BINARY)
            ports = [p.name for p in schema_of(op).inputs]
            maker.node(op, dict(zip(ports, (x, _draw(maker, dim)), strict=True)))
        elif kind < 0.95:
            (mask,) = maker.node("cmp_gt", {"input": x, "comparison": _draw(maker, dim)})
            maker.node("binary_select", {"input0": _draw(maker, dim), "input1": _draw(maker, dim), "mask": mask})
        else:
            _reduce(maker, x, rng.choice(("MAX", "MIN", "AMAX")))
    return maker.finish()


def _reduce(maker: GraphMaker, x: DraftTensor, mode: str) -> None:
    dim = x.need_dim()
    kept = tuple(1 if maker.rng.random() < 0.5 else d for d in dim)
    port = schema_of("reduction").outputs[0].name
    maker.node("reduction", {"input": x}, {port: kept}, mode=mode)


def smooth_graph(seed: int, max_nodes: int = 24) -> Graph:
    """A graph of well-conditioned operations, in FLOAT, HALF or BFLOAT16, sometimes around an anchor."""
    rng = random.Random(seed)
    io = rng.choice((dtypes.FLOAT, dtypes.FLOAT, dtypes.HALF, dtypes.BFLOAT16))
    maker = GraphMaker(rng, io, rng.choice((dtypes.FLOAT, dtypes.FLOAT, io)))
    dim = _start(maker)
    for _ in range(rng.randint(1, max_nodes)):
        _smooth_step(maker, dim)
    return maker.finish()


def _start(maker: GraphMaker) -> tuple[int, ...]:
    """The first node: an input, a matmul or a convolution; its dims."""
    rng = maker.rng
    kind = rng.random()
    if kind < 0.25:
        b, m, n, k = rng.choice((1, 2, 3)), rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 12)
        a = maker.input((rng.choice((1, b)), m, k))
        maker.node("matmul", {"A": a, "B": maker.input((b, k, n))}, {"C": (b, m, n)})
        return (b, m, n)
    if kind < 0.4:
        n, c, h, k = rng.choice((1, 2)), rng.choice((1, 3, 4)), rng.randint(3, 7), rng.choice((1, 4, 5))
        x = maker.input((n, c, h, h))
        w = maker.input((k, c, 3, 3))
        dims: dict[str, tuple[int, ...]] = {"y": (n, k, h, h)}
        maker.node("conv_fprop", {"image": x, "weight": w}, dims, **_same_padding())
        return dims["y"]
    dim = _dims(rng)
    maker.input(dim)
    return dim


def _same_padding() -> dict[str, AttrValue]:
    names = {a.name for a in schema_of("conv_fprop").attrs}
    pads: dict[str, AttrValue] = {"pre_padding": (1, 1), "post_padding": (1, 1)}
    if "pre_padding" not in names:
        pads = {"padding": (1, 1)}
    return {**pads, "stride": (1, 1), "dilation": (1, 1)}


def _bounded(maker: GraphMaker, x: DraftTensor) -> DraftTensor:
    """x brought back to a moderate range."""
    return maker.node("tanh", {"input": x})[0]


def _smooth_step(maker: GraphMaker, dim: tuple[int, ...]) -> None:
    rng = maker.rng
    x = _draw(maker, dim)
    kind = rng.random()
    steps: list[tuple[float, Callable[[], object]]] = [
        (0.4, lambda: maker.node(rng.choice(SMOOTH_UNARY), {"input": x})),
        (0.5, lambda: maker.node("exp", {"input": _bounded(maker, x)})),
        (0.56, lambda: _divide(maker, x, _draw(maker, dim))),
        (0.85, lambda: _smooth_binary(maker, x, dim)),
        (0.93, lambda: _reduce(maker, x, rng.choice(("ADD", "AVG", "MAX", "AMAX", "NORM2")))),
        (1.01, lambda: _norm(maker, x)),
    ]
    next(step for bound, step in steps if kind < bound)()


def _divide(maker: GraphMaker, x: DraftTensor, y: DraftTensor) -> None:
    (below,) = maker.node("exp", {"input": _bounded(maker, y)})
    maker.node("div", {"a": x, "b": below})


def _smooth_binary(maker: GraphMaker, x: DraftTensor, dim: tuple[int, ...]) -> None:
    op = maker.rng.choice(SMOOTH_BINARY)
    ports = [p.name for p in schema_of(op).inputs]
    y = _draw(maker, dim)
    if op in ("mul", "scale"):
        x, y = _bounded(maker, x), _bounded(maker, y)
    maker.node(op, dict(zip(ports, (x, y), strict=True)))


def _norm(maker: GraphMaker, x: DraftTensor) -> None:
    """A norm over the last axis; in TRAINING its statistics are results as well."""
    dim = x.need_dim()
    if dim[-1] < 2:
        return
    rng = maker.rng
    op = rng.choice(("layernorm", "rmsnorm"))
    last = (1,) * (len(dim) - 1) + dim[-1:]
    ones = (1,) * len(dim)
    stats = (*dim[:-1], 1)
    ports = [p.name for p in schema_of(op).outputs]
    training = rng.random() < 0.5
    dims = {p: dim if k == 0 else stats for k, p in enumerate(ports) if k == 0 or training}
    eps = maker.input(ones, dtypes.FLOAT, ones)
    eps.value, eps.is_constant, eps.is_pass_by_value = 0.1, rng.random() < 0.5, True
    inputs = {"input": x, "scale": maker.input(last), "eps": eps}
    if rng.random() < 0.5:
        inputs = {"input": x, "scale": inputs["scale"], "bias": maker.input(last), "eps": eps}
    maker.node(op, inputs, dims, phase="TRAINING" if training else "INFERENCE")
    maker.pool.remove(eps)
