"""Runs a built graph on a CUDA device and judges it."""

from __future__ import annotations

from typing import Any

from fuseplan.ops.judge import judge
from fuseplan.testing.run import HostBuffer, random_inputs


def run_and_judge(g: Any, handle: Any) -> Any:
    """The verdict on a graph that was run twice on random inputs."""
    import torch

    inputs = random_inputs(g._draft.graph, seed=1)
    outputs = {uid: HostBuffer(g._draft.graph.tensors[uid]) for uid in g._draft.graph.output_uids}
    on_gpu = {u: torch.from_numpy(b.inner.copy()).cuda() for u, b in (*inputs.items(), *outputs.items())}
    workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
    for _ in range(2):
        g.execute({u: t.data_ptr() for u, t in on_gpu.items()}, workspace, handle)
    torch.cuda.synchronize()
    for uid, b in outputs.items():
        b.inner[:] = on_gpu[uid].cpu().numpy()
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    return judge(g._draft.graph, arrays, {uid: b.view for uid, b in outputs.items()})
