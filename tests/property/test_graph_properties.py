"""What holds for every graph: round trips, keys, inference, lowering, planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuseplan import dtypes
from fuseplan.codegen.text import print_graph
from fuseplan.codegen.writer import region_summary
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import (
    DraftNode,
    DraftTensor,
    Graph,
    GraphBuilder,
    channels_last_order,
    packed_stride,
    span_elements,
)
from fuseplan.ir.keys import canonical_key
from fuseplan.ir.limits import ROWS, FusionLimits
from fuseplan.ir.verify import verify_graph
from fuseplan.lowering.pipeline import lower
from fuseplan.ops.evaluate import run_declared
from fuseplan.ops.infer import complete, has_overlap
from fuseplan.ops.schema import broadcast
from fuseplan.plan.graph_json import dumps, loads
from fuseplan.plan.planner import make_plans
from fuseplan.runtime.device import cpu_device
from fuseplan.testing.run import random_inputs
from fuseplan.testing.strategies import broadcastable_pairs, dims, graphs

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@EXAMPLES
@given(graphs())
def test_json_round_trip_gives_an_equal_graph(graph: Graph) -> None:
    back = loads(dumps(graph))
    verify_graph(back)
    assert back == graph
    assert print_graph(back) == print_graph(graph)


@EXAMPLES
@given(graphs(), st.integers(1, 1000))
def test_canonical_key_ignores_uids_and_names_only(graph: Graph, shift: int) -> None:
    moved = {uid + shift: replace(t, uid=uid + shift, name=f"{t.name}_{shift}") for uid, t in graph.tensors.items()}
    nodes = tuple(
        replace(
            n,
            name=f"other_{n.index}",
            inputs=tuple((p, u + shift) for p, u in n.inputs),
            outputs=tuple((p, u + shift) for p, u in n.outputs),
        )
        for n in graph.nodes
    )
    assert canonical_key(Graph("renamed", moved, nodes)) == canonical_key(graph)


@EXAMPLES
@given(graphs(), st.data())
def test_canonical_key_changes_with_everything_a_kernel_depends_on(graph: Graph, data: Any) -> None:
    uid = data.draw(st.sampled_from(sorted({u for n in graph.nodes for _, u in (*n.inputs, *n.outputs)})))
    spec = graph.tensors[uid]
    other = data.draw(
        st.sampled_from(
            [
                replace(spec, dim=(*spec.dim[:-1], spec.dim[-1] + 1)),
                replace(spec, stride=(*spec.stride[:-1], spec.stride[-1] + 1)),
                replace(spec, dtype=dtypes.DOUBLE),
                replace(spec, is_virtual=not spec.is_virtual),
                replace(spec, is_pass_by_value=not spec.is_pass_by_value),
            ]
        )
    )
    assert canonical_key(Graph(graph.name, {**graph.tensors, uid: other}, graph.nodes)) != canonical_key(graph)


@EXAMPLES
@given(broadcastable_pairs())
def test_broadcast_agrees_with_numpy(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert broadcast(pair) == np.broadcast_shapes(*pair)


@EXAMPLES
@given(dims(), dims())
def test_inference_refuses_exactly_what_numpy_refuses(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    builder = GraphBuilder("pair", dtypes.FLOAT)
    ins = {"a": DraftTensor(1, "a", a), "b": DraftTensor(2, "b", b)}
    out = DraftTensor(3, "c")
    builder.nodes.append(DraftNode("add", "plus", ins, {"y": out}))
    try:
        expected: tuple[int, ...] | None = np.broadcast_shapes(a, b)
    except ValueError:
        expected = None
    try:
        complete(builder)
    except InvalidGraphError as e:
        assert expected is None or out.stride is None, str(e)
        assert "'plus'" in str(e)
    else:
        assert out.dim == expected


@EXAMPLES
@given(dims(), st.randoms(use_true_random=False))
def test_packed_strides_reach_every_element_once(dim: tuple[int, ...], rng: Any) -> None:
    order = list(range(len(dim)))
    rng.shuffle(order)
    for stride in (packed_stride(dim), packed_stride(dim, order), packed_stride(dim, channels_last_order(len(dim)))):
        offsets = {sum(i * s for i, s in zip(at, stride, strict=True)) for at in np.ndindex(*dim)}
        assert offsets == set(range(int(np.prod(dim))))
        assert span_elements(dim, stride) == np.prod(dim)
        assert not has_overlap(dim, stride)


@EXAMPLES
@given(dims(max_rank=3, max_extent=4), st.data())
def test_layout_without_overlap_has_distinct_addresses(dim: tuple[int, ...], data: Any) -> None:
    stride = tuple(data.draw(st.lists(st.integers(0, 9), min_size=len(dim), max_size=len(dim))))
    offsets = [sum(i * s for i, s in zip(at, stride, strict=True)) for at in np.ndindex(*dim)]
    assume(not has_overlap(dim, stride))
    assert len(set(offsets)) == len(offsets)


@EXAMPLES
@given(graphs(), st.integers(0, 5))
def test_regions_run_one_by_one_give_the_result_of_the_graph(graph: Graph, seed: int) -> None:
    ops = ROWS | {"matmul", "conv_fprop"}
    limits = FusionLimits(ops=ops, reuse_reduction=seed % 2 == 0, max_nodes=1 + seed)
    values: dict[int, Any] = {u: b.view for u, b in random_inputs(graph, seed).items()}
    with np.errstate(all="ignore"):
        expected = run_declared(graph, values)
        for piece in lower(graph, limits):
            region = piece.region
            assert len(region_summary(region)) == len(region.operands) + len(region.values) + len(region.stores)
            values.update(run_declared(region.graph, {u: values[u] for u in region.graph.input_uids if u in values}))
    for uid, want in expected.items():
        np.testing.assert_array_equal(np.asarray(values[uid]), np.asarray(want))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(graphs())
def test_plan_choice_is_deterministic(graph: Graph) -> None:
    first, second = make_plans(graph, cpu_device()), make_plans(loads(dumps(graph)), cpu_device())
    assert [e.name for e in first.entries] == [e.name for e in second.entries]
    assert first.explain() == second.explain()
