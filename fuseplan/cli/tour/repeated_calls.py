"""The convolution called again and again: bound once on a CPU, replayed as a CUDA graph on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import fuseplan
from fuseplan.cli.tour.convolution import conv_relu
from fuseplan.cli.tour.setting import Outcome, Setting


def run(at: Setting) -> Outcome:
    how = "CUDA-graph replay" if at.is_cuda else "bound call"
    error, execute_ms, again_ms = _calls(at, *conv_relu(at))
    at.say("execute()", f"{execute_ms:.4f} ms")
    at.say(how, f"{again_ms:.4f} ms")
    if at.is_cuda:
        return Outcome(error, again_ms, None, f"{how} {again_ms:.4f} ms, execute() {execute_ms:.4f} ms")
    x, y = at.normal(1, 8, 8), at.empty(1, 8, 8)  # the kernel itself takes next to no time
    g = at.graph("small_relu")
    X = g.tensor_like(x, name="x")
    Y = g.relu(input=X).set_output(True).set_name("y")
    small_error, small_ms, small_bound_ms = _calls(at, g, {X: x, Y: y}, np.maximum(x, 0))
    note = f"host cost: bound call {small_bound_ms * 1e3:.1f} us, execute() {small_ms * 1e3:.1f} us"
    at.say("on 8x8 values", note)
    return Outcome(max(error, small_error), again_ms, None, note)


def _calls(at: Setting, g: Any, pack: dict[Any, Any], want: Any) -> tuple[float, float, float]:
    """Error of a repeated call, and milliseconds of execute() and of that call."""
    g.build()
    workspace = at.workspace(g.get_workspace_size())
    execute_ms = at.time(lambda: g.execute(pack, workspace, handle=at.handle))
    again = _captured(at, g, pack, workspace) if at.is_cuda else g.bind(pack, workspace)
    result = list(pack)[-1]
    pack[result][...] = math.nan
    again()
    at.wait()
    return at.compare(g, pack, result, want), execute_ms, at.time(again)


def _captured(at: Setting, g: Any, pack: dict[Any, Any], workspace: Any) -> Any:
    """The replay of a CUDA graph that holds one execution."""
    cuda = at.torch.cuda
    captured, side = cuda.CUDAGraph(), cuda.Stream()
    side.wait_stream(cuda.current_stream())
    fuseplan.set_stream(handle=at.handle, stream=side.cuda_stream)
    with cuda.stream(side):
        g.execute(pack, workspace, handle=at.handle)  # whatever loads at first use loads here
    cuda.synchronize()
    with cuda.graph(captured, stream=side):
        g.execute(pack, workspace, handle=at.handle)
    fuseplan.set_stream(handle=at.handle, stream=cuda.current_stream().cuda_stream)
    return captured.replay
