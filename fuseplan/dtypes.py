"""Data types by name: bits, exponent, limits. Knows no framework's dtype objects."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type; compared by identity, there is one object per name.

    Args:
        name: the API's name, for instance ``"BFLOAT16"``
        bits: storage bits per element
        kind: ``"float"``, ``"int"``, ``"uint"`` or ``"bool"``
        mantissa_bits: stored fraction bits of a float type, else 0
        max_finite: largest finite value
        numpy_name: name understood by numpy or ml_dtypes; empty if there is none
    """

    name: str
    bits: int
    kind: str
    mantissa_bits: int
    max_finite: float
    numpy_name: str

    @property
    def itemsize(self) -> int:
        """Bytes per element; for types under a byte, 1."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def low(self) -> int:
        """The lowest value of an integer type."""
        return 0 if self.kind == "uint" else -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """The highest value of an integer type."""
        return self.low + (1 << self.bits) - 1

    def holds(self, value: float) -> bool:
        """Whether an integer type has this value."""
        is_whole = isinstance(value, int) or (isfinite(value) and value == int(value))
        return is_whole and self.low <= int(value) <= self.high

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (dtype_of, (self.name,))


FLOAT = DType("FLOAT", 32, "float", 23, 3.4028234663852886e38, "float32")
DOUBLE = DType("DOUBLE", 64, "float", 52, 1.7976931348623157e308, "float64")
HALF = DType("HALF", 16, "float", 10, 65504.0, "float16")
BFLOAT16 = DType("BFLOAT16", 16, "float", 7, 3.3895313892515355e38, "bfloat16")
INT8 = DType("INT8", 8, "int", 0, 127.0, "int8")
UINT8 = DType("UINT8", 8, "uint", 0, 255.0, "uint8")
INT32 = DType("INT32", 32, "int", 0, 2147483647.0, "int32")
INT64 = DType("INT64", 64, "int", 0, 9.223372036854775807e18, "int64")
BOOLEAN = DType("BOOLEAN", 8, "bool", 0, 1.0, "bool")
FP8_E4M3 = DType("FP8_E4M3", 8, "float", 3, 448.0, "float8_e4m3fn")
FP8_E5M2 = DType("FP8_E5M2", 8, "float", 2, 57344.0, "float8_e5m2")
FP8_E8M0 = DType("FP8_E8M0", 8, "float", 0, 2.0**127, "float8_e8m0fnu")
FP8_E5M3 = DType("FP8_E5M3", 8, "float", 3, 114688.0, "")
FP4_E2M1 = DType("FP4_E2M1", 4, "float", 1, 6.0, "float4_e2m1fn")
INT4 = DType("INT4", 4, "int", 0, 7.0, "int4")
INT8x4 = DType("INT8x4", 32, "int", 0, 127.0, "")
UINT8x4 = DType("UINT8x4", 32, "uint", 0, 255.0, "")
INT8x32 = DType("INT8x32", 256, "int", 0, 127.0, "")
FAST_FLOAT_FOR_FP8 = DType("FAST_FLOAT_FOR_FP8", 32, "float", 23, 3.4028234663852886e38, "float32")

#: all of the above by their names
ALL_TYPES: dict[str, DType] = {t.name: t for t in list(globals().values()) if isinstance(t, DType)}
#: by the names that array libraries give to their types
BY_ARRAY_NAME: dict[str, DType] = {
    **{t.numpy_name: t for t in reversed(ALL_TYPES.values()) if t.numpy_name},
    "float4_e2m1fn_x2": FP4_E2M1, "float": FLOAT, "double": DOUBLE, "half": HALF,
}  # fmt: skip


def dtype_of(name: str) -> DType:
    """The type with this API name. Raises KeyError for an unknown name."""
    return ALL_TYPES[name]
