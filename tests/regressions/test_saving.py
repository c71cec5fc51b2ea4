"""Plans that were saved, loaded and saved again."""

from __future__ import annotations

import numpy as np
import pytest

import fuseplan as cudnn


def built_graph() -> cudnn.pygraph:
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle(device="cpu"))
    x = graph.tensor(dim=[4, 8], stride=[8, 1], uid=1)
    graph.tanh(x).set_output(True).set_uid(2)
    graph.build()
    return graph


def loaded_graph(data: bytes | list[int]) -> cudnn.pygraph:
    graph = cudnn.pygraph(handle=cudnn.create_handle(device="cpu"))
    graph.deserialize(data)
    return graph


@pytest.mark.parametrize("as_bytes", [True, False])
def test_loaded_plan_is_saved_as_it_was(as_bytes: bool) -> None:
    data = built_graph().serialize(as_bytes=as_bytes)
    again = loaded_graph(data).serialize(as_bytes=as_bytes)
    assert again == data
    x, y = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8), np.empty((4, 8), np.float32)
    loaded_graph(again).execute({1: x, 2: y})
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=1e-6)
