"""The table of the CPU: fuseplan by default and tuned plan, PyTorch eager and compiled, and the machine's limits.

All candidates of a row alternate in one process. fuseplan has `threads` threads, PyTorch is timed with one and with as
many, and the better counts. Results are checked before anything is timed: the tuner compares each plan with its judge,
and the default plan's first output with PyTorch's in float64.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import fuseplan as cudnn
from benchmarks import works
from benchmarks.alternate import Call, Spread, alternate
from benchmarks.attention import Shape, attention
from benchmarks.limits import Limits
from benchmarks.protocol import relative_error
from benchmarks.works import Work
from fuseplan.engines.cpu_c import engine
from fuseplan.runtime import device, toolchain
from fuseplan.runtime.device import TIERS

TYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
MAX_ERROR = {torch.float32: 2e-5, torch.bfloat16: 0.01}
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        flops, num_bytes: work of one call, what the limit is computed from: FMA peak where there are flops
        limit: "fma", "read" or "copy"
        can_tune: whether the judge of the tuner has the time for it
    """

    name: str
    make: Callable[[torch.dtype], Work]
    types: tuple[str, ...]
    limit: str
    flops: float = 0.0
    elements: int = 0
    can_tune: bool = True


def rows() -> list[Row]:
    both, single = ("float32", "bf16"), ("float32",)
    million = 1 << 20
    product = [
        Row(
            f"matmul {b}x{m}x{k}x{n}",
            lambda t, d=(b, m, k, n): works.matmul_amax(t, *d),
            both,
            "fma",
            2.0 * b * m * k * n,
        )
        for b, m, k, n in ((4, 256, 512, 256), (1, 1024, 1024, 1024))
    ]  # fmt: skip
    vector = [
        Row(f"matmul {m}x4096x4096 {'NK' if turned else 'KN'}",
            lambda t, m=m, turned=turned: works.matmul(t, m, 4096, 4096, turned=turned), both, "read",
            elements=4096 * 4096)
        for m in (1, 8) for turned in (False, True)
    ]  # fmt: skip
    chain = [
        Row(f"chain {n}M", lambda t, n=n: works.long_chain(t, n * 1024), both, "copy", elements=3 * n * million,
            can_tune=n < 16)
        for n in (4, 64)
    ]  # fmt: skip
    size, d = 2048 * 1024, (2048, 1024)
    forward = {"softmax": works.row_softmax, "rms norm": works.rms_norm, "layer norm": works.layer_norm}
    norm = [
        Row(f"{name} 2048x1024", lambda t, make=make: make(t, *d), both, "copy", elements=2 * size)
        for name, make in forward.items()
    ] + [
        Row(f"{kind} norm backward 2048x1024", lambda t, kind=kind: works.norm_backward(t, kind, *d), both, "copy",
            elements=3 * size)
        for kind in ("rms", "layer")
    ]  # fmt: skip
    reduced = [
        Row(f"sum over {name}", lambda t, a=(dim, axes, name): works.sums(t, *a), single, "read", elements=16 * million)
        for name, dim, axes in (
            ("rows", (1, 4096, 4096), (2,)), ("columns", (1, 4096, 4096), (1,)), ("middle", (64, 256, 1024), (1,)),
            ("everything", (1, 4096, 4096), (0, 1, 2)),
        )
    ]  # fmt: skip
    return [*product, *vector, *chain, *norm, *reduced, *attention_rows()]


def attention_rows() -> list[Row]:
    """Causal attention, its gradient, and one query that reads long keys and values."""
    found = []
    for length, width, is_backward in (
        (512, 64, False),
        (2048, 64, False),
        (2048, 128, False),
        (512, 64, True),
        (2048, 64, True),
    ):
        shape = Shape(1, 8, 8, length, length, width, 0, is_backward=is_backward)
        flops = (5.0 if is_backward else 2.0) * 8 * length * length * width  # of the half that is seen
        found.append(
            Row(f"attention {shape}", partial(attention, shape), ("float32", "bf16"), "fma", flops, can_tune=False)
        )
    decode = Shape(8, 32, 8, 1, 4096, 128)
    elements = 2 * 8 * 8 * 4096 * 128
    found.append(
        Row(f"attention {decode}", partial(attention, decode), ("bf16",), "read", 0.0, elements, can_tune=False)
    )
    return found


def measure(pattern: str, num_threads: int, *, is_compiled: bool, num_rounds: int) -> Iterator[dict[str, Any]]:
    """The rows whose name contains the pattern."""
    works.on("cpu")
    torch.set_num_threads(num_threads)
    limits = Limits(num_threads)
    for row in rows():
        for name in row.types:
            if pattern in f"{row.name} {name}":
                yield from _measure(row, name, limits, is_compiled=is_compiled, num_rounds=num_rounds)


def _measure(
    row: Row, type_name: str, limits: Limits, *, is_compiled: bool, num_rounds: int
) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    dtype, n = TYPES[type_name], limits.num_threads
    work = row.make(dtype)
    handle = cudnn.create_handle("cpu", num_threads=n)
    start = {"row": row.name, "type": type_name}
    try:
        calls, facts = _plans(work, handle, dtype, can_tune=row.can_tune)
    except AttributeError as problem:  # an operation that this tree does not have yet
        yield {**start, "error": str(problem)[:120]}
        return
    calls |= {
        "eager, 1 thread": _with_threads(work.eager, 1, n),
        f"eager, {n} threads": _with_threads(work.eager, n, n),
    }
    if work.bare is not None:
        calls["bare product"] = work.bare
    if is_compiled:
        calls["torch.compile"] = _compiled(work, dtype)
    calls["limit"] = getattr(limits, row.limit)
    # NumPy's BLAS keeps its threads spinning for tens of milliseconds, which slows down whatever alternates with it
    apart = {"tuned": calls.pop("tuned")} if facts.get("tuned_plan") == "array" else {}
    spread = alternate(calls, rounds=num_rounds)
    spread |= alternate(apart, rounds=num_rounds) if apart else {}
    yield _line(start, row, dtype, limits, spread, facts)


def _line(start: dict[str, Any], row: Row, dtype: torch.dtype, limits: Limits, spread: dict[str, Spread],
          facts: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """One line: times, the peers' over ours, and the share of the limit."""
    done = limits.flops / row.flops if row.flops else limits.num_bytes / (row.elements * dtype.itemsize)
    floor = spread["limit"].median / done
    eager = min(s.median for name, s in spread.items() if name.startswith("eager"))
    line = {**start, **facts, "limit": row.limit, "limit_us": round(floor, 1)}
    for name, s in spread.items():
        if name != "limit":
            line[name] = round(s.median, 1)
            line[f"{name} quartiles"] = [round(s.low, 1), round(s.high, 1)]
    for own in ("default", "tuned"):
        ours = spread.get(own, spread["default"]).median
        line[f"eager/{own}"] = round(eager / ours, 2)
        if "torch.compile" in spread:
            line[f"compile/{own}"] = round(spread["torch.compile"].median / ours, 2)
        if "bare product" in spread:
            line[f"bare product/{own}"] = round(spread["bare product"].median / ours, 2)
        line[f"of limit, {own}"] = round(floor / ours, 2)
    return line


def _plans(work: Work, handle: Any, dtype: torch.dtype, *, can_tune: bool) -> tuple[dict[str, Call], dict[str, Any]]:
    """Bound calls of the default and of the tuned plan, where that is another one, after a check of the results."""
    graph, pack, first = work.build(handle)
    memory = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8)
    default = graph.bind(pack, memory, handle)
    default()
    default()  # outputs of a call before must not matter
    error = relative_error(first, work.reference())
    if not error < MAX_ERROR[dtype]:
        raise AssertionError(f"{work.name} {work.shape}: relative error {error:.1e}")
    names = [entry.name for entry in graph._plans.entries] if hasattr(graph._plans, "entries") else []
    facts: dict[str, Any] = {"rel_err": float(f"{error:.1e}"), "plan": names[0] if names else ""}
    calls: dict[str, Call] = {"default": default}
    if can_tune:
        tuned, tuned_pack, _ = work.build(handle)
        report = tuned.autotune(tuned_pack, handle=handle, budget_s=20.0)
        wrong = [r.name for r in report.rows if r.outcome.startswith("wrong")]
        assert not wrong, wrong
        best = next(r.name for r in report.rows if r.index == report.best)
        facts["tuned_plan"] = best
        if report.best:
            large = torch.empty(max(tuned.get_workspace_size(), 1), dtype=torch.uint8)
            calls["tuned"] = tuned.bind(tuned_pack, large, handle)
    return calls, facts


def _with_threads(call: Call, number: int, usual: int) -> Call:
    if number == usual:
        return call

    def run() -> None:
        torch.set_num_threads(number)
        try:
            call()
        finally:
            torch.set_num_threads(usual)

    return run


def _compiled(work: Work, dtype: torch.dtype) -> Call:
    compiled = work.compile("default")
    assert relative_error(compiled(), work.reference()) < 2 * MAX_ERROR[dtype]
    return compiled


def pretend(tier: str) -> None:
    """Plan and compile as on a CPU of a lower tier. What PyTorch uses is chosen by its own environment variables."""
    model, flags = device._read_cpuinfo()
    kept = {f for f in flags if not f.startswith(("avx512", "amx"))}
    assert set(TIERS[tier]) <= kept, f"{tier} asks for more"
    device._read_cpuinfo = lambda: (model, kept)
    compile_for = partial(toolchain.compile_shared, march=tier)
    toolchain.compile_shared = engine.compile_shared = compile_for  # type: ignore[assignment]


def pin(num_threads: int) -> None:
    """Keep this process on so many physical cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        try:
            with open(folder + "thread_siblings_list", encoding="ascii") as file:
                cores.setdefault(file.read().strip(), cpu)
        except OSError:
            cores[str(cpu)] = cpu
    chosen = sorted(cores.values())[:num_threads]
    os.sched_setaffinity(0, chosen if len(chosen) == num_threads else os.sched_getaffinity(0))


def host_rows() -> Iterator[dict[str, Any]]:
    """What a call of an 8x8 matmul costs the caller."""
    works.on("cpu")
    a, b, c = torch.randn(8, 8), torch.randn(8, 8), torch.empty(8, 8)
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, device="cpu")
    A, B = g.tensor_like(a.unsqueeze(0)), g.tensor_like(b.unsqueeze(0))
    C = g.matmul(A=A, B=B).set_output(True)
    g.build()
    pack = {A: a, B: b, C: c}
    work = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8)
    bound = g.bind(pack, work)
    bound()
    assert relative_error(c, a.double() @ b.double()) < 1e-6
    spread = alternate({
        "bound call": bound, "execute_plan_at_index": lambda: g.execute_plan_at_index(pack, work, 0),
        "torch.mm out=": lambda: torch.mm(a, b, out=c),
    }, rounds=15)  # fmt: skip
    mm = spread["torch.mm out="].median
    yield {"row": "host cost, 8x8 matmul", "type": "float32", "torch.mm out=": round(mm, 3)} | {
        f"{name} {what}": round(value, 3)
        for name, s in spread.items() if name != "torch.mm out="
        for what, value in (("us", s.median), ("over torch.mm", s.median / mm))
    }  # fmt: skip
