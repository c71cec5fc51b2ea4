"""What an op is: schema, attributes, registry, and the views that op functions receive.

One entry per op holds everything that is known about it: ports, attributes, inference, float64
reference, cost, decomposition into primitives, samples. The public method, the checks, the tests
and the documentation are made from it. No op is defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseplan.dtypes import DType
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import Attrs, AttrValue, DraftNode, Graph, Node, TensorSpec
from fuseplan.ir.region import Cost, Value
from fuseplan.ops.draws import Draws

Array = Any  # an array of NumPy, PyTorch or any other library that the adapter knows


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that a node reads or makes.

    Args:
        is_list: an argument that is one or more tensors
    """

    name: str
    is_optional: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a tensor's memory under dims and strides of its own; all in elements."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Attr:
    """What a node holds besides tensors.

    Args:
        kind: ``float``, ``int``, ``bool``, ``ints`` (list of int), ``enum:<enum name>`` (stored as the
            member's name)
        default: value when the caller leaves it out
        is_required: leaving it out is an error that validate reports
    """

    name: str
    kind: str
    default: AttrValue = None
    is_required: bool = False


@dataclass(frozen=True)
class Call:
    """How the API's method of an op is called: what only the facade knows. All names in it are the API's.

    Args:
        positional: parameter order that the newest API takes positionally
        classic: parameter order of the classic API (all parameters)
        doc: one paragraph for the method's docstring
        names: port or attribute -> what the API calls it, where that is not its own name
        labels: output -> the part after ``::`` in a result's default name, where that is not its API name
        arguments: further arguments, which `prepare` turns into attributes or leaves as tensors
        hidden: attributes that are no arguments: `prepare` sets them
        returns_list: the method returns a list with None for absent results
        prepare: ``prepare(bound arguments) -> None`` edits arguments before the node is made (legacy forms)
        results: ``results(bound arguments after prepare) -> optional outputs that this call makes``; None: all of
            them. An output that is also a parameter (in `classic`) is a tensor the caller passes
        aliases: further (deprecated) names of the method
    """

    positional: tuple[str, ...]
    classic: tuple[str, ...]
    doc: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    returns_list: bool = False
    prepare: Callable[[dict[str, Any]], None] | None = None
    results: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    aliases: tuple[str, ...] = ()

    def name(self, own: str) -> str:
        """What the API calls a port or an attribute."""
        return self.names.get(own, own)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A frozen node with its tensors, as `reference`, `cost` and `decompose` see it."""

    node: Node
    graph: Graph

    def input(self, port: str) -> TensorSpec | None:
        """The tensor at an input port, None if the port is not connected."""
        for name, uid in self.node.inputs:
            if name == port:
                return self.graph.tensors[uid]
        return None

    def inputs(self, port: str) -> tuple[TensorSpec, ...]:
        """The tensors at an input port that is a list."""
        return tuple(
            self.graph.tensors[uid] for name, uid in self.node.inputs if name == port
        )

    def need(self, port: str) -> TensorSpec:
        """The tensor at a port that must be connected."""
        spec = self.input(port)
        assert spec is not None, (self.node.op, port)
        return spec

    def output(self, port: str) -> TensorSpec | None:
        """The tensor at an output port, None if the port is not connected."""
        for name, uid in self.node.outputs:
            if name == port:
                return self.graph.tensors[uid]
        return None

    def made(self, port: str) -> TensorSpec:
        """The tensor at an output port that every node has."""
        spec = self.output(port)
        assert spec is not None, (self.node.op, port)
        return spec

    def attr(self, name: str) -> AttrValue:
        return self.node.attr(name)

    @property
    def compute(self) -> DType:
        return self.node.compute

    @property
    def in_bytes(self) -> int:
        return sum(
            t.numel * t.dtype.itemsize
            for t in (self.graph.tensors[u] for _, u in self.node.inputs)
        )

    @property
    def out_bytes(self) -> int:
        return sum(
            t.numel * t.dtype.itemsize
            for t in (self.graph.tensors[u] for _, u in self.node.outputs)
        )


class FragmentBuilder:
    """Collects the primitives that a node decomposes into (see `ir.region` for their meaning).

    Values are indices. Results of `emit` have the node's compute type unless `dtype` says otherwise;
    the caller rounds a node's results to their tensors' types.
    """

    def __init__(self, compute: DType, values: list[Value], rank: int) -> None:
        self.compute, self.values, self.rank = compute, values, rank

    def emit(self, op: str, *args: int, dtype: DType | None = None, compute: DType | None = None,
             dim: Sequence[int] | None = None, **attrs: AttrValue) -> int:  # fmt: skip
        """Append one value; dims are the broadcast of the arguments' unless given."""
        if dim is None:
            dim = broadcast(self.values[a].dim for a in args)
        done = compute or self.compute
        self.values.append(
            Value(
                op, args, tuple(dim), dtype or done, done, tuple(sorted(attrs.items()))
            )
        )
        return len(self.values) - 1

    def ranked(self, dim: Sequence[int]) -> tuple[int, ...]:
        """Dims with leading axes of extent 1 up to the fragment's rank."""
        return (1,) * (self.rank - len(dim)) + tuple(dim)

    def const(self, value: float) -> int:
        """A constant of the compute type, broadcast to any dims."""
        return self.emit("const", dim=(1,) * self.rank, value=float(value))

    def reduce(self, mode: str, x: int, axes: Iterable[int]) -> int:
        """Reduce over `axes` (mode add, mul, max or min); reduced dims become 1."""
        axes = tuple(sorted(axes))
        dim = tuple(1 if i in axes else d for i, d in enumerate(self.values[x].dim))
        return self.emit("reduce", x, dim=dim, mode=mode, axes=axes)

    def count(self, x: int, axes: Iterable[int]) -> int:
        """Number of elements of x over `axes`, as a value of the compute type."""
        return self.emit("count", x, dim=(1,) * self.rank, axes=tuple(sorted(axes)))


def broadcast(dims: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Right-aligned broadcast of dims. Raises ValueError where extents are neither equal nor 1."""
    out: list[int] = []
    for dim in dims:
        if len(dim) > len(out):
            out[:0] = [1] * (len(dim) - len(out))
        for axis, extent in enumerate(dim, len(out) - len(dim)):
            if extent != 1 and out[axis] != extent:
                if out[axis] != 1:
                    raise ValueError(f"extents {out[axis]} and {extent} on axis {axis}")
                out[axis] = extent
    return tuple(out)


@dataclass(frozen=True)
class Sample:
    """One case of an op for tests.

    Args:
        id: short name
        inputs: port -> (dims, type name) or (dims, type name, strides)
        attrs: attributes as stored
        outputs: port -> dims for results whose dims the user sets
        types: port -> type name for results, where it is not FLOAT
        fails: exception class that validation must raise, or None
        compute: type name of the node's compute type
        low, high: range of the random inputs
        absent: optional output ports that are left out
        ranges: input port -> (low, high) where it is not `low, high`
    """

    id: str
    inputs: Mapping[str, tuple[Any, ...]]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    fails: type[Exception] | None = None
    compute: str = "FLOAT"
    low: float = -2.0
    high: float = 2.0
    absent: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


#: (node view, array namespace, arrays by port in the compute type) -> results by port
Reference = Callable[..., dict[str, Array]]


@dataclass(frozen=True)
class OpSchema:
    """Everything known about one op.

    Args:
        name: what nodes call it, and the API's method
        family: pointwise, reduction, norm, matmul, conv or attention (what FusionLimits speak of)
        inputs, outputs: ports in order
        attrs: attributes in order
        infer: fills unset dims, strides and types of the outputs of a draft, and checks the node
        reference: results by port, computed with an array namespace; called as
            ``reference(view, xp, arrays)`` with arrays (by port) in the compute type
        cost: work of the node
        decompose: ``decompose(builder, view, args by port) -> value by output port``; tensor k of a port that is a
            list is named ``<port>.<k>``
        window: for ops that only look at their first input's memory in another way: ``window(view, stride)`` gives
            what the result is of a source that has these strides, None where it cannot be said so
        samples: yields test cases
        draws: how random graphs of tests draw a node
        call: the API's method
        is_exact: correctly rounded operation: engines must agree bit for bit in FLOAT
        exact_when: for ops where that depends on attributes: whether this node is exact
    """

    name: str
    family: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    infer: Callable[[DraftNode], None]
    reference: Reference
    cost: Callable[[NodeView], Cost]
    decompose: Callable[[FragmentBuilder, NodeView, dict[str, int]], dict[str, int]]
    samples: Callable[[], Iterable[Sample]]
    call: Call
    draws: Draws = Draws()
    attrs: tuple[Attr, ...] = ()
    window: Callable[[NodeView, tuple[int, ...]], Window | None] | None = None
    is_exact: bool = False
    exact_when: Callable[[Node], bool] | None = None

    def is_exact_at(self, node: Node) -> bool:
        """Whether this node is a correctly rounded operation."""
        return self.is_exact or (self.exact_when is not None and self.exact_when(node))


_registry: dict[str, OpSchema] = {}


def register(schema: OpSchema) -> OpSchema:
    """Add an op. Raises ValueError if the name is taken."""
    if schema.name in _registry:
        raise ValueError(f"op {schema.name!r} is registered twice")
    _registry[schema.name] = schema
    return schema


def schema_of(name: str) -> OpSchema:
    """The op of this name. Raises KeyError."""
    return _registry[name]


def all_schemas() -> tuple[OpSchema, ...]:
    """All registered ops, sorted by name (import `fuseplan.ops` to register them)."""
    return tuple(_registry[name] for name in sorted(_registry))


def api_name(node: DraftNode | Node, name: str) -> str:
    """What the user calls a port or an attribute of a node."""
    return schema_of(node.op).call.name(name)


def reject(node: DraftNode | Node, wrong: str, fix: str = "") -> InvalidGraphError:
    """The error for a node that contradicts itself, naming the node."""
    return InvalidGraphError(f"node {node.name!r} ({node.op}): {wrong}", fix=fix)


__all__ = ["Array", "Attr", "Attrs", "Call", "Cost", "FragmentBuilder", "NodeView", "OpSchema", "Port", "Reference",
           "Sample", "all_schemas", "api_name", "broadcast", "register", "reject", "schema_of"]  # fmt: skip
