"""Matmuls with pointwise work in front of their operands and behind them, and reductions that end the region.

A region may hold several matmuls of equal M, N and K, none of which reads another (gate and up of a SwiGLU share
their left operand): a program computes a tile of each, and loads what they share once. What stands in front of an
operand is computed on its tiles in the main loop. Reductions add up with atomics; what still has to be computed from
them runs in a second, tiny kernel.

Kernels for all extents have INDEX_BITS as their only constant that extents choose: equal texts share a compiled kernel.
"""

from __future__ import annotations

from math import prod

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.base import Config, KnobSpace, Support, no
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.atomic import atomic_reductions, atomic_support
from fuseplan.engines.triton.body import needed_for
from fuseplan.engines.triton.kernel import Emitted
from fuseplan.engines.triton.knobs import complete_knobs, listed
from fuseplan.engines.triton.products import tiles
from fuseplan.engines.triton.products.emit import GemmEmitter
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, behind, contracted, dot_type
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_MAX_CONFIGS = 6


class GemmForm:
    """A tile of each product per program."""

    name = "gemm"

    def match(self, region: Region, device: Device) -> GemmSchedule | Support:
        if not region.anchors or any(region.values[i].op == "sdpa" for i in region.anchors):
            return NOT_THIS
        for index in region.anchors:
            if reason := _anchor_gap(region, index):
                return no(reason, at=index)
        support = _operands_support(region)
        if support.is_supported:
            support = atomic_support(region)
        return _schedule(region, device) if support.is_supported else support

    def configs(self, schedule: GemmSchedule) -> KnobSpace:
        best = tiles.candidates(schedule)[:_MAX_CONFIGS]
        if all(t.maps for t in best):
            best = best[: _MAX_CONFIGS - 1] + tiles.through_pointers(schedule)
        configs = [{**t.knobs, "GROUP_M": 8} for t in best]
        if schedule.region.graph.is_dynamic:
            return listed(configs)

        def refuse(config: Config) -> str:
            chosen = {name: value for name, value in config if isinstance(value, int)}
            return tiles.tile_gap(tiles.Tile.of(chosen), schedule)

        return listed(configs, tiles.VALUES, refuse)

    def estimate_us(self, schedule: GemmSchedule, config: Config) -> float:
        knobs = complete_knobs(self.configs(schedule), config)
        return tiles.tile_us(tiles.Tile.of(knobs), schedule)

    def notes(self, schedule: GemmSchedule, config: Config) -> frozenset[str]:
        operands = (*schedule.left, *schedule.right)
        found = set() if schedule.reductions.is_deterministic else {"NONDETERMINISTIC"}
        if any(o.dtype is not FLOAT for o in operands):
            found.add("TENSOR_CORE")
        if any(schedule.region.values[o.value].dtype.bits > o.dtype.bits for o in operands):
            found.add("DOWN_CONVERT_INPUTS")
        return frozenset(found)

    def emit(self, schedule: GemmSchedule, config: Config) -> Emitted:
        return GemmEmitter(schedule, complete_knobs(self.configs(schedule), config)).emit()


def _anchor_gap(region: Region, index: int) -> str:
    """Why a matmul has no main loop here, or none together with the first one."""
    anchor, first = region.values[index], region.values[region.anchors[0]]
    if anchor.op != "matmul":
        return f"'{anchor.op}' has no main loop here"
    if len(region.domain) < 2:
        return "a matmul with something else than two matrices"
    if anchor.compute not in (FLOAT, HALF, BFLOAT16):
        return f"matmul in compute type {anchor.compute}: only FLOAT, HALF and BFLOAT16 sums have a main loop here"
    if (contracted(region, index), anchor.dim[-2:]) != (contracted(region, region.anchors[0]), first.dim[-2:]):
        return "matmuls of different M, N or K in one region"
    if anchor.dim[-2:] != region.domain[-2:]:
        return "the matmul's result is broadcast over M or N by its epilogue"
    return ""


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
    for index in behind(region):
        if any(d not in (1, e) for d, e in zip(region.values[index].dim, domain, strict=True)):
            return no("what stands in front of a matmul is stored, or used again behind it", at=index)
    return Support(True)


def _reader(region: Region, index: int) -> int:
    """The first matmul that needs a value."""
    return next(i for i in region.anchors if i > index and index in needed_for(region, region.values[i].args))


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
    k = contracted(region, region.anchors[0])
    left, right = (tuple(side) for side in sides)
    return GemmSchedule(region, device, batch, m, n, k, left, right, tuple(pairs), atomic_reductions(region))
