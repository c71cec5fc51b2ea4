"""Which axes are walked as one, and in which order."""

from __future__ import annotations

from dataclasses import replace

from fuseplan.codegen.axes import MergedAxis, effective_stride, memory_order, merge, merge_in_memory_order
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Region
from tests.kernels.cpu_c_harness import RegionBuilder


def negated(dim: tuple[int, ...], stride: tuple[int, ...] | None = None) -> RegionBuilder:
    b = RegionBuilder()
    b.store(b.op("neg", b.load(dim, stride=stride)), stride)
    return b


def axes_of(region: Region) -> list[tuple[int, ...]]:
    return [m.axes for m in merge_in_memory_order(region, range(len(region.domain)))]


def test_packed_axes_are_one_and_unit_axes_vanish() -> None:
    region = negated((2, 1, 3, 4)).region()
    assert merge(region, range(4)) == (MergedAxis((0, 2, 3), 24),)


def test_order_follows_memory_and_a_gap_keeps_axes_apart() -> None:
    assert axes_of(negated((2, 3, 4), (12, 1, 3)).region()) == [(0, 2, 1)]
    assert axes_of(negated((2, 3, 4), (24, 8, 1)).region()) == [(0, 1), (2,)]


def test_values_that_extend_over_one_axis_only_keep_it_apart() -> None:
    b = RegionBuilder()
    x, y = b.load((2, 3, 4)), b.load((2, 1, 1), stride=(0, 0, 0))
    b.store(b.op("add", x, y))
    assert axes_of(b.region()) == [(0,), (1, 2)]


def test_index_keeps_its_axis_apart() -> None:
    b = RegionBuilder()
    x = b.load((2, 3, 4))
    b.store(b.op("add", x, b.op("index", x, axis=1)))
    assert axes_of(b.region()) == [(0,), (1,), (2,)]


def test_shared_kernel_keeps_all_axes_and_gives_the_fastest_all_positions() -> None:
    region = replace(negated((2, 3, 4)).region(), graph=Graph("hand", {}, (), is_dynamic=True))
    found = merge(region, range(3))
    assert [m.count for m in found] == [1, 1, 24]
    assert [m.extent for m in found] == [2, 3, 4]


def test_repeated_axes_do_not_move_and_come_first() -> None:
    region = negated((2, 1, 4), (1, 7, 2)).region()
    assert effective_stride(region.operands[0]) == (1, 0, 2)
    assert memory_order(region, range(3), region.operands) == [1, 2, 0]
    [slow, fast] = merge(region, (0, 2))
    assert (slow.stride(region.operands[0]), fast.stride(region.operands[0])) == (1, 2)
    assert slow.varies((2, 1, 1)) and not fast.varies((2, 1, 1))
