"""Triton kernels for all extents: compiled once each, ahead of time and without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan import settings
from fuseplan.engines.triton import compile as aot
from fuseplan.engines.triton.compile import Compilation
from fuseplan.engines.triton.engine import ENGINE, TritonEngine
from fuseplan.engines.triton.kernel import Kernel, ParamKind
from fuseplan.runtime.device import cuda_devices
from tests.kernels import dynamic_graphs as made
from tests.kernels import triton_cases
from tests.kernels.gpu_run import run_and_judge
from tests.kernels.interpreter_run import run_interpreted

pytest.importorskip("triton", reason="triton is not installed")

BF16 = cudnn.data_type.BFLOAT16

# table: graph, eight shapes that differ in every extent, and the kernels that they share
CASES: dict[str, tuple[made.Maker, list[made.Shape], int]] = {
    "pointwise-chain": (
        partial(made.pointwise_chain, dtype=BF16),
        [(2, 64, 256), (3, 64, 256), (2, 65, 256), (2, 64, 255), (17, 33, 7), (5, 5, 5), (64, 1000, 64), (2, 2, 8)],
        1,
    ),
    "softmax": (
        partial(made.softmax, dtype=BF16),
        [(2, 64), (3, 64), (512, 4096), (512, 4095), (17, 33), (5, 2), (4096, 20000), (100000, 8)],
        1,
    ),
    "rmsnorm": (
        partial(made.rmsnorm, dtype=BF16),
        [(2, 64), (3, 64), (512, 4096), (512, 4095), (17, 33), (5, 2), (4096, 20000), (100000, 8)],
        1,
    ),
    "matmul-amax": (
        partial(made.matmul_epilogue, dtype=BF16),
        [(2, 64, 64, 64), (16, 512, 1024, 512), (3, 65, 64, 64), (2, 64, 63, 64), (2, 64, 64, 61), (2, 9, 7, 5),
         (5, 4096, 4096, 64), (2, 128, 128, 8)],
        1,
    ),
    "attention": (
        partial(made.attention, dtype=BF16),
        [(2, 4, 64, 64, 64), (3, 8, 200, 300, 64), (2, 12, 5, 333, 64), (2, 4, 333, 7, 40), (5, 10, 1025, 1025, 33),
         (2, 32, 2, 2, 48), (7, 6, 100, 100, 63), (2, 4, 512, 4096, 56)],
        1,
    ),
}  # fmt: skip


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Compilation]]:
    """What really is compiled, in order, in a cache of its own."""
    found: list[Compilation] = []
    real = aot.compile_fresh

    def counted(wanted: Compilation) -> Any:
        found.append(wanted)
        return real(wanted)

    monkeypatch.setattr(aot, "compile_fresh", counted)
    monkeypatch.setattr(settings, "_current", settings.Settings(cache_dir=tmp_path))
    yield found


def kernels_of(g: Any) -> list[Kernel]:
    """Generated kernels of a graph in order, under the default configs."""
    found: list[Kernel] = []
    device = triton_cases.device()
    for part in made.assignments(g, ENGINE, device):
        found += triton_cases.kernels(part.region, part.config)
    return found


@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_eight_extents(compiled: list[Compilation], name: str) -> None:
    make, shapes, num_kernels = CASES[name]
    device, engine = triton_cases.device(), TritonEngine()
    symbols = set()
    for shape in shapes:
        for part in made.assignments(make(shape), ENGINE, device):
            built = engine.build(part.region, device, part.config)
            symbols |= {(launch.artifact, launch.symbol) for launch in built.launches if launch.artifact}
    assert len(compiled) == num_kernels, [c.function for c in compiled]
    assert len(symbols) == num_kernels


@pytest.mark.parametrize("name", CASES)
def test_nothing_about_extents_or_strides_is_promised(name: str) -> None:
    make, shapes, _ = CASES[name]
    for shape in shapes:
        for kernel in kernels_of(make(shape)):
            promised = aot.compilation(kernel, 90, aligned=True).promises
            kinds = {kernel.params[position].kind for position, _ in promised}
            assert kinds == {ParamKind.POINTER}
            assert not aot.compilation(kernel, 90, aligned=False).promises


def test_vectors_are_picked_only_where_their_assumptions_hold() -> None:
    make = partial(made.matmul_epilogue, dtype=BF16)
    for shape, vectorized in (((2, 9, 64, 64), 1), ((2, 64, 63, 64), 0), ((2, 64, 64, 60), 0), ((3, 7, 8, 8), 1)):
        [kernel] = kernels_of(make(shape))
        numbers = {p.name: p for p in kernel.params if p.kind is ParamKind.NUMBER}
        assert numbers["vectorized"].value == vectorized
        vectors = {n: p.value for n, p in numbers.items() if p.is_vector}
        assert {"n_n", "n_k", "s0_1", "s1_1"} <= set(vectors) and "n_m" not in vectors
        assert bool(vectorized) == all(value % 8 == 0 for value in vectors.values())


def test_offsets_over_two_to_the_31_pick_the_build_with_64_bit_positions() -> None:
    make = partial(made.pointwise_chain, dtype=BF16)
    [small], [large] = kernels_of(make((2, 64, 256))), kernels_of(make((1 << 12, 1 << 10, 1 << 10)))
    assert small.source == large.source
    assert [dict(k.constants) for k in (small, large)] == [
        {"BLOCK": 1024, "MERGED": 1, "INDEX_BITS": 32}, {"BLOCK": 1024, "MERGED": 1, "INDEX_BITS": 64}
    ]  # fmt: skip
    assert {p.type for p in large.params if p.kind is ParamKind.NUMBER and p.name != "vectorized"} == {"i64"}


def test_matmul_for_all_extents_copies_asynchronously_and_uses_matrix_units() -> None:
    [kernel] = kernels_of(made.matmul_epilogue((2, 512, 512, 512), dtype=BF16))
    asm, _ = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
    ptx = asm["ptx"]
    assert "wgmma.mma_async" in ptx and re.search(r"cp\.async\.cg\.shared\.global .*0x10", ptx)


def test_pointwise_kernel_for_all_extents_loads_vectors() -> None:
    [kernel] = kernels_of(made.pointwise_chain((2, 512, 512), dtype=BF16))
    asm, _ = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
    assert re.search(r"ld\.global\.v[24]\.b(32|64)", asm["ptx"])


@pytest.mark.full
def test_interpreted_kernels_are_right_at_several_extents() -> None:
    pytest.importorskip("torch", reason="torch is not installed; Triton's interpreter keeps its buffers in it")
    assert run_interpreted("tests/kernels/triton_dynamic_interpreted.py") >= 15


@pytest.mark.gpu
@pytest.mark.skipif(not cuda_devices(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_is_right_at_all_extents_on_a_gpu(compiled: list[Compilation], name: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    make, shapes, num_kernels = CASES[name]
    handle, token = cudnn.create_handle(), made.DEVICE.set("cuda")
    try:
        for shape in [s for s in shapes if prod(s) < 1 << 23]:
            g = make(shape)
            g.build([cudnn.heur_mode.A])
            assert g._plans.need_built().name.startswith("triton")
            verdict = run_and_judge(g, handle)
            assert verdict.is_right, (shape, verdict.message)
    finally:
        made.DEVICE.reset(token)
        cudnn.destroy_handle(handle)
    assert len(compiled) == num_kernels
