"""Every rule of graphs sees one that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuseplan.dtypes import FLOAT, INT32
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import Graph, Node, Ragged, TensorSpec, packed_stride
from fuseplan.ir.verify import verify_graph


def graph_with(**fields: Any) -> Graph:
    dim = (2, 3)
    tensors = {k: TensorSpec(k, f"t{k}", dim, packed_stride(dim), INT32 if k == 3 else FLOAT) for k in (1, 2, 3)}
    tensors[1] = replace(tensors[1], **fields)
    return Graph("g", tensors, (Node(0, "neg", "neg.0", (("input", 1),), (("y", 2),), (), FLOAT),))


@pytest.mark.parametrize(
    ("ragged", "message"),
    [(Ragged(77), "start at uid 77"), (Ragged(3, 0), "ragged multiplier 0")],
    ids=["missing", "multiplier"],
)
def test_packed_tensor_needs_its_starts(ragged: Ragged, message: str) -> None:
    verify_graph(graph_with(ragged=Ragged(3)))
    assert graph_with(ragged=Ragged(3)).input_uids == (1, 3)
    with pytest.raises(InvalidGraphError, match=message):
        verify_graph(graph_with(ragged=ragged))


def test_body_of_a_node_reads_what_the_op_hands_in_and_gives_something_back() -> None:
    graph = graph_with()
    inner = Graph("body", {**graph.tensors}, graph.nodes)
    with pytest.raises(InvalidGraphError, match="reads nothing that the op hands to it"):
        verify_graph(replace(graph, nodes=(replace(graph.nodes[0], body=inner),)))
    hidden = Graph("body", {1: graph.tensors[1], 2: replace(graph.tensors[2], is_virtual=True)}, graph.nodes)
    outer = replace(graph.nodes[0], inputs=(("input", 3),), body=hidden)
    with pytest.raises(InvalidGraphError, match="gives nothing back"):
        verify_graph(replace(graph, nodes=(outer,)))
