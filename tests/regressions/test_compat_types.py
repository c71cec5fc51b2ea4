"""Every type that a tensor may have goes through every plan that takes it, with strides, and through the tuner."""

from __future__ import annotations

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.dtypes import dtype_of
from fuseplan.ir.graph import TensorSpec
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.testing.run import HostBuffer

FLOAT = cudnn.data_type.FLOAT
STORED = (
    "FLOAT DOUBLE HALF BFLOAT16 INT8 UINT8 INT32 INT64 BOOLEAN FP8_E4M3 FP8_E5M2 FP8_E8M0"
).split()  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_every_stored_type_is_read_and_written_with_strides(name: str) -> None:
    kind = numpy_dtype(dtype_of(name))
    values = np.array([[0, 1, 2, 1, 4, 0.5], [1, 1, 0, 8, 2, 2]], np.float32)
    x = np.ascontiguousarray(values.astype(kind).T).T  # column-major
    g = cudnn.pygraph(intermediate_data_type=FLOAT, compute_data_type=FLOAT, device="cpu")
    a = g.tensor(dim=[2, 6], stride=[1, 2], data_type=cudnn.data_type[name])
    wide, same = g.identity(a), g.identity(a)
    wide.set_output(True).set_data_type(FLOAT)
    same.set_output(True).set_data_type(cudnn.data_type[name])
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert same.get_stride() == [1, 2]
    for i in range(g.get_execution_plan_count()):
        floats, copy = np.zeros((6, 2), np.float32).T, np.zeros((6, 2), kind).T
        pack = {a: x, wide: floats, same: copy}
        g.execute_plan_at_index(pack, np.empty(g.get_workspace_size_plan_at_index(i), np.uint8), i)
        np.testing.assert_array_equal(floats.astype(np.float64), x.astype(np.float64))
        np.testing.assert_array_equal(copy.astype(np.float64), x.astype(np.float64))
    assert {row.outcome for row in g.autotune(pack, budget_s=1.0).rows} == {"right"}


@pytest.mark.parametrize("name", STORED)
def test_buffers_of_the_conformance_runner_hold_every_type(name: str) -> None:
    held = HostBuffer(TensorSpec(uid=1, name="x", dim=(3, 2), stride=(1, 4), dtype=dtype_of(name)))
    held.view[...] = np.ones((3, 2), held.view.dtype)
    assert held.is_guarded and held.view.strides == tuple(s * held.view.itemsize for s in (1, 4))
