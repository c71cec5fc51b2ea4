"""Fills the holes of `kernels/gemm.py` and `kernels/join.py`."""

from __future__ import annotations

from dataclasses import replace

from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.products.holes import Holes
from fuseplan.engines.triton.products.schedule import Shares
from fuseplan.engines.triton.products.special import SpecialEmitter
from fuseplan.engines.triton.source import Arguments, Entry, Function, kernel_text, tuple_text

_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
_JOIN_ELEMENTS = 8192  # of all parts that a program of the second kernel holds


class GemmEmitter(Holes):
    """The kernels of a schedule under one config."""

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
        loop = self._loop()
        sides = knobs["BLOCK_M"], knobs["BLOCK_N"] // self.split_n
        epilogue = self._epilogue(sides, parts=self.split_n)
        extents = [*map(self._extent, "mnk")]
        arguments: Arguments = [*(f.params.names for f in (*loop[:2], epilogue)), *extents]
        programs = self.schedule.batch * self._tiles()
        main = "tile_of_products"
        if knobs["PROGRAMS"]:
            main = "tiles_of_products"
            arguments.append(self.params.number("n_tiles", programs, "i32"))
            programs = min(programs, max(1, schedule.device.sm_count) * knobs["PROGRAMS"])
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_N", self.split_n))
        text = kernel_text(Entry("gemm", main, arguments, constants), [*loop, epilogue], self.params)
        return self._kernel("gemm", text, programs)

    def _shared(self, shares: Shares) -> Emitted:
        """One kernel whose programs share the tiles of the last wave."""
        schedule, knobs, params = self.schedule, self.knobs, self.params
        loop = self._loop()
        sides = knobs["BLOCK_M"], knobs["BLOCK_N"] // self.split_n
        epilogue = self._epilogue(sides, parts=self.split_n)
        flags = -(-schedule.reductions.scratch_bytes // 16) * 16
        words = shares.groups * shares.tiles
        offset = flags + -(-words // 4) * 16
        keep, add = self._keep_shared(offset), self._shared_sums(offset)
        arguments: Arguments = [f.params.names for f in (*loop[:2], keep, epilogue)]
        arguments += [params.scratch(flags, "i32"), *map(self._extent, "mnk")]
        arguments += shares.numbers(params)
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_N", self.split_n))
        functions = [*loop, keep, add, epilogue]
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
        loop = self._loop()
        offset = -(-reductions.scratch_bytes // 16) * 16
        keep = self._keep_parts(offset)
        steps = -(-schedule.k // (parts * knobs["BLOCK_K"]))
        extents = [*map(self._extent, "mnk"), self.params.number("n_part", steps * knobs["BLOCK_K"])]
        arguments: Arguments = [*(f.params.names for f in (*loop[:2], keep)), *extents]
        constants = (*((c, knobs[c]) for c in _CONSTANTS), ("SPLIT_K", parts))
        programs = schedule.batch * self._tiles() * parts
        end = offset + 4 * parts * len(schedule.pairs) * schedule.batch * schedule.m * schedule.n
        if self.is_sliced:
            flags = -(-end // 16) * 16
            load, epilogue = self._load_parts(offset), self._epilogue(self._slice(), is_joined=True)
            arguments[3:3] = [load.params.names, epilogue.params.names, self.params.scratch(flags, "i64")]
            entry = Entry("parts", "joined_products", arguments, constants, base="gemm")
            text = kernel_text(entry, [*loop, keep, load, epilogue], self.params)
            kernel = replace(self._kernel("parts", text, programs), is_cooperative=True)
            return Emitted(reductions.around(kernel).steps, flags + 8 * programs * parts)
        text = kernel_text(Entry("gemm", "part_of_products", arguments, constants), [*loop, keep], self.params)
        first, second = self._kernel("gemm", text, programs), self._join(offset)
        return Emitted((first, *reductions.around(second).steps), end)

    def _slice(self) -> tuple[int, int]:
        """Sides of the slice of a tile that a program finishes where parts of K are joined in one kernel."""
        rows = max(1, self.knobs["BLOCK_M"] // self.knobs["SPLIT_K"])
        return rows, self.knobs["BLOCK_M"] * self.knobs["BLOCK_N"] // (self.knobs["SPLIT_K"] * rows)

    def _join(self, offset: int) -> Kernel:
        """The second kernel, with parameters of its own."""
        schedule, parts = self.schedule, self.knobs["SPLIT_K"]
        self.params = ParamList(self.region)
        block_n = min(64, max(16, 1 << (schedule.n - 1).bit_length()))
        block_m = max(1, min(16, _JOIN_ELEMENTS // (parts * block_n)))
        load, epilogue = self._load_parts(offset), self._epilogue((block_m, block_n), is_joined=True)
        arguments: Arguments = [load.params.names, epilogue.params.names, *map(self._extent, "mn")]
        constants = (("BLOCK_M", block_m), ("BLOCK_N", block_n), ("SPLIT_K", parts))
        entry = Entry("join", "joined_parts", arguments, constants, base="gemm")
        text = kernel_text(entry, [load, epilogue], self.params)
        programs = schedule.batch * -(-schedule.m // block_m) * -(-schedule.n // block_n)
        return Kernel("join", text.source, text.params, text.constants, programs, 4, 1)

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
            loaded = f'tl.load({address} + place, mask=inside, other=0.0, cache_modifier=".cg")'
            sums.append(f"tl.sum({loaded}, 0)")
        function.out.line(f"return {tuple_text(sums)}")
        return function
