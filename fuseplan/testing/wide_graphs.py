"""Seeded random graphs over every op that a fused region may hold, with types, ranks, strides and scalars mixed.

Wider than `random_graphs`: each node has its own compute type, each tensor its own type; comparisons and
conversions to integers leave more elements undecided.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, HALF, INT8, INT32, INT64, UINT8, DType
from fuseplan.ir.graph import AttrValue, DraftTensor, Graph, packed_stride
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import all_schemas, broadcast, schema_of
from fuseplan.testing.random_graphs import GraphMaker

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """Types of inputs and outputs, of virtual tensors, and of arithmetic."""

    io: tuple[DType, ...]
    virtual: tuple[DType, ...]
    compute: tuple[DType, ...]

    @property
    def is_whole(self) -> bool:
        return not any(t.is_float for t in self.compute)


PROFILES = (  # table
    Profile((FLOAT,), (FLOAT,), (FLOAT,)),
    Profile((HALF, FLOAT), (FLOAT, HALF), (FLOAT,)),
    Profile((BFLOAT16, FLOAT), (FLOAT, BFLOAT16), (FLOAT,)),
    Profile((HALF, BFLOAT16, FLOAT), (FLOAT, HALF, BFLOAT16), (FLOAT, HALF, BFLOAT16)),
    Profile((DOUBLE, FLOAT), (DOUBLE, FLOAT), (DOUBLE,)),
    Profile((FLOAT, DOUBLE, HALF, BFLOAT16, INT8, UINT8, INT32, BOOLEAN), (FLOAT, DOUBLE, HALF), (FLOAT, DOUBLE)),
    Profile((INT32, INT8, UINT8, INT64, BOOLEAN), (INT32, INT64), (INT32, INT64)),
)
_FLOAT_ONLY = frozenset(
    "tanh sigmoid gelu gelu_approx_tanh erf sin cos tan softplus swish elu leaky_relu exp log sqrt rsqrt reciprocal pow"
    .split()
)  # fmt: skip
_BOUNDED = frozenset({"exp", "tan", "mul", "scale", "add_square"})  # operands brought to a moderate range first
_POSITIVE = frozenset({"log", "sqrt", "rsqrt", "reciprocal"})
_RELUS: tuple[dict[str, AttrValue], ...] = (
    {}, {"lower_clip": -1.0}, {"upper_clip": 1.0}, {"lower_clip": -1.0, "upper_clip": 2.0}, {"negative_slope": 2.0},
    {"negative_slope": 2.0, "lower_clip": 1.0, "upper_clip": 3.0},
)  # fmt: skip


def wide_graph(seed: int, max_nodes: int = 16) -> Graph:
    """A graph of any ops and types."""
    made = _Wide(random.Random(seed))
    made.input(made.dim)
    for _ in range(made.rng.randint(1, max_nodes)):
        made.step()
    return made.finish()


class _Wide:
    """A graph that grows; `dim` is what most nodes broadcast to."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.profile = rng, rng.choice(PROFILES)
        self.maker = GraphMaker(rng, rng.choice(self.profile.io), rng.choice(self.profile.virtual))
        self.maker.builder.compute_dtype = self.profile.compute[0]
        rank = rng.choice((1, 2, 3, 3, 4, 4, 5))
        self.dim: Dims = tuple(rng.choice((1, 1, 2, 3, 4, 5, 9, 17) if rank < 4 else (1, 2, 3, 5)) for _ in range(rank))
        schemas = [s for s in all_schemas() if s.family == "pointwise"]
        self.ops = [s.name for s in schemas if not (self.profile.is_whole and s.name in _FLOAT_ONLY)]

    def node(self, op: str, inputs: dict[str, DraftTensor], dims: dict[str, Dims] | None = None,
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
        """A host scalar: baked in, owned by the graph, or passed by the caller."""
        rng, ones = self.rng, (1,) * rank
        made = self.maker.input(ones, dtype or (INT32 if self.profile.is_whole else rng.choice((FLOAT, DOUBLE))), ones)
        made.is_pass_by_value, kind = True, rng.random()
        if value is not None or kind < 0.7:
            value = rng.choice((-1.0, 2.0, 3.0, 0.0)) if value is None else value
            made.value, made.is_constant = value if made.dtype in (FLOAT, DOUBLE) else int(value), kind < 0.35
        self.maker.pool.remove(made)
        return made

    def draw(self) -> DraftTensor:
        """Something that broadcasts to `dim`: of the pool, a scalar, or a new input of the same or a lower rank."""
        rng, dim = self.rng, self.dim
        if rng.random() < 0.06:
            return self.scalar(rng.choice((1, len(dim))))
        fits = [t for t in self.maker.pool[-rng.choice((6, 99)) :] if _fits(t.need_dim(), dim)]
        if fits and rng.random() < 0.8:
            return rng.choice(fits)
        dim = tuple(1 if rng.random() < 0.25 else d for d in dim)
        return self.input(dim[rng.randrange(len(dim)) :] if rng.random() < 0.12 else dim)

    def bounded(self, x: DraftTensor) -> DraftTensor:
        if self.profile.is_whole:
            return self.node("mod", {"input0": x, "input1": self.scalar(1, 7, INT32)})
        return self.node("tanh", {"input": x})

    def positive(self, x: DraftTensor) -> DraftTensor:
        if self.profile.is_whole:
            return self.node("add", {"a": self.node("abs", {"input": self.bounded(x)}), "b": self.scalar(1, 1, INT32)})
        return self.node("exp", {"input": self.bounded(x)})

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.7:
            self.pointwise()
        elif kind < 0.82:
            self.reduction(self.draw())
        elif kind < 0.9:
            self.norm(self.draw())
        elif kind < 0.95:
            self.matmul()
        else:
            self.conv()

    def pointwise(self) -> None:
        rng, op = self.rng, self.rng.choice(self.ops)
        inputs = {p.name: self.draw() for p in schema_of(op).inputs}
        names = list(inputs)
        if rng.random() < 0.1:
            inputs = dict.fromkeys(names, inputs[names[0]])
        if op in ("div", "mod", "pow"):
            top, below = inputs[names[0]], inputs[names[1]]
            mend = (self.positive, self.bounded) if op == "pow" else (self.bounded, self.positive)
            inputs = dict(zip(names, (mend[0](top), mend[1](below)), strict=True))
        elif op in _BOUNDED or op in _POSITIVE:
            inputs = {p: (self.bounded if op in _BOUNDED else self.positive)(x) for p, x in inputs.items()}
        rank = len(inputs[names[0]].need_dim())
        attrs: dict[str, AttrValue] = {
            "relu": rng.choice(_RELUS),
            "leaky_relu": {"negative_slope": rng.choice((0.01, -0.5))},
            "swish": {"swish_beta": rng.choice((None, 1.702, -0.5))},
            "gen_index": {"axis": rng.randrange(-rank, rank)},
        }.get(op, {})  # type: ignore[assignment]
        made = self.node(op, inputs, {"y": self.dim} if op != "gen_index" and rng.random() < 0.04 else None, **attrs)
        if op.startswith(("cmp", "logical")) and rng.random() < 0.4:
            made.dtype = BOOLEAN

    def reduction(self, x: DraftTensor) -> None:
        modes = ["ADD", "MIN", "MAX", "AMAX", "AVG", "NORM1"] + ["NORM2"] * (not self.profile.is_whole)
        kept = tuple(1 if self.rng.random() < 0.5 else d for d in x.need_dim())
        self.node("reduction", {"input": x}, {"y": kept}, mode=self.rng.choice(modes))

    def norm(self, x: DraftTensor) -> None:
        """A norm over the last axes, or over one; in TRAINING its statistics are results as well."""
        rng, dim = self.rng, x.need_dim()
        if self.profile.is_whole or len(dim) < 2:
            return
        axes = range(rng.randrange(1, len(dim)), len(dim)) if rng.random() < 0.8 else [rng.randrange(1, len(dim))]
        scale = tuple(d if i in axes else 1 for i, d in enumerate(dim))
        if prod(scale) < 3:
            return
        op, phase = rng.choice(("layernorm", "rmsnorm")), rng.choice(("TRAINING", "INFERENCE"))
        stats = tuple(1 if s != 1 else d for s, d in zip(scale, dim, strict=True))
        ports = [p.name for p in schema_of(op).outputs]
        dims = {p: dim if k == 0 else stats for k, p in enumerate(ports) if k == 0 or phase == "TRAINING"}
        bias = {"bias": self.input(scale)} if rng.random() < 0.5 else {}
        eps = self.scalar(len(dim), 0.1, FLOAT)
        inputs = {"input": x, "scale": self.input(scale), **bias, "eps": eps}
        self.node(op, inputs, dims, phase=phase)

    def _source(self, ranks: range) -> DraftTensor:
        """A tensor of the pool, or an input, of one of these ranks."""
        found = [t for t in self.maker.pool[-8:] if len(t.need_dim()) in ranks and prod(t.need_dim()) < 4000]
        if found and self.rng.random() < 0.6:
            x = self.rng.choice(found)
        else:
            x = self.input(tuple(self.rng.choice((2, 3, 4, 6)) for _ in range(self.rng.choice(ranks))))
        return self.bounded(x) if self.profile.is_whole else x

    def _adopt(self, made: DraftTensor) -> None:
        if self.rng.random() < 0.6:
            self.dim = made.need_dim()

    def matmul(self) -> None:
        rng, a = self.rng, self._source(range(2, 5))
        lead, (m, k) = a.need_dim()[:-2], a.need_dim()[-2:]
        b = self.input(
            (*(rng.choice((1, d)) if d > 1 else rng.choice((1, 2)) for d in lead), k, rng.choice((1, 8, 65)))
        )
        batch, n = broadcast((lead, b.need_dim()[:-2])), b.need_dim()[-1]
        inputs = {"A": a, "B": self.bounded(b) if self.profile.is_whole else b}
        self._adopt(self.node("matmul", inputs, {"C": (*batch, m, n)}))

    def conv(self) -> None:
        rng, x = self.rng, self._source(range(3, 6))
        n, c, *size = x.need_dim()
        axes, groups = range(len(size)), rng.choice([g for g in range(1, c + 1) if c % g == 0])
        taps, step, dilation = (tuple(rng.choice(v) for _ in axes) for v in ((1, 2, 3), (1, 1, 2, 3), (1, 1, 2)))
        pre, post = (tuple(rng.choice((0, 1, 2)) for _ in axes) for _ in range(2))
        out = tuple(1 + (size[i] + pre[i] + post[i] - dilation[i] * (taps[i] - 1) - 1) // step[i] for i in axes)
        if min(out) < 1:
            return
        k = groups * rng.choice((1, 2, 3))
        w = self.input((k, c // groups, *taps))
        inputs = {"image": x, "weight": self.bounded(w) if self.profile.is_whole else w}
        mode = rng.choice(("CROSS_CORRELATION", "CONVOLUTION"))
        self._adopt(
            self.node(
                "conv_fprop", inputs, {"y": (n, k, *out)}, pre_padding=pre, post_padding=post, stride=step,
                dilation=dilation, convolution_mode=mode,
            )
        )  # fmt: skip

    def finish(self) -> Graph:
        """Choose outputs among leaves and inner tensors, with strides of their own; infer, freeze."""
        rng, builder = self.rng, self.maker.builder
        if not builder.nodes:
            self.node("identity", {"input": self.maker.pool[0]})
        read = {id(t) for n in builder.nodes for t in n.inputs.values()}
        made = [t for n in builder.nodes for t in n.outputs.values()]
        leaves, inner = [t for t in made if id(t) not in read], [t for t in made if id(t) in read]
        outputs = rng.sample(leaves, rng.randint(1, len(leaves)))[:5] + rng.sample(
            inner, min(len(inner), rng.choice((0, 0, 1, 2)))
        )
        for t in outputs:
            t.is_virtual, t.dtype = False, t.dtype or rng.choice(self.profile.io)
        for t in made:
            if rng.random() < 0.4:
                dim = t.need_dim()
                gap = rng.choice((1, 1, 2))
                t.stride = tuple(gap * s for s in packed_stride(dim, rng.sample(range(len(dim)), len(dim))))
        complete(builder)
        return builder.freeze()


def _fits(small: Dims, dim: Dims) -> bool:
    return len(small) <= len(dim) and all(s in (1, d) for s, d in zip(small[::-1], dim[::-1], strict=False))
