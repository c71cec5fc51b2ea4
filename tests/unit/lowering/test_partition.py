"""Where graphs are cut, and the reason that is given."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fuseplan import dtypes
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import ROWS, FusionLimits
from fuseplan.ir.verify import verify_graph
from fuseplan.lowering.pipeline import lower
from fuseplan.lowering.verify import verify_region
from fuseplan.testing.random_graphs import GraphMaker, exact_graph, smooth_graph

WIDE = FusionLimits(
    ops=ROWS | {"matmul", "conv_fprop"},
    reuse_reduction=True,
    reduce_after_anchor=frozenset({"max", "add"}),
)
NO_REUSE = replace(WIDE, reuse_reduction=False)


def maker() -> GraphMaker:
    return GraphMaker(random.Random(0))


def names(graph: Graph, limits: FusionLimits) -> list[list[str]]:
    return [[n.op for n in p.region.graph.nodes] for p in lower(graph, limits)]


def two_matmuls() -> Graph:
    m = maker()
    (first,) = m.node("matmul", {"A": m.input((2, 3, 4)), "B": m.input((2, 4, 5))}, {"C": (2, 3, 5)})
    (act,) = m.node("gelu", {"input": first})
    m.node("matmul", {"A": act, "B": m.input((2, 5, 6))}, {"C": (2, 3, 6)})
    return m.finish()


def long_chain(num_nodes: int = 60) -> Graph:
    m = maker()
    x, y = m.input((8, 16)), m.input((1, 16))
    middle = None
    for k in range(num_nodes):
        (x,) = m.node("add" if k % 2 else "mul", {"a": x, "b": y})
        middle = x if k == num_nodes // 2 else middle
    graph_out = m.finish()
    assert middle is not None
    middle.is_virtual = False
    del graph_out
    return m.builder.freeze()


def add_layernorm_gelu() -> Graph:
    m = maker()
    (s,) = m.node("add", {"a": m.input((1, 6, 8)), "b": m.input((1, 6, 8))})
    eps = m.input((1, 1, 1), dtypes.FLOAT, (1, 1, 1))
    ins = {"input": s, "scale": m.input((1, 1, 8)), "bias": m.input((1, 1, 8)), "eps": eps}
    y, mean, inv = m.node("layernorm", ins, {"y": (1, 6, 8), "mean": (1, 6, 1), "inv_std": (1, 6, 1)},
                          phase="TRAINING")  # fmt: skip
    m.node("gelu", {"input": y})
    for t in (s, mean, inv):
        t.is_virtual = False
    m.finish()
    for t in (s, mean, inv):
        t.is_virtual = False
    return m.builder.freeze()


def test_two_matmuls_are_cut_before_the_second_with_the_reason() -> None:
    pieces = lower(two_matmuls(), WIDE)
    assert [[n.op for n in p.region.graph.nodes] for p in pieces] == [["matmul", "gelu"], ["matmul"]]
    assert "one anchor" in pieces[1].starts and "matmul" in pieces[1].starts


def test_chain_of_60_with_an_output_in_the_middle_is_one_region_with_two_stores() -> None:
    (piece,) = lower(long_chain(), WIDE)
    region = piece.region
    assert len(region.graph.nodes) == 60
    assert len(region.stores) == 2


def test_chain_over_the_limit_is_cut_where_the_region_is_full() -> None:
    pieces = lower(long_chain(), replace(WIDE, max_nodes=25))
    assert [len(p.region.graph.nodes) for p in pieces] == [25, 25, 10]
    assert pieces[1].starts == "the region is full (25 nodes)"


def test_add_layernorm_gelu_is_one_region_where_reductions_may_be_reused() -> None:
    (piece,) = lower(add_layernorm_gelu(), WIDE)
    assert len(piece.region.stores) == 4


def test_add_layernorm_gelu_is_cut_where_reductions_may_not_be_reused() -> None:
    pieces = lower(add_layernorm_gelu(), NO_REUSE)
    assert [[n.op for n in p.region.graph.nodes] for p in pieces] == [["add"], ["layernorm"], ["gelu"]]
    assert "used again over the reduced axes" in pieces[1].starts


def test_op_that_is_not_fused_is_named() -> None:
    pieces = lower(two_matmuls(), replace(WIDE, ops=frozenset({"matmul"})))
    assert [len(p.region.graph.nodes) for p in pieces] == [1, 1, 1]
    assert pieces[1].starts == "'add' is not fused by this engine"


def test_residual_add_joins_the_anchor_although_both_sides_are_computed() -> None:
    m = maker()
    (a,) = m.node("matmul", {"A": m.input((1, 4, 4)), "B": m.input((1, 4, 4))}, {"C": (1, 4, 4)})
    (b,) = m.node("matmul", {"A": m.input((1, 4, 4)), "B": m.input((1, 4, 4))}, {"C": (1, 4, 4)})
    m.node("add", {"a": a, "b": b})
    assert sorted(names(m.finish(), WIDE)) == [["matmul"], ["matmul", "add"]]


def test_diamond_through_another_region_is_not_joined_into_a_cycle() -> None:
    m = maker()
    (a,) = m.node("matmul", {"A": m.input((1, 4, 4)), "B": m.input((1, 4, 4))}, {"C": (1, 4, 4)})
    (r,) = m.node("relu", {"input": a})
    (b,) = m.node("matmul", {"A": r, "B": m.input((1, 4, 4))}, {"C": (1, 4, 4)})
    m.node("add", {"a": r, "b": b})
    assert names(m.finish(), WIDE) == [["matmul", "relu"], ["matmul", "add"]]


def test_node_whose_result_nobody_needs_is_left_out() -> None:
    m = maker()
    x = m.input((4, 4))
    (dead,) = m.node("exp", {"input": x})
    m.node("neg", {"input": x})
    graph = m.finish()
    dead.is_virtual = True
    assert names(m.builder.freeze(), WIDE) == [["neg"]]
    assert len(graph.nodes) == 2


def test_equal_regions_have_equal_keys_whatever_their_names_and_uids() -> None:
    m, other = maker(), maker()
    other.num_tensors = 50
    for mk in (m, other):
        mk.node("gelu", {"input": mk.input((3, 5), stride=(5, 1))})
    (a,), (b,) = lower(m.finish(), WIDE), lower(other.finish(), WIDE)
    assert a.region.key == b.region.key
    assert a.region.operands[0].uid != b.region.operands[0].uid


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_verify_after_every_pass_and_cover_every_live_node(seed: int) -> None:
    for make in (exact_graph, smooth_graph):
        graph = make(seed)
        verify_graph(graph)
        for limits in (WIDE, NO_REUSE, replace(WIDE, max_nodes=3), replace(WIDE, max_operands=6)):
            regions = [piece.region for piece in lower(graph, limits)]
            done: set[int] = set(graph.input_uids)
            for region in regions:
                verify_region(region)
                assert set(region.graph.input_uids) <= done, "a region runs before its inputs are made"
                done |= set(region.graph.output_uids)
            assert set(graph.output_uids) <= done
            made = [uid for r in regions for n in r.graph.nodes for _, uid in n.outputs]
            assert len(made) == len(set(made)), "a node is in two regions"
