"""The cublaslt engine on a stand-in for the library: layouts, batches, algorithms, refusals, errors, lifetimes."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, HALF, DType
from fuseplan.engines.base import Config
from fuseplan.engines.cublaslt import bindings
from fuseplan.engines.cublaslt import engine as lt
from fuseplan.errors import DeviceError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region
from fuseplan.runtime import cuda, toolchain
from fuseplan.runtime.launch import Program, Slot
from tests.kernels import triton_cases as made
from tests.kernels.cpu_c_harness import near
from tests.kernels.dispatch_harness import dispatcher_of

FIRST: Config = (("ALGORITHM", 0),)
SOURCE = Path(__file__).with_name("cublaslt_stand_in.c").read_text(encoding="utf-8")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[lt.CublasLtEngine]:
    """The engine with the stand-in as its library."""
    path = tmp_path / "libcublasLt.so"
    path.write_bytes(toolchain.compile_shared(SOURCE, label="a stand-in").data)
    library = bindings.Library(str(path))
    monkeypatch.setattr(bindings, "library", lambda: library)
    monkeypatch.setattr(lt, "_arches", lambda: ("sm_90",))
    monkeypatch.setattr(cuda, "current", lambda index: nullcontext())
    yield lt.CublasLtEngine()


def strides(dim: tuple[int, ...], by_rows: bool) -> tuple[int, ...]:
    batch, m, n = dim
    return packed_stride(dim) if by_rows else (m * n, 1, m)


def product(
    shape: tuple[int, int, int, int], dtype: DType = FLOAT, out: DType | None = None,
    by_rows: tuple[bool, ...] = (True,) * 3, one_b: bool = False,
) -> Region:  # fmt: skip
    batch, m, n, k = shape
    d = made.Draft(3)
    a = d.load((batch, m, k), dtype, strides((batch, m, k), by_rows[0]))
    b_dim = (1 if one_b else batch, k, n)
    b = d.load(b_dim, dtype, strides(b_dim, by_rows[1]))
    d.store(d.op("matmul", a, b, dtype=out or dtype), strides((batch, m, n), by_rows[2]))
    return d.region()


def run(
    engine: lt.CublasLtEngine, region: Region, config: Config = FIRST, *, stream: int = 0, aligned: bool = True
) -> None:
    """On poisoned outputs, against float64."""
    built = engine.build(region, made.device(), config, aligned=aligned)
    buffers = made.buffers_for(region, np.random.default_rng(1))
    want = made.evaluate(region, buffers)
    slots = tuple(
        Slot(o.uid, f"t{o.uid}", o.dtype, b.nbytes, "cpu", is_output=o.role.is_written)
        for o, b in zip(region.operands, buffers, strict=True)
    )
    program = Program(slots, built.launches, built.scratch_bytes, "cpu")
    workspace = np.zeros(built.scratch_bytes, np.uint8) if built.scratch_bytes else None
    dispatcher_of(program).execute({o.uid: b for o, b in zip(region.operands, buffers, strict=True)}, workspace, stream)
    assert workspace is None or (workspace == 7).all()
    for (_, number), expected in zip(region.stores, want, strict=True):
        operand = region.operands[number]
        got = made.view_of(operand, buffers[number]).astype(np.float64)
        near(got, expected, operand.dtype, 2.0, floor=float(np.abs(expected).max()))


@pytest.mark.parametrize("by_rows", [(a, b, d) for a in (True, False) for b in (True, False) for d in (True, False)])
@pytest.mark.parametrize("shape", [(1, 7, 5, 9), (3, 4, 6, 8), (2, 1, 5, 3), (1, 6, 1, 4), (1, 1, 1, 1)])
def test_products_match_float64(engine: Any, shape: tuple[int, int, int, int], by_rows: tuple[bool, ...]) -> None:
    for dtype, out in ((FLOAT, FLOAT), (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT)):
        run(engine, product(shape, dtype, out, by_rows))


def test_batches_may_share_a_factor_and_factors_start_inside_of_a_buffer(engine: Any) -> None:
    run(engine, product((3, 4, 6, 8), one_b=True))
    region = product((1, 4, 6, 8))
    narrow = replace(region.operands[0], stride=(400, 10, 1))
    run(engine, replace(region, operands=(narrow, *region.operands[1:])))


def test_each_algorithm_is_a_plan_and_has_its_workspace(engine: Any) -> None:
    region = product((1, 8, 8, 8))
    configs = engine.knobs(region, made.device()).configs()
    assert [dict(c)["ALGORITHM"] for c in configs] == [0, 1]
    sizes = [engine.build(region, made.device(), c).scratch_bytes for c in configs]
    assert sizes == [0, 256]
    assert engine.estimate_us(region, made.device(), configs[0]) < engine.estimate_us(region, made.device(), configs[1])
    for config in configs:
        run(engine, region, config)
    run(engine, region, configs[1], aligned=False)
    assert engine.build(region, made.device(), FIRST).alignments == (16, 16, 16)
    assert engine.build(region, made.device(), FIRST, aligned=False).alignments == ()


def test_a_status_is_an_error_in_the_words_of_the_library(engine: Any) -> None:
    with pytest.raises(
        DeviceError, match="'cublaslt algorithm 0' failed with status 13: CUBLAS_STATUS_EXECUTION_FAILED"
    ):
        run(engine, product((1, 4, 4, 4)), stream=8)


def test_descriptions_live_as_long_as_a_launch_needs_them(engine: Any) -> None:
    alive = ctypes.c_int64.in_dll(bindings.library().entries, "alive")  # type: ignore[union-attr]
    built = engine.build(product((1, 4, 4, 4)), made.device(), FIRST)
    launch = built.launches[0]
    engine._chosen = type(engine._chosen)(1)
    del built
    gc.collect()
    assert alive.value == 4
    del launch
    gc.collect()
    assert alive.value == 0


def computed(dtype: DType) -> Region:
    d = made.Draft(2)
    d.store(d.op("matmul", d.op("neg", d.load((4, 4), dtype)), d.load((4, 4), dtype)))
    return d.region()


def rounded_twice() -> Region:
    d = made.Draft(2)
    y = d.op("matmul", d.load((4, 4), BFLOAT16), d.load((4, 4), BFLOAT16), dtype=BFLOAT16)
    d.store(d.op("cast", y, dtype=FLOAT))
    return d.region()


def apart() -> Region:
    """Rows whose neighbours lie two elements apart."""
    region = product((1, 4, 4, 4))
    return replace(region, operands=(replace(region.operands[0], stride=(64, 16, 2)), *region.operands[1:]))


REFUSED = {
    "double": (lambda: product((1, 4, 4, 4), DOUBLE), "a matrix of type DOUBLE"),
    "mixed": (lambda: product((1, 4, 4, 4), BFLOAT16, HALF), "matrices have types BFLOAT16, BFLOAT16 and HALF"),
    "computed": (lambda: computed(FLOAT), "its factors are computed"),
    "rounded-twice": (rounded_twice, "something is computed from its result"),
    "apart": (apart, "neighbours neither in its rows nor in its columns"),
    "no-algorithm": (lambda: product((1, 4, 4, 13)), "the library has no algorithm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_does_not_compute_is_refused_with_a_reason(engine: Any, name: str) -> None:
    make, reason = REFUSED[name]
    found = engine.supports(make(), made.device())
    assert not found.is_supported
    assert reason in found.reason
    if name != "no-algorithm":
        with pytest.raises(cudnnGraphNotSupportedError, match="cublaslt engine cannot build"):
            engine.build(make(), made.device(), FIRST)


def test_sums_in_the_type_of_the_factors_may_be_more_exact(engine: Any) -> None:
    d = made.Draft(2, compute=BFLOAT16)
    d.store(d.op("matmul", d.load((4, 8), BFLOAT16), d.load((8, 4), BFLOAT16)))
    run(engine, d.region())


def test_a_cast_of_float_sums_is_stored_rounded_once(engine: Any) -> None:
    d = made.Draft(2)
    d.store(d.op("cast", d.op("matmul", d.load((4, 8), BFLOAT16), d.load((8, 4), BFLOAT16)), dtype=BFLOAT16))
    run(engine, d.region())


def test_without_the_library_or_the_device_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    region = product((1, 4, 4, 4))
    assert engine.supports(region, made.device()).is_supported
    assert "is not an sm_100 here" in engine.supports(region, made.device(100)).reason
    with monkeypatch.context() as without:
        without.setattr(toolchain, "gap", lambda: "there is no C compiler")
        assert engine.supports(region, made.device()).reason == "there is no C compiler"
    monkeypatch.setattr(bindings, "library", lambda: None)
    assert "libcublasLt" in engine.supports(region, made.device()).reason
