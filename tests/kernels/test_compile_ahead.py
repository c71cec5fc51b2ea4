"""What tuning compiles side by side is what builds then find; what cannot be compiled is left to its build."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.dtypes import BFLOAT16, FLOAT
from fuseplan.engines.cpu_c.engine import CpuCEngine
from fuseplan.engines.triton import ahead
from fuseplan.engines.triton import compile as aot
from fuseplan.runtime import artifacts
from fuseplan.runtime.device import cpu_device
from fuseplan.runtime.toolchain import has_compiler
from tests.kernels import triton_cases as made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> object:
    settings.use(replace(settings.Settings.from_environment(), cache_dir=tmp_path))
    yield
    settings.use(None)


def test_processes_fill_the_cache_and_survive_a_source_that_does_not_compile() -> None:
    pytest.importorskip("triton")
    from tests.kernels.test_triton_compile import kernels

    wanted = [
        aot.compilation(kernel, 90, aligned=True)
        for columns in (256, 512)
        for kernel in kernels(made.softmax(64, columns, BFLOAT16), 90)
    ]
    broken = replace(wanted[0], source="not Python")
    ahead.compile_all([broken, *wanted], time.monotonic() + 100)
    assert all(artifacts.get(w.key, ".cubin") for w in wanted)
    assert artifacts.get(broken.key, ".cubin") is None
    before = artifacts.get(wanted[0].key, ".json")
    assert aot.compile_kernel(wanted[0]).symbol and artifacts.get(wanted[0].key, ".json") == before


def test_nothing_is_compiled_when_the_time_is_over() -> None:
    pytest.importorskip("triton")
    from tests.kernels.test_triton_compile import kernels

    (kernel,) = kernels(made.softmax(64, 128, BFLOAT16), 90)
    wanted = [replace(aot.compilation(kernel, 90, aligned=True), num_warps=n) for n in (1, 2, 4)]
    start = time.monotonic()
    ahead.compile_all(wanted, start)
    assert time.monotonic() - start < 5 and not any(artifacts.get(w.key, ".cubin") for w in wanted)


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
def test_threads_build_regions_of_the_c_engine() -> None:
    engine, regions = CpuCEngine(), [made.softmax(8, n, FLOAT) for n in (5, 6, 7)]
    work = [(r, engine.knobs(r, cpu_device()).default) for r in regions]
    engine.compile_ahead(work, cpu_device(), time.monotonic() - 1)
    assert artifacts.stats().entries == 0
    engine.compile_ahead(work, cpu_device(), time.monotonic() + 60)
    count = artifacts.stats().entries
    assert count >= 1
    for region, config in work:
        engine.build(region, cpu_device(), config)
    assert artifacts.stats().entries == count
