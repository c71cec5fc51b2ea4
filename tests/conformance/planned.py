"""Graphs of ops that are still to come: what the IR, verification, keys, JSON and cutting must carry for them.

`planned_ops` registers just enough of each op for lowering: no reference, no inference, no samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph, Node, Ragged, TensorSpec, packed_stride
from fuseplan.ir.region import Cost
from fuseplan.ops import schema
from fuseplan.ops.schema import Call, FragmentBuilder, NodeView, OpSchema, Port, Window

Dims = tuple[int, ...]
B, H, G, S, T, D = 2, 4, 2, 6, 8, 16


class Maker:
    """Writes a frozen graph node by node."""

    def __init__(self, name: str, first_uid: int = 1) -> None:
        self.name, self.next_uid = name, first_uid
        self.tensors: dict[int, TensorSpec] = {}
        self.nodes: list[Node] = []

    def tensor(self, dim: Dims, dtype: DType = dtypes.HALF, *, stride: Dims | None = None, **more: Any) -> int:
        uid, self.next_uid = self.next_uid, self.next_uid + 1
        self.tensors[uid] = TensorSpec(uid, f"t{uid}", dim, stride or packed_stride(dim), dtype, **more)
        return uid

    def node(self, op: str, inputs: Sequence[tuple[str, int]], outputs: dict[str, Any], *, out: bool = False,
             body: Graph | None = None, **attrs: Any) -> list[int]:  # fmt: skip
        """A node whose results have these dims (or (dims, type)); they are virtual unless `out`."""
        made = []
        for made_as in outputs.values():
            dim, dtype = made_as if isinstance(made_as[1], DType) else (made_as, dtypes.HALF)
            made.append(self.tensor(dim, dtype, is_virtual=not out))
        self.nodes.append(
            Node(
                len(self.nodes), op, f"{op}.{len(self.nodes)}", tuple(inputs), tuple(zip(outputs, made, strict=True)),
                tuple(sorted(attrs.items())), dtypes.FLOAT, body,
            )
        )  # fmt: skip
        return made

    def one(self, op: str, inputs: Sequence[tuple[str, int]], dim: Dims, *, out: bool = False, port: str = "y",
            **attrs: Any) -> int:  # fmt: skip
        """A node with one result."""
        return self.node(op, inputs, {port: dim}, out=out, **attrs)[0]

    def graph(self) -> Graph:
        return Graph(self.name, self.tensors, tuple(self.nodes))


def _qkv(m: Maker) -> list[tuple[str, int]]:
    return [("q", m.tensor((B, H, S, D))), ("k", m.tensor((B, G, T, D))), ("v", m.tensor((B, G, T, D)))]


def attention_with_everything() -> Graph:
    """Statistics, bias, a score modifier that reads a tensor of its own, and a gate after it."""
    m = Maker("attention_with_everything")
    inputs, bias, slope, gate = _qkv(m), m.tensor((1, H, S, T)), m.tensor((1, H, 1, 1)), m.tensor((B, H, S, D))
    score, scaled, capped = 900, 901, 902
    shape = (B, H, S, T)
    inner = {
        score: TensorSpec(score, "score", shape, packed_stride(shape), dtypes.FLOAT),
        slope: m.tensors[slope],
        scaled: TensorSpec(scaled, "scaled", shape, packed_stride(shape), dtypes.FLOAT, is_virtual=True),
        capped: TensorSpec(capped, "capped", shape, packed_stride(shape), dtypes.FLOAT),
    }
    mul = Node(0, "mul", "mul.0", (("a", score), ("b", slope)), (("y", scaled),), (), dtypes.FLOAT)
    tanh = Node(1, "tanh", "tanh.0", (("input", scaled),), (("y", capped),), (), dtypes.FLOAT)
    o, stats = m.node(
        "sdpa", [*inputs, ("bias", bias), ("mod", slope)], {"o": (B, H, S, D), "stats": ((B, H, S, 1), dtypes.FLOAT)},
        body=Graph("score_mod", inner, (mul, tanh)), generate_stats=True,
    )  # fmt: skip
    m.tensors[stats] = TensorSpec(stats, "stats", (B, H, S, 1), packed_stride((B, H, S, 1)), dtypes.FLOAT)
    m.one("mul", [("a", o), ("b", gate)], (B, H, S, D), out=True)
    return m.graph()


def attention_backward() -> Graph:
    m = Maker("attention_backward")
    more = [("o", m.tensor((B, H, S, D))), ("do", m.tensor((B, H, S, D)))]
    stats = m.tensor((B, H, S, 1), dtypes.FLOAT)
    m.node(
        "sdpa_backward", [*_qkv(m), *more, ("stats", stats)],
        {"dq": (B, H, S, D), "dk": (B, G, T, D), "dv": (B, G, T, D)}, out=True,
    )  # fmt: skip
    return m.graph()


_GEOMETRY = {"pre_pad": (1, 1), "post_pad": (1, 1), "stride": (1, 1), "dilation": (1, 1), "flip": False}


def conv_gradients() -> Graph:
    """The gradient of the data, with the derivative of relu in front of it, and that of the weights."""
    m = Maker("conv_gradients")
    dy, mask = m.tensor((2, 5, 9, 7)), m.tensor((2, 5, 9, 7))
    x, w = m.tensor((2, 8, 9, 7)), m.tensor((5, 8, 3, 3))
    masked = m.one("mul", [("a", dy), ("b", mask)], (2, 5, 9, 7))
    m.one("conv_dgrad", [("dy", masked), ("w", w)], (2, 8, 9, 7), out=True, port="x", **_GEOMETRY)
    m.one("conv_wgrad", [("x", x), ("dy", masked)], (5, 8, 3, 3), out=True, port="w", **_GEOMETRY)
    return m.graph()


def rope_attention() -> Graph:
    """q and k rotated by halves, which are slices, in front of attention."""
    m = Maker("rope_attention")
    (_, q), (_, k), v = _qkv(m)
    cos, sin = m.tensor((1, 1, T, D // 2)), m.tensor((1, 1, T, D // 2))
    rotated = []
    for x, (batch, heads, length, _) in ((q, (B, H, S, D)), (k, (B, G, T, D))):
        half = (batch, heads, length, D // 2)
        low, high = (m.one("slice", [("input", x)], half, start=(0, 0, 0, at)) for at in (0, D // 2))
        c, s = (m.one("slice", [("input", t)], (1, 1, length, D // 2), start=(0, 0, 0, 0)) for t in (cos, sin))

        def mul(a: int, b: int, dim: Dims = half) -> int:
            return m.one("mul", [("a", a), ("b", b)], dim)

        first = m.one("sub", [("a", mul(low, c)), ("b", mul(high, s))], half)
        second = m.one("add", [("a", mul(high, c)), ("b", mul(low, s))], half)
        joined = [("inputs", first), ("inputs", second)]
        rotated.append(m.one("concatenate", joined, (batch, heads, length, D), axis=3))
    m.node("sdpa", [("q", rotated[0]), ("k", rotated[1]), v], {"o": (B, H, S, D)}, out=True)
    return m.graph()


def cache_append() -> Graph:
    """New keys into the last place of a cache that is updated in place, then attention over the cache."""
    m = Maker("cache_append")
    (_, q), _, v = _qkv(m)
    cache = m.tensor((B, G, T - 1, D), stride=(G * T * D, T * D, D, 1))
    fresh = m.tensor((B, G, 1, D))
    new = m.one("add", [("a", fresh), ("b", fresh)], (B, G, 1, D))
    joined = [("inputs", cache), ("inputs", new)]
    k = m.one("concatenate", joined, (B, G, T, D), out=True, axis=2, in_place=0)
    m.node("sdpa", [("q", q), ("k", k), v], {"o": (B, H, S, D)}, out=True)
    return m.graph()


def ragged_paged_attention() -> Graph:
    """Packed queries and results, keys and values by pages."""
    m = Maker("ragged_paged_attention")
    starts = m.tensor((B + 1, 1, 1, 1), dtypes.INT32)
    packed = {"stride": (S * H * D, D, H * D, 1), "ragged": Ragged(starts, H * D)}
    q = m.tensor((B, H, S, D), **packed)
    pages = [m.tensor((9, G, 4, D)) for _ in "kv"]
    tables = [m.tensor((B, 1, 2, 1), dtypes.INT32) for _ in "kv"]
    lengths = [m.tensor((B, 1, 1, 1), dtypes.INT32) for _ in "qk"]
    inputs = [
        ("q", q), ("k", pages[0]), ("v", pages[1]), ("seq_len_q", lengths[0]), ("seq_len_kv", lengths[1]),
        ("paged_attention_k_table", tables[0]), ("paged_attention_v_table", tables[1]),
    ]  # fmt: skip
    o = m.tensor((B, H, S, D), **packed)
    m.nodes.append(
        Node(0, "sdpa", "sdpa.0", tuple(inputs), (("o", o),), (("use_padding_mask", True),), dtypes.FLOAT)
    )  # fmt: skip
    return m.graph()


GRAPHS: dict[str, tuple[Callable[[], Graph], list[list[str]]]] = {  # table: graph, nodes of its regions by op
    "attention_with_everything": (attention_with_everything, [["sdpa", "mul"]]),
    "attention_backward": (attention_backward, [["sdpa_backward"]]),
    "conv_gradients": (conv_gradients, [["mul"], ["conv_dgrad"], ["conv_wgrad"]]),
    "rope_attention": (
        rope_attention,
        [["slice"] * 4 + ["mul", "mul", "sub", "mul", "mul", "add", "concatenate"]
         + ["slice"] * 4 + ["mul", "mul", "sub", "mul", "mul", "add", "concatenate", "sdpa"]],
    ),
    "cache_append": (cache_append, [["add", "concatenate"], ["sdpa"]]),
    "ragged_paged_attention": (ragged_paged_attention, [["sdpa"]]),
}  # fmt: skip


def _anchor(op: str, arguments: dict[str, str], *results: str) -> Callable[..., dict[str, int]]:
    """Decomposition of an op that is an anchor; `arguments`: port -> the anchor's argument."""

    def decompose(b: FragmentBuilder, view: NodeView, args: dict[str, int]) -> dict[str, int]:
        made = {port: b.ranked(spec.dim) for port in results if (spec := view.output(port)) is not None}
        attrs = dict(view.node.attrs)
        ordered = [args[port] for port in arguments]
        first = next(iter(made.values()))
        if len(results) == 1:
            return {results[0]: b.emit(op, *ordered, dim=first, **attrs)}
        anchor = b.emit(op, *ordered, dim=first, **attrs, results=tuple(made))
        return {port: b.emit("pick", anchor, dim=dim, result=port) for port, dim in made.items()}

    return decompose


def _slice_window(view: NodeView, stride: Dims) -> Window:
    start: Any = view.attr("start")
    return Window(view.made("y").dim, stride, sum(at * s for at, s in zip(start, stride, strict=True)))


def _concatenate(b: FragmentBuilder, view: NodeView, args: dict[str, int]) -> dict[str, int]:
    lead = b.rank - len(view.made("y").dim)
    attrs = {name: value for name, value in view.node.attrs if name != "axis"}
    axis: Any = view.attr("axis")
    return {"y": b.emit("concat", *args.values(), dim=b.ranked(view.made("y").dim), axis=axis + lead, **attrs)}


def _copy(b: FragmentBuilder, view: NodeView, args: dict[str, int]) -> dict[str, int]:
    return {"y": b.emit("cast", next(iter(args.values())))}


def _op(name: str, ports: Sequence[Port], results: Sequence[str], decompose: Any, **more: Any) -> OpSchema:
    def unused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"op {name!r} is planned")

    return OpSchema(
        name=name, family="planned", inputs=tuple(ports), outputs=tuple(Port(p) for p in results), infer=unused,
        reference=unused, cost=lambda view: Cost(1.0, view.in_bytes, view.out_bytes), decompose=decompose,
        samples=lambda: (), call=Call((), ()), **more,
    )  # fmt: skip


def _planned() -> list[OpSchema]:
    x, dy, w = Port("x"), Port("dy"), Port("w")
    backward = ("q", "k", "v", "o", "do", "stats")
    sdpa = schema.schema_of("sdpa")
    made = [
        _op("conv_dgrad", (dy, w), ("x",), _anchor("conv_dgrad", {"dy": "y", "w": "w"}, "x")),
        _op("conv_wgrad", (x, dy), ("w",), _anchor("conv_wgrad", {"x": "x", "dy": "y"}, "w")),
        _op(
            "sdpa_backward", [Port(p) for p in backward], ("dq", "dk", "dv"),
            _anchor("sdpa_backward", dict(zip(backward, backward, strict=True)), "dq", "dk", "dv"),
        ),
        _op("slice", (Port("input"),), ("y",), _copy, window=_slice_window),
        _op("concatenate", (Port("inputs", is_list=True),), ("y",), _concatenate),
    ]  # fmt: skip
    with_body = (*sdpa.inputs, Port("mod", is_optional=True, is_list=True))
    return [*made, _op("sdpa", with_body, [p.name for p in sdpa.outputs], _sdpa_with_body(sdpa))]


def _sdpa_with_body(sdpa: OpSchema) -> Callable[..., dict[str, int]]:
    """The op's own decomposition, which names the tensors of a body as the anchor does."""

    def decompose(b: FragmentBuilder, view: NodeView, args: dict[str, int]) -> dict[str, int]:
        made = sdpa.decompose(b, view, args)
        for i, v in enumerate(b.values):
            if v.op == "sdpa":
                ports = tuple("mod" if p.startswith("mod.") else p for p in v.ports)
                attrs = tuple((k, ports if k == "ports" else x) for k, x in v.attrs)
                b.values[i] = type(v)(v.op, v.args, v.dim, v.dtype, v.compute, attrs)
        return made

    return decompose


@contextmanager
def planned_ops() -> Iterator[None]:
    """Planned ops in the registry while the body runs."""
    known = dict(schema._registry)
    try:
        schema._registry.update({op.name: op for op in _planned()})
        yield
    finally:
        schema._registry.clear()
        schema._registry.update(known)
