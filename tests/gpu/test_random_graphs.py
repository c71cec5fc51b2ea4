"""Random graphs on a GPU through every engine's plan: judged, on poisoned outputs, with guard bytes, twice in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fuseplan.engines.registry import engines_for  # noqa: E402
from fuseplan.errors import cudnnGraphNotSupportedError  # noqa: E402
from fuseplan.ir.graph import Graph, TensorSpec  # noqa: E402
from fuseplan.ops.judge import judge  # noqa: E402
from fuseplan.plan.execute import Runner  # noqa: E402
from fuseplan.plan.plan import BuiltPlan  # noqa: E402
from fuseplan.runtime.device import cuda_devices  # noqa: E402
from fuseplan.testing.fuzz import KINDS, MAX_UNDECIDED  # noqa: E402
from fuseplan.testing.run import GUARD, GUARD_BYTES, POISON, HostBuffer, build_on, random_inputs  # noqa: E402

BATCH = 20  # the share of undecided elements is that of a batch, and one graph may hold most of them
CASES = [(kind, start) for kind in KINDS for start in range(0, 100, BATCH)]
ALIGNED_GUARD = 4 * GUARD_BYTES  # keeps the address a multiple of 256


class DeviceBuffer:
    """Device memory for one tensor, guard bytes before and behind."""

    def __init__(self, spec: TensorSpec, source: HostBuffer | None = None) -> None:
        self.spec = spec
        self.raw = torch.full((spec.span_bytes + 2 * ALIGNED_GUARD,), GUARD, dtype=torch.uint8, device="cuda")
        self.inner = self.raw[ALIGNED_GUARD:-ALIGNED_GUARD]
        if source is None:
            self.inner.fill_(POISON)
        else:
            self.inner.copy_(torch.from_numpy(source.inner.copy()))

    @property
    def is_guarded(self) -> bool:
        return bool((self.raw[:ALIGNED_GUARD] == GUARD).all() and (self.raw[-ALIGNED_GUARD:] == GUARD).all())

    def values(self) -> np.ndarray[Any, Any]:
        host = HostBuffer(self.spec)
        host.inner[:] = self.inner.cpu().numpy()
        return host.view.copy()


def run_on_device(plan: BuiltPlan, inputs: dict[int, HostBuffer]) -> dict[int, np.ndarray[Any, Any]]:
    """Outputs of the second of two runs."""
    specs = plan.graph.tensors
    held = {u: b if specs[u].is_pass_by_value else DeviceBuffer(specs[u], b) for u, b in inputs.items()}
    outputs = {u: DeviceBuffer(specs[u]) for u in plan.graph.output_uids}
    pack = {
        u: int(b.inner.ctypes.data) if isinstance(b, HostBuffer) else b.inner.data_ptr()
        for u, b in (*held.items(), *outputs.items())
    }
    workspace = torch.full((max(plan.workspace_bytes, 1),), POISON, dtype=torch.uint8, device="cuda")
    runner = Runner(plan, {}, {}, lambda p: dict(p))
    for _ in range(2):
        runner.execute(pack, workspace, 0)
    torch.cuda.synchronize()
    for b in (*held.values(), *outputs.values()):
        assert b.is_guarded, f"plan {plan.name!r} wrote outside tensor {b.spec.name!r}"
    return {u: b.values() for u, b in outputs.items()}


def check(graph: Graph, seed: int, counts: dict[str, int]) -> None:
    inputs = random_inputs(graph, seed)
    arrays = {u: b.view.copy() for u, b in inputs.items()}
    (device, *_) = cuda_devices()
    for engine in engines_for("cuda"):
        try:
            plan = build_on(graph, engine.name, device)
        except cudnnGraphNotSupportedError:
            continue
        verdict = judge(graph, arrays, run_on_device(plan, inputs))
        assert verdict.is_right, f"seed {seed} on {engine.name}: {verdict.message}"
        counts["undecided"] += verdict.num_undecided
        counts["elements"] += verdict.num_elements
        counts[engine.name] = counts.get(engine.name, 0) + 1


@pytest.mark.parametrize(("kind", "start"), CASES)
def test_random_graphs_agree_with_the_source_graph(kind: str, start: int) -> None:
    counts = {"undecided": 0, "elements": 0}
    for seed in range(start, start + BATCH):
        check(KINDS[kind](seed), seed, counts)
    always = [e.name for e in engines_for("cuda") if e.name != "cublaslt"]  # which takes bare products alone
    assert all(counts.get(name, 0) > 0 for name in always), counts
    assert counts["undecided"] <= MAX_UNDECIDED[kind] * counts["elements"], counts
