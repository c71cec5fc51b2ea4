"""What fills the holes of `kernels/gemm.py` whatever the main loop: loads, products, the epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis, effective_stride, merge
from fuseplan.dtypes import FLOAT
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.kernel import Kernel, ParamList
from fuseplan.engines.triton.layout import is_adjacent
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, behind
from fuseplan.engines.triton.products.tiles import Tile, shares_of
from fuseplan.engines.triton.products.views import TileBody
from fuseplan.engines.triton.source import Function, KernelText, tuple_text


class Holes:
    """Functions of a schedule's kernels under one config, and the parameters that they take."""

    def __init__(self, schedule: GemmSchedule, knobs: Mapping[str, int]) -> None:
        region = schedule.region
        self.schedule, self.region, self.knobs = schedule, region, dict(knobs)
        self.params, rank = ParamList(region), len(region.domain)
        self.batch = merge(region, range(rank - 2))
        self.is_swapped, self.is_mapped = bool(knobs["SWAP"]), bool(knobs["MAPS"])
        self.shares = shares_of(Tile.of(knobs), schedule) if knobs["SHARED_TAIL"] else None
        self.is_sliced = bool(knobs["SPLIT_K"] > 1 and knobs["SHARED_TAIL"])
        self.split_n = 1 if self.is_swapped or knobs["SPLIT_K"] > 1 else knobs["SPLIT_N"]

    def _kernel(self, name: str, text: KernelText, programs: int) -> Kernel:
        knobs = self.knobs
        return Kernel(name, text.source, text.params, text.constants, programs, knobs["num_warps"], knobs["num_stages"])

    def _tiles(self) -> int:
        """Tiles of one batch."""
        return -(-self.schedule.m // self.knobs["BLOCK_M"]) * -(-self.schedule.n // self.knobs["BLOCK_N"])

    def _extent(self, axis: str) -> str:
        """The parameter of M, N or K."""
        schedule, rank = self.schedule, len(self.region.domain)
        if axis == "k":
            is_vector = any(self._is_contiguous_in_k(o.value, side) for side in (0, 1) for o in self._side(side))
            return self.params.number("n_k", schedule.k, is_vector=is_vector)
        is_vector = is_adjacent(self.region, rank - 2 if axis == "m" else rank - 1)
        return self.params.number(f"n_{axis}", schedule.m if axis == "m" else schedule.n, is_vector=is_vector)

    def _side(self, side: int) -> tuple[DotOperand, ...]:
        return self.schedule.right if side else self.schedule.left

    def _is_contiguous_in_k(self, value: int, side: int) -> bool:
        """Whether an operand that is loaded, or one that it is computed from, is contiguous along K."""
        axis = len(self.region.domain) - (2 if side else 1)
        loaded = [i for i in needed_for(self.region, [value]) if i in self.region.operand_of]
        operands = [self.region.operands[self.region.operand_of[i]] for i in loaded]
        return any(o.dim[axis] > 1 and o.stride[axis] == 1 for o in operands)

    def _tile_axes(self, sides: Mapping[str, int]) -> list[TileAxis]:
        """Axes of a tile, by name and side; the batch comes first."""
        schedule, rank = self.schedule, len(self.region.domain)
        axes = [TileAxis("b", self.batch, first="(b == 0)" if self.batch else "")]
        extents = {"m": schedule.m, "n": schedule.n, "k": schedule.k}
        for place, (name, side) in enumerate(sides.items(), rank - 2):
            is_masked = self.region.graph.is_dynamic or bool(extents[name] % side)
            mask = f"{name}_inside" if is_masked else ""
            first = "" if name == "k" else f"{name}_first"
            axes.append(TileAxis(name, (MergedAxis((place,), extents[name]),), mask, first))
        return axes

    def _loop(self) -> list[Function]:
        """What every main loop calls: loads of both sides, accumulators, products."""
        loads = [self._load("a", self.schedule.left), self._load("b", self.schedule.right)]
        return [*loads, self._zeros(), self._add_products()]

    def _load(self, letter: str, operands: Sequence[DotOperand]) -> Function:
        """Tiles of one side's operands: loads, and what is computed from them."""
        region, knobs = self.region, self.knobs
        function = Function(self.params, f"load_{letter}", f"{letter}_params")
        names = ("m", "k") if letter == "a" else ("k", "n")
        sides = {name: knobs[f"BLOCK_{name.upper()}"] for name in names}
        axes = self._tile_axes(sides)
        body = TileBody(
            region,
            axes,
            function,
            corner=(f"{names[0]}0", f"{names[1]}0"),
            sides=(sides[names[0]], sides[names[1]]),
            shape=f"BLOCK_{names[0].upper()}, BLOCK_{names[1].upper()}",
            is_mapped=self.is_mapped,
        )
        body.split_index(axes[0])
        for index in needed_for(region, [o.value for o in operands]):
            body.define(index)
        k_axis = -1 if letter == "a" else -2
        tiles = [self._tile(o, k_axis, body) for o in operands]
        function.out.line(f"return {tuple_text(tiles)}")
        return function

    def _tile(self, operand: DotOperand, k_axis: int, body: TileBody) -> str:
        """A whole tile in the type of the dot, with zeros outside of K."""
        value = self.region.values[operand.value]
        x = expr.coerce(f"v{operand.value}", value.dtype, operand.dtype)
        stride: tuple[int, ...] = (0, 0)  # of a plain load; with 0 it does not extend over the axis
        if value.op == "load":
            number = self.region.operand_of[operand.value]
            if body.tile_of(number) is not None:
                return x
            stride = effective_stride(self.region.operands[number])[-2:]
        if body.axes[k_axis].mask and not stride[k_axis]:
            x = f"tl.where(k_inside, {x}, 0.0).to({expr.VALUE_TYPES[operand.dtype]})"
        return x if all(stride) else f"tl.broadcast_to({x}, ({body.shape}))"

    def _zeros(self) -> Function:
        function = Function(self.params, "zeros")
        sides = "BLOCK_N, BLOCK_M" if self.is_swapped else "BLOCK_M, BLOCK_N"
        function.out.line(f"return {tuple_text([f'tl.zeros(({sides}), tl.float32)'] * len(self.schedule.pairs))}")
        return function

    def _add_products(self) -> Function:
        function, left = Function(self.params, "add_products"), self.schedule.left
        dots = []
        for number, (a, b) in enumerate(self.schedule.pairs):
            tiles = f"tl.trans(b[{b}]), tl.trans(a[{a}])" if self.is_swapped else f"a[{a}], b[{b}]"
            precision = ', input_precision="ieee"' if left[a].dtype is FLOAT else ""
            if precision and self.knobs["FLOAT_PARTS"]:
                dots.append(f"acc[{number}] + dot_of_parts({tiles})")
            else:
                dots.append(f"tl.dot({tiles}, acc[{number}]{precision})")
        function.out.line(f"return {tuple_text(dots)}")
        return function

    def _product(self, number: int, *, is_joined: bool = False) -> str:
        """The accumulator of a product, rows first."""
        return f"tl.trans(acc[{number}])" if self.is_swapped and not is_joined else f"acc[{number}]"

    def _epilogue(self, sides: tuple[int, int], *, parts: int = 1, is_joined: bool = False) -> Function:
        """What follows from tiles of these sides, `parts` of which side by side make up the tile of a program."""
        region, reductions = self.region, self.schedule.reductions
        function = Function(self.params, "epilogue")
        masked = (self.knobs["BLOCK_M"], self.knobs["BLOCK_N"]) if self.is_sliced else sides
        axes = self._tile_axes({"m": masked[0], "n": masked[1] * parts})
        place, shape = ("m0", "n0"), "BLOCK_M, BLOCK_N"
        body = TileBody(region, axes, function, corner=place, sides=sides, shape=shape, is_mapped=False)
        body.split_index(axes[0])
        for number, index in enumerate(region.anchors):
            anchor = region.values[index]
            part = f"columns_part({self._product(number, is_joined=is_joined)}, PART, PARTS)"
            function.out.line(f"v{index} = {expr.from_work(part, anchor.compute, anchor.dtype)}")
        stored: list[tuple[int, int]] = []
        for index in behind(region):
            if index in reductions.dependent:
                continue
            if index in reductions.accumulators:
                self._reduce(index, body)
                continue
            if index not in region.anchors:
                body.define(index)
            stored += [(index, operand) for operand in region.outputs_of.get(index, ())]
        # from here on: loads in an epilogue would wait for the copy engine
        body.is_mapped = self.is_mapped and not is_joined and not self.is_swapped
        for index, operand in stored:  # after all loads: an output may lie in the buffer of an input
            body.store(index, operand)
        return function

    def _reduce(self, index: int, body: Body) -> None:
        source = self.region.values[self.region.values[index].args[0]]
        seen = [a for a in body.axes if any(g.extent == 1 or g.varies(source.dim) for g in a.groups)]
        _, m_axis, n_axis = body.axes
        sides = ["BLOCK_M" if m_axis in seen else "1", "BLOCK_N" if n_axis in seen else "1"]
        self.schedule.reductions.add(index, body, seen, sides)
