"""The skeleton's graphs on a GPU, judged element by element: dirty buffers, captured graphs, any address."""

from __future__ import annotations

import threading
from typing import Any
from zlib import crc32

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import fuseplan as cudnn  # noqa: E402
from fuseplan.ops.arrays import numpy_dtype  # noqa: E402
from fuseplan.ops.judge import judge  # noqa: E402

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {
    "pointwise_chain": [(64, 256), (37, 129), (1, 1), (300, 77)],
    "row_softmax": [(64, 256), (37, 129), (5, 1), (3, 5000), (2, 40000)],
    "rms_norm": [(64, 256), (37, 129), (5, 1), (3, 5120)],
    "matmul_bias_gelu": [(128, 256, 64), (129, 65, 33), (1, 8, 7), (256, 512, 1024)],
    "matmul_amax": [(2, 64, 32, 48), (3, 65, 33, 17), (1, 1, 1, 1), (4, 128, 256, 128)],
}
CASES = [(name, size, t) for name, sizes in SIZES.items() for size in sizes for t in TYPES]


def to_numpy(t: Any, spec: Any) -> np.ndarray[Any, Any]:
    """Host copy in the storage type."""
    kind = numpy_dtype(spec.dtype)
    raw = t.detach().cpu().contiguous()
    if kind.itemsize == 2:
        return raw.view(torch.int16).numpy().view(kind)
    return raw.numpy().astype(kind, copy=False)


def verdict(graph: Any, pack: dict[Any, Any]) -> Any:
    """The judge's word on what is in the pack's output buffers now."""
    source = graph._plans.need_built().graph
    by_uid = {t.get_uid(): b for t, b in pack.items()}
    arrays = {uid: to_numpy(b, source.tensors[uid]).reshape(source.tensors[uid].dim) for uid, b in by_uid.items()}
    return judge(source, arrays, {uid: arrays[uid] for uid in source.output_uids})


def poison(graph: Any, pack: dict[Any, Any]) -> None:
    outputs = set(graph._plans.need_built().graph.output_uids)
    for t, b in pack.items():
        if t.get_uid() in outputs:
            b.fill_(float("nan"))


def workspace_of(graph: Any) -> Any:
    return torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")


def make(name: str, size: tuple[int, ...], dtype: str, handle: Any) -> Any:
    from benchmarks import works

    torch.manual_seed(crc32(f"{name} {size}".encode()))
    return getattr(works, name)(TYPES[dtype], *size).build(handle)


@pytest.mark.parametrize(("name", "size", "dtype"), CASES, ids=str)
def test_work_is_right_twice_and_in_a_captured_graph(name: str, size: Any, dtype: str, handle: Any) -> None:
    graph, pack, _ = make(name, size, dtype, handle)
    assert graph.get_plan_name_at_index(0).startswith("triton"), graph.explain()
    assert "array" not in graph._plans.need_built().name
    workspace = workspace_of(graph).fill_(255)
    for _ in range(2):
        graph.execute(pack, workspace, handle)
    torch.cuda.synchronize()
    assert (v := verdict(graph, pack)).is_right, v
    assert v.num_undecided <= max(1, 0.05 * v.num_elements)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, handle)
    cudnn.set_stream(handle=handle, stream=0)
    for _ in range(2):
        poison(graph, pack)
        torch.cuda.synchronize()
        captured.replay()
        torch.cuda.synchronize()
        assert (v := verdict(graph, pack)).is_right, v


@pytest.mark.parametrize("name", ["pointwise_chain", "matmul_amax", "row_softmax"])
def test_every_listed_plan_is_right_or_refuses(name: str, handle: Any) -> None:
    graph, pack, _ = make(name, SIZES[name][-1], "bf16", handle)
    report = graph.autotune(pack, handle=handle, budget_s=60)
    assert report.best is not None
    wrong = [r for r in report.rows if r.outcome != "right"]
    assert not wrong, str(report)
    assert verdict(graph, pack).is_right


@pytest.mark.parametrize("name", ["pointwise_chain", "row_softmax", "rms_norm"])
def test_buffer_off_alignment_gives_the_same_result(name: str, handle: Any) -> None:
    graph, pack, _ = make(name, (64, 256), "bf16", handle)
    moved = {}
    for t, b in pack.items():
        if b.is_cuda and b.dtype is torch.bfloat16:
            raw = torch.empty(b.numel() + 1, dtype=b.dtype, device="cuda")
            raw[1:].copy_(b.reshape(-1))
            b = raw[1:].view(b.shape)
            assert b.data_ptr() % 16 != 0
        moved[t] = b
    graph.execute(moved, workspace_of(graph), handle)
    torch.cuda.synchronize()
    assert (v := verdict(graph, moved)).is_right, v


def test_amax_of_nan_is_nan_and_of_zeros_is_zero(handle: Any) -> None:
    graph, pack, _ = make("matmul_amax", (2, 64, 32, 48), "bf16", handle)
    by_name = {t.get_uid(): (t, b) for t, b in pack.items()}
    first = by_name[min(by_name)][1]
    workspace = workspace_of(graph)
    (amax,) = [b for b in pack.values() if b.is_cuda and b.numel() == 1]
    first[0, 3, 5] = float("nan")
    graph.execute(pack, workspace, handle)
    torch.cuda.synchronize()
    assert torch.isnan(amax).all()
    first.zero_()
    for b in pack.values():
        if b.is_cuda and tuple(b.shape) == (1, 1, 48):
            b.zero_()
    graph.execute(pack, workspace, handle)
    torch.cuda.synchronize()
    assert amax.item() == 0.0


def test_threads_with_their_own_handles_and_buffers_agree(handle: Any) -> None:
    graph, pack, _ = make("matmul_amax", (4, 128, 256, 128), "fp16", handle)
    workspace = workspace_of(graph)
    graph.execute(pack, workspace, handle)
    torch.cuda.synchronize()
    outputs = {t: b.clone() for t, b in pack.items() if t.get_uid() in set(graph._plans.need_built().graph.output_uids)}
    failures: list[str] = []

    def work() -> None:
        own = cudnn.create_handle()
        stream = torch.cuda.Stream()
        cudnn.set_stream(handle=own, stream=stream.cuda_stream)
        mine = {t: (torch.full_like(b, float("nan")) if t in outputs else b) for t, b in pack.items()}
        torch.cuda.synchronize()
        for _ in range(50):
            graph.execute(mine, workspace_of(graph), own)
        stream.synchronize()
        for t, expected in outputs.items():
            if not torch.equal(mine[t], expected):
                failures.append(t.get_name())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_offsets_over_2_to_the_31_elements_reach_the_last_row(handle: Any) -> None:
    rows, cols = 2**20 + 3, 2100
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device="cuda").fill_(1.5)
    y = torch.empty_like(x)
    graph = cudnn.pygraph(handle=handle, io_data_type=torch.bfloat16, compute_data_type=torch.float32)
    X = graph.tensor_like(x)
    Y = graph.neg(input=X)
    Y.set_output(True)
    graph.build()
    assert graph._plans.need_built().name.startswith("triton")
    graph.execute({X: x, Y: y}, workspace_of(graph), handle)
    torch.cuda.synchronize()
    assert (y[-1] == -1.5).all() and (y[0] == -1.5).all() and (y[rows // 2] == -1.5).all()


def test_plan_file_runs_by_uid_in_the_same_process(handle: Any) -> None:
    graph, pack, _ = make("matmul_amax", (2, 64, 32, 48), "bf16", handle)
    loaded = cudnn.pygraph()
    loaded.deserialize(handle, graph.serialize())
    poison(graph, pack)
    loaded.execute({t.get_uid(): b for t, b in pack.items()}, workspace_of(graph), handle)
    torch.cuda.synchronize()
    assert (v := verdict(graph, pack)).is_right, v


def test_bound_call_repeats_the_result_and_reads_host_scalars_again(handle: Any) -> None:
    graph, pack, out = make("matmul_amax", (2, 64, 32, 48), "fp16", handle)
    (alpha,) = [b for b in pack.values() if not b.is_cuda]
    bound = graph.bind(pack, workspace_of(graph), handle)
    bound()
    torch.cuda.synchronize()
    assert verdict(graph, pack).is_right
    first = out.clone()
    alpha.fill_(0.5)
    bound()
    torch.cuda.synchronize()
    assert verdict(graph, pack).is_right
    assert not torch.equal(first, out)
