"""References against PyTorch and plain loops, and decompositions against references, for every op and sample."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import DType
from fuseplan.errors import InvalidGraphError
from fuseplan.ops.arrays import torch_namespace
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import OpSchema, Sample, all_schemas
from tests.ops.cases import NODE_NAME, Case, case_id, cases, differences, draft, make_case, run_reference
from tests.ops.oracles import oracle
from tests.ops.primitive_interpreter import run_decomposition

GOOD = cases(lambda op, s: s.fails is None)
BAD = cases(lambda op, s: s.fails is not None)
EXACT = cases(lambda op, s: s.fails is None and op.is_exact and s.compute == "FLOAT")
DECOMPOSED = [(op, s) for op, s in GOOD if op.family != "attention"]


def check_reference(schema: OpSchema, case: Case) -> list[str]:
    """Differences between an op's float64 reference and the oracle."""
    with np.errstate(all="ignore"):
        return differences(run_reference(schema, case), oracle(case.view, case.widened()))


def bits(x: Any) -> Any:
    """Bit patterns; all NaN are one."""
    return np.where(np.isnan(x), np.int32(-1), np.ascontiguousarray(x).view(np.int32))


def judge_type(t: DType) -> Any:
    return np.float64 if t.is_float else np.int64


def float32_type(t: DType) -> Any:
    return np.float32 if t.is_float else np.int32


@pytest.mark.parametrize(("schema", "sample"), GOOD, ids=case_id)
def test_reference_matches_torch_or_loop(schema: OpSchema, sample: Sample) -> None:
    assert check_reference(schema, make_case(schema, sample)) == []


@pytest.mark.parametrize(("schema", "sample"), GOOD, ids=case_id)
def test_reference_over_torch_matches_numpy(schema: OpSchema, sample: Sample) -> None:
    case = make_case(schema, sample)
    for judge, rtol, of_largest in ((True, 1e-11, 1e-13), (False, 2e-4, 1e-6)):
        over_torch = run_reference(schema, case, torch_namespace(), judge=judge)
        assert differences(over_torch, run_reference(schema, case, judge=judge), rtol=rtol, of_largest=of_largest) == []


@pytest.mark.parametrize(("schema", "sample"), GOOD, ids=case_id)
def test_reference_stays_in_the_type_of_its_inputs(schema: OpSchema, sample: Sample) -> None:
    case = make_case(schema, sample)
    for judge in (True, False):
        wide = {x.dtype for x in case.widened(judge=judge).values()}
        assert {y.dtype for y in run_reference(schema, case, judge=judge).values()} == wide


@pytest.mark.parametrize(("schema", "sample"), DECOMPOSED, ids=case_id)
def test_decomposition_matches_reference(schema: OpSchema, sample: Sample) -> None:
    case = make_case(schema, sample)
    expected = run_reference(schema, case)
    for extra_rank in (0,) if schema.family == "conv" else (0, 2):
        actual = run_decomposition(schema, case.view, case.widened(), scalar=judge_type, extra_rank=extra_rank)
        assert differences(actual, expected) == []


@pytest.mark.parametrize(("schema", "sample"), EXACT, ids=case_id)
def test_exact_op_agrees_bit_for_bit_in_float(schema: OpSchema, sample: Sample) -> None:
    case = make_case(schema, sample)
    expected = run_reference(schema, case, judge=False)
    primitives = run_decomposition(schema, case.view, case.widened(judge=False), scalar=float32_type)
    over_torch = run_reference(schema, case, torch_namespace(), judge=False)
    for port, want in expected.items():
        assert want.dtype == np.float32
        np.testing.assert_array_equal(bits(primitives[port]), bits(want))
        np.testing.assert_array_equal(bits(over_torch[port]), bits(want))


@pytest.mark.parametrize(("schema", "sample"), BAD, ids=case_id)
def test_bad_sample_is_refused_by_name(schema: OpSchema, sample: Sample) -> None:
    assert sample.fails is not None
    builder, _ = draft(schema, sample)
    with pytest.raises(sample.fails, match=re.escape(NODE_NAME)) as caught:
        complete(builder)
    assert schema.name in str(caught.value)
    assert "fix:" in str(caught.value)
    assert isinstance(caught.value, (ValueError, RuntimeError)) == isinstance(caught.value, InvalidGraphError)


@pytest.mark.parametrize(("schema", "sample"), GOOD, ids=case_id)
def test_cost_counts_bytes(schema: OpSchema, sample: Sample) -> None:
    view = make_case(schema, sample).view
    cost = schema.cost(view)
    assert cost.read_bytes == sum(
        x.numel * x.dtype.itemsize for x in (view.graph.tensors[u] for _, u in view.node.inputs)
    )
    assert cost.write_bytes > 0
    assert cost.flops > 0 or schema.name == "gen_index"


@pytest.mark.parametrize("schema", all_schemas(), ids=case_id)
def test_op_has_enough_samples(schema: OpSchema) -> None:
    samples = list(schema.samples())
    assert sum(s.fails is None for s in samples) >= 4
    assert any(s.fails is not None for s in samples)
    assert len({s.id for s in samples}) == len(samples)
    assert {t[1] for s in samples for t in s.inputs.values()} >= {"FLOAT", "HALF", "BFLOAT16"}
