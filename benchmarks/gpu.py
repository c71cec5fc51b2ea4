"""The table of a GPU: fuseplan by default and tuned plan, PyTorch eager and compiled, NVIDIA's frontend tuned, a copy.

Candidates of a row are captured into CUDA graphs that are replayed in turn (`benchmarks.protocol`). Results are checked
before anything is timed: the tuner compares each plan with its judge, every candidate's first result is compared with
PyTorch's in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import works
from benchmarks.protocol import compare, host_us
from benchmarks.works import Work
from fuseplan.runtime.launch import LaunchKind, PatchKind

try:
    import cudnn as nvidia  # the peer; the table goes without it where it is not installed
except ImportError:
    nvidia = None

BF16, FLOAT = torch.bfloat16, torch.float32
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        num_bytes: read and written once; what the limit, a device copy's rate, is computed from, 0 for none
        mode: of torch.compile; empty for a bare product, whose peer is the library that eager calls
    """

    name: str
    make: Callable[[], Work]
    num_bytes: int = 0
    mode: str = "max-autotune-no-cudagraphs"


def rows() -> list[Row]:
    product = [
        Row(f"gemm {m}x{k}x{n} {'NT' if turned else 'NN'}",
            lambda m=m, k=k, n=n, turned=turned: works.matmul(BF16, m, k, n, turned=turned), mode="")
        for m, k, n, turned in (
            (8192, 5120, 17408, True), (4096, 4096, 4096, True), (2048, 6144, 7168, True), (512, 33792, 7168, True),
            (128, 3072, 3584, True), (64, 65536, 256, True), (16, 8192, 8192, True), (1, 8192, 8192, True),
        )
    ]  # fmt: skip
    fused = [
        Row("gemm float32 2048x4096x1024", lambda: works.matmul(FLOAT, 2048, 4096, 1024), mode=""),
        Row("matmul scale bias gelu amax", lambda: works.matmul_amax(BF16)),
        Row("matmul bias gelu, 2 outputs", lambda: works.matmul_bias_gelu(BF16)),
    ]
    chain, norm = 2 * 8192 * 4096, 2 * 8192 * 5120
    rowwise = [
        Row("pointwise chain", lambda: works.pointwise_chain(BF16), 3 * chain),
        Row("softmax", lambda: works.row_softmax(BF16), 2 * chain),
        Row("rms norm", lambda: works.rms_norm(BF16), 2 * norm),
        Row("layer norm", lambda: works.layer_norm(BF16), 2 * norm),
        Row("rms norm backward", lambda: works.norm_backward(BF16, "rms"), 3 * norm),
        Row("layer norm backward", lambda: works.norm_backward(BF16, "layer"), 3 * norm),
    ]
    reduced = [
        Row(f"sum over {name}", lambda a=(dim, axes, name): works.sums(BF16, *a), 2 * 8192 * 8192)
        for name, dim, axes in (
            ("rows", (1, 8192, 8192), (2,)), ("columns", (1, 8192, 8192), (1,)), ("middle", (64, 512, 2048), (1,)),
            ("everything", (1, 8192, 8192), (0, 1, 2)),
        )
    ]  # fmt: skip
    return [*product, *fused, *rowwise, *reduced]


def measure(pattern: str, *, is_compiled: bool, budget_s: float) -> Iterator[dict[str, Any]]:
    """The rows whose name contains the pattern.

    Args:
        budget_s: of tuning, for each row
    """
    works.on("cuda")
    handle = cudnn.create_handle()
    for row in rows():
        if pattern in row.name:
            torch.manual_seed(0)
            try:
                yield _measure(row, handle, is_compiled=is_compiled, budget_s=budget_s)
            except Exception as problem:  # one row must not lose the others
                yield {"row": row.name, "type": "", "error": f"{type(problem).__name__}: {str(problem)[:300]}"}
            torch.cuda.empty_cache()
    cudnn.set_stream(handle=handle, stream=0)


def _measure(row: Row, handle: Any, *, is_compiled: bool, budget_s: float) -> dict[str, Any]:
    work = row.make()
    facts: dict[str, Any] = {}
    calls = _plans(work, handle, facts, budget_s)
    calls["eager"] = work.eager
    if is_compiled and row.mode:
        calls["torch.compile"] = work.compile(row.mode)
    if nvidia is not None and row.mode:
        calls |= frontend(work, facts)
    reference = work.reference()
    if row.num_bytes:
        half = row.num_bytes // 2
        source, target = (torch.zeros(half, dtype=torch.uint8, device="cuda") for _ in range(2))
        result = reference.clone()

        def copy() -> torch.Tensor:
            target.copy_(source)
            return result

        calls["copy"] = copy
    found = {r["peer"]: r for r in compare(row.name, calls, reference)}
    return _line(row, found, facts)


def _line(row: Row, found: dict[str, dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"row": row.name, "type": "", **facts}
    for name, r in found.items():
        line[name] = r.get("us") if "us" in r else r["error"][:160]
        if "us" in r:
            line[f"{name} quartiles"] = r["quartiles"]
    us = {name: r["us"] for name, r in found.items() if "us" in r}
    for own in ("default", "tuned"):
        ours = us.get(own)
        if ours is None:
            continue
        for name in ("eager", "torch.compile", "frontend tuned"):
            if name in us:
                line[f"{name}/{own}"] = round(us[name] / ours, 3)
        if "copy" in us:
            line[f"of limit, {own}"] = round(us["copy"] / ours, 3)
    return line


def _plans(work: Work, handle: Any, facts: dict[str, Any], budget_s: float) -> dict[str, Call]:
    """The default and the tuned plan as calls that return the first result."""
    start = time.perf_counter()
    graph, pack, first = work.build(handle)
    facts["build_s"] = round(time.perf_counter() - start, 2)
    calls: dict[str, Call] = {"default": bound(graph, pack, first, handle)}
    facts["plan"] = graph.get_plan_name_at_index(0) if hasattr(graph, "get_plan_name_at_index") else ""
    if budget_s > 0:
        tuned, tuned_pack, tuned_first = work.build(handle)
        start = time.perf_counter()
        report = tuned.autotune(tuned_pack, handle=handle, budget_s=budget_s)
        facts["tune_s"] = round(time.perf_counter() - start, 1)
        facts["tuned_plan"] = next((r.name for r in report.rows if r.index == report.best), "")
        wrong = [f"{r.name}: {r.outcome}" for r in report.rows if r.us is None]
        if wrong:
            facts["failed"] = wrong[:4]
        calls["tuned"] = bound(tuned, tuned_pack, tuned_first, handle)
    return calls


def bound(graph: Any, pack: dict[Any, Any], first: torch.Tensor, handle: Any) -> Call:
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")

    def run() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, handle)
        return first

    return run


def frontend(work: Work, facts: dict[str, Any]) -> dict[str, Call]:
    """NVIDIA's frontend, the better of its heuristic choice and of all its plans as timed by events."""
    try:
        own = nvidia.create_handle()
        nvidia.set_stream(handle=own, stream=torch.cuda.current_stream().cuda_stream)
        graph, pack, first = work.build(own, nvidia)
        timed = []
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
                size = max(graph.get_workspace_size_plan_at_index(index), 1)
                memory = torch.empty(size, dtype=torch.uint8, device="cuda")
                timed.append((_event_us(lambda i=index, w=memory: graph.execute_plan_at_index(pack, w, i, handle=own)),
                              index, memory))  # fmt: skip
            except Exception:  # a plan that does not build or run is none
                continue
        if not timed:
            return {}
        _, best, workspace = min(timed, key=lambda t: t[0])
    except Exception as problem:
        facts["frontend"] = f"{type(problem).__name__}: {str(problem)[:120]}"
        return {}
    facts["frontend plans"] = len(timed)

    def run() -> torch.Tensor:
        nvidia.set_stream(handle=own, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute_plan_at_index(pack, workspace, best, handle=own)
        return first

    return {"frontend tuned": run}


def _event_us(call: Call, iters: int = 10) -> float:
    call()
    found = []
    for _ in range(3):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(iters):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / iters * 1e3)
    return min(found)


def host_rows() -> Iterator[dict[str, Any]]:
    """What a call of a 256x256x256 matmul costs the caller."""
    from benchmarks.bare_launch import bare_launch_us

    works.on("cuda")
    a, b = (torch.randn(1, 256, 256, device="cuda", dtype=BF16) for _ in range(2))
    c = torch.empty_like(a)
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=BF16, compute_data_type=FLOAT, handle=handle)
    A, B = graph.tensor_like(a), graph.tensor_like(b)
    C = graph.matmul(A=A, B=B).set_output(True).set_data_type(BF16)
    graph.build()
    pack, workspace = (
        {A: a, B: b, C: c},
        torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda"),
    )
    times = {
        "bound call": host_us(graph.bind(pack, workspace, handle)),
        "execute": host_us(lambda: graph.execute(pack, workspace, handle)),
        "torch.mm out=": host_us(lambda: torch.mm(a[0], b[0], out=c[0])),
    }
    index = _without_maps(graph)
    if index is not None:  # the bare loop fills in addresses alone
        graph.select_plan(index)
        workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
        bound = graph.bind(pack, workspace, handle)
        times |= {
            "bound call without tensor maps": host_us(bound), "C loop of the same kernel": bare_launch_us(graph, pack),
            "bound call again": host_us(bound),
        }  # fmt: skip
    yield {"row": "host cost, 256x256x256 matmul", "type": "bf16"} | {k: round(v, 3) for k, v in times.items()}


def _without_maps(graph: Any) -> int | None:
    """A plan with one kernel that takes addresses and no tensor maps."""
    for index in range(graph.get_execution_plan_count()):
        graph.build_plan_at_index(index)
        launches = graph._plans.build(index).program.launches
        kinds = {p.kind for x in launches for p in x.patches}
        if len(launches) == 1 and launches[0].kind is LaunchKind.CUDA and kinds == {PatchKind.POINTER}:
            return index
    return None
