"""cuBLASLt through ctypes: the library, handles, descriptions of products, its choice of algorithms.

The library is the one that the process has loaded already, else that of an installed package, else the system's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuseplan.engines.cublaslt.translate import TYPES, Matrix, Product
from fuseplan.errors import DeviceError
from fuseplan.runtime import cuda

WORKSPACE_BYTES = 32 << 20
MOST_ALGORITHMS = 8
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_PACKAGES = ("nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")
_COMPUTE_32F, _TYPE_32F = 68, 0  # of cublasComputeType_t, cudaDataType
_TRANSPOSED = (3, 4)  # of cublasLtMatmulDescAttributes_t: TRANSA, TRANSB
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # of cublasLtMatrixLayoutAttribute_t
_MAX_WORKSPACE, _REDUCTION_SCHEMES, _ALIGNMENTS = (
    1,
    3,
    (5, 6, 7, 8),
)  # of cublasLtMatmulPreferenceAttributes_t
_IN_COMPUTE_TYPE = 2  # parts of a split sum are added up as they were summed, not in the type of the result
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH", 11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
}  # fmt: skip


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("data", ctypes.c_uint64 * 8), ("workspace_bytes", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    ]  # fmt: skip


def status_text(status: int) -> str:
    """The library's name of a status."""
    return _STATUS.get(status, f"status {status}")


class Library:
    """A loaded library."""

    def __init__(self, path: str) -> None:
        self.path, self.entries = path, ctypes.CDLL(path)
        self.entries.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self.entries.cublasLtGetVersion())
        self.matmul = (
            ctypes.cast(self.entries.cublasLtMatmul, ctypes.c_void_p).value or 0
        )
        self.handles: dict[int, int] = {}

    def call(self, function: str, *args: Any) -> None:
        """Call a function of the library. Raises DeviceError if it does not return success."""
        if status := getattr(self.entries, function)(*args):
            raise DeviceError(
                f"{function} failed: {status_text(status)}",
                fix="take another engine's plan",
            )

    def handle(self, index: int) -> int:
        """The handle of a device, made once; it may be used by several threads."""
        if index not in self.handles:
            made = ctypes.c_void_p()
            with cuda.current(index):
                self.call("cublasLtCreate", ctypes.byref(made))
            self.handles[index] = made.value or 0
        return self.handles[index]

    def make(self, kind: str, *args: Any) -> ctypes.c_void_p:
        """A description of the library's own."""
        made = ctypes.c_void_p()
        self.call(f"cublasLt{kind}Create", ctypes.byref(made), *args)
        return made

    def set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of a description; `value` is a number of ctypes."""
        self.call(
            f"cublasLt{kind}SetAttribute",
            made,
            attribute,
            ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
        )


class Description:
    """A product as the library holds it; gone with the object."""

    def __init__(self, library: Library, product: Product) -> None:
        self.library = library
        self.operation = library.make(
            "MatmulDesc", ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_TYPE_32F)
        )
        self._kept = [("MatmulDesc", self.operation)]
        weakref.finalize(self, _destroy, library, self._kept)
        for attribute, matrix in zip(_TRANSPOSED, (product.a, product.b), strict=True):
            library.set(
                "MatmulDesc",
                self.operation,
                attribute,
                ctypes.c_int32(matrix.is_turned),
            )
        self.layouts = [
            self._layout(m, product.batch) for m in (product.a, product.b, product.d)
        ]

    def _layout(self, matrix: Matrix, batch: int) -> ctypes.c_void_p:
        made = self.library.make(
            "MatrixLayout", ctypes.c_int(TYPES[matrix.dtype]), ctypes.c_uint64(matrix.rows),
            ctypes.c_uint64(matrix.columns), ctypes.c_int64(matrix.leading),
        )  # fmt: skip
        self._kept.append(("MatrixLayout", made))
        if batch > 1:
            self.library.set("MatrixLayout", made, _BATCH_COUNT, ctypes.c_int32(batch))
            self.library.set(
                "MatrixLayout", made, _BATCH_STRIDE, ctypes.c_int64(matrix.batch_stride)
            )
        return made

    def algorithms(self, index: int, alignment: int) -> list[Algorithm]:
        """What the library would take on a device, its first choice first; empty if it takes the product not at all.

        Args:
            alignment: bytes that all addresses are multiples of
        """
        library, found = self.library, (Algorithm * MOST_ALGORITHMS)()
        preference, count = library.make("MatmulPreference"), ctypes.c_int()
        try:
            library.set(
                "MatmulPreference",
                preference,
                _MAX_WORKSPACE,
                ctypes.c_uint64(WORKSPACE_BYTES),
            )
            library.set(
                "MatmulPreference",
                preference,
                _REDUCTION_SCHEMES,
                ctypes.c_uint32(_IN_COMPUTE_TYPE),
            )
            for attribute in _ALIGNMENTS:
                library.set(
                    "MatmulPreference",
                    preference,
                    attribute,
                    ctypes.c_uint32(alignment),
                )
            a, b, d = self.layouts
            with cuda.current(index):
                status = library.entries.cublasLtMatmulAlgoGetHeuristic(
                    ctypes.c_void_p(library.handle(index)), self.operation, a, b, d, d, preference,
                    ctypes.c_int(MOST_ALGORITHMS), found, ctypes.byref(count),
                )  # fmt: skip
        finally:
            library.entries.cublasLtMatmulPreferenceDestroy(preference)
        return [f for f in found[: count.value] if f.state == 0] if status == 0 else []


def _destroy(library: Library, kept: list[tuple[str, ctypes.c_void_p]]) -> None:
    for kind, made in kept:
        getattr(library.entries, f"cublasLt{kind}Destroy")(made)


def _places() -> Iterator[str]:
    """Where the library may be, best first."""
    try:
        lines = (
            Path("/proc/self/maps")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError:
        lines = []
    yield from dict.fromkeys(
        words[5]
        for words in map(str.split, lines)
        if len(words) > 5 and "libcublasLt.so" in words[5]
    )
    for folder in _PACKAGES:
        top, _, rest = folder.partition("/")
        spec = importlib.util.find_spec(top)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield from (
                str(Path(root, rest, name))
                for name in _NAMES
                if Path(root, rest, name).exists()
            )
    yield from _NAMES


@functools.cache
def library() -> Library | None:
    """The library; None if there is none, or no CUDA device in this process."""
    if not cuda.is_available():
        return None
    for place in _places():
        try:
            return Library(place)
        except (OSError, AttributeError):
            continue
    return None
