"""Graphs of planned ops go through verification, print, JSON, keys and cutting as they will have to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fuseplan.codegen.text import print_graph
from fuseplan.codegen.writer import region_summary
from fuseplan.ir.graph import Graph
from fuseplan.ir.keys import canonical_key, structure_key
from fuseplan.ir.limits import everything
from fuseplan.ir.region import Region, Role
from fuseplan.ir.verify import verify_graph
from fuseplan.lowering.pipeline import lower
from fuseplan.lowering.verify import verify_region
from fuseplan.plan.graph_json import dumps, loads
from tests.conformance.planned import GRAPHS, planned_ops


@pytest.fixture(autouse=True)
def ops() -> Iterator[None]:
    with planned_ops():
        yield


def regions(name: str) -> list[Region]:
    return [piece.region for piece in lower(GRAPHS[name][0](), everything())]


def renamed(graph: Graph, step: int = 100) -> Graph:
    """The same graph under other uids and names."""

    def move(uid: int) -> int:
        return uid + step

    tensors = {}
    for t in graph.tensors.values():
        ragged = t.ragged and replace(t.ragged, offsets=move(t.ragged.offsets))
        tensors[move(t.uid)] = replace(t, uid=move(t.uid), name=f"other{t.uid}", ragged=ragged)
    nodes = tuple(
        replace(
            n, name=f"other{n.index}", inputs=tuple((p, move(u)) for p, u in n.inputs),
            outputs=tuple((p, move(u)) for p, u in n.outputs), body=n.body and renamed(n.body, step),
        )
        for n in graph.nodes
    )  # fmt: skip
    return Graph("other", tensors, nodes, graph.is_dynamic)


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_graph_verifies_prints_and_round_trips(name: str) -> None:
    graph = GRAPHS[name][0]()
    verify_graph(graph)
    back = loads(dumps(graph))
    assert back == graph and dumps(back) == dumps(graph)
    shown = print_graph(graph)
    assert all(f"{n.op}(" in shown for n in graph.nodes)
    assert all(inner.op in shown for n in graph.nodes if n.body is not None for inner in n.body.nodes)


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_graph_has_the_expected_regions_where_everything_fuses(name: str) -> None:
    make, expected = GRAPHS[name]
    pieces = lower(make(), everything())
    assert [[n.op for n in p.region.graph.nodes] for p in pieces] == expected
    for piece in pieces:
        verify_region(piece.region)
        assert len(region_summary(piece.region)) >= len(piece.region.operands) + len(piece.region.values)


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_graph_keeps_its_keys_under_other_names(name: str) -> None:
    graph = GRAPHS[name][0]()
    other = renamed(graph)
    assert canonical_key(other) == canonical_key(graph)
    assert structure_key(other, is_canonical=True) == structure_key(graph, is_canonical=True)
    assert structure_key(other) != structure_key(graph)
    keys = [[p.region.key for p in lower(g, everything())] for g in (graph, other)]
    assert keys[0] == keys[1]


def test_keys_tell_bodies_multipliers_and_windows_apart() -> None:
    graph = GRAPHS["attention_with_everything"][0]()
    node = graph.nodes[0]
    assert node.body is not None
    inner = replace(node.body, nodes=(node.body.nodes[0], replace(node.body.nodes[1], op="sigmoid")))
    changed = replace(graph, nodes=(replace(node, body=inner), graph.nodes[1]))
    packed = GRAPHS["ragged_paged_attention"][0]()
    moved = {
        uid: replace(t, ragged=t.ragged and replace(t.ragged, multiplier=7)) for uid, t in packed.tensors.items()
    }  # fmt: skip
    rope = GRAPHS["rope_attention"][0]()
    shifted = tuple(
        replace(n, attrs=(("start", (0, 0, 0, 1)),)) if n.attr("start") == (0, 0, 0, 8) else n
        for n in rope.nodes
        if n.op == "slice"
    )
    by_index = {n.index: n for n in shifted}
    sliced = replace(rope, nodes=tuple(by_index.get(n.index, n) for n in rope.nodes))
    for one, two in ((graph, changed), (packed, replace(packed, tensors=moved)), (rope, sliced)):
        assert canonical_key(one) != canonical_key(two)
        assert structure_key(one) != structure_key(two)
        assert [p.region.key for p in lower(one, everything())] != [p.region.key for p in lower(two, everything())]


def test_attention_is_one_anchor_whose_body_reads_its_own_tensor() -> None:
    (region,) = regions("attention_with_everything")
    (anchor,) = region.anchors
    value = region.values[anchor]
    assert value.ports == ("q", "k", "v", "bias", "mod") and value.attr("results") == ("o", "stats")
    assert [region.values[u].op for u in region.users[anchor]] == ["pick", "pick"]
    assert value.body is not None
    outer = region.operands[region.operand_of[value.args[4]]]
    assert [o.uid for o in value.body.operands][:2] == [900, outer.uid]
    assert len(region.stores) == 2


def test_rope_reads_halves_of_one_buffer_in_front_of_attention() -> None:
    (region,) = regions("rope_attention")
    q = [o for o in region.operands if o.uid == 1]
    assert [(o.offset, o.dim[-1]) for o in q] == [(0, 8), (8, 8)]
    assert region.domain == (2, 4, 6, 16)
    assert {region.values[i].op for i in region.prologue} >= {"load", "mul", "sub", "add", "concat"}


def test_cache_append_writes_the_new_part_alone() -> None:
    append, attend = regions("cache_append")
    (written,) = [o for o in append.operands if o.role is Role.INOUT]
    assert written.dim == (2, 2, 1, 16) and written.offset == 7 * 16
    assert [o.role for o in append.operands if o is not written] == [Role.IN]
    assert attend.anchors and written.uid in {o.uid for o in attend.operands}


def test_packed_tensors_name_the_operand_with_their_starts() -> None:
    (region,) = regions("ragged_paged_attention")
    packed = [o for o in region.operands if o.rows is not None]
    assert len(packed) == 2 and {o.rows for o in packed} == {(packed[0].rows or (0,))[0:1] + (64,)}
    starts = region.operands[(packed[0].rows or (-1, 0))[0]]
    assert starts.dtype.name == "INT32" and starts.role is Role.IN


def test_shared_gradient_is_stored_once_for_two_anchors_of_different_kinds() -> None:
    first, data, weights = lower(GRAPHS["conv_gradients"][0](), everything())
    assert len(first.region.stores) == 1
    assert "needed" in data.starts or "others need" in data.starts
    assert weights.starts
