"""Graphs as pure data: tensor spec, node, graph, and the mutable drafts they are made from.

Drafts hold what the user set; inference (in `ops`) fills what is unset; `GraphBuilder.freeze`
makes the immutable `Graph`. No op semantics here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from fuseplan.dtypes import DType
from fuseplan.runtime.forks import cached_property

AttrValue = bool | int | float | str | None | tuple["AttrValue", ...]
Attrs = tuple[tuple[str, AttrValue], ...]


def packed_stride(dim: Iterable[int], order: Iterable[int] | None = None) -> tuple[int, ...]:
    """Packed strides, in elements; `order` lists the axes from fastest to slowest (default: last first)."""
    dim = tuple(dim)
    stride, step = [1] * len(dim), 1
    for axis in order if order is not None else range(len(dim) - 1, -1, -1):
        stride[axis] = step
        step *= dim[axis]
    return tuple(stride)


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Axes from fastest to slowest when axis 1 is innermost (NHWC for rank 4)."""
    return (1, *range(rank - 1, 1, -1), 0) if rank > 1 else tuple(range(rank))


def span_elements(dim: Iterable[int], stride: Iterable[int]) -> int:
    """Elements from the first to past the last one that dims and strides reach."""
    return 1 + sum((d - 1) * s for d, s in zip(dim, stride, strict=True))


@dataclass(frozen=True, slots=True)
class Ragged:
    """Where the sequences of a packed tensor start.

    Args:
        offsets: uid of the tensor that holds the batch entries' starts, one more than there are entries
        multiplier: elements that an offset of 1 stands for
    """

    offsets: int
    multiplier: int = 1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a frozen graph; dims and strides in elements.

    Args:
        value: value owned by the graph (tensor_scalar), else None
        is_constant: the value is baked into the plan
        ragged: for a packed tensor, where its sequences start; dims are then the largest ones
    """

    uid: int
    name: str
    dim: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: DType
    is_virtual: bool = False
    is_pass_by_value: bool = False
    value: bool | int | float | None = None
    is_constant: bool = False
    ragged: Ragged | None = None

    @property
    def numel(self) -> int:
        return prod(self.dim)

    @property
    def is_host_scalar(self) -> bool:
        """Whether its value lies in host memory and is read at each call, the caller's or the graph's own."""
        return self.is_pass_by_value or self.value is not None

    @property
    def span_bytes(self) -> int:
        return span_elements(self.dim, self.stride) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a frozen graph; ports map to tensor uids in schema order.

    Args:
        inputs: a port that is a list stands there once per tensor, in order
        body: a graph that the op applies inside (a score modifier). It shares uids with the graph around it: what it
            reads from there are inputs of the node; its other inputs are what the op hands to it, its outputs
            what it gives back
    """

    index: int
    op: str
    name: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    attrs: Attrs
    compute: DType
    body: Graph | None = None

    def attr(self, name: str) -> AttrValue:
        """The attribute's value. Raises KeyError if the node has none of this name."""
        return dict(self.attrs)[name]


@dataclass(frozen=True)
class Graph:
    """A validated graph: tensors by uid, nodes in an order that computes inputs first.

    Args:
        is_dynamic: kernels are shared with graphs that differ in extents only, so engines choose none by extents
            (other than 1)
    """

    name: str
    tensors: Mapping[int, TensorSpec]
    nodes: tuple[Node, ...]
    is_dynamic: bool = False

    @cached_property
    def producers(self) -> dict[int, int]:
        """uid -> index of the node that makes it."""
        return {uid: n.index for n in self.nodes for _, uid in n.outputs}

    def offsets_of(self, node: Node) -> tuple[int, ...]:
        """uids of the starts of a node's packed tensors."""
        tensors = self.tensors
        found = [r.offsets for _, uid in (*node.inputs, *node.outputs) if (r := tensors[uid].ragged) is not None]
        return tuple(dict.fromkeys(found))

    @cached_property
    def has_ragged(self) -> bool:
        return any(t.ragged is not None for t in self.tensors.values())

    def reads(self, node: Node) -> tuple[int, ...]:
        """uids that a node reads: its inputs, and the starts of its packed tensors."""
        return self._reads[node.index]

    @cached_property
    def _reads(self) -> tuple[tuple[int, ...], ...]:
        inputs = [tuple([uid for _, uid in n.inputs]) for n in self.nodes]
        if self.has_ragged:
            inputs = [(*found, *self.offsets_of(n)) for found, n in zip(inputs, self.nodes, strict=True)]
        return tuple(inputs)

    @cached_property
    def consumers(self) -> dict[int, tuple[int, ...]]:
        """uid -> indices of the nodes that read it."""
        found: dict[int, list[int]] = {}
        for node in self.nodes:
            for uid in self.reads(node):
                uses = found.setdefault(uid, [])
                if not uses or uses[-1] != node.index:
                    uses.append(node.index)
        return {uid: tuple(uses) for uid, uses in found.items()}

    @cached_property
    def live(self) -> list[bool]:
        """For each node, whether a non-virtual tensor depends on it."""
        found = [False] * len(self.nodes)
        needed: set[int] = set()
        for node in reversed(self.nodes):
            if any(uid in needed or not self.tensors[uid].is_virtual for _, uid in node.outputs):
                found[node.index] = True
                needed.update(self.reads(node))
        return found

    @cached_property
    def input_uids(self) -> tuple[int, ...]:
        """Tensors that nodes read and no node makes, in order of first use; scalars owned by the graph included."""
        made = self.producers
        seen = dict.fromkeys(uid for n in self.nodes for uid in self.reads(n) if uid not in made)
        return tuple(seen)

    @cached_property
    def output_uids(self) -> tuple[int, ...]:
        """Non-virtual tensors that nodes make, in node order."""
        return tuple(uid for n in self.nodes for _, uid in n.outputs if not self.tensors[uid].is_virtual)

    def slice(self, indices: Iterable[int], exposed: Iterable[int]) -> Graph:
        """The nodes at `indices` as a graph of their own; tensors in `exposed` become non-virtual there."""
        shown = set(exposed)
        chosen = [self.nodes[i] for i in indices]
        nodes = tuple(
            [Node(k, n.op, n.name, n.inputs, n.outputs, n.attrs, n.compute, n.body) for k, n in enumerate(chosen)]
        )
        made = {uid for n in nodes for _, uid in n.outputs}
        tensors: dict[int, TensorSpec] = {}
        for node in chosen:
            for uid in (*self.reads(node), *[u for _, u in node.outputs]):
                if uid not in tensors:
                    spec = self.tensors[uid]
                    if spec.is_virtual and (uid in shown or uid not in made):
                        spec = replace(spec, is_virtual=False)
                    tensors[uid] = spec
        return Graph(self.name, tensors, nodes, self.is_dynamic)


@dataclass(slots=True, eq=False)
class DraftTensor:
    """A tensor while a graph is being built; None and () mean unset. Compared by identity."""

    uid: int
    name: str
    dim: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    dtype: DType | None = None
    is_virtual: bool = False
    is_pass_by_value: bool = False
    value: bool | int | float | None = None
    is_constant: bool = False
    ragged: tuple[DraftTensor, int] | None = None  # starts, and elements that one stands for

    def need_dim(self) -> tuple[int, ...]:
        """The dims; inference guarantees them for every input of a node."""
        assert self.dim is not None, self.name
        return self.dim


@dataclass(slots=True, eq=False)
class DraftNode:
    """A node while a graph is being built. `inputs`, `lists` and `outputs` hold only ports that are there.

    Args:
        lists: input ports that take several tensors
    """

    op: str
    name: str
    inputs: dict[str, DraftTensor]
    outputs: dict[str, DraftTensor]
    attrs: dict[str, AttrValue] = field(default_factory=dict)
    compute: DType | None = None
    lists: dict[str, list[DraftTensor]] = field(default_factory=dict)
    body: Graph | None = None

    def ports(self) -> list[tuple[str, DraftTensor]]:
        """Every input with its port, a list port once per tensor."""
        return [*self.inputs.items(), *((port, t) for port, tensors in self.lists.items() for t in tensors)]


@dataclass(slots=True)
class GraphBuilder:
    """Drafts in insertion order, and the type defaults of the graph."""

    name: str
    io_dtype: DType | None = None
    intermediate_dtype: DType | None = None
    compute_dtype: DType | None = None
    is_dynamic: bool = False
    nodes: list[DraftNode] = field(default_factory=list)

    def freeze(self) -> Graph:
        """The immutable graph. Every draft must be complete (see `ops.infer.complete`)."""
        tensors: dict[int, TensorSpec] = {}
        nodes: list[Node] = []
        for index, n in enumerate(self.nodes):
            ins = n.ports()
            for t in (*(t for _, t in ins), *n.outputs.values()):
                if t.uid not in tensors:
                    tensors[t.uid] = _frozen_spec(t)
                if t.ragged is not None and t.ragged[0].uid not in tensors:
                    tensors[t.ragged[0].uid] = _frozen_spec(t.ragged[0])
            assert n.compute is not None
            nodes.append(
                Node(
                    index, n.op, n.name, tuple([(port, t.uid) for port, t in ins]),
                    tuple([(port, t.uid) for port, t in n.outputs.items()]),
                    tuple(sorted(n.attrs.items())), n.compute, n.body,
                )
            )  # fmt: skip
        return Graph(self.name, tensors, tuple(nodes), self.is_dynamic)


def _frozen_spec(t: DraftTensor) -> TensorSpec:
    assert t.dim is not None and t.stride is not None and t.dtype is not None, t.name
    ragged = None if t.ragged is None else Ragged(t.ragged[0].uid, t.ragged[1])
    return TensorSpec(
        t.uid, t.name, t.dim, t.stride, t.dtype, t.is_virtual, t.is_pass_by_value, t.value, t.is_constant, ragged
    )  # fmt: skip
