"""A generated kernel before it is compiled: source, parameters in order, launch shape. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fuseplan.codegen.triton_expr import SIGNATURE_TYPES
from fuseplan.codegen.writer import operand_names
from fuseplan.dtypes import DType
from fuseplan.engines.triton.layout import bulk_operands, index_bits
from fuseplan.ir.region import Region, Role


class ParamKind(Enum):
    """Where a kernel parameter comes from."""

    POINTER = "pointer"  # address of a region operand
    SCALAR = "scalar"  # value of a host scalar
    SCRATCH = "scratch"  # address in the private scratch
    MAP = "map"  # tensor map of a region operand
    TABLE = "table"  # address of numbers of 32 bits that are known when the plan is made
    NUMBER = "number"  # extent, stride or count, known when the plan is made


@dataclass(frozen=True, slots=True)
class TileView:
    """An operand as the copy engine sees it: extents and strides in elements, slow to fast, and its tile.

    Args:
        dtype: element type
    """

    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    tile: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """One runtime parameter.

    Args:
        name: its name in the source
        type: its type in a Triton signature
        kind: where it comes from
        operand: region operand of a POINTER, SCALAR or MAP
        value: a NUMBER's value; bytes from the address given to that of a POINTER, SCRATCH or MAP
        is_dynamic: a NUMBER that other extents change while the kernel stays, so nothing may be promised about it
        is_vector: vectors of a kernel for all extents need this NUMBER to be a multiple of their length
        view: of a MAP
        numbers: of a TABLE
    """

    name: str
    type: str
    kind: ParamKind
    operand: int = -1
    value: int = 0
    is_dynamic: bool = False
    is_vector: bool = False
    view: TileView | None = None
    numbers: tuple[int, ...] = field(default=(), repr=False)

    @property
    def is_address(self) -> bool:
        return self.kind in (ParamKind.POINTER, ParamKind.SCRATCH, ParamKind.TABLE)

    @property
    def multiple(self) -> int:
        """A power of two that may be promised to divide a number: enough for 16-byte vectors of any type, or 1."""
        if self.kind is not ParamKind.NUMBER or self.type[0] != "i" or self.is_dynamic:
            return 1
        return next((m for m in (16, 8, 4) if self.value % m == 0), 1)


@dataclass(frozen=True)
class Kernel:
    """One launch of generated code.

    Args:
        function: name of the function in `source`
        params: runtime parameters, in the order of the signature
        constants: compile-time parameters, after the runtime ones
        is_cooperative: its programs wait for each other, so all of them must be on the device at once
        is_gluon: whether the source is Gluon
    """

    function: str
    source: str
    params: tuple[Param, ...]
    constants: tuple[tuple[str, int], ...]
    grid: int
    num_warps: int
    num_stages: int = 3
    is_cooperative: bool = False
    is_gluon: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """32-bit words to be written before a kernel; operand -1 is the private scratch."""

    operand: int
    offset_bytes: int
    word: int
    words: int = 1


@dataclass(frozen=True)
class Emitted:
    """What a region becomes: fills and kernels in order.

    Args:
        unaligned: the same for addresses that are no multiples of 16 bytes, where that is other kernels
    """

    steps: tuple[Kernel | Fill, ...]
    scratch_bytes: int = 0
    unaligned: Callable[[], Emitted] | None = None


class ParamList:
    """Parameters of a kernel in the making; asking twice gives the same one.

    A list with a parent holds those that one device function uses; the kernel takes all of them.
    """

    def __init__(self, region: Region, parent: ParamList | None = None) -> None:
        self.region, self._parent = region, parent
        self._operand_names = operand_names(region.operands)
        self.is_dynamic = region.graph.is_dynamic
        self._number_type = "i64" if self.is_dynamic or index_bits(region) == 64 else "i32"
        self._kept: dict[str, Param] = {}

    def _keep(self, param: Param) -> str:
        self._kept[param.name] = param
        if self._parent is not None:
            self._parent._keep(param)
        return param.name

    def operand(self, index: int, *, as_type: str = "") -> str:
        """The pointer or host scalar of a region operand."""
        operand = self.region.operands[index]
        element = as_type or SIGNATURE_TYPES[operand.dtype]
        name = self._operand_names[index]
        if operand.role is Role.SCALAR:
            return self._keep(Param(name, element, ParamKind.SCALAR, index))
        if operand.role is Role.SCRATCH:
            return self.scratch(operand.offset * operand.dtype.itemsize, element)
        return self._keep(Param(name, f"*{element}", ParamKind.POINTER, index, operand.offset * operand.dtype.itemsize))

    def tile_map(self, index: int, view: TileView) -> str:
        """The tensor map of a region operand with tiles of one shape."""
        operand = self.region.operands[index]
        name = f"{self._operand_names[index]}_{'x'.join(map(str, view.tile))}"
        type_ = f"tensordesc<{SIGNATURE_TYPES[operand.dtype]}{list(view.tile)}>"
        offset = operand.offset * operand.dtype.itemsize
        return self._keep(Param(name, type_, ParamKind.MAP, index, offset, view=view))

    def scratch(self, offset_bytes: int, element: str) -> str:
        """A pointer into the private scratch."""
        return self._keep(Param(f"scratch{offset_bytes}", f"*{element}", ParamKind.SCRATCH, value=offset_bytes))

    def table(self, name: str, numbers: Sequence[int]) -> str:
        """A pointer to numbers of 32 bits in memory of the plan."""
        return self._keep(Param(name, "*i32", ParamKind.TABLE, numbers=tuple(numbers)))

    def number(self, name: str, value: int, type_: str = "", *, is_vector: bool = False) -> str:
        """An extent, stride or count."""
        dynamic = self.is_dynamic
        type_ = self._number_type if dynamic else type_ or self._number_type
        return self._keep(Param(name, type_, ParamKind.NUMBER, -1, value, dynamic, is_vector and dynamic))

    def stride(self, name: str, step: int, operand: int, *, is_walked: bool = True) -> str:
        """A stride of an operand: 0 and 1 are baked in, others are numbers; 0 at launch if only position 0 is there."""
        if step in (0, 1):
            return str(step)
        value = step if is_walked else 0
        return self.number(name, value, is_vector=self.region.operands[operand] in bulk_operands(self.region))

    def adopt(self, other: ParamList) -> tuple[str, ...]:
        """Names of another list's parameters, which this one then holds as well."""
        return tuple([self._keep(p) for p in other.in_order()])

    def in_order(self) -> tuple[Param, ...]:
        """Operands in launch order, then the rest in order of first use."""
        operands = sorted((p for p in self._kept.values() if p.operand >= 0), key=lambda p: p.operand)
        return (*operands, *(p for p in self._kept.values() if p.operand < 0))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([p.name for p in self.in_order()])
