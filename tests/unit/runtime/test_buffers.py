"""Buffers of every kind seen as address, bytes, type and place; numbers rounded once."""

from __future__ import annotations

import array
import ctypes
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuseplan import dtypes
from fuseplan.errors import BindError
from fuseplan.ops.arrays import numpy_dtype
from fuseplan.runtime import buffers
from fuseplan.runtime.buffers import view_of


class DLPackOnly:
    """An object that gives its memory by DLPack and nothing else."""

    def __init__(self, owner: Any, versioned: bool) -> None:
        self.owner, self.versioned = owner, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and "max_version" in options:
            raise TypeError("max_version is not known")
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class CudaArray:
    """An object with the array interface of CUDA libraries."""

    __cuda_array_interface__ = {"data": (4096, False), "shape": (2, 3), "typestr": "<f4", "strides": (32, 4)}


def test_address_is_all_that_an_int_says() -> None:
    assert view_of(12345)[:5] == view_of(np.int64(12345))[:5] == (12345, None, None, "", 0)
    for number in (-1, 1 << 64):
        with pytest.raises(BindError, match="is not an address"):
            view_of(number)


@pytest.mark.parametrize("t", [t for t in dtypes.ALL_TYPES.values() if t.numpy_name and t.name[:4] != "FAST"], ids=str)
def test_numpy_array_of_each_type_is_seen(t: dtypes.DType) -> None:
    dtype = numpy_dtype(t)
    a = np.zeros((3, 4), dtype)[1:, ::2]
    seen = view_of(a)
    assert (seen.address, seen.dtype, seen.place) == (a.ctypes.data, t.name, "cpu")
    assert seen.nbytes == (4 + 2 + 1) * a.itemsize
    assert not seen.contiguous and not seen.readonly


def test_numpy_corner_cases() -> None:
    fixed = np.zeros(3, np.float32)
    fixed.flags.writeable = False
    assert view_of(fixed).readonly
    assert view_of(np.zeros((0, 3), np.float32)).nbytes == 0
    assert view_of(np.zeros(3, ">f4")).dtype == ">f4"  # bytes in the other order are no FLOAT
    assert view_of(np.zeros(3, np.int16)).dtype == "int16"
    assert view_of(np.zeros(5, np.float64)[::-1]).nbytes == 8  # nothing after the first element
    assert view_of(np.broadcast_to(np.float32(1), (4, 4))).nbytes == 4


def test_torch_tensor_is_seen() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros(4, 6, dtype=torch.bfloat16)[1:, 1:3].T
    seen = view_of(t)
    assert seen[:5] == (t.data_ptr(), (2 * 6 + 1 + 1) * 2, "BFLOAT16", "cpu", 0)
    assert not seen.contiguous
    assert view_of(torch.zeros(3, dtype=torch.float8_e4m3fn)).dtype == "FP8_E4M3"
    assert view_of(torch.zeros(3, dtype=torch.int16)).dtype == "int16"
    for bad in (
        torch.zeros(2, device="meta"),
        torch.zeros(4, 4).to_sparse(),
        torch.zeros(2, dtype=torch.cfloat).conj().imag,
    ):
        with pytest.raises(BindError):
            view_of(bad)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_object_is_seen(versioned: bool) -> None:
    torch = pytest.importorskip("torch")
    owner = torch.zeros(4, 6)[:, 2:]
    seen = view_of(DLPackOnly(owner, versioned))
    assert seen[:5] == (owner.data_ptr(), (3 * 6 + 3 + 1) * 4, "FLOAT", "cpu", 0)
    assert seen.keep is not None and not seen.contiguous


def test_python_memory_is_seen() -> None:
    numbers = array.array("d", [1.0, 2.0])
    assert view_of(numbers)[:4] == (numbers.buffer_info()[0], 16, "DOUBLE", "cpu")
    raw = bytearray(8)
    seen = view_of(raw)
    assert (seen.nbytes, seen.dtype, seen.readonly) == (8, None, False)
    assert seen.address == ctypes.addressof(ctypes.c_char.from_buffer(raw))
    with pytest.raises(BufferError):
        raw.append(1)  # what the view keeps stops the bytes from moving
    assert view_of(b"1234").readonly
    assert view_of(memoryview(array.array("i", [1]))).dtype == "INT32"
    with pytest.raises(BindError, match="gaps"):
        view_of(memoryview(raw)[::2])


def test_cuda_array_interface_is_seen() -> None:
    assert view_of(CudaArray())[:6] == (4096, 32 + 2 * 4 + 4, "FLOAT", "cuda", -1, False)


@pytest.mark.parametrize("thing", ["text", None, 1.5, True, np.float32(1), object()], ids=lambda t: type(t).__name__)
def test_what_is_no_buffer_is_refused(thing: object) -> None:
    with pytest.raises(BindError, match="is not a buffer"):
        view_of(thing)


@pytest.mark.parametrize(("dim", "stride", "bits", "expected"), [
    ((2, 3), (3, 1), 32, 24), ((2, 3), (10, 2), 16, 30), ((0, 3), (3, 1), 32, 0), ((), (), 64, 8), ((5,), (0,), 32, 4),
    ((3,), (1,), 4, 2),
])  # fmt: skip
def test_span_counts_to_past_the_last_element(dim: Any, stride: Any, bits: int, expected: int) -> None:
    assert buffers.span_bytes(dim, stride, bits) == expected


def nearest(value: float, t: dtypes.DType) -> float:
    """Round to nearest even in exact arithmetic; for normal numbers of `t`."""
    mantissa, exponent = math.frexp(value)
    scaled = Fraction(mantissa) * 2 ** (t.mantissa_bits + 1)
    return float(round(scaled) * Fraction(2) ** (exponent - t.mantissa_bits - 1))


@pytest.mark.parametrize("t", [dtypes.FLOAT, dtypes.HALF, dtypes.BFLOAT16, dtypes.FP8_E4M3, dtypes.FP8_E5M2], ids=str)
def test_number_is_rounded_once(t: dtypes.DType) -> None:
    half_ulp = 2.0 ** -(t.mantissa_bits + 1)
    dtype = numpy_dtype(t)
    # a hair beside the middle of two neighbours: rounding through float32 would land on the middle
    for value in (
        1 + half_ulp + 2.0**-40,
        1 + half_ulp - 2.0**-40,
        1 + half_ulp,
        1 + 3 * half_ulp,
        -1 - 3 * half_ulp,
        0.1,
        3.7,
    ):
        got = np.frombuffer(buffers.encode_scalar(value, t), dtype).astype(np.float64)[0]
        assert got == nearest(value, t), (value, t)


def test_number_that_does_not_fit_an_integer_is_refused() -> None:
    assert buffers.encode_scalar(-3.0, dtypes.INT32) == (-3).to_bytes(4, "little", signed=True)
    assert buffers.encode_scalar(True, dtypes.FLOAT) == np.float32(1).tobytes()
    assert buffers.encode_scalar(2.0, dtypes.BOOLEAN) == b"\x01"
    for value in (0.5, math.inf, math.nan, 300.0):
        with pytest.raises(BindError, match="does not fit"):
            buffers.encode_scalar(value, dtypes.INT8)


def test_overflow_of_a_float_type_is_infinite() -> None:
    assert buffers.encode_scalar(1e300, dtypes.FLOAT) == np.float32(np.inf).tobytes()
    assert buffers.encode_scalar(-1e300, dtypes.HALF) == np.float16(-np.inf).tobytes()
    assert np.isnan(np.frombuffer(buffers.encode_scalar(math.nan, dtypes.BFLOAT16), ml_dtypes.bfloat16))[0]


@pytest.mark.parametrize("seed", range(200))
def test_run_length_is_what_the_elements_cover_without_a_gap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(0, 4))
    dim = tuple(int(d) for d in rng.integers(1, 4, rank))
    stride = tuple(int(s) for s in rng.choice([0, 1, 1, 2, 3, 4, 6, 9], rank))
    offsets = [sum(i * s for i, s in zip(at, stride, strict=True)) for at in np.ndindex(*dim)]
    covered = next(n for n in range(len(offsets) + 1) if n not in offsets)
    repeats = np.prod([d for d, s in zip(dim, stride, strict=True) if s == 0])
    found = buffers.run_length(dim, stride)
    overlaps = len(set(offsets)) * repeats < len(offsets)
    assert found == (0 if found == 0 and overlaps else covered)
    assert buffers.run_length(dim, tuple(8 * s for s in stride), 8) == 8 * found
