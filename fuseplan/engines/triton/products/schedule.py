"""The products of a region as a kernel computes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fuseplan.codegen.triton_expr import FP8_TYPES
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.triton.atomic import AtomicReductions
from fuseplan.engines.triton.body import needed_for
from fuseplan.engines.triton.kernel import ParamList
from fuseplan.ir.region import Operand, Region
from fuseplan.runtime.device import Device


@dataclass(frozen=True, slots=True)
class DotOperand:
    """A left or right operand of products: a value of the region, and the type in which the dot takes it."""

    value: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Shares:
    """How programs share the tiles that are left behind `whole` ones: see `kernels/gemm.py`."""

    whole: int
    groups: int
    tiles: int
    shares: int

    def numbers(self, params: ParamList) -> list[str]:
        """Parameters of a kernel with these numbers."""
        return [params.number(f"n_{name}", n, "i32") for name, n in asdict(self).items()]


@dataclass(frozen=True)
class GemmSchedule:
    """The products of a region.

    Args:
        batch: programs per tile of M and N; batch axes of the epilogue are included
        left, right: operands, each once
        pairs: for each matmul, its operands as positions in `left` and `right`
    """

    region: Region
    device: Device
    batch: int
    m: int
    n: int
    k: int
    left: tuple[DotOperand, ...]
    right: tuple[DotOperand, ...]
    pairs: tuple[tuple[int, int], ...]
    reductions: AtomicReductions

    @property
    def has_matrix_units(self) -> bool:
        return all(o.dtype is not FLOAT for o in self.left)

    @property
    def itemsize(self) -> int:
        return max(o.dtype.itemsize for o in (*self.left, *self.right))

    @property
    def tile_outputs(self) -> list[Operand]:
        """Outputs that are whole tiles."""
        outputs = [self.region.operands[n] for n in sorted({operand for _, operand in self.region.stores})]
        return [o for o in outputs if self.is_tile(o.dim)]

    def is_tile(self, dim: tuple[int, ...]) -> bool:
        """Whether dims extend over the rows and the columns of the products."""
        return dim[-2:] == self.region.domain[-2:]


def dot_type(region: Region, anchor: int) -> DType:
    """Type in which the tensor cores (or FMA units, for FLOAT) take the operands."""
    value = region.values[anchor]
    if value.compute in (HALF, BFLOAT16):
        return value.compute
    types = {region.values[a].dtype for a in value.args}
    halves = types - FP8_TYPES  # 8-bit floats are exact in both half types, whose sums are exact in float32
    if len(halves) < 2 and halves <= {HALF, BFLOAT16}:
        return halves.pop() if halves else HALF
    return FLOAT


def contracted(region: Region, anchor: int) -> int:
    """K of a matmul."""
    return region.values[region.values[anchor].args[0]].dim[-1]


def behind(region: Region) -> list[int]:
    """The matmuls, and values that reach a store without passing through one."""
    return needed_for(region, [value for value, _ in region.stores], frozenset(region.anchors))
