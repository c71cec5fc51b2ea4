"""The context manager, the decorators, and `Graph` on arrays; values compared in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import fuseplan as cudnn
from fuseplan.api.pending import BLOCKED_ON_WRAPPER

pytestmark = pytest.mark.usefixtures("no_compiler")
DT, FALLBACK = cudnn.data_type, [cudnn.heur_mode.FALLBACK]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    np.testing.assert_allclose(found.double().numpy(), wanted.double().numpy(), rtol=1e-5, atol=1e-5)


def test_graph_context_defaults_and_does_not_build() -> None:
    with cudnn.graph(cudnn.create_handle("cpu"), name="n", is_override_shape_enabled=True) as (g, tensors):
        g.relu(g.tensor([2])).set_output(True)
    assert g.context == cudnn.GraphContext("n", DT.HALF, DT.FLOAT, DT.FLOAT)
    assert tensors == [] and not g._draft.is_frozen and g._draft.options.can_override


def test_jit_builds_and_returns_uids() -> None:
    @cudnn.jit(heur_modes=FALLBACK, ignored=1)
    def make(dim: int) -> tuple[cudnn.pygraph, list[Any]]:
        g = cudnn.pygraph(io_data_type=DT.FLOAT, device="cpu")
        x = g.tensor([dim])
        return g, [x, g.relu(x).set_output(True)]

    g, uids = make(3)
    assert g.get_execution_plan_count() == 1 and uids == [1, 2]
    y = np.empty(3, np.float32)
    g.execute({uids[0]: np.array([-1, 0, 2], np.float32), uids[1]: y})
    np.testing.assert_array_equal(y, [0, 0, 2])


def test_graph_cache_evicts_the_oldest_entry() -> None:
    calls: list[int] = []

    @cudnn.graph_cache(lambda n, extra=0: n, maxsize=2)
    def make(n: int, extra: int = 0) -> int:
        calls.append(n)
        return n + extra

    assert [make(1), make(2, extra=5), make(1, extra=9), make(3), make(2), make(1)] == [1, 7, 1, 3, 7, 1]
    assert calls == [1, 2, 3, 1]


def build(**options: Any) -> tuple[cudnn.Graph, torch.Tensor, torch.Tensor]:
    a, b = torch.randn(1, 4, 8), torch.randn(1, 8, 6)
    with cudnn.Graph(io_data_type=DT.FLOAT, device="cpu", heuristics=FALLBACK, **options) as g:
        c = g.matmul(a, b, name="mm")
        g.relu(c, name="act").set_output(True).set_name("out")
    return g, a, b


# table: keys of a pack
KEYS = {
    "arguments": lambda g, a, b: ("mm::A", "mm::B"),
    "arrays": lambda g, a, b: (a, b),
    "uids": lambda g, a, b: tuple(t.get_uid() for t in g.nodes[0].inputs.values()),
    "tensors": lambda g, a, b: tuple(g.nodes[0].inputs.values()),
    "positions": lambda g, a, b: ("mm::0", "mm::1"),
}


@pytest.mark.parametrize("form", sorted(set(KEYS) - {"arguments"}))
def test_graph_takes_a_pack_and_adds_missing_outputs(form: str) -> None:
    g, a, b = build(handle="auto")
    keys = KEYS[form](g, a, b)
    x, w = torch.randn(1, 4, 8), torch.randn(1, 8, 6)
    pack: dict[Any, Any] = dict(zip(keys, (x, w), strict=True))
    assert g(pack) is pack
    close(pack["out"], torch.relu(x.double() @ w.double()))
    mine = torch.zeros(1, 4, 6)
    g({**pack, "out": mine})
    close(mine, torch.relu(x.double() @ w.double()))


def test_graph_keys_by_argument_keyword() -> None:
    a, b = torch.randn(1, 4, 8), torch.randn(1, 8, 6)
    with cudnn.Graph(io_data_type=DT.FLOAT, device="cpu", heuristics=FALLBACK, handle="auto") as g:
        g.matmul(A=a, B=b, name="mm").set_output(True).set_name("out")
    close(g({"mm::A": a, "mm::B": b})["out"], a.double() @ b.double())


def test_graph_takes_arrays_in_order_after_set_io_tuples() -> None:
    g, a, b = build(handle="auto", inputs=["mm::0", "mm::1"], outputs=["out"])
    close(g(a, b), torch.relu(a.double() @ b.double()))
    g.set_io_tuples([b, a], ["out"])
    close(g(b, a, handle=cudnn.create_handle("cpu")), torch.relu(a.double() @ b.double()))
    with pytest.raises(ValueError, match="2 inputs"):
        g(a)
    with pytest.raises(RuntimeError):
        g(a, "text")


def test_graph_misuse_is_refused() -> None:
    g, a, b = build()
    with pytest.raises(RuntimeError, match="no handle"):
        g({"mm::0": a, "mm::1": b})
    auto, *_ = build(handle="auto")
    for call in (lambda: auto({"mm::0": a}), lambda: auto(a, b)):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(ValueError, match="'nothing'"):
        auto({"nothing": a})
    with pytest.raises(TypeError):
        auto({"mm::0": a}, stream=3)
    with pytest.raises(TypeError):
        cudnn.Graph(handle="other")
    with pytest.raises(RuntimeError, match="after its with block"):
        cudnn.Graph(device="cpu", handle="auto")({})
    with pytest.raises(ValueError, match="'same'"), cudnn.Graph(io_data_type=DT.FLOAT, device="cpu") as twice:
        twice.relu(a, name="same")
        twice.relu(a, name="same")


@pytest.mark.parametrize("name", sorted(BLOCKED_ON_WRAPPER))
def test_graph_steps_are_blocked(name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        getattr(cudnn.Graph(device="cpu"), name)


def test_graph_passes_the_rest_through() -> None:
    g, *_ = build(handle="auto")
    assert g.get_workspace_size() == 0 and g.serialize()[:2] == [80, 75]
    assert g.query_tensor_attributes_of_uid(1).get_dim() == [1, 4, 8]
    assert copy.copy(g).get_workspace_size() == 0
    assert not hasattr(g, "rope") and cudnn.wrapper.Graph is cudnn.Graph
