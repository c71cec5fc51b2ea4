"""Groups merge along edges and shared operands, and what is refused is cut where it says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fuseplan.ir.graph import DraftTensor, Graph
from fuseplan.ir.limits import POINTWISE, ROWS, FusionLimits, everything
from fuseplan.ir.region import Region
from fuseplan.lowering.pipeline import Piece, Refusal, lower
from fuseplan.lowering.verify import verify_region
from fuseplan.testing.random_graphs import GraphMaker, exact_graph, smooth_graph

GEMM = FusionLimits(
    ops=ROWS | {"matmul"}, anchors=2, in_front={"matmul.a": POINTWISE}, reuse_reduction=True,
    reduce_after_anchor=frozenset({"add", "max"}),
)  # fmt: skip


class Maker(GraphMaker):
    """Short ways to write the graphs of this file; nothing is an output until `graph` says so."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))

    def matmul(self, a: DraftTensor, b: DraftTensor) -> DraftTensor:
        rows, columns = a.need_dim()[:-1], b.need_dim()[-1]
        return self.node("matmul", {"A": a, "B": b}, {"C": (*rows, columns)})[0]

    def one(self, op: str, *inputs: DraftTensor, dim: tuple[int, ...] | None = None, **attrs: Any) -> DraftTensor:
        ports = ("input",) if len(inputs) == 1 else ("a", "b")
        dims = None if dim is None else {"y": dim}
        return self.node(op, dict(zip(ports, inputs, strict=True)), dims, **attrs)[0]

    def graph(self, *outputs: DraftTensor) -> Graph:
        self.finish()
        for t in self.pool:
            if any(t in n.outputs.values() for n in self.builder.nodes):
                t.is_virtual = t not in outputs
        return self.builder.freeze()


def ops_of(pieces: list[Piece]) -> list[list[str]]:
    for piece in pieces:
        verify_region(piece.region)
    return [[n.op for n in p.region.graph.nodes] for p in pieces]


def test_two_products_that_share_an_operand_are_one_region() -> None:
    m = Maker()
    x, gate, up = m.input((1, 4, 6)), m.input((1, 6, 8)), m.input((1, 6, 8))
    y = m.one("mul", m.one("swish", m.matmul(x, gate)), m.matmul(x, up))
    graph = m.graph(y)
    assert ops_of(lower(graph, GEMM)) == [["matmul", "swish", "matmul", "mul"]]
    assert ops_of(lower(graph, replace(GEMM, anchors=1))) == [["matmul"], ["matmul", "swish", "mul"]]


def test_two_products_of_different_extents_do_not_share_a_region() -> None:
    m = Maker()
    x, one, two = m.input((1, 4, 6)), m.input((1, 6, 8)), m.input((1, 6, 9))
    pieces = lower(m.graph(m.matmul(x, one), m.matmul(x, two)), GEMM)
    assert ops_of(pieces) == [["matmul"], ["matmul"]]
    assert pieces[1].starts == "it has dims [4, 9], the region iterates over [4, 8]"


def test_pointwise_work_in_front_of_an_operand_joins_where_it_may() -> None:
    m = Maker()
    x, s, w, b = m.input((1, 4, 6)), m.input((1, 1, 6)), m.input((1, 6, 8)), m.input((1, 1, 8))
    y = m.one("relu", m.one("add", m.matmul(m.one("relu", m.one("mul", x, s)), w), b))
    graph = m.graph(y)
    (piece,) = lower(graph, GEMM)
    assert ops_of([piece]) == [["mul", "relu", "matmul", "add", "relu"]]
    assert piece.region.domain == (1, 4, 8)
    pieces = lower(graph, replace(GEMM, in_front={"matmul.b": POINTWISE}))
    assert ops_of(pieces) == [["mul", "relu"], ["matmul", "add", "relu"]]
    assert pieces[1].starts == "matmul reads a from memory: nothing is fused in front of it"
    pieces = lower(graph, replace(GEMM, in_front={"matmul.a": frozenset({"mul"})}))
    assert pieces[1].starts.endswith("is not fused in front of a of matmul")


def test_work_in_front_of_both_operands_joins() -> None:
    m = Maker()
    a, b = m.one("neg", m.input((1, 4, 6))), m.one("abs", m.input((1, 6, 8)))
    graph = m.graph(m.matmul(a, b))
    both = {"matmul.a": POINTWISE, "matmul.b": POINTWISE}
    assert ops_of(lower(graph, replace(GEMM, in_front=both))) == [["neg", "abs", "matmul"]]
    assert sorted(ops_of(lower(graph, GEMM))) == [["abs"], ["neg", "matmul"]]


def test_one_prologue_serves_two_products() -> None:
    m = Maker()
    x, gate, up = m.input((1, 4, 6)), m.input((1, 6, 8)), m.input((1, 6, 8))
    h = m.one("relu", x)
    graph = m.graph(m.one("mul", m.matmul(h, gate), m.matmul(h, up)))
    assert ops_of(lower(graph, GEMM)) == [["relu", "matmul", "matmul", "mul"]]


@pytest.mark.parametrize("is_output", [True, False])
def test_work_that_others_need_too_is_not_computed_in_front(is_output: bool) -> None:
    m = Maker()
    x, w = m.input((1, 4, 6)), m.input((1, 6, 8))
    h = m.one("relu", x)
    y = m.matmul(h, w)
    graph = m.graph(y, h) if is_output else m.graph(y, m.one("exp", h))
    pieces = lower(graph, GEMM)
    assert sorted(ops_of(pieces)) == ([["matmul"], ["relu"]] if is_output else [["matmul"], ["relu", "exp"]])
    assert "which others need too" in pieces[-1].starts


def test_prologue_whose_second_product_cannot_join_is_put_out_again() -> None:
    m = Maker()
    x, gate, up = m.input((1, 4, 6)), m.input((1, 6, 8)), m.input((1, 6, 9))
    h = m.one("relu", x)
    pieces = lower(m.graph(m.matmul(h, gate), m.matmul(h, up)), GEMM)
    assert ops_of(pieces) == [["relu"], ["matmul"], ["matmul"]]
    assert "needed by others too" in pieces[1].starts


def test_anchors_one_behind_another_need_depth() -> None:
    m = Maker()
    h = m.one("relu", m.matmul(m.input((1, 4, 6)), m.input((1, 6, 8))))
    graph = m.graph(m.matmul(h, m.input((1, 8, 4))))
    deep = replace(GEMM, depth=2, in_front={"matmul.a": POINTWISE | {"matmul"}})
    (piece,) = lower(graph, deep)
    assert ops_of([piece]) == [["matmul", "relu", "matmul"]] and piece.region.domain == (1, 4, 4)
    pieces = lower(graph, replace(deep, depth=1))
    assert ops_of(pieces) == [["matmul", "relu"], ["matmul"]]
    assert pieces[1].starts == "matmul stands behind 1 anchor(s) of the region, as many as may"


def test_chains_that_meet_are_one_region() -> None:
    m = Maker()
    a, b = m.one("exp", m.input((4, 6))), m.one("neg", m.input((4, 6)))
    assert ops_of(lower(m.graph(m.one("add", a, b)), GEMM)) == [["exp", "neg", "add"]]


def test_groups_with_a_path_between_them_through_a_third_do_not_merge() -> None:
    m = Maker()
    x, w = m.input((1, 4, 4)), m.input((1, 4, 4))
    first = m.one("exp", x)
    product = m.matmul(first, w)
    total = m.node("reduction", {"input": product}, {"y": (1, 4, 1)}, mode="ADD")[0]
    again = m.one("mul", first, total)
    graph = m.graph(again)
    pieces = lower(graph, GEMM)
    assert ops_of(pieces) == [["exp"], ["matmul", "reduction"], ["mul"]]


def test_refusal_cuts_in_front_of_the_value_and_both_sides_say_why() -> None:
    m = Maker()
    c = m.matmul(m.input((1, 4, 6)), m.input((1, 6, 8)))
    r = m.one("relu", m.one("add", c, m.input((1, 1, 8))))
    top = m.node("reduction", {"input": r}, {"y": (1, 1, 1)}, mode="MAX")[0]
    graph = m.graph(r, top)

    def offer(region: Region) -> Refusal | None:
        found = region.reductions if region.anchors else ()
        return Refusal("picky: no reduction behind a product", found[0]) if found else None

    pieces = lower(graph, GEMM, offer=offer)
    assert ops_of(pieces) == [["matmul", "add", "relu"], ["reduction"]]
    assert pieces[0].ends == pieces[1].starts == "picky: no reduction behind a product"
    assert not pieces[0].starts and not pieces[1].ends and not any(p.refused for p in pieces)


def test_refusal_of_the_first_value_cuts_behind_it() -> None:
    m = Maker()
    x = m.one("exp", m.input((4, 6)))
    graph = m.graph(m.one("neg", m.one("abs", x)))

    def offer(region: Region) -> Refusal | None:
        at = next((i for i, v in enumerate(region.values) if v.op == "exp"), -1)
        return Refusal("picky: no exp", at) if at >= 0 else None

    pieces = lower(graph, GEMM, offer=offer)
    assert ops_of(pieces) == [["exp"], ["abs", "neg"]]
    assert pieces[0].refused == pieces[0].ends == pieces[1].starts == "picky: no exp"


def test_refused_region_is_cut_into_parts_that_are_regions() -> None:
    """A part of a region with work in front of two operands has no iteration space of its own: it is grouped anew."""
    m = Maker()
    a, b = m.one("neg", m.input((1, 4, 6))), m.one("abs", m.input((1, 6, 8)))
    graph = m.graph(m.one("exp", m.matmul(a, b)))
    limits = replace(GEMM, in_front={"matmul.a": POINTWISE, "matmul.b": POINTWISE})

    def offer(region: Region) -> Refusal | None:
        is_deep = region.anchors and len(region.graph.nodes) > 1
        return Refusal("bare: a product stands alone", region.anchors[0]) if is_deep else None

    assert sorted(ops_of(lower(graph, limits, offer=offer))) == [["abs"], ["exp"], ["matmul"], ["neg"]]


def test_engine_that_runs_nodes_gets_the_largest_piece_it_takes() -> None:
    m = Maker()
    x = m.one("relu", m.one("exp", m.input((4, 6))))
    graph = m.graph(m.one("neg", m.one("abs", x)))
    asked: list[int] = []

    def offer(region: Region) -> Refusal | None:
        asked.append(len(region.graph.nodes))
        at = next((k for k, n in enumerate(region.graph.nodes) if n.op == "abs"), -1)
        return Refusal("nodes: no abs", at) if at >= 0 else None

    pieces = lower(graph, FusionLimits(by_graph=True), offer=offer)
    assert [[n.op for n in p.region.graph.nodes] for p in pieces] == [["exp", "relu"], ["abs"], ["neg"]]
    assert asked[0] == 4 and pieces[1].refused == "nodes: no abs"
    assert not any(p.region.values for p in pieces)


def test_passes_are_traced_by_name() -> None:
    m = Maker()
    graph = m.graph(m.one("neg", m.one("exp", m.input((4, 6)))))
    seen: list[tuple[str, int]] = []
    lower(graph, GEMM, offer=lambda region: Refusal("no", -1), trace=lambda name, p: seen.append((name, len(p))))
    assert seen == [("partition and fuse", 1), ("offer", 2)]


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_make_legal_regions_under_wide_limits(seed: int) -> None:
    for make in (exact_graph, smooth_graph):
        graph = make(seed)
        for limits in (everything(), GEMM, replace(everything(), max_nodes=4), replace(everything(), anchors=2)):
            done: set[int] = set(graph.input_uids)
            for piece in lower(graph, limits):
                verify_region(piece.region)
                assert set(piece.region.graph.input_uids) <= done
                done |= set(piece.region.graph.output_uids)
            assert set(graph.output_uids) <= done
