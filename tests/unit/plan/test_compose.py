"""Composing: views, operands that are read and written, several of one tensor, tensor maps, aligned scratch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.engines.base import Executable
from fuseplan.ir.graph import Graph
from fuseplan.ir.region import Operand, Region, Role
from fuseplan.plan.compose import compose, keeps_alignments
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind, Program, TensorMap
from fuseplan.testing.random_graphs import GraphMaker

CPU, GPU = cpu_device(), Device("cuda", arch="sm_90")


@pytest.fixture
def graph() -> Graph:
    """y = abs(neg(x)), 4 x 8; t stands between them."""
    m = GraphMaker(random.Random(0))
    x = m.input((4, 8), stride=(8, 1))
    (t,) = m.node("neg", {"input": x})
    m.node("abs", {"input": t})
    return m.finish()


def uids(graph: Graph) -> tuple[int, int, int]:
    (x,), (y,) = graph.input_uids, graph.output_uids
    (t,) = (u for u, spec in graph.tensors.items() if spec.is_virtual)
    return x, t, y


def operand(uid: int, role: Role, offset: int = 0) -> Operand:
    return Operand(uid, (2, 8), (8, 1), dtypes.FLOAT, role, offset)


def region(graph: Graph, node: int, *operands: Operand) -> Region:
    return Region(graph.slice([node], [u for _, u in graph.nodes[node].outputs]), (), operands, (), ())


def pointers(count: int, **facts: Any) -> Executable:
    patches = tuple(Patch(PatchKind.POINTER, 8 * k, k, addend=4 * k) for k in range(count))
    return Executable((Launch(LaunchKind.HOST, bytes(64), patches),), **facts)


def places(program: Program, launch: int) -> list[tuple[str, int, int]]:
    return [(p.kind.name, p.slot, p.addend) for p in program.launches[launch].patches]


def test_offset_of_a_view_is_counted_in_bytes_in_slots_and_in_the_workspace(graph: Graph) -> None:
    x, t, y = uids(graph)
    first = region(graph, 0, operand(x, Role.IN, 16), operand(t, Role.OUT), operand(t, Role.OUT, 16))
    second = region(graph, 1, operand(t, Role.IN, 16), operand(t, Role.IN), operand(y, Role.OUT, 8))
    program = compose(graph, CPU, [(first, pointers(3)), (second, pointers(3))])
    slot = {s.uid: k for k, s in enumerate(program.slots)}
    assert places(program, 0) == [("POINTER", slot[x], 64), ("SCRATCH", -1, 4), ("SCRATCH", -1, 64 + 8)]
    assert places(program, 1) == [("SCRATCH", -1, 64), ("SCRATCH", -1, 4), ("POINTER", slot[y], 32 + 8)]
    assert program.workspace_bytes == 256  # t once


def test_operand_that_is_read_and_written_is_an_output_with_one_place(graph: Graph) -> None:
    x, t, y = uids(graph)
    first = region(graph, 0, operand(x, Role.INOUT), operand(t, Role.OUT))
    second = region(graph, 1, operand(t, Role.INOUT, 16), operand(y, Role.INOUT))
    program = compose(graph, CPU, [(first, pointers(2)), (second, pointers(2))])
    assert {s.uid: s.is_output for s in program.slots} == {x: True, y: True}
    assert places(program, 1)[0] == ("SCRATCH", -1, 64) and program.workspace_bytes == 256


def test_tensor_written_by_two_regions_keeps_its_place(graph: Graph) -> None:
    x, t, y = uids(graph)
    first = region(graph, 0, operand(x, Role.IN), operand(t, Role.OUT))
    more = region(graph, 0, operand(x, Role.IN), operand(t, Role.INOUT, 16))
    second = region(graph, 1, operand(t, Role.IN), operand(y, Role.OUT))
    program = compose(graph, CPU, [(first, pointers(2)), (more, pointers(2)), (second, pointers(2))])
    assert [places(program, k)[1][2] for k in (0, 1)] == [4, 64 + 4] and places(program, 2)[0][2] == 0
    assert program.workspace_bytes == 256


@pytest.mark.parametrize(("offset", "alignment", "keeps"), [(0, 16, True), (4, 16, True), (2, 16, False), (2, 8, True)])
def test_view_keeps_an_alignment_that_divides_where_it_begins(
    graph: Graph, offset: int, alignment: int, keeps: bool
) -> None:
    x, t, _ = uids(graph)
    r = region(graph, 0, operand(x, Role.IN, offset), operand(t, Role.OUT))
    assert keeps_alignments(r, pointers(2, alignments=(alignment, 1))) is keeps


def test_scratch_begins_at_its_alignment_behind_the_intermediates(graph: Graph) -> None:
    x, t, y = uids(graph)
    scratch = Launch(LaunchKind.HOST, bytes(8), (Patch(PatchKind.SCRATCH, 0, addend=8),))
    first = region(graph, 0, operand(x, Role.IN), operand(t, Role.OUT))
    second = region(graph, 1, operand(t, Role.IN), operand(y, Role.OUT))
    wide = Executable((scratch,), scratch_bytes=100, scratch_alignment=1024)
    program = compose(graph, CPU, [(first, pointers(2)), (second, wide)])
    assert places(program, 1) == [("SCRATCH", -1, 1024 + 8)]
    assert (program.workspace_alignment, program.workspace_slack) == (1024, 1024 - 16)
    assert program.workspace_bytes == 1024 + 100 + 1024 - 16
    plain = compose(graph, CPU, [(first, pointers(2)), (second, Executable((scratch,), scratch_bytes=100))])
    assert (plain.workspace_alignment, plain.workspace_slack, plain.workspace_bytes) == (8, 0, 356)


def test_tensor_maps_follow_their_buffers(graph: Graph) -> None:
    x, t, y = uids(graph)
    stacked = TensorMap(dtypes.FLOAT, (8, 2, 2), (32,), (8, 2, 2), second=(1, 4))
    patches = (Patch(PatchKind.TENSOR_MAP, 0, 0, map=stacked), Patch(PatchKind.TENSOR_MAP, 128, -1, 64, map=stacked))
    maps = Executable((Launch(LaunchKind.CUDA, bytes(256), patches),), scratch_bytes=512)
    first = region(graph, 0, operand(x, Role.IN), operand(t, Role.OUT))
    second = region(graph, 1, operand(t, Role.IN, 16), operand(y, Role.OUT, 8))
    program = compose(graph, GPU, [(first, pointers(2)), (second, maps)])
    slot = {s.uid: k for k, s in enumerate(program.slots)}
    assert places(program, 1) == [("TENSOR_MAP", -1, 64), ("TENSOR_MAP", -1, 256 + 64)]
    assert [p.map and p.map.second for p in program.launches[1].patches] == [(slot[y], 4 + 32)] * 2
