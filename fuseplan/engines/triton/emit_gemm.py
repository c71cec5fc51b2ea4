"""Matmul with a pointwise epilogue, and reductions over everything that close it.

The main loop loads tiles through pointers, so any strides, broadcast batches and odd sizes work; masks
are left out where extents divide the tile. With `SPLIT_N` = 2 the epilogue runs on one half of the
columns after the other, which halves its registers and its staging in shared memory. Closing
reductions add up with atomics; what still has to be computed from them runs in a second, tiny kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fuseplan.codegen import triton_expr as expr
from fuseplan.codegen.writer import LineWriter
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.triton.body import Body, TileAxis
from fuseplan.engines.triton.closing import Closing, emit_finish
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamList
from fuseplan.engines.triton.layout import Group, index_cast, is_adjacent, merge, stride_of
from fuseplan.engines.triton.source import finish_shared
from fuseplan.ir.region import Region

_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLIT_N")


def gemm_extents(region: Region) -> tuple[int, int, int, int]:
    """Batch, M, N and K of the region's matmul, batch axes of the epilogue included."""
    anchor = region.values[region.anchors[0]]
    k = region.values[anchor.args[0]].dim[-1]
    return prod(region.domain[:-2]), region.domain[-2], region.domain[-1], k


def dot_type(region: Region) -> DType:
    """Type in which the tensor cores (or FMA units, for FLOAT) take the operands."""
    anchor = region.values[region.anchors[0]]
    if anchor.compute in (HALF, BFLOAT16):
        return anchor.compute
    types = {region.values[a].dtype for a in anchor.args}
    wide = types - expr.FP8_TYPES  # 8-bit floats are exact in both half types, whose sums are exact in float32
    if len(wide) < 2 and wide <= {HALF, BFLOAT16}:
        return wide.pop() if wide else HALF
    return FLOAT


def emit_gemm(region: Region, knobs: Mapping[str, int]) -> Emitted:
    """Fills of accumulators, the matmul kernel, and a finishing kernel where one is needed."""
    closing = Closing(region)
    kernel = _Gemm(region, knobs, closing).emit()
    steps: list[Kernel | Fill] = [*closing.fills(), kernel]
    if closing.needs_finish:
        steps.append(emit_finish(region, closing))
    return Emitted(tuple(steps), closing.scratch_bytes)


class _Gemm:
    """Writes the matmul kernel."""

    def __init__(self, region: Region, knobs: Mapping[str, int], closing: Closing) -> None:
        self.region, self.knobs, self.closing = region, knobs, closing
        rank = len(region.domain)
        self.rank, self.anchor = rank, region.anchors[0]
        self.batch, self.m, self.n, self.k = gemm_extents(region)
        self.cast, is_shared = index_cast(region), region.graph.is_dynamic
        batch_groups = merge(region, range(rank - 2), region.domain)
        m, n = Group((rank - 2,), self.m), Group((rank - 1,), self.n)
        self.masks_k = is_shared or bool(self.k % knobs["BLOCK_K"])
        m_mask = "m_inside" if is_shared or self.m % knobs["BLOCK_M"] else ""
        n_mask = "n_inside" if is_shared or self.n % knobs["BLOCK_N"] else ""
        self.m_axis, self.n_axis = TileAxis("m", (m,), m_mask, "(pid_m == 0)"), TileAxis("n", (n,), n_mask, "n_first")
        self.batch_axis = TileAxis("b", batch_groups, first="(b == 0)" if batch_groups else "")
        self.params, self.out = ParamList(region, "i64" if self.cast else "i32"), LineWriter("    ")
        axes = [self.batch_axis, self.m_axis, self.n_axis]
        self.body = Body(region, axes, self.params, self.out)

    def emit(self) -> Kernel:
        self._tile_index()
        self._main_loop()
        self._epilogues()
        source, ordered = finish_shared("gemm", self.params, self.out, _CONSTANTS)
        knobs = self.knobs
        tiles = -(-self.m // knobs["BLOCK_M"]) * -(-self.n // knobs["BLOCK_N"])
        chosen = tuple((c, knobs[c]) for c in _CONSTANTS)
        return Kernel("gemm", source, ordered, chosen, tiles * self.batch, knobs["num_warps"], knobs["num_stages"])

    def _tile_index(self) -> None:
        """Position of the program's tile; tiles go down `GROUP_M` rows before they go right, for the L2."""
        out, cast = self.out, self.cast
        m, n = self._extent(self.rank - 2), self._extent(self.rank - 1)
        out.line("pid = tl.program_id(0)")
        out.line(f"tiles_m = tl.cdiv({m}, BLOCK_M)")
        out.line(f"tiles_n = tl.cdiv({n}, BLOCK_N)")
        if self.batch_axis.groups:
            out.line(f"b = (pid // (tiles_m * tiles_n)){cast}")
            out.line("pid = pid % (tiles_m * tiles_n)")
            self.body.split_index(self.batch_axis)
        out.line("width = GROUP_M * tiles_n")
        out.line("first_m = (pid // width) * GROUP_M")
        out.line("height = tl.minimum(tiles_m - first_m, GROUP_M)")
        out.line("pid_m = first_m + (pid % width) % height")
        out.line("pid_n = (pid % width) // height")
        out.line(f"m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]{cast}")
        out.line(f"n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]{cast}")
        if self.m_axis.mask:
            out.line(f"m_inside = m < {m}")
        if self.n_axis.mask:
            out.line(f"n_inside = n < {n}")

    def _extent(self, axis: int) -> str:
        """Parameter holding M or N."""
        name, value = ("n_m", self.m) if axis == self.rank - 2 else ("n_n", self.n)
        return self.params.number(name, value, is_vector=is_adjacent(self.region, axis))

    def _step(self, operand: int, axis: int, name: str) -> str:
        """Stride of a matmul operand along one of its own axes."""
        spec = self.region.operands[operand]
        step = spec.stride[axis] if spec.dim[axis] > 1 else 0
        return self.params.stride(name, step, operand)

    def _batch_offset(self, operand: int) -> str:
        terms = [self.params.operand(operand)]
        for group in self.batch_axis.groups:
            if stride_of(self.region.operands[operand], group):
                terms.append(f"{self.batch_axis.index_of(group)} * {self.body.stride(operand, group)}")
        return " + ".join(terms)

    def _main_loop(self) -> None:
        out, rank = self.out, self.rank
        a_value, b_value = self.region.values[self.anchor].args
        a, b = self.region.operand_of[a_value], self.region.operand_of[b_value]
        a_k, b_k = self._step(a, rank - 1, "a_k"), self._step(b, rank - 2, "b_k")
        count = self.params.number("n_k", self.k, is_vector="1" in (a_k, b_k))
        out.line(f"k = tl.arange(0, BLOCK_K){self.cast}")
        out.line(f"a_at = {self._batch_offset(a)} + (m * {self._step(a, rank - 2, 'a_m')} + k[None, :] * {a_k})")
        out.line(f"b_at = {self._batch_offset(b)} + (k[:, None] * {b_k} + n * {self._step(b, rank - 1, 'b_n')})")
        out.line("acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)")
        target = dot_type(self.region)
        with out.indent(f"for start in range(0, {count}, BLOCK_K):"):
            a_masks = [self.m_axis.mask, f"(k[None, :] < {count} - start)" if self.masks_k else ""]
            b_masks = [self.n_axis.mask, f"(k[:, None] < {count} - start)" if self.masks_k else ""]
            out.line(f"a = {self._operand_tile('a_at', a_masks, a_value, target)}")
            out.line(f"b_tile = {self._operand_tile('b_at', b_masks, b_value, target)}")
            precision = ', input_precision="ieee"' if target is FLOAT else ""
            out.line(f"acc = tl.dot(a, b_tile, acc{precision})")
            out.line(f"a_at += BLOCK_K * {a_k}")
            out.line(f"b_at += BLOCK_K * {b_k}")

    def _operand_tile(self, address: str, masks: list[str], value: int, target: DType) -> str:
        present = " & ".join(mask for mask in masks if mask)
        source = self.region.values[value].dtype
        mask = f", mask={present}, other={expr.zero(source)}" if present else ""
        return expr.coerce(f"tl.load({address}{mask})", source, target)

    def _epilogues(self) -> None:
        """The epilogue, once per part of the tile's columns."""
        out, parts = self.out, self.knobs["SPLIT_N"]
        if parts == 1:
            out.line("n_first = pid_n == 0")
            self._epilogue("acc")
            return
        halves = "tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))"
        out.line(f"acc0, acc1 = tl.split({halves})")
        for part in range(2):
            start = f"pid_n * BLOCK_N + {part} * (BLOCK_N // 2)"
            out.line(f"n = ({start} + tl.arange(0, BLOCK_N // 2))[None, :]{self.cast}")
            if self.n_axis.mask:
                out.line(f"n_inside = n < {self._extent(self.rank - 1)}")
            out.line(f"n_first = pid_n == {-part}")  # the second half is never the first position
            self._epilogue(f"acc{part}")

    def _epilogue(self, acc: str) -> None:
        anchor = self.region.values[self.anchor]
        self.out.line(f"v{self.anchor} = {expr.from_work(acc, anchor.compute, anchor.dtype)}")
        values, main = self.region.values, set(self.region.values[self.anchor].args)
        stored: list[tuple[int, int]] = []
        for index, value in enumerate(values):
            if index in self.closing.dependent or (index in main and self.region.users[index] == (self.anchor,)):
                continue
            if value.op == "reduce":
                self._close(index)
                continue
            if index != self.anchor:
                self.body.define(index)
            stored += [(index, operand) for operand in self.region.outputs_of.get(index, ())]
        for index, operand in stored:  # after all loads: an output may lie in the buffer of an input
            self.body.store(index, operand)

    def _close(self, index: int) -> None:
        """Add the tile's part of a closing reduction to its accumulator."""
        reduction = self.region.values[index]
        arg = reduction.args[0]
        source = self.region.values[arg]
        work = expr.work_type(reduction.compute)
        mode = reduction.mode
        x = expr.to_work(f"v{arg}", source.dtype, reduction.compute)
        seen = [
            axis for axis in self.body.axes if any(g.extent == 1 or source.dim[g.axes[-1]] > 1 for g in axis.groups)
        ]
        sides = ("BLOCK_M" if self.m_axis in seen else "1", "BLOCK_N // SPLIT_N" if self.n_axis in seen else "1")
        x = f"tl.broadcast_to({x}, ({', '.join(sides)}))"
        guards = self.body.guards(source.dim, seen)
        kept = f"tl.where({' & '.join(guards)}, {x}, {expr.neutral(mode, work)})" if guards else x
        self.out.line(f"t{index} = {kept}")
        sides_kept = [axis for axis in (0, 1) if reduction.dim[self.rank - 2 + axis] > 1]
        if len(sides_kept) < 2:
            over = str(1 - sides_kept[0]) if sides_kept else "None"
            self.out.line(f"t{index} = {expr.fold(mode, f't{index}', over, work)}")
        self.closing.add_atomic(index, self.body, rank=2)
