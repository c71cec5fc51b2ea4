"""Products by cuBLASLt on a device: layouts, batches, odd sizes, every algorithm, capture, threads, saved plans."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fuseplan as cudnn
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.cublaslt.engine import ENGINE
from fuseplan.runtime.device import cuda_devices
from tests.kernels.test_cublaslt import product
from tests.kernels.test_triton_gpu import run_checked

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not cuda_devices(), reason="no CUDA device")]
SHAPES = [(1, 64, 96, 80), (3, 65, 33, 17), (1, 1, 128, 256), (2, 257, 1, 63), (2, 128, 256, 512), (1, 333, 1001, 515)]
TYPES = [(BFLOAT16, BFLOAT16), (HALF, HALF), (FLOAT, FLOAT), (BFLOAT16, FLOAT)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "out"), TYPES)
def test_every_algorithm_matches_float64(shape: tuple[int, int, int, int], dtype: DType, out: DType) -> None:
    device, ran = cuda_devices()[0], 0
    for by_rows in ((True, True, True), (True, False, True), (False, True, True), (False, False, False)):
        region = product(shape, dtype, out, by_rows)
        if not ENGINE.supports(region, device).is_supported:
            continue
        for config in ENGINE.knobs(region, device).configs():
            run_checked(region, config, engine=ENGINE)
            ran += 1
        run_checked(region, (("ALGORITHM", 0),), engine=ENGINE, shift=1, aligned=False)
    assert ran >= 4


def graph(stream: int, m: int = 256, k: int = 1024, n: int = 512) -> tuple[Any, Any, Any, Any]:
    """A product with the plan of the library pinned; its pack, its output and what that should be."""
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=stream)
    a, b = (torch.randn(1, r, c, device="cuda").bfloat16() for r, c in ((m, k), (k, n)))
    y = torch.full((1, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    g = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, handle=handle)
    A, B = g.tensor_like(a), g.tensor_like(b)
    Y = g.matmul(A=A, B=B).set_output(True)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    names = [g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())]
    at = next(i for i, name in enumerate(names) if name.startswith("cublaslt"))
    g.build_plan_at_index(at)
    return g, {A: a, B: b, Y: y}, y, a.double() @ b.double()


def check(y: Any, want: Any) -> None:
    torch.cuda.synchronize()
    assert ((y.double() - want).norm() / want.norm()).item() < 4e-3


def test_a_call_can_be_captured_and_replayed() -> None:
    stream = torch.cuda.Stream()
    g, pack, y, want = graph(stream.cuda_stream)
    workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    g.execute(pack, workspace)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        g.execute(pack, workspace)
    y.fill_(float("nan"))
    captured.replay()
    check(y, want)


def test_several_threads_call_at_once() -> None:
    def work(_: int) -> None:
        stream = torch.cuda.Stream()
        g, pack, y, want = graph(stream.cuda_stream)
        torch.cuda.synchronize()
        workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
        for _ in range(50):
            g.execute(pack, workspace)
        check(y, want)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_saved_plan_runs_after_it_is_loaded() -> None:
    g, pack, y, want = graph(0)
    data = g.serialize(as_bytes=True)
    handle = cudnn.create_handle()
    loaded = cudnn.pygraph(handle=handle)
    loaded.deserialize(handle, data)
    y.fill_(float("nan"))
    workspace = torch.empty(max(1, loaded.get_workspace_size()), dtype=torch.uint8, device="cuda")
    loaded.execute({t.get_uid(): buffer for t, buffer in pack.items()}, workspace)
    check(y, want)
