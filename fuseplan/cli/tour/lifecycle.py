"""Sections on what happens around a kernel: the environment, saving, changing shapes, repeated calls."""

from __future__ import annotations

import math
import platform
import time
from typing import Any

import numpy as np

import fuseplan
from fuseplan.cli.tour import formulas
from fuseplan.cli.tour.kernels import CONV, conv_buffers, conv_graph
from fuseplan.cli.tour.stage import Outcome, Stage, TourError, plan_name
from fuseplan.errors import ToolchainError
from fuseplan.runtime.toolchain import find_compiler

#: (batch, M, K, N) of the matmul that is saved; batch sizes of the convolution with changing shapes.
SAVED = {"tiny": (2, 16, 32, 16), "small": (4, 256, 512, 256), "tutorial": (8, 256, 512, 256)}
BATCHES = {"tiny": (2, 3), "small": (2, 3, 4, 5), "tutorial": (8, 16, 24, 32)}
UID_A, UID_B, UID_C = 101, 102, 103


def environment(stage: Stage) -> Outcome:
    """What the tour runs on."""
    info = stage.handle.device
    stage.say("device", f"{stage.device}: {info.device_name or 'unnamed'}")
    stage.say("Python", f"{platform.python_version()}, NumPy {np.__version__}")
    stage.say("PyTorch", str(stage.torch.__version__) if stage.torch is not None else "not installed, not needed")
    stage.say("backend version", str(fuseplan.backend_version()))
    try:
        stage.say("C compiler", find_compiler().version)
    except ToolchainError as missing:
        stage.say("C compiler", f"none, so the generated C engine is out: {missing.wrong}")
    return Outcome(note=f"{stage.device}, {stage.io.name}")


def save_and_load(stage: Stage) -> Outcome:
    """A built plan as bytes, loaded into an empty graph and run by uid."""
    batch, m, k, n = SAVED[stage.size]
    stage.say("problem", f"({batch}, {m}, {k}) x ({batch}, {k}, {n}), {stage.io.name}")
    a, b = stage.normal(batch, m, k), stage.normal(batch, k, n)
    c, again = stage.empty(batch, m, n), stage.empty(batch, m, n)
    g = stage.graph("saved_matmul")
    ta, tb = stage.tensor(g, a, "a").set_uid(UID_A), stage.tensor(g, b, "b").set_uid(UID_B)
    tc = g.matmul(A=ta, B=tb).set_output(True).set_name("c").set_uid(UID_C)
    before = time.perf_counter()
    g.build()
    built_ms = (time.perf_counter() - before) * 1e3
    pack = {ta: a, tb: b, tc: c}
    stage.run(g, pack)
    error = stage.compare(g, pack, tc, formulas.matmul(stage.host(a), stage.host(b)))

    blob = g.serialize()
    before = time.perf_counter()
    loaded = fuseplan.pygraph(handle=stage.handle)
    loaded.deserialize(stage.handle, blob)
    loaded_ms = (time.perf_counter() - before) * 1e3
    stage.run(loaded, {UID_A: a, UID_B: b, UID_C: again})
    if not np.array_equal(stage.host(c), stage.host(again)):
        raise TourError("the loaded plan's result differs from the saved one's")
    stage.say("saved plan", f"{len(blob)} bytes; loaded by uid, the same result bit for bit")
    stage.say("build, load", f"{built_ms:.1f} ms, {loaded_ms:.1f} ms")
    return Outcome(error, None, None, f"{len(blob)} bytes, load {loaded_ms:.1f} ms, build {built_ms:.1f} ms")


def dynamic_shapes(stage: Stage) -> Outcome:
    """Convolution and relu at several batch sizes, with one kernel cache."""
    _, c, height, width, k = CONV[stage.size]
    stage.say("problem", f"N {BATCHES[stage.size]}, C{c} {height}x{width}, K{k} 3x3, one kernel cache")
    cache = fuseplan.create_kernel_cache()
    taken, worst = [], 0.0
    for n in BATCHES[stage.size]:
        x, w, _, y = conv_buffers(stage, n)
        g, pack = conv_graph(stage, x, w, None, y, f"conv_n{n}", kernel_cache=cache, is_dynamic_shape_enabled=True)
        before = time.perf_counter()
        g.build()
        taken.append((time.perf_counter() - before) * 1e3)
        stage.run(g, pack)
        want = formulas.conv_bias_relu(stage.host(x), stage.host(w), np.zeros((1, k, 1, 1)), pad=1)
        stage.say(f"N = {n}", f"built in {taken[-1]:.1f} ms, {plan_name(g)}")
        worst = max(worst, stage.compare(g, pack, list(pack)[-1], want))
    later = sum(taken[1:]) / len(taken[1:])
    return Outcome(worst, None, None, f"first build {taken[0]:.1f} ms, later {later:.1f} ms")


def repeated_calls(stage: Stage) -> Outcome:
    """The convolution called again and again: bound once on a CPU, replayed as a CUDA graph on a GPU."""
    if "conv" not in stage.kept:
        raise TourError("section 2 left no convolution to call again")
    g, pack, workspace, want = stage.kept["conv"]
    out = list(pack)[-1]
    execute_ms = stage.time(lambda: g.execute(pack, workspace, handle=stage.handle))
    call, how = _replay(stage, g, pack, workspace) if stage.is_cuda else (g.bind(pack, workspace), "bound call")
    pack[out][...] = math.nan
    call()
    stage.wait()
    error = stage.compare(g, pack, out, want)
    ms = stage.time(call)
    stage.say("execute()", f"{execute_ms:.4f} ms")
    stage.say(how, f"{ms:.4f} ms")
    if stage.is_cuda:
        return Outcome(error, ms, None, f"{how} {ms:.4f} ms, execute() {execute_ms:.4f} ms")
    small_error, execute_us, bound_us = _host_cost(stage)
    note = f"host cost: bound call {bound_us:.1f} us, execute() {execute_us:.1f} us"
    stage.say("on 8x8 values", note)
    return Outcome(max(error, small_error), ms, None, note)


def _host_cost(stage: Stage) -> tuple[float, float, float]:
    """Error, and microseconds of execute() and of a bound call, where the kernel itself takes next to no time."""
    x, y = stage.normal(1, 8, 8), stage.empty(1, 8, 8)
    g = stage.graph("small_relu")
    tx = stage.tensor(g, x, "x")
    ty = g.relu(input=tx).set_output(True).set_name("y")
    g.build()
    pack, workspace = {tx: x, ty: y}, stage.workspace(g.get_workspace_size())
    bound = g.bind(pack, workspace)
    execute_ms = stage.time(lambda: g.execute(pack, workspace, handle=stage.handle))
    y[...] = math.nan
    bound_ms = stage.time(bound)
    error = stage.compare(g, pack, ty, np.maximum(np.asarray(x, dtype=np.float64), 0.0))
    return error, execute_ms * 1e3, bound_ms * 1e3


def _replay(stage: Stage, g: Any, pack: dict[Any, Any], workspace: Any) -> tuple[Any, str]:
    """Capture one execution into a CUDA graph."""
    torch, captured = stage.torch, stage.torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    fuseplan.set_stream(handle=stage.handle, stream=side.cuda_stream)
    with torch.cuda.stream(side):
        g.execute(pack, workspace, handle=stage.handle)  # whatever loads at first use loads here
    torch.cuda.synchronize()
    with torch.cuda.graph(captured, stream=side):
        g.execute(pack, workspace, handle=stage.handle)
    fuseplan.set_stream(handle=stage.handle, stream=torch.cuda.current_stream().cuda_stream)
    return captured.replay, "CUDA-graph replay"
