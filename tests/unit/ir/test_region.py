"""Regions: what is checked, and what equal keys promise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import Graph
from fuseplan.ir.limits import POINTWISE, FusionLimits
from fuseplan.lowering.fuse import whole_region
from fuseplan.lowering.pipeline import lower
from fuseplan.lowering.verify import verify_region
from fuseplan.testing.random_graphs import GraphMaker


def one_node(op: str, **attrs: int) -> Graph:
    m = GraphMaker(random.Random(0))
    m.node(op, {"input": m.input((4, 8), stride=(8, 1))}, **attrs)
    return m.finish()


@pytest.mark.parametrize("axis", [-1, 2])
def test_axis_outside_of_the_region_is_refused(axis: int) -> None:
    (piece,) = lower(one_node("gen_index", axis=1), FusionLimits(ops=POINTWISE))
    region = piece.region
    verify_region(region)
    bad = tuple(replace(v, attrs=(("axis", axis),)) if v.op == "index" else v for v in region.values)
    assert bad != region.values
    with pytest.raises(InvalidGraphError, match=rf"\(index\): axes \({axis},\) in a region of rank 2"):
        verify_region(replace(region, values=bad))


def test_whole_graphs_share_a_key_only_if_they_compute_the_same() -> None:
    key = whole_region(one_node("neg")).key
    assert key != whole_region(one_node("abs")).key
    renamed = one_node("neg")
    (node,) = renamed.nodes
    assert key == whole_region(replace(renamed, name="other", nodes=(replace(node, name="other"),))).key
