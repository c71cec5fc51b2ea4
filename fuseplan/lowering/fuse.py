"""Makes a `Region` from a group of nodes: one SSA list, operands in launch order, stores; dead values removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import Graph, Node, TensorSpec
from fuseplan.ir.region import Cost, Operand, Region, Role, Value
from fuseplan.lowering.fragment import FragmentCache, natural_rank, node_key, pad_dim
from fuseplan.ops.schema import NodeView, Window, schema_of


@dataclass(slots=True)
class _Draft:
    rank: int
    values: list[Value] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    loads: list[tuple[int, int]] = field(default_factory=list)  # (value, operand)
    made: dict[int, int] = field(default_factory=dict)  # uid -> value
    starts: dict[int, int] = field(
        default_factory=dict
    )  # uid of the starts of sequences -> operand


def fuse(graph: Graph, nodes: Sequence[int], cache: FragmentCache) -> Region:
    """The region of these nodes; results that leave the group are stored."""
    members = set(nodes)
    chosen = [graph.nodes[i] for i in nodes]
    computed = (
        [n for n in chosen if n.outputs[0][1] not in cache.windows]
        if cache.windows
        else chosen
    )
    exposed = exposed_uids(graph, computed, members)
    draft = _Draft(max(natural_rank(graph, n) for n in computed))
    cost = Cost()
    for node in computed:
        _append(draft, graph, node, cache)
        cost += Cost(flops=cache.traits(node).op_cost.flops)
    stored = [piece for uid in exposed for piece in _pieces(draft, graph, uid)]
    operands = [*draft.operands, *(operand for _, operand in stored)]
    stores = [(value, len(draft.operands) + k) for k, (value, _) in enumerate(stored)]
    swept = _sweep(draft.values, operands, draft.loads, stores)
    return Region(
        graph.slice(nodes, exposed), *swept, Cost(cost.flops, *_traffic(swept[1]))
    )


def exposed_uids(graph: Graph, chosen: Sequence[Node], members: set[int]) -> list[int]:
    """Results that are outputs of the graph or needed outside the group, in node order."""
    found = []
    for node in chosen:
        for _, uid in node.outputs:
            if not graph.tensors[uid].is_virtual or any(
                c not in members and graph.live[c] for c in graph.consumers.get(uid, ())
            ):
                found.append(uid)
    return found


def _append(draft: _Draft, graph: Graph, node: Node, cache: FragmentCache) -> None:
    fragment = cache.fragment(node, draft.rank)
    index: list[int] = []
    for k, (_, uid) in enumerate(node.inputs):
        if uid not in draft.made:
            _load(draft, graph, uid, fragment.values[k], cache)
        index.append(draft.made[uid])
    values = draft.values
    body = None if node.body is None else _body(node, node.body)
    for v in fragment.values[fragment.num_inputs :]:
        index.append(len(values))
        args = tuple([index[a] for a in v.args])
        inside = body if v.op in ANCHORS else None
        values.append(
            Value(v.op, args, v.dim, v.dtype, v.compute, v.attrs, node.index, inside)
        )
    by_port = dict(fragment.results)
    for port, uid in node.outputs:
        draft.made[uid] = index[by_port[port]]


def _body(node: Node, body: Graph) -> Region:
    """What an anchor applies inside: operands that it hands in come first, then those from outside in port order."""
    region = fuse(body, range(len(body.nodes)), FragmentCache(body))
    place = {uid: k for k, (_, uid) in enumerate(node.inputs)}
    order = sorted(
        range(len(region.operands)),
        key=lambda k: _rank_in_body(region.operands[k], place, k),
    )
    moved = {old: new for new, old in enumerate(order)}
    return replace(
        region, operands=tuple(region.operands[k] for k in order),
        loads=tuple((v, moved[k]) for v, k in region.loads), stores=tuple((v, moved[k]) for v, k in region.stores),
    )  # fmt: skip


def _rank_in_body(operand: Operand, place: dict[int, int], k: int) -> tuple[int, int]:
    if operand.role.is_written:
        return (2, k)
    return (1, place[operand.uid]) if operand.uid in place else (0, k)


def _load(
    draft: _Draft, graph: Graph, uid: int, placeholder: Value, cache: FragmentCache
) -> None:
    spec = graph.tensors[uid]
    if spec.value is not None and spec.is_constant:
        value = Value(
            "const",
            (),
            placeholder.dim,
            spec.dtype,
            spec.dtype,
            (("value", spec.value),),
        )
    else:
        source = cache.windows.get(uid)
        if source is None:
            operand = _operand(
                draft, graph, spec, Role.SCALAR if spec.is_host_scalar else Role.IN
            )
        else:
            operand = _operand(
                draft, graph, graph.tensors[source.uid], Role.IN, source.window
            )
        draft.loads.append((len(draft.values), len(draft.operands)))
        draft.operands.append(operand)
        value = placeholder
    draft.made[uid] = len(draft.values)
    draft.values.append(value)


def _operand(
    draft: _Draft,
    graph: Graph,
    spec: TensorSpec,
    role: Role,
    window: Window | None = None,
) -> Operand:
    dim, stride, offset = (
        (spec.dim, spec.stride, 0)
        if window is None
        else (window.dim, window.stride, window.offset)
    )
    rank, rows = draft.rank, None
    if spec.ragged is not None:
        rows = (_starts(draft, graph, spec.ragged.offsets), spec.ragged.multiplier)
    return Operand(
        spec.uid,
        pad_dim(dim, rank),
        (0,) * (rank - len(dim)) + stride,
        spec.dtype,
        role,
        offset,
        rows,
    )


def _starts(draft: _Draft, graph: Graph, uid: int) -> int:
    """The operand with the starts of a packed tensor's sequences; kernels read it as they like, no value loads it."""
    if uid not in draft.starts:
        spec = graph.tensors[uid]
        operand = _operand(draft, graph, spec, Role.IN)
        draft.starts[uid] = len(draft.operands)
        draft.operands.append(operand)
    return draft.starts[uid]


def _pieces(draft: _Draft, graph: Graph, uid: int) -> list[tuple[int, Operand]]:
    """(value, operand) of each store of a result: of a joined one, a store for each part that is not there already."""
    spec, value = graph.tensors[uid], draft.made[uid]
    v = draft.values[value]
    whole = _operand(draft, graph, spec, Role.OUT)
    if v.op != "concat" or any(value in u.args for u in draft.values):
        return [(value, whole)]
    parts, at, there = (
        [],
        0,
        v.attr("in_place") if any(k == "in_place" for k, _ in v.attrs) else None,
    )
    for k, a in enumerate(v.args):
        dim = draft.values[a].dim
        if k != there:
            role = Role.OUT if there is None else Role.INOUT
            parts.append(
                (
                    a,
                    replace(
                        whole, dim=dim, offset=at * whole.stride[v.axis], role=role
                    ),
                )
            )
        at += dim[v.axis]
    spaces = {draft.values[a].dim for a, _ in parts}
    return parts if len(spaces) == 1 else [(value, whole)]


def _sweep(
    values: list[Value],
    operands: list[Operand],
    loads: list[tuple[int, int]],
    stores: list[tuple[int, int]],
) -> tuple[
    tuple[Value, ...],
    tuple[Operand, ...],
    tuple[tuple[int, int], ...],
    tuple[tuple[int, int], ...],
]:
    """What the stores need: values, operands, loads and stores, numbered anew."""
    used = [False] * len(values)
    for value, _ in stores:
        used[value] = True
    for i in range(len(values) - 1, -1, -1):
        if used[i]:
            for a in values[i].args:
                used[a] = True
    remap = [-1] * len(values)
    kept: list[Value] = []
    for i, v in enumerate(values):
        if used[i]:
            remap[i] = len(kept)
            args = tuple([remap[a] for a in v.args])
            kept.append(
                v
                if args == v.args
                else Value(
                    v.op, args, v.dim, v.dtype, v.compute, v.attrs, v.node, v.body
                )
            )
    needed = [k for v, k in loads if used[v]] + [k for _, k in stores]
    needed += [o.rows[0] for o in (operands[k] for k in needed) if o.rows is not None]
    place = {k: n for n, k in enumerate(sorted(set(needed)))}
    moved = [operands[k] for k in place]
    rows = [
        o if o.rows is None else replace(o, rows=(place[o.rows[0]], o.rows[1]))
        for o in moved
    ]
    return (
        tuple(kept), tuple(rows), tuple([(remap[v], place[k]) for v, k in loads if used[v]]),
        tuple([(remap[v], place[k]) for v, k in stores]),
    )  # fmt: skip


def slice_region(graph: Graph, nodes: Sequence[int]) -> Region:
    """Nodes as a region without values, for engines that run the nodes themselves."""
    chosen = [graph.nodes[k] for k in nodes]
    kept = graph.slice(nodes, exposed_uids(graph, chosen, set(nodes)))
    operands = []
    for uid in (*kept.input_uids, *kept.output_uids):
        spec = kept.tensors[uid]
        if spec.is_constant:
            continue
        role = (
            Role.OUT
            if uid in kept.producers
            else Role.SCALAR
            if spec.is_host_scalar
            else Role.IN
        )
        operands.append(Operand(uid, spec.dim, spec.stride, spec.dtype, role))
    return Region(kept, (), tuple(operands), (), (), _work(kept))


def whole_region(graph: Graph) -> Region:
    """The graph, without what nobody needs, as one region without values."""
    return slice_region(graph, [k for k, is_live in enumerate(graph.live) if is_live])


def _work(graph: Graph) -> Cost:
    """Work of the nodes run one by one, each reading and writing memory."""
    found: dict[object, Cost] = {}
    total = Cost()
    for node in graph.nodes:
        key = node_key(graph, node)
        if key not in found:
            found[key] = schema_of(node.op).cost(NodeView(node, graph))
        total += found[key]
    return total


def _traffic(operands: Sequence[Operand]) -> tuple[int, int]:
    read = write = 0
    for o in operands:
        size = o.dtype.itemsize
        for d, s in zip(o.dim, o.stride, strict=True):
            size *= d if s else 1
        if o.role.is_written:
            write += size
        elif o.role is Role.IN:
            read += size
    return read, write
