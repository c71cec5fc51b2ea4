"""Fills the holes of `kernels/special.py`, and says which products it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.axes import MergedAxis
from fuseplan.dtypes import BFLOAT16, HALF
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import index_bits
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, Shares, behind
from fuseplan.engines.triton.products.views import TileBody, mapped_tile
from fuseplan.engines.triton.source import Arguments, Entry, Function, kernel_text, tuple_text
from fuseplan.ir.region import Region

ROWS, GROUP_ROWS = 128, 64  # of a tile, and of a group of warps
IN_TURN = 2  # the value of SPECIALISTS where each group has tiles of its own
_FLAGS = 128  # of a group of warps and a tile: one for each thread
_SM = 90


def special_gap(schedule: GemmSchedule) -> str:
    """Why warps of their own for loads and products do not take a schedule, whatever the tile; empty if they do."""
    region = schedule.region
    operands = [*schedule.left, *schedule.right]
    if schedule.device.sm_version != _SM or index_bits(region) != 32:
        return f"warps of their own for loads and products need sm_{_SM} and offsets of 32 bits"
    if len(schedule.pairs) > 1 or len(region.domain) > 2 and max(region.domain[:-2]) > 1:
        return "warps of their own for loads and products take one product without a batch"
    if not all(_is_plain(region, o) for o in operands) or region.reductions:
        return "warps of their own for loads and products take no work in front, and no reductions behind"
    later = [i for i in behind(region) if i in region.operand_of]
    if any(schedule.is_tile(region.values[i].dim) for i in later):
        return "warps of their own for loads and products read no tiles in the epilogue"
    from_product = _made_from(region, region.anchors[0])
    if any(value not in from_product for value, _ in region.stores):
        return "something is stored that does not come from the product"
    return ""


def _is_plain(region: Region, operand: DotOperand) -> bool:
    value = region.values[operand.value]
    return value.op == "load" and value.dtype is operand.dtype and operand.dtype in (HALF, BFLOAT16)


def _made_from(region: Region, root: int) -> set[int]:
    """A value and all that is computed from it."""
    found = {root}
    for index, value in enumerate(region.values):
        if not found.isdisjoint(value.args):
            found.add(index)
    return found


class _StagedBody(TileBody):
    """A body that sends whole tiles through shared memory of its own; `staged` are their maps."""

    staged: tuple[str, ...] = ()

    def store(self, value: int, operand: int) -> None:
        target = self.region.operands[operand]
        tile = self.tile_of(operand) if target.dim == self.region.domain else None
        if tile is None or tile.is_transposed:
            Body.store(self, value, operand)
            return
        name = self.params.tile_map(operand, tile.view)
        stored = expr.coerce(f"v{value}", self.region.values[value].dtype, target.dtype)
        self.out.line(f"store_tile({name}, staging, {len(self.staged)}, GROUP, [m0, n0], {stored})")
        self.staged = (*self.staged, name)


class SpecialEmitter:
    """The kernel of a schedule under one config.

    Args:
        shares: of the last tiles, if programs share them
    """

    def __init__(self, schedule: GemmSchedule, knobs: Mapping[str, int], shares: Shares | None) -> None:
        self.schedule, self.region, self.knobs, self.shares = schedule, schedule.region, knobs, shares
        self.params = ParamList(schedule.region)
        self.in_turn = knobs["SPECIALISTS"] == IN_TURN
        self.group_rows = knobs["BLOCK_M"] if self.in_turn else GROUP_ROWS

    def emit(self) -> Emitted:
        schedule, knobs = self.schedule, self.knobs
        loads = [*self._operand("a", schedule.left[0]), *self._operand("b", schedule.right[0])]
        epilogue, staging = self._epilogue()
        operands, names = [loads[0].params.names, loads[2].params.names], epilogue.params.names
        extents = [self.params.number(f"n_{axis}", getattr(schedule, axis)) for axis in "mnk"]
        constants = [(name, knobs[name]) for name in ("BLOCK_N", "BLOCK_K")]
        constants += [("STAGES", knobs["num_stages"]), ("GROUP_M", knobs["GROUP_M"])]
        tiles = -(-schedule.m // knobs["BLOCK_M"]) * -(-schedule.n // knobs["BLOCK_N"])
        programs = max(1, schedule.device.sm_count)
        shares, functions = self.shares, [*loads, staging, epilogue]
        if shares is None:
            constants.append(("PARTS", knobs["SPLIT_N"]))
            arguments: Arguments = [*operands, names, *extents]
            entry = Entry("special", "tiles_by_specialists", arguments, constants, is_gluon=True)
            if self.in_turn:
                constants.insert(0, ("BLOCK_M", knobs["BLOCK_M"]))
                entry = Entry("special_turns", "tiles_in_turn", arguments, constants, is_gluon=True, base="special")
            return Emitted((self._kernel(entry, functions, min(tiles, programs)),))
        words = 2 * _FLAGS * max(programs, tiles - shares.whole)
        kept = (self.params.scratch(4 * words, "fp32"), self.params.scratch(0, "i32"))
        extents += shares.numbers(self.params)
        constants.append(("HALVES", int((shares.tiles, shares.shares) == (1, 2))))
        arguments = [*operands, kept, names, *extents]
        entry = Entry("special_shares", "shares_by_specialists", arguments, constants, is_gluon=True, base="special")
        kernel = replace(self._kernel(entry, functions, programs), is_cooperative=True)
        return Emitted((Fill(-1, 0, 0, words), kernel), 4 * words + 4 * programs * ROWS * knobs["BLOCK_N"])

    def _kernel(self, entry: Entry, functions: Sequence[Function], programs: int) -> Kernel:
        text = kernel_text(entry, functions, self.params)
        return Kernel(entry.file, text.source, text.params, text.constants, programs, 4, is_gluon=True)

    def _axes(self, names: str) -> list[TileAxis]:
        extents = {"m": self.schedule.m, "n": self.schedule.n, "k": self.schedule.k}
        axes, rank = [TileAxis("b", ())], len(self.region.domain)
        for place, name in enumerate(names, rank - 2):
            extent = extents[name]
            mask = f"{name}_inside" if extent % self.knobs[f"BLOCK_{name.upper()}"] else ""
            axes.append(TileAxis(name, (MergedAxis((place,), extent),), mask, f"{name}_first"))
        return axes

    def _operand(self, letter: str, operand: DotOperand) -> list[Function]:
        """How tiles of an operand are loaded, and how they lie in shared memory."""
        names, knobs = ("mk", self.knobs) if letter == "a" else ("kn", self.knobs)
        sides = (self.group_rows, knobs["BLOCK_K"]) if letter == "a" else (knobs["BLOCK_K"], knobs["BLOCK_N"])
        number = self.region.operand_of[operand.value]
        tile = mapped_tile(self.region.operands[number], self._axes(names), sides)
        assert tile is not None
        load, turn = (
            Function(self.params, f"load_{letter}", f"{letter}_params"),
            Function(self.params, f"tile_{letter}"),
        )
        place = [f"{name}0" for name in (names[::-1] if tile.is_transposed else names)]
        tile_map = load.params.tile_map(number, tile.view)
        load.out.line(f"tma.async_copy_global_to_shared({tile_map}, [{', '.join(place)}], barrier, target)")
        turn.out.line("return x.permute((1, 0))" if tile.is_transposed else "return x")
        return [load, turn]

    def _epilogue(self) -> tuple[Function, Function]:
        """The epilogue, and the shared memory for what it stores."""
        region, function = self.region, Function(self.params, "epilogue")
        sides = (self.group_rows, self.knobs["BLOCK_N"] // self.knobs["SPLIT_N"])
        body = _StagedBody(
            region,
            self._axes("mn"),
            function,
            corner=("m0", "n0"),
            sides=sides,
            shape="BLOCK_M, BLOCK_N",
            is_mapped=True,
        )
        for index in behind(region):
            value = region.values[index]
            if index in region.anchors:
                function.out.line(f"v{index} = {expr.from_work('acc', value.compute, value.dtype)}")
            else:
                body.define(index)
        for stored, operand in region.stores:
            body.store(stored, operand)
        staging = Function(self.params, "allocate_staging")
        staging.params = function.params
        width = sides[1]
        made = [f"gl.allocate_shared_memory({name}.dtype, [2, {self.group_rows}, {width}], {name}.layout)"
                for name in body.staged]  # fmt: skip
        staging.out.line(f"return {tuple_text(made)}")
        return function, staging
