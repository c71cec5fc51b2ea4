"""Hypothesis strategies of graphs and layouts, shared by all property tests. Needs the package `hypothesis`."""

from __future__ import annotations

from hypothesis import strategies as st

from fuseplan.ir.graph import Graph
from fuseplan.testing.random_graphs import exact_graph, smooth_graph, wide_graph

_SEEDS = st.integers(0, 2**31)


def graphs() -> st.SearchStrategy[Graph]:
    """Valid graphs of all kinds of `random_graphs`."""
    return st.one_of(*(st.builds(make, _SEEDS) for make in (exact_graph, smooth_graph, wide_graph)))


def dims(max_rank: int = 5, max_extent: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    """Dims of rank 1 and more, extents of 1 included."""
    return st.lists(st.integers(1, max_extent), min_size=1, max_size=max_rank).map(tuple)


@st.composite
def broadcastable_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two dims that broadcast, right-aligned, of any two ranks."""
    full = draw(dims())
    masks = draw(st.tuples(*[st.lists(st.booleans(), min_size=len(full), max_size=len(full))] * 2))
    made = [tuple(1 if hide else d for hide, d in zip(mask, full, strict=True)) for mask in masks]
    start = draw(st.integers(0, len(full) - 1))
    return made[0], made[1][start:]
