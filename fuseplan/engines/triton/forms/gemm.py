"""Matmuls with pointwise work in front of their operands and behind them, and reductions that end the region.

A region may hold several matmuls of equal M, N and K, none of which reads another (gate and up of a SwiGLU share
their left operand): a program computes a tile of each, and loads what they share once. What stands in front of an
operand is computed on its tiles in the main loop. Reductions add up with atomics; what still has to be computed from
them runs in a second, tiny kernel.

Kernels for all extents have INDEX_BITS as their only constant that extents choose: equal texts share a compiled kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis, effective_stride, merge
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.base import Config, KnobSpace, Support, no
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.atomic import AtomicReductions, atomic_reductions, atomic_support
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.knobs import complete_knobs, listed
from fuseplan.engines.triton.layout import is_adjacent
from fuseplan.engines.triton.source import Entry, Function, kernel_text, tuple_text
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLIT_N")
_TENSOR_CORE_GAIN = 11.0  # rate of half-type matrix units over float32 lanes, H100 and H200
_TRAFFIC_WEIGHT = 64.0  # elements of a tile that cost as much as one row or column of operands
_ACCUMULATORS = 128 * 256  # elements of all accumulators of a program that its registers hold

# table: tiles, large first: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, SPLIT_N
_HALF_TILES = (
    (128, 256, 64, 8, 3, 2), (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 3, 2), (128, 256, 64, 8, 4, 2),
    (64, 128, 64, 4, 4, 1), (64, 64, 64, 4, 4, 1), (32, 64, 128, 4, 4, 1), (16, 64, 128, 4, 4, 1),
)  # fmt: skip
_FLOAT_TILES = (
    (64, 128, 16, 8, 3, 1), (64, 64, 16, 4, 3, 1), (32, 64, 32, 4, 3, 1), (32, 32, 32, 4, 3, 1), (16, 32, 32, 4, 3, 1)
)  # fmt: skip
_LEAST_TILE = (16, 32, 32, 4, 2, 1)  # where the operands of several products leave no room for another one
_TILE_KNOBS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "SPLIT_N")


@dataclass(frozen=True, slots=True)
class DotOperand:
    """A left or right operand of products: a value of the region, and the type in which the dot takes it."""

    value: int
    dtype: DType


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


class GemmForm:
    """A tile of each product per program."""

    name = "gemm"

    def match(self, region: Region, device: Device) -> GemmSchedule | Support:
        if not region.anchors:
            return NOT_THIS
        for index in region.anchors:
            if reason := _anchor_gap(region, index):
                return no(reason, at=index)
        support = _operands_support(region)
        if support.is_supported:
            support = atomic_support(region)
        return _schedule(region, device) if support.is_supported else support

    def configs(self, schedule: GemmSchedule) -> KnobSpace:
        tiles = _HALF_TILES if schedule.has_matrix_units else _FLOAT_TILES
        products, limit = len(schedule.pairs), schedule.device.shared_bytes or 99 * 1024
        fitting = [
            t for t in tiles
            if gemm_shared_bytes(t, schedule) <= limit and (products == 1 or t[0] * t[1] * products <= _ACCUMULATORS)
        ] or [_LEAST_TILE]  # fmt: skip
        if schedule.region.graph.is_dynamic:
            wanted = (16384 if schedule.has_matrix_units else 4096) // products
            best = sorted(fitting, key=lambda t: abs(t[0] * t[1] - wanted))
        else:
            best = sorted(fitting, key=lambda t: gemm_cost(t, schedule))
        return listed([{**dict(zip(_TILE_KNOBS, t, strict=True)), "GROUP_M": 8} for t in best[:6]])

    def estimate_us(self, schedule: GemmSchedule, config: Config) -> float:
        knobs = complete_knobs(self.configs(schedule), config)
        gain = _TENSOR_CORE_GAIN if schedule.has_matrix_units else 0.5
        tile = (knobs["BLOCK_M"], knobs["BLOCK_N"])
        ideal = schedule.batch * schedule.m * schedule.n * (1 + _TRAFFIC_WEIGHT * (1 / 128 + 1 / 256))
        share = min(1.0, ideal / max(1, schedule.device.sm_count) / gemm_cost(tile, schedule))
        launches = 1 + len(schedule.region.reductions)
        return estimate_us(schedule.region, schedule.device, launches, schedule.device.peak_gflops * gain * share)

    def notes(self, schedule: GemmSchedule, config: Config) -> frozenset[str]:
        operands = (*schedule.left, *schedule.right)
        found = set() if schedule.reductions.is_deterministic else {"NONDETERMINISTIC"}
        if any(o.dtype is not FLOAT for o in operands):
            found.add("TENSOR_CORE")
        if any(schedule.region.values[o.value].dtype.bits > o.dtype.bits for o in operands):
            found.add("DOWN_CONVERT_INPUTS")
        return frozenset(found)

    def emit(self, schedule: GemmSchedule, config: Config) -> Emitted:
        return _Gemm(schedule, complete_knobs(self.configs(schedule), config)).emit()


def _anchor_gap(region: Region, index: int) -> str:
    """Why a matmul has no main loop here, or none together with the first one."""
    anchor, first = region.values[index], region.values[region.anchors[0]]
    if anchor.op != "matmul":
        return f"'{anchor.op}' has no main loop here"
    if len(region.domain) < 2:
        return "a matmul with something else than two matrices"
    if anchor.compute not in (FLOAT, HALF, BFLOAT16):
        return f"matmul in compute type {anchor.compute}: only FLOAT, HALF and BFLOAT16 sums have a main loop here"
    if (_contracted(region, index), anchor.dim[-2:]) != (_contracted(region, region.anchors[0]), first.dim[-2:]):
        return "matmuls of different M, N or K in one region"
    if anchor.dim[-2:] != region.domain[-2:]:
        return "the matmul's result is broadcast over M or N by its epilogue"
    return ""


def _contracted(region: Region, anchor: int) -> int:
    return region.values[region.values[anchor].args[0]].dim[-1]


def _operands_support(region: Region) -> Support:
    """Whether what stands in front of the matmuls is pointwise, and stays in front of them."""
    anchors = frozenset(region.anchors)
    in_front = needed_for(region, [a for i in region.anchors for a in region.values[i].args])
    for index in in_front:
        if index in anchors:
            return no("a matmul that reads another one's result", at=_reader(region, index))
        if region.values[index].op == "reduce":
            return no("a reduction in front of a matmul", at=index)
    domain = region.domain
    for index in _behind(region):
        if any(d not in (1, e) for d, e in zip(region.values[index].dim, domain, strict=True)):
            return no("what stands in front of a matmul is stored, or used again behind it", at=index)
    return Support(True)


def _reader(region: Region, index: int) -> int:
    """The first matmul that needs a value."""
    return next(i for i in region.anchors if i > index and index in needed_for(region, region.values[i].args))


def _behind(region: Region) -> list[int]:
    """The matmuls, and values that reach a store without passing through one."""
    return needed_for(region, [value for value, _ in region.stores], frozenset(region.anchors))


def dot_type(region: Region, anchor: int) -> DType:
    """Type in which the tensor cores (or FMA units, for FLOAT) take the operands."""
    value = region.values[anchor]
    if value.compute in (HALF, BFLOAT16):
        return value.compute
    types = {region.values[a].dtype for a in value.args}
    halves = types - expr.FP8_TYPES  # 8-bit floats are exact in both half types, whose sums are exact in float32
    if len(halves) < 2 and halves <= {HALF, BFLOAT16}:
        return halves.pop() if halves else HALF
    return FLOAT


def _schedule(region: Region, device: Device) -> GemmSchedule:
    sides: tuple[list[DotOperand], list[DotOperand]] = ([], [])
    pairs = []
    for anchor in region.anchors:
        kind, places = dot_type(region, anchor), []
        for side, value in zip(sides, region.values[anchor].args, strict=True):
            operand = DotOperand(value, kind)
            if operand not in side:
                side.append(operand)
            places.append(side.index(operand))
        pairs.append((places[0], places[1]))
    batch, (m, n) = prod(region.domain[:-2]), region.domain[-2:]
    k = _contracted(region, region.anchors[0])
    left, right = (tuple(side) for side in sides)
    return GemmSchedule(region, device, batch, m, n, k, left, right, tuple(pairs), atomic_reductions(region))


def gemm_shared_bytes(tile: Sequence[int], schedule: GemmSchedule) -> int:
    """Shared memory of the load buffers of a tile; the epilogue reuses it."""
    m, n, k, _, stages = tile[:5]
    return (len(schedule.left) * m * k + len(schedule.right) * k * n) * schedule.itemsize * stages


def gemm_cost(tile: Sequence[int], schedule: GemmSchedule) -> float:
    """Relative time of a tile: waves, times the work and the operand traffic of one tile."""
    block_m, block_n = tile[0], tile[1]
    programs = schedule.batch * -(-schedule.m // block_m) * -(-schedule.n // block_n)
    waves = -(-programs // schedule.device.sm_count)
    return waves * (block_m * block_n + _TRAFFIC_WEIGHT * (block_m + block_n))


class _Gemm:
    """Fills the holes of `kernels/gemm.py`."""

    def __init__(self, schedule: GemmSchedule, knobs: dict[str, int]) -> None:
        region = schedule.region
        self.schedule, self.region, self.knobs = schedule, region, knobs
        self.params, rank = ParamList(region), len(region.domain)
        self.batch = merge(region, range(rank - 2))
        self.sizes = (("m", rank - 2, schedule.m), ("n", rank - 1, schedule.n))

    def emit(self) -> Emitted:
        schedule, knobs = self.schedule, self.knobs
        load_a, load_b = self._load("a", schedule.left), self._load("b", schedule.right)
        epilogue = self._epilogue()
        functions = [load_a, load_b, self._zeros(), self._add_products(), epilogue]
        tuples = [f.params.names for f in (load_a, load_b, epilogue)]
        k_vectors = any(self._is_contiguous_in_k(o.value, side) for side in (0, 1) for o in self._side(side))
        extents = [
            self.params.number("n_m", schedule.m, is_vector=is_adjacent(self.region, len(self.region.domain) - 2)),
            self.params.number("n_n", schedule.n, is_vector=is_adjacent(self.region, len(self.region.domain) - 1)),
            self.params.number("n_k", schedule.k, is_vector=k_vectors),
        ]
        constants = tuple((c, knobs[c]) for c in _CONSTANTS)
        text = kernel_text(Entry("gemm", "tile_of_products", [*tuples, *extents], constants), functions, self.params)
        tiles = -(-schedule.m // knobs["BLOCK_M"]) * -(-schedule.n // knobs["BLOCK_N"])
        return schedule.reductions.around(
            Kernel(
                "gemm",
                text.source,
                text.params,
                text.constants,
                tiles * schedule.batch,
                knobs["num_warps"],
                knobs["num_stages"],
            )  # fmt: skip
        )

    def _side(self, side: int) -> tuple[DotOperand, ...]:
        return self.schedule.right if side else self.schedule.left

    def _is_contiguous_in_k(self, value: int, side: int) -> bool:
        """Whether an operand that is loaded, or one that it is computed from, is contiguous along K."""
        axis = len(self.region.domain) - (2 if side else 1)
        loaded = [i for i in needed_for(self.region, [value]) if i in self.region.operand_of]
        operands = [self.region.operands[self.region.operand_of[i]] for i in loaded]
        return any(o.dim[axis] > 1 and o.stride[axis] == 1 for o in operands)

    def _is_masked(self, extent: int, block: str) -> bool:
        return self.region.graph.is_dynamic or bool(extent % self.knobs[block])

    def _tile_axes(self, *, m_axis: int = -1, n_axis: int = -1, k_axis: int = -1) -> list[TileAxis]:
        """Axes of a tile by the axes of the region that they are; the batch comes first."""
        schedule = self.schedule
        axes = [TileAxis("b", self.batch, first="(b == 0)" if self.batch else "")]
        for name, axis, extent in (("m", m_axis, schedule.m), ("n", n_axis, schedule.n), ("k", k_axis, schedule.k)):
            if axis >= 0:
                mask = f"{name}_inside" if self._is_masked(extent, f"BLOCK_{name.upper()}") else ""
                first = "" if name == "k" else f"{name}_first"
                axes.append(TileAxis(name, (MergedAxis((axis,), extent),), mask, first))
        return axes

    def _load(self, letter: str, operands: Sequence[DotOperand]) -> Function:
        """Tiles of one side's operands: loads, and what is computed from them."""
        region, rank = self.region, len(self.region.domain)
        function = Function(self.params, f"load_{letter}", f"{letter}_params")
        if letter == "a":
            axes, sides = self._tile_axes(m_axis=rank - 2, k_axis=rank - 1), "BLOCK_M, BLOCK_K"
        else:
            axes, sides = self._tile_axes(n_axis=rank - 1, k_axis=rank - 2), "BLOCK_K, BLOCK_N"
        body = Body(region, axes, function)
        body.split_index(axes[0])
        for index in needed_for(region, [o.value for o in operands]):
            body.define(index)
        k_axis = -1 if letter == "a" else -2
        tiles = [self._tile(o, k_axis, sides) for o in operands]
        function.out.line(f"return {tuple_text(tiles)}")
        return function

    def _tile(self, operand: DotOperand, k_axis: int, sides: str) -> str:
        """A whole tile in the type of the dot, with zeros outside of K."""
        value = self.region.values[operand.value]
        x = expr.coerce(f"v{operand.value}", value.dtype, operand.dtype)
        stride: tuple[int, ...] = (0, 0)  # of a plain load; with 0 it does not extend over the axis
        if value.op == "load":
            stride = effective_stride(self.region.operands[self.region.operand_of[operand.value]])[-2:]
        if self._is_masked(self.schedule.k, "BLOCK_K") and not stride[k_axis]:
            x = f"tl.where(k_inside, {x}, 0.0).to({expr.VALUE_TYPES[operand.dtype]})"
        return x if all(stride) else f"tl.broadcast_to({x}, ({sides}))"

    def _zeros(self) -> Function:
        function = Function(self.params, "zeros")
        zero = "tl.zeros((BLOCK_M, BLOCK_N), tl.float32)"
        function.out.line(f"return {tuple_text([zero] * len(self.schedule.pairs))}")
        return function

    def _add_products(self) -> Function:
        function, left = Function(self.params, "add_products"), self.schedule.left
        dots = []
        for number, (a, b) in enumerate(self.schedule.pairs):
            precision = ', input_precision="ieee"' if left[a].dtype is FLOAT else ""
            dots.append(f"tl.dot(a[{a}], b[{b}], acc[{number}]{precision})")
        function.out.line(f"return {tuple_text(dots)}")
        return function

    def _epilogue(self) -> Function:
        region, reductions, rank = self.region, self.schedule.reductions, len(self.region.domain)
        function = Function(self.params, "epilogue")
        axes = self._tile_axes(m_axis=rank - 2, n_axis=rank - 1)
        body = Body(region, axes, function)
        body.split_index(axes[0])
        for number, index in enumerate(region.anchors):
            anchor = region.values[index]
            part = expr.from_work(f"columns_part(acc[{number}], PART, PARTS)", anchor.compute, anchor.dtype)
            function.out.line(f"v{index} = {part}")
        stored: list[tuple[int, int]] = []
        for index in _behind(region):
            if index in reductions.dependent:
                continue
            if index in reductions.accumulators:
                self._reduce(index, body)
                continue
            if index not in region.anchors:
                body.define(index)
            stored += [(index, operand) for operand in region.outputs_of.get(index, ())]
        for index, operand in stored:  # after all loads: an output may lie in the buffer of an input
            body.store(index, operand)
        return function

    def _reduce(self, index: int, body: Body) -> None:
        source = self.region.values[self.region.values[index].args[0]]
        seen = [a for a in body.axes if any(g.extent == 1 or g.varies(source.dim) for g in a.groups)]
        _, m_axis, n_axis = body.axes
        sides = ["BLOCK_M" if m_axis in seen else "1", "BLOCK_N" if n_axis in seen else "1"]
        self.schedule.reductions.add(index, body, seen, sides)
