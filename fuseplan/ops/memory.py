"""Strided views of raw memory as arrays of NumPy (host) or PyTorch (CUDA), and stores into them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuseplan.dtypes import DType
from fuseplan.ir.graph import span_elements
from fuseplan.ops.arrays import numpy_dtype, torch_dtype

Array = Any


def view_host(
    address: int, dim: tuple[int, ...], stride: tuple[int, ...], t: DType
) -> Array:
    """Host memory as a NumPy array; nothing is copied and the memory is not kept alive."""
    kind = numpy_dtype(t)
    size = span_elements(dim, stride) * kind.itemsize
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    strides = tuple(s * kind.itemsize for s in stride)
    return np.ndarray(
        dim, kind, memory, strides=strides
    )  # as_strided refuses float8_e5m2


class _CudaMemory:
    """Bytes of device memory in the form that PyTorch imports without copying."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def view_cuda(
    address: int, dim: tuple[int, ...], stride: tuple[int, ...], t: DType, index: int
) -> Array:
    """Device memory as a PyTorch tensor; nothing is copied and the memory is not kept alive."""
    import torch

    size = span_elements(dim, stride) * t.itemsize
    raw = torch.as_tensor(
        _CudaMemory(address, size), device=torch.device("cuda", index)
    )
    return raw.view(torch_dtype(t)).as_strided(dim, stride)


def store_all(targets: Mapping[int, Array], values: Mapping[int, Array]) -> None:
    """Store values by uid; a value that is a view of an input outlives the stores before it."""
    kept = dict(values)
    for uid in list(values)[1:]:
        kept[uid] = (
            values[uid].copy()
            if isinstance(targets[uid], np.ndarray)
            else values[uid].clone()
        )
    for uid, value in kept.items():
        store(targets[uid], value)


def store(target: Array, value: Array) -> None:
    """Copy a value of the same dims and type into a view."""
    if isinstance(target, np.ndarray):
        target[...] = value
    else:
        target.copy_(value)
