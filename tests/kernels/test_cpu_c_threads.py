"""Generated C on several threads: right, and the same bits for any number of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.runtime import team
from fuseplan.runtime.toolchain import has_compiler

FLOAT = cudnn.data_type.FLOAT
Array = np.ndarray[Any, Any]
ADD, AMAX = cudnn.reduction_mode.ADD, cudnn.reduction_mode.AMAX

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")


def reduced(g: Any, x: Any, mode: Any, dim: tuple[int, ...]) -> Any:
    y = g.reduction(input=x, mode=mode)
    return y.set_dim(list(dim)).set_stride(strides(dim))


def strides(dim: tuple[int, ...]) -> list[int]:
    return [int(np.prod(dim[k + 1 :])) for k in range(len(dim))]


# table: name -> (dims of the inputs, the graph's output from its inputs, the same in float64)
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any], Callable[..., Array]]] = {
    "pointwise": (
        ((511, 1021), (1, 1021)),
        lambda g, a, b: g.relu(input=g.add(g.mul(a, b), b)),
        lambda a, b: np.maximum(a * b + b, 0),
    ),
    "row sums": (
        ((2048, 301),),
        lambda g, a: reduced(g, g.mul(a, a), ADD, (2048, 1)),
        lambda a: (a * a).sum(1, keepdims=True),
    ),
    "column sums": (
        ((2048, 301),),
        lambda g, a: reduced(g, g.mul(a, a), ADD, (1, 301)),
        lambda a: (a * a).sum(0, keepdims=True),
    ),
    "one sum": (
        ((1024, 701),),
        lambda g, a: reduced(g, a, ADD, (1, 1)),
        lambda a: a.sum(keepdims=True),
    ),
    "matmul, relu": (
        ((3, 127, 130), (3, 130, 129)),
        lambda g, a, b: g.relu(input=g.matmul(A=a, B=b)),
        lambda a, b: np.maximum(a @ b, 0),
    ),
    "largest of a matmul": (
        ((1, 255, 64), (1, 64, 120)),
        lambda g, a, b: reduced(g, g.matmul(A=a, B=b), AMAX, (1, 1, 1)),
        lambda a, b: np.abs(a @ b).max(keepdims=True),
    ),
}  # fmt: skip


def run(name: str, num_threads: int, data: list[Array]) -> Array:
    dims, make, _ = CASES[name]
    handle = cudnn.create_handle("cpu", num_threads=num_threads)
    g = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    inputs = [g.tensor(dim=list(d), stride=strides(d), name=f"x{k}") for k, d in enumerate(dims)]
    y = make(g, *inputs).set_output(True).set_name("y")
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    g.deselect_engines(["array"])
    g.build_plans()
    out = np.full(tuple(y.get_dim()), np.nan, np.float32)
    workspace = np.full(max(1, g.get_workspace_size()), 0xAA, np.uint8)
    for _ in range(4):
        g.execute({**{f"x{k}": a for k, a in enumerate(data)}, "y": out}, workspace)
    return out


def forget_last_launch() -> ctypes.CDLL:
    """The team, whose last launch is then one that ran on the calling thread."""
    library = team.library()
    assert library is not None
    idle = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda block, task: 0)
    library.fp_team_run(ctypes.byref(team.Launch(ctypes.cast(idle, ctypes.c_void_p).value, None, 1, None, 0, 1, 0)))
    assert library.fp_team_last() == 1
    return library


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_the_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "SERIAL_US", 1.0)  # on a fast machine some of this counts as small work
    dims, _, judge = CASES[name]
    rng = np.random.default_rng(5)
    data = [rng.standard_normal(d, np.float32) for d in dims]
    expected = judge(*(a.astype(np.float64) for a in data))
    results = {1: run(name, 1, data)}
    for n in (2, 3, 7):
        library = forget_last_launch()
        results[n] = run(name, n, data)
        assert library.fp_team_last() in (2, 3)  # our pool or OpenMP: it was shared out
    scale = np.abs(expected).max()
    assert np.abs(results[1] - expected).max() <= 2e-6 * scale
    assert {a.tobytes() for a in results.values()} == {results[1].tobytes()}
