"""Both dispatchers on a real device: values, streams, refusals, graph capture, cost of a call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan import dtypes, settings
from fuseplan.errors import BindError, DeviceError
from fuseplan.runtime import cuda, device
from fuseplan.runtime.dispatch import Dispatcher, make_dispatcher
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program, Slot

N = 1024
# y[i] += x[i] * s
PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 px, .param .u64 py, .param .f32 ps)
{
  .reg .b32 %r<4>; .reg .f32 %f<5>; .reg .b64 %d<6>;
  ld.param.u64 %d0, [px]; ld.param.u64 %d1, [py]; ld.param.f32 %f0, [ps];
  cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
  mad.lo.s32 %r3, %r0, %r1, %r2;
  mul.wide.s32 %d2, %r3, 4;
  add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;
  ld.global.f32 %f1, [%d3]; ld.global.f32 %f2, [%d4];
  mul.rn.f32 %f3, %f1, %f0; add.rn.f32 %f4, %f2, %f3;
  st.global.f32 [%d4], %f4;
  ret;
}
"""


@pytest.fixture(params=["native", "python"], autouse=True)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The dispatcher in force."""
    settings.use(replace(settings.Settings.from_environment(), dispatcher=request.param))
    yield request.param
    settings.use(None)


def axpy(clears: bool = True) -> Dispatcher:
    """y = x * s, after a memset of y."""
    slots = (
        Slot(1, "x", dtypes.FLOAT, 4 * N, "cuda"),
        Slot(2, "y", dtypes.FLOAT, 4 * N, "cuda", is_output=True),
        Slot(3, "s", dtypes.FLOAT, 4, "host"),
    )
    patches = (Patch(PatchKind.POINTER, 0, 0), Patch(PatchKind.POINTER, 8, 1), Patch(PatchKind.SCALAR, 16, 2, size=4))
    artifact = Artifact("cubin", "axpy" * 4, "sm_80", PTX)
    kernel = Launch(
        LaunchKind.CUDA, bytes(24), patches, artifact, "axpy", (0, 8, 16), (N // 128, 1, 1), (128, 1, 1), label="axpy"
    )  # fmt: skip
    clear = Launch(LaunchKind.MEMSET, patches=(Patch(PatchKind.POINTER, 0, 1),), memset_words=N)
    program = Program(slots, (clear, kernel) if clears else (kernel,), 0, "cuda")
    return make_dispatcher(program, [(1, "x"), (2, "y"), (3, "s")], [None] * 3, dict)  # type: ignore[arg-type]


def buffers() -> tuple[Any, Any]:
    import torch

    return torch.randn(N, device="cuda"), torch.full((N,), 7.0, device="cuda")


def assert_right(x: Any, y: Any, s: float) -> None:
    """One rounding of the exact product."""
    expected = (x.cpu().double().numpy() * float(np.float32(s))).astype(np.float32)
    np.testing.assert_array_equal(y.cpu().numpy(), expected)


def test_device_is_described_without_torch() -> None:
    import torch

    seen = device.device_of("cuda")
    facts = torch.cuda.get_device_properties(0)
    assert (seen.name, seen.sm_count) == (facts.name, facts.multi_processor_count)
    assert seen.sm_version == 10 * facts.major + facts.minor
    assert seen.l2_bytes == facts.L2_cache_size and seen.shared_bytes >= 48 << 10


def test_execute_on_a_stream_computes() -> None:
    import torch

    d, (x, y) = axpy(), buffers()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for s in (1.5, -2.25):
        d.execute({"x": x, "y": y, "s": s}, None, stream.cuda_stream)
        stream.synchronize()
        assert_right(x, y, s)
    d.execute({1: x.data_ptr(), 2: y.data_ptr(), 3: torch.tensor(0.3)}, None, 0)
    cuda.synchronize(0)
    assert_right(x, y, 0.3)


def test_refused_pack_writes_nothing() -> None:
    import torch

    d, (x, y) = axpy(), buffers()
    for change, message in (
        ({"x": x.cpu()}, "must be on cuda:0, its buffer is on cpu"),
        ({"x": x.double()}, "its buffer has DOUBLE"),
        ({"x": x[:-1]}, "spans 4096 bytes"),
        ({"s": torch.ones(1, device="cuda")}, "must be on cpu .a host scalar."),
    ):
        with pytest.raises(BindError, match=message):
            d.execute({"x": x, "y": y, "s": 1.0, **change}, None, 0)
    torch.cuda.synchronize()
    assert bool((y == 7).all())


def test_bound_call_can_be_captured_and_replayed() -> None:
    import torch

    d, (x, y) = axpy(), buffers()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    bound = d.bind({"x": x, "y": y, "s": 2.0}, None, stream.cuda_stream)
    with torch.cuda.graph(graph, stream=stream):
        bound()
    torch.cuda.synchronize()
    assert bool((y == 7).all())
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert_right(x, y, 2.0)


def test_thread_without_a_context_can_launch() -> None:
    import threading

    import torch

    d, (x, y) = axpy(), buffers()
    torch.cuda.synchronize()
    problems: list[BaseException] = []

    def work() -> None:
        try:
            d.execute({"x": x, "y": y, "s": 4.0}, None, 0)
            cuda.synchronize(0)
        except DeviceError as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems
    assert_right(x, y, 4.0)


def test_bad_launch_is_an_error_with_the_drivers_words() -> None:
    with pytest.raises(DeviceError, match="failed with CUDA error 200: CUDA_ERROR_INVALID_IMAGE"):
        cuda.load_cubin(b"no program at all", "f")
    with pytest.raises(DeviceError, match="CUDA_ERROR_NOT_FOUND"):
        cuda.load_cubin(PTX, "no_such_kernel")


def test_cost_of_a_call_is_near_that_of_the_driver(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if kind == "python":
        pytest.skip("only the native dispatcher promises a cost")
    d, (x, y) = axpy(clears=False), buffers()
    pack, stream = {"x": x, "y": y, "s": 1.0}, torch.cuda.current_stream().cuda_stream
    bound = d.bind(pack, None, stream)
    costs: dict[str, float] = {}
    for name, call in (("execute", lambda: d.execute(pack, None, stream)), ("bound", bound)):
        best = 1e9
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):  # fewer than the launch queue holds
                call()
            best = min(best, (time.perf_counter() - start) / 100)
        costs[name] = best * 1e6
    with capsys.disabled():
        print(f"\nhost cost of a launch: {costs['execute']:.2f} us by execute, {costs['bound']:.2f} us bound")
    assert costs["execute"] < 8 and costs["bound"] < 6
