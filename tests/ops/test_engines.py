"""Every op on every engine for host memory, from the samples: an engine is right by the float64 judge, or says no."""

from __future__ import annotations

import zlib

import pytest

from fuseplan.engines.registry import GENERAL, engines_for
from fuseplan.ops.schema import OpSchema, Sample
from fuseplan.plan.assign import Assigner
from fuseplan.runtime.device import cpu_device
from fuseplan.testing.run import judge_engines
from tests.ops.cases import case_id, cases, make_case

GOOD = list(cases(lambda op, s: s.fails is None))
ENGINES = [e.name for e in engines_for("cpu")]
QUICK = list({schema.name: (schema, sample) for schema, sample in reversed(GOOD)}.values())  # the first of each op
REST = [pair for pair in GOOD if pair not in QUICK]


def run_sample(engine: str, schema: OpSchema, sample: Sample) -> None:
    """Judge one engine on one sample; what a narrow engine leaves to others is not its own result."""
    graph = make_case(schema, sample).view.graph
    chosen = next(e for e in engines_for("cpu") if e.name == engine)
    (assigned,) = Assigner(graph, cpu_device()).assign(chosen)
    if assigned.engine is not chosen:
        assert engine != GENERAL and any(len(note) > len(f"{engine}: ") for note in assigned.notes)
        return
    verdict = judge_engines(graph, [engine], zlib.crc32(sample.id.encode()))[engine]
    assert verdict.is_right, verdict.message


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("schema", "sample"), QUICK, ids=case_id)
def test_engine_is_right_or_says_no(engine: str, schema: OpSchema, sample: Sample) -> None:
    run_sample(engine, schema, sample)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("schema", "sample"), REST, ids=case_id)
def test_engine_is_right_or_says_no_on_all_samples(engine: str, schema: OpSchema, sample: Sample) -> None:
    run_sample(engine, schema, sample)
