"""One node as primitives, and the few facts about it that cutting needs. Both are memoised by structure."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph, Node
from fuseplan.ir.region import Cost, Value
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
class Facts:
    """What cutting needs to know of a node.

    Args:
        axes: reduced axes counted from the right (-1 is the last), empty if nothing is reduced
        reuses: a reduction's result is used again over the reduced axes inside the node
        modes: reduction modes in the node
        domain: largest dims of its results and of what it reduces, leading ones stripped
        op_cost: work of the node
    """

    family: str
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
    """Fragments and facts of one lowering, shared by equal nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._fragments: dict[tuple[NodeKey, int], Fragment] = {}
        self._facts: dict[NodeKey, Facts] = {}
        self._keys: dict[int, NodeKey] = {}

    def key(self, node: Node) -> NodeKey:
        found = self._keys.get(node.index)
        if found is None:
            found = self._keys[node.index] = node_key(self.graph, node)
        return found

    def fragment(self, node: Node, rank: int) -> Fragment:
        """The node's values with all dims at `rank`."""
        key = (self.key(node), rank)
        found = self._fragments.get(key)
        if found is None:
            found = self._fragments[key] = _decompose(self.graph, node, rank)
        return found

    def facts(self, node: Node) -> Facts:
        key = self.key(node)
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = _facts(self.graph, node, self.fragment(node, natural_rank(self.graph, node)))
        return found


def natural_rank(graph: Graph, node: Node) -> int:
    """Largest rank among a node's tensors."""
    return max(len(graph.tensors[u].dim) for _, u in (*node.inputs, *node.outputs))


def _decompose(graph: Graph, node: Node, rank: int) -> Fragment:
    values: list[Value] = []
    args: dict[str, int] = {}
    for port, uid in node.inputs:
        spec = graph.tensors[uid]
        args[port] = len(values)
        values.append(Value("load", (), pad_dim(spec.dim, rank), spec.dtype, spec.dtype))
    builder = FragmentBuilder(node.compute, values, rank)
    made = schema_of(node.op).decompose(builder, NodeView(node, graph), args)
    results: list[tuple[str, int]] = []
    for port, uid in node.outputs:
        spec = graph.tensors[uid]
        dim = pad_dim(spec.dim, rank)
        value = made[port]
        if values[value].dtype is not spec.dtype or values[value].dim != dim or value < len(args):
            value = _round_to(values, value, dim, spec.dtype, node, first=len(args))
        results.append((port, value))
    return Fragment(tuple(values), len(args), tuple(results))


def _round_to(values: list[Value], value: int, dim: tuple[int, ...], dtype: DType, node: Node, first: int) -> int:
    """Round in place where only this result reads the value, else through a cast."""
    last = values[value]
    is_own = first <= value == len(values) - 1 and last.op != "const"
    if is_own and last.dim == dim and last.dtype is node.compute:
        values[value] = Value(last.op, last.args, dim, dtype, last.compute, last.attrs)
        return value
    values.append(Value("cast", (value,), dim, dtype, node.compute))
    return len(values) - 1


def _facts(graph: Graph, node: Node, fragment: Fragment) -> Facts:
    schema = schema_of(node.op)
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
        if v.op not in ("reduce", "load") and from_reduce[i] and any(v.dim[a] > 1 for a in axes if -a <= len(v.dim)):
            reuses = True
    for _, i in fragment.results:
        domain = _larger(domain, values[i].dim)
    cost = schema.cost(NodeView(node, graph))
    return Facts(schema.family, tuple(sorted(axes)), reuses, frozenset(modes), strip(domain), cost)


def _larger(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    return tuple(max(x, y) for x, y in zip(pad_dim(a, rank), pad_dim(b, rank), strict=True))


def strip(dim: tuple[int, ...]) -> tuple[int, ...]:
    """Dims without leading ones."""
    i = 0
    while i < len(dim) and dim[i] == 1:
        i += 1
    return dim[i:]
