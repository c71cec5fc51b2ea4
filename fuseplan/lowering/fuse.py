"""Makes a `Region` from a group of nodes: one SSA list, operands in launch order, stores; dead values removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuseplan.ir.graph import Graph, Node, TensorSpec
from fuseplan.ir.region import Cost, Operand, Region, Role, Value
from fuseplan.lowering.fragment import FragmentCache, natural_rank, pad_dim


@dataclass(slots=True)
class _Draft:
    values: list[Value] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)  # the value that loads each operand
    made: dict[int, int] = field(default_factory=dict)  # uid -> value


def fuse(graph: Graph, nodes: Sequence[int], cache: FragmentCache, reason: str = "") -> Region:
    """The region of these nodes; results that leave the group are stored."""
    members = set(nodes)
    chosen = [graph.nodes[i] for i in nodes]
    exposed = exposed_uids(graph, chosen, members)
    rank = max(natural_rank(graph, n) for n in chosen)
    draft = _Draft()
    cost = Cost()
    for node in chosen:
        _append(draft, graph, node, rank, cache)
        cost += Cost(flops=cache.facts(node).op_cost.flops)
    values, remap = _sweep(draft.values, [draft.made[uid] for uid in exposed])
    loads: list[tuple[int, int]] = []
    operands: list[Operand] = []
    for value, operand in zip(draft.loads, draft.operands, strict=True):
        if remap[value] >= 0:
            loads.append((remap[value], len(operands)))
            operands.append(operand)
    stores = []
    for uid in exposed:
        spec = graph.tensors[uid]
        stores.append((remap[draft.made[uid]], len(operands)))
        operands.append(_operand(spec, rank, Role.OUT))
    moved = _traffic(operands)
    return Region(
        graph.slice(nodes, exposed), values, tuple(operands), tuple(loads), tuple(stores),
        Cost(cost.flops, *moved), reason,
    )  # fmt: skip


def exposed_uids(graph: Graph, chosen: Sequence[Node], members: set[int]) -> list[int]:
    """Results that are outputs of the graph or read outside the group, in node order."""
    found = []
    for node in chosen:
        for _, uid in node.outputs:
            if not graph.tensors[uid].is_virtual or any(c not in members for c in graph.consumers.get(uid, ())):
                found.append(uid)
    return found


def _append(draft: _Draft, graph: Graph, node: Node, rank: int, cache: FragmentCache) -> None:
    fragment = cache.fragment(node, rank)
    index: list[int] = []
    for k, (_, uid) in enumerate(node.inputs):
        if uid not in draft.made:
            _load(draft, graph.tensors[uid], rank, fragment.values[k])
        index.append(draft.made[uid])
    values = draft.values
    for v in fragment.values[fragment.num_inputs :]:
        index.append(len(values))
        args = tuple([index[a] for a in v.args])
        values.append(Value(v.op, args, v.dim, v.dtype, v.compute, v.attrs, node.index))
    by_port = dict(fragment.results)
    for port, uid in node.outputs:
        draft.made[uid] = index[by_port[port]]


def _load(draft: _Draft, spec: TensorSpec, rank: int, placeholder: Value) -> None:
    if spec.value is not None and spec.is_constant:
        value = Value("const", (), placeholder.dim, spec.dtype, spec.dtype, (("value", spec.value),))
    else:
        draft.loads.append(len(draft.values))
        draft.operands.append(_operand(spec, rank, Role.SCALAR if spec.is_host_scalar else Role.IN))
        value = placeholder
    draft.made[spec.uid] = len(draft.values)
    draft.values.append(value)


def _operand(spec: TensorSpec, rank: int, role: Role) -> Operand:
    return Operand(spec.uid, pad_dim(spec.dim, rank), (0,) * (rank - len(spec.dim)) + spec.stride, spec.dtype, role)


def _sweep(values: list[Value], roots: list[int]) -> tuple[tuple[Value, ...], list[int]]:
    """Values that the roots need, and old index -> new (-1 if gone)."""
    used = [False] * len(values)
    for r in roots:
        used[r] = True
    for i in range(len(values) - 1, -1, -1):
        if used[i]:
            for a in values[i].args:
                used[a] = True
    remap = [-1] * len(values)
    kept: list[Value] = []
    if all(used):
        return tuple(values), list(range(len(values)))
    for i, v in enumerate(values):
        if used[i]:
            remap[i] = len(kept)
            kept.append(Value(v.op, tuple([remap[a] for a in v.args]), v.dim, v.dtype, v.compute, v.attrs, v.node))
    return tuple(kept), remap


def _traffic(operands: Sequence[Operand]) -> tuple[int, int]:
    read = write = 0
    for o in operands:
        size = o.dtype.itemsize
        for d, s in zip(o.dim, o.stride, strict=True):
            size *= d if s else 1
        if o.role is Role.OUT:
            write += size
        elif o.role is Role.IN:
            read += size
    return read, write
