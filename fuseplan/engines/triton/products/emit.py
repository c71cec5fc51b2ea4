"""Fills the holes of `kernels/gemm.py` and `kernels/join.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis, effective_stride, merge
from fuseplan.dtypes import FLOAT
from fuseplan.engines.triton.body import Body, TileAxis, needed_for
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import is_adjacent
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, Shares, behind
from fuseplan.engines.triton.products.special import SpecialEmitter
from fuseplan.engines.triton.products.tiles import Tile, shares_of
from fuseplan.engines.triton.products.views import TileBody
from fuseplan.engines.triton.source import Arguments, Entry, Function, KernelText, kernel_text, tuple_text

_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
_JOIN_ELEMENTS = 8192  # of all parts that a program of the second kernel holds


class GemmEmitter:
    """The kernels of a schedule under one config."""

    def __init__(self, schedule: GemmSchedule, knobs: Mapping[str, int]) -> None:
        region = schedule.region
        self.schedule, self.region, self.knobs = schedule, region, dict(knobs)
        self.params, rank = ParamList(region), len(region.domain)
        self.batch = merge(region, range(rank - 2))
        self.is_swapped, self.is_mapped = bool(knobs["SWAP"]), bool(knobs["MAPS"])
        self.shares = shares_of(Tile.of(knobs), schedule) if knobs["SHARED_TAIL"] else None
        self.split_n = 1 if self.is_swapped or knobs["SPLIT_K"] > 1 else knobs["SPLIT_N"]

    def emit(self) -> Emitted:
        """The kernels, with others for addresses that tensor maps do not take."""
        if self.knobs["SPECIALISTS"]:
            steps = SpecialEmitter(self.schedule, self.knobs, self.shares).emit()
        elif self.knobs["SPLIT_K"] > 1:
            steps = self._split()
        elif self.shares is not None:
            steps = self._shared(self.shares)
        else:
            steps = self.schedule.reductions.around(self._whole())
        if not self.is_mapped:
            return steps
        plain = {**self.knobs, "MAPS": 0, "SPECIALISTS": 0, "SPLIT_N": min(2, self.knobs["SPLIT_N"])}
        plain["num_warps"] *= 2 if self.knobs["SPECIALISTS"] == 1 else 1
        return replace(steps, unaligned=lambda: GemmEmitter(self.schedule, plain).emit())

    def _whole(self) -> Kernel:
        """One kernel from the loads to the stores."""
        schedule, knobs = self.schedule, self.knobs
        load_a, load_b = self._load("a", schedule.left), self._load("b", schedule.right)
        sides = knobs["BLOCK_M"], knobs["BLOCK_N"] // self.split_n
        epilogue = self._epilogue(sides, parts=self.split_n)
        extents = [*map(self._extent, "mnk")]
        arguments: Arguments = [*(f.params.names for f in (load_a, load_b, epilogue)), *extents]
        programs = self.schedule.batch * self._tiles()
        main = "tile_of_products"
        if knobs["PROGRAMS"]:
            main = "tiles_of_products"
            arguments.append(self.params.number("n_tiles", programs, "i32"))
            programs = min(programs, max(1, schedule.device.sm_count) * knobs["PROGRAMS"])
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_N", self.split_n))
        functions = [load_a, load_b, self._zeros(), self._add_products(), epilogue]
        text = kernel_text(Entry("gemm", main, arguments, constants), functions, self.params)
        return self._kernel("gemm", text, programs)

    def _shared(self, shares: Shares) -> Emitted:
        """One kernel whose programs share the tiles of the last wave."""
        schedule, knobs, params = self.schedule, self.knobs, self.params
        load_a, load_b = self._load("a", schedule.left), self._load("b", schedule.right)
        sides = knobs["BLOCK_M"], knobs["BLOCK_N"] // self.split_n
        epilogue = self._epilogue(sides, parts=self.split_n)
        flags = -(-schedule.reductions.scratch_bytes // 16) * 16
        words = shares.groups * shares.tiles
        offset = flags + -(-words // 4) * 16
        keep, add = self._keep_shared(offset), self._shared_sums(offset)
        arguments: Arguments = [load_a.params.names, load_b.params.names, keep.params.names, epilogue.params.names]
        arguments += [params.scratch(flags, "i32"), *map(self._extent, "mnk")]
        arguments += shares.numbers(params)
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_N", self.split_n))
        functions = [load_a, load_b, self._zeros(), self._add_products(), keep, add, epilogue]
        text = kernel_text(Entry("gemm", "share_of_products", arguments, constants), functions, params)
        programs = max(1, schedule.device.sm_count)
        kernel = replace(self._kernel("gemm", text, programs), is_cooperative=True)
        around = schedule.reductions.around(kernel)
        size = 4 * programs * len(schedule.pairs) * knobs["BLOCK_M"] * knobs["BLOCK_N"]
        return Emitted((Fill(-1, flags, 0, words), *around.steps), offset + size)

    def _slot(self, params: ParamList, number: int, offset: int) -> str:
        """Address of one product's sums in a slot."""
        products = len(self.schedule.pairs)
        return f"{params.scratch(offset, 'fp32')} + (slot * {products} + {number}) * (BLOCK_M * BLOCK_N)"

    def _keep_shared(self, offset: int) -> Function:
        function = Function(self.params, "keep_shared", "parts_params")
        function.out.line("place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]")
        for number in range(len(self.schedule.pairs)):
            function.out.line(f"tl.store({self._slot(function.params, number, offset)} + place, acc[{number}])")
        return function

    def _shared_sums(self, offset: int) -> Function:
        function, products = Function(self.params, "shared_sums", "parts_params"), range(len(self.schedule.pairs))
        out = function.out
        out.line("columns = PART * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]")
        out.line("place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + columns")
        for number in products:
            out.line(f"x{number} = columns_part(acc[{number}], PART, 2)")
        with out.indent("for slot in range(first, last, step):"):
            for number in products:
                address = self._slot(function.params, number, offset)
                out.line(f'x{number} += tl.load({address} + place, cache_modifier=".cg")')
        out.line(f"return {tuple_text([f'x{number}' for number in products])}")
        return function

    def _split(self) -> Emitted:
        """A kernel that sums over parts of K, and one that adds these sums up and has the epilogue."""
        schedule, knobs, parts = self.schedule, self.knobs, self.knobs["SPLIT_K"]
        reductions = schedule.reductions
        load_a, load_b = self._load("a", schedule.left), self._load("b", schedule.right)
        offset = -(-reductions.scratch_bytes // 16) * 16
        keep = self._keep_parts(offset)
        steps = -(-schedule.k // (parts * knobs["BLOCK_K"]))
        extents = [*map(self._extent, "mnk"), self.params.number("n_part", steps * knobs["BLOCK_K"])]
        arguments: Arguments = [*(f.params.names for f in (load_a, load_b, keep)), *extents]
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_K", parts))
        functions = [load_a, load_b, self._zeros(), self._add_products(), keep]
        text = kernel_text(Entry("gemm", "part_of_products", arguments, constants), functions, self.params)
        first = self._kernel("gemm", text, schedule.batch * self._tiles() * parts)
        second = self._join(offset)
        size = 4 * parts * len(schedule.pairs) * schedule.batch * schedule.m * schedule.n
        around = reductions.around(second)
        return Emitted((first, *around.steps), offset + size)

    def _join(self, offset: int) -> Kernel:
        """The second kernel, with parameters of its own."""
        schedule, parts = self.schedule, self.knobs["SPLIT_K"]
        self.params = ParamList(self.region)
        block_n = min(64, max(16, 1 << (schedule.n - 1).bit_length()))
        block_m = max(1, min(16, _JOIN_ELEMENTS // (parts * block_n)))
        load, epilogue = self._load_parts(offset), self._epilogue((block_m, block_n), is_joined=True)
        arguments: Arguments = [load.params.names, epilogue.params.names, *map(self._extent, "mn")]
        constants = (("BLOCK_M", block_m), ("BLOCK_N", block_n), ("SPLIT_K", parts))
        text = kernel_text(Entry("join", "joined_parts", arguments, constants), [load, epilogue], self.params)
        programs = schedule.batch * -(-schedule.m // block_m) * -(-schedule.n // block_n)
        return Kernel("join", text.source, text.params, text.constants, programs, 4, 1)

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

    def _part_address(self, params: ParamList, number: int, offset: int) -> str:
        """Address of row 0 of one product's sums over `part`."""
        batch, products = params.number("n_b", self.schedule.batch), len(self.schedule.pairs)
        pointer = params.scratch(offset, "fp32")
        return f"{pointer} + (part * {products} + {number}) * {batch} * n_m * n_n"

    def _keep_parts(self, offset: int) -> Function:
        function = Function(self.params, "keep_parts", "parts_params")
        place = "(b * n_m + m) * n_n + n"
        for number in range(len(self.schedule.pairs)):
            address = self._part_address(function.params, number, offset)
            x = self._product(number)
            function.out.line(f"tl.store({address} + {place}, {x}, mask=m_inside & n_inside)")
        return function

    def _load_parts(self, offset: int) -> Function:
        """All parts at once, added up in one order."""
        function = Function(self.params, "load_parts", "parts_params")
        function.out.line("part = tl.arange(0, SPLIT_K)[:, None, None].to(b.dtype)")
        function.out.line("place = ((b * n_m + m) * n_n + n)[None, :, :]")
        function.out.line("inside = (m_inside & n_inside)[None, :, :]")
        sums = []
        for number in range(len(self.schedule.pairs)):
            address = self._part_address(function.params, number, offset)
            sums.append(f"tl.sum(tl.load({address} + place, mask=inside, other=0.0), 0)")
        function.out.line(f"return {tuple_text(sums)}")
        return function

    def _epilogue(self, sides: tuple[int, int], *, parts: int = 1, is_joined: bool = False) -> Function:
        """What follows from tiles of these sides, `parts` of which side by side make up the tile of a program."""
        region, reductions = self.region, self.schedule.reductions
        function = Function(self.params, "epilogue")
        axes = self._tile_axes({"m": sides[0], "n": sides[1] * parts})
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
