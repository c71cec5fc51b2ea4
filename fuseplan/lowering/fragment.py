"""One node as primitives, and the few traits of it that cutting needs. Both are memoised by structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.dtypes import DType
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import Graph, Node
from fuseplan.ir.region import Cost, Value
from fuseplan.lowering.windows import find_windows
from fuseplan.ops.schema import FragmentBuilder, NodeView, schema_of

NodeKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A node's values; the first ones are placeholder loads of its input ports, in port order.

    Args:
        results: (output port, value) for each connected output, already rounded to its tensor's type
    """

    values: tuple[Value, ...]
    num_inputs: int
    results: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Traits:
    """What cutting needs to know of a node.

    Args:
        ops: ops of its values, without loads
        anchor: the op of its anchor, or ""
        feeds: for each input in port order, the arguments (``matmul.a``, of a joining node ``concat.x``) through which
            alone it reaches the results; empty where it reaches one in another way
        axes: reduced axes counted from the right (-1 is the last), empty if nothing is reduced
        reuses: a reduction's result is used again over the reduced axes inside the node
        modes: reduction modes in the node
        domain: largest dims of its results and of what it reduces, leading ones stripped
        op_cost: work of the node
    """

    ops: frozenset[str]
    anchor: str
    feeds: tuple[frozenset[str], ...]
    axes: tuple[int, ...]
    reuses: bool
    modes: frozenset[str]
    domain: tuple[int, ...]
    op_cost: Cost


def node_key(graph: Graph, node: Node) -> NodeKey:
    """Everything a fragment depends on: op, attributes, types and dims, but no uids, names or strides."""
    tensors = graph.tensors
    ins = tuple([(p, tensors[u].dim, tensors[u].dtype.name) for p, u in node.inputs])
    outs = tuple([(p, tensors[u].dim, tensors[u].dtype.name) for p, u in node.outputs])
    return (node.op, node.attrs, node.compute.name, ins, outs)


def pad_dim(dim: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Dims with leading ones up to `rank`."""
    return (1,) * (rank - len(dim)) + dim


class FragmentCache:
    """Fragments and traits of one lowering, shared by equal nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.windows = find_windows(graph)
        self._fragments: dict[tuple[NodeKey, int], Fragment] = {}
        self._traits: dict[NodeKey, Traits] = {}
        self._traits_of: dict[int, Traits] = {}
        self._keys: dict[int, NodeKey] = {}

    def key(self, node: Node) -> NodeKey:
        found = self._keys.get(node.index)
        if found is None:
            found = self._keys[node.index] = node_key(self.graph, node)
        return found

    def is_pointwise(self, node: Node) -> bool:
        """Whether a node neither reduces nor has an anchor."""
        traits = self.traits(node)
        return not traits.anchor and not traits.axes and "reduce" not in traits.ops

    def fragment(self, node: Node, rank: int) -> Fragment:
        """The node's values with all dims at `rank`."""
        key = (self.key(node), rank)
        found = self._fragments.get(key)
        if found is None:
            found = self._fragments[key] = _decompose(self.graph, node, rank)
        return found

    def traits(self, node: Node) -> Traits:
        """What cutting needs to know of a node."""
        found = self._traits_of.get(node.index)
        if found is None:
            key = self.key(node)
            found = self._traits.get(key)
            if found is None:
                fragment = self.fragment(node, natural_rank(self.graph, node))
                found = self._traits[key] = _traits(self.graph, node, fragment)
            self._traits_of[node.index] = found
        return found


def natural_rank(graph: Graph, node: Node) -> int:
    """Largest rank among a node's tensors."""
    return max(len(graph.tensors[u].dim) for _, u in (*node.inputs, *node.outputs))


def _port_names(node: Node) -> list[str]:
    """Name of each input for `decompose`: tensor k of a list port is ``<port>.<k>``."""
    lists = {p.name for p in schema_of(node.op).inputs if p.is_list}
    counts: dict[str, int] = {}
    names = []
    for port, _ in node.inputs:
        k = counts[port] = counts.get(port, -1) + 1
        names.append(f"{port}.{k}" if port in lists else port)
    return names


def _decompose(graph: Graph, node: Node, rank: int) -> Fragment:
    values: list[Value] = []
    args: dict[str, int] = {}
    for name, (_, uid) in zip(_port_names(node), node.inputs, strict=True):
        spec = graph.tensors[uid]
        args[name] = len(values)
        values.append(
            Value("load", (), pad_dim(spec.dim, rank), spec.dtype, spec.dtype)
        )
    builder = FragmentBuilder(node.compute, values, rank)
    made = schema_of(node.op).decompose(builder, NodeView(node, graph), args)
    results: list[tuple[str, int]] = []
    for port, uid in node.outputs:
        spec = graph.tensors[uid]
        dim = pad_dim(spec.dim, rank)
        value = made[port]
        if (
            values[value].dtype is not spec.dtype
            or values[value].dim != dim
            or value < len(args)
        ):
            is_shared = sum(v == value for v in made.values()) > 1
            value = _round_to(
                values,
                value,
                dim,
                spec.dtype,
                node,
                first=len(values) if is_shared else len(args),
            )
        results.append((port, value))
    return Fragment(tuple(values), len(args), tuple(results))


def _round_to(
    values: list[Value],
    value: int,
    dim: tuple[int, ...],
    dtype: DType,
    node: Node,
    first: int,
) -> int:
    """Round in place where only this result reads the value, else through a cast."""
    last = values[value]
    is_own = (
        first <= value
        and last.op != "const"
        and not any(value in v.args for v in values[value + 1 :])
    )
    if is_own and last.dim == dim and last.dtype is node.compute:
        values[value] = replace(last, dtype=dtype)
        return value
    values.append(Value("cast", (value,), dim, dtype, node.compute))
    return len(values) - 1


def _traits(graph: Graph, node: Node, fragment: Fragment) -> Traits:
    values = fragment.values
    axes: set[int] = set()
    modes: set[str] = set()
    from_reduce = [False] * len(values)
    domain: tuple[int, ...] = ()
    reuses = False
    for i, v in enumerate(values):
        if v.op == "reduce":
            axes.update(a - len(v.dim) for a in v.axes)
            modes.add(v.mode)
            domain = _larger(domain, values[v.args[0]].dim)
        from_reduce[i] = v.op == "reduce" or any(from_reduce[a] for a in v.args)
    for i, v in enumerate(values):
        if (
            v.op not in ("reduce", "load")
            and from_reduce[i]
            and any(v.dim[a] > 1 for a in axes if -a <= len(v.dim))
        ):
            reuses = True
    for _, i in fragment.results:
        domain = _larger(domain, values[i].dim)
    own = values[fragment.num_inputs :]
    anchor = next((v.op for v in own if v.op in ANCHORS), "")
    cost = schema_of(node.op).cost(NodeView(node, graph))
    return Traits(
        frozenset([v.op for v in own]), anchor, _feeds(fragment), tuple(sorted(axes)), reuses, frozenset(modes),
        strip(domain), cost,
    )  # fmt: skip


def _feeds(fragment: Fragment) -> tuple[frozenset[str], ...]:
    """For each placeholder the anchor arguments that stand between it and every result."""
    values = fragment.values
    direct = {i for _, i in fragment.results}
    found: list[frozenset[str] | None] = [None] * len(
        values
    )  # None: reaches a result in another way, or nothing
    users: list[list[tuple[int, int]]] = [[] for _ in values]
    for i, v in enumerate(values):
        for k, a in enumerate(v.args):
            users[a].append((i, k))
    for i in range(len(values) - 1, -1, -1):
        through: set[str] = set()
        is_only = bool(users[i]) and i not in direct
        for user, k in users[i]:
            v = values[user]
            if v.op in ANCHORS:
                through.add(f"{v.op}.{v.ports[k]}")
            elif v.op == "concat":
                through |= {"concat.x"} | (found[user] or frozenset())
            elif found[user] is None:
                is_only = False
            else:
                through |= found[user] or frozenset()
        found[i] = frozenset(through) if is_only else None
    return tuple([found[i] or frozenset() for i in range(fragment.num_inputs)])


def _larger(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    return tuple(
        max(x, y)
        for x, y in zip(pad_dim(tuple(a), rank), pad_dim(tuple(b), rank), strict=True)
    )


def strip(dim: tuple[int, ...]) -> tuple[int, ...]:
    """Dims without leading ones."""
    i = 0
    while i < len(dim) and dim[i] == 1:
        i += 1
    return dim[i:]
