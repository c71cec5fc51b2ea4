"""Infinities, NaN, signed zeros and extreme magnitudes through every pointwise op and the rules for attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fuseplan.ops.schema import OpSchema, Sample, all_schemas, schema_of
from tests.ops.cases import Case, case_id, differences, make_case, run_reference
from tests.ops.oracles import oracle
from tests.ops.primitive_interpreter import run_decomposition

SPECIAL = np.array(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -2.5, 1e30, -1e30, 1e-30, -1e-30, 88.0, -104.0, 3e38]
)  # fmt: skip
POINTWISE = [op for op in all_schemas() if op.family == "pointwise"]
# PyTorch's own kernels give 0 or -0 for minus infinity; the formula x Phi(x) gives NaN
FORMULA_SAYS_NAN = {"gelu": (-math.inf,), "gelu_approx_tanh": (-math.inf,), "swish": (-math.inf,)}


def special_case(schema: OpSchema, attrs: dict[str, Any]) -> Case:
    """All combinations of special values, one axis per input."""
    n, count = len(SPECIAL), len(schema.inputs)
    dims = [tuple(n if i == axis else 1 for i in range(count)) for axis in range(count)]
    dims[0] = (n,) * count
    sample = Sample("special", {p.name: (d, "FLOAT") for p, d in zip(schema.inputs, dims, strict=True)}, attrs)
    made = make_case(schema, sample)
    values = {
        p.name: np.broadcast_to(SPECIAL.reshape([n if i == axis else 1 for i in range(count)]), dims[axis])
        for axis, p in enumerate(schema.inputs)
    }
    return Case(made.view, {port: x.astype(np.float32) for port, x in values.items()})


def attr_sets(schema: OpSchema) -> list[dict[str, Any]]:
    found = {repr(dict(s.attrs)): dict(s.attrs) for s in schema.samples() if s.fails is None}
    if schema.name == "gen_index":
        return [{"axis": 0}]
    return list(found.values())


@pytest.mark.parametrize("schema", POINTWISE, ids=case_id)
def test_special_values_agree_with_oracle(schema: OpSchema) -> None:
    for attrs in attr_sets(schema):
        case = special_case(schema, attrs)
        with np.errstate(all="ignore"):
            expected = oracle(case.view, case.widened())
        for x in FORMULA_SAYS_NAN.get(schema.name, ()):
            if attrs.get("swish_beta") in (None, 1.702):
                expected["y"] = np.where(case.widened()["input"] == x, math.nan, expected["y"])
        assert differences(run_reference(schema, case), expected, of_largest=0.0) == []


@pytest.mark.parametrize("schema", POINTWISE, ids=case_id)
def test_special_values_through_primitives_agree_with_reference(schema: OpSchema) -> None:
    for attrs in attr_sets(schema):
        case = special_case(schema, attrs)
        actual = run_decomposition(schema, case.view, case.widened(), scalar=lambda t: np.float64)
        assert differences(actual, run_reference(schema, case), of_largest=0.0) == []
        in_float32 = run_decomposition(schema, case.view, case.widened(judge=False), scalar=lambda t: np.float32)
        expected = run_reference(schema, case, judge=False)
        assert differences(in_float32, expected, rtol=1e-5, of_largest=0.0) == []


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "elu", "tanh", "gelu", "gelu_approx_tanh"])
def test_float32_formula_does_not_overflow_half_way(name: str) -> None:
    schema = schema_of(name)
    case = make_case(schema, Sample("wide", {"input": ((401,), "FLOAT")}))
    case = Case(case.view, {"input": np.linspace(-200, 200, 401).astype(np.float32)})
    made = run_decomposition(schema, case.view, case.widened(judge=False), scalar=lambda t: np.float32)["y"]
    want = run_reference(schema, case)["y"]
    assert np.isfinite(made).all()
    assert (np.abs(made - want) <= 3e-7 * np.maximum(np.abs(case.inputs["input"]), 1.0)).all()


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "elu"])
def test_float32_formula_keeps_relative_accuracy(name: str) -> None:
    schema = schema_of(name)
    case = make_case(schema, Sample("near", {"input": ((4001,), "FLOAT")}))
    case = Case(case.view, {"input": np.linspace(-80, 0.01, 4001).astype(np.float32)})
    made = run_decomposition(schema, case.view, case.widened(judge=False), scalar=lambda t: np.float32)["y"]
    want = run_reference(schema, case)["y"]
    assert (np.abs(made - want) <= 1e-6 * np.abs(want)).all()


def test_fully_masked_attention_rows_are_zero_and_never_nan() -> None:
    schema = schema_of("sdpa")
    sample = next(s for s in schema.samples() if s.id == "causal-bottom-right-empty-rows")
    made = run_reference(schema, make_case(schema, sample))
    num_empty = 2  # 9 queries, 7 keys, aligned at the bottom right
    assert (made["o"][:, :, :num_empty] == 0).all()
    assert (made["stats"][:, :, :num_empty] == -math.inf).all()
    assert (made["score_sum_exp"][:, :, :num_empty] == 0).all()
    assert np.isfinite(made["o"]).all() and np.isfinite(made["stats"][:, :, num_empty:]).all()


def test_attention_with_a_nan_score_gives_nan_in_that_row_only() -> None:
    schema = schema_of("sdpa")
    case = make_case(schema, next(s for s in schema.samples() if s.id == "plain"))
    case.inputs["q"][0, 1, 2, 3] = math.nan
    made = run_reference(schema, case)
    assert np.isnan(made["o"][0, 1, 2]).all() and np.isnan(made["stats"][0, 1, 2]).all()
    assert np.isnan(made["o"]).sum() == made["o"].shape[3] and np.isnan(made["stats"]).sum() == 1


@pytest.mark.parametrize("mode", ["MAX", "MIN", "AMAX", "ADD", "MUL"])
def test_reduction_propagates_nan(mode: str) -> None:
    schema = schema_of("reduction")
    case = make_case(schema, Sample("nan", {"input": ((3, 4), "FLOAT")}, {"mode": mode}, {"y": (3, 1)}))
    case.inputs["input"][1, 2] = math.nan
    expected = run_reference(schema, case)
    assert np.isnan(expected["y"]).tolist() == [[False], [True], [False]]
    assert (
        differences(run_decomposition(schema, case.view, case.widened(), scalar=lambda t: np.float64), expected) == []
    )
