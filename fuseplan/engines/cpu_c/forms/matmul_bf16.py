"""Products of bfloat16 factors in tile registers (AMX); for the rest as `matmul`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuseplan.dtypes import BFLOAT16, FLOAT
from fuseplan.engines.base import Config, Support
from fuseplan.engines.cpu_c.blocks import (
    begin_blocks,
    blocks_refusal,
    finish_blocks,
    schedule_blocks,
)
from fuseplan.engines.cpu_c.factors import factors_of, write_factors
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.forms.matmul import (
    COLUMNS,
    NARROW_ROWS,
    MatmulSchedule,
    deepest,
    product_tiling,
    product_us,
    rows_of_one_b,
    write_geometry,
    write_stack,
)
from fuseplan.engines.cpu_c.source import Source, assemble
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device
from fuseplan.runtime.toolchain import assembles

FEATURES = ("amx_bf16", "amx_tile")  # of the CPU, that the kernel asks for
_INSTRUCTION = "tdpbf16ps %tmm2, %tmm1, %tmm0"
_SHARE = 3.0  # of the peak in float32, that products reach
_BLOCK, _TILE_ROWS, _STEP, _ROW_GAP = 32, 32, 32, 32  # as in the kernel
_CHUNK_ROWS = 512  # NUM_TILES tiles
_DEEPEST = 512  # terms of a block: a panel stays in the first cache
_KEPT_COLUMNS, _COLUMNS = 256, 4096  # of a group, where sums are kept and elsewhere


@dataclass(frozen=True)
class Bf16Schedule(MatmulSchedule):
    """How products of bfloat16 factors are computed.

    Args:
        chunk_rows: whose sums and factors are kept together
    """

    chunk_rows: int


class MatmulBf16Form(OneWayForm):
    """Pairs of terms in panels of B, tiles of sums, and the epilogue on each finished tile."""

    name = "matmul_bf16"

    def match(self, region: Region, device: Device) -> Bf16Schedule | Support:
        if not region.anchors or not _are_bf16(region):
            return NOT_THIS
        has_tiles = set(FEATURES) <= set(device.features)
        few = rows_of_one_b(region) <= NARROW_ROWS and not region.graph.is_dynamic
        if not has_tiles or few or not assembles(_INSTRUCTION):
            return NOT_THIS
        if not blocks_refusal(region, "matmul").is_supported:
            return NOT_THIS
        return _schedule(region, device)

    def emit(self, schedule: Bf16Schedule, config: Config) -> Source:
        blocks = schedule.blocks
        holes = begin_blocks(blocks, "PRODUCT", _BLOCK, factor="uint16_t")
        thread_bytes = write_stack(holes, _thread_bytes(schedule))
        write_geometry(holes, schedule)
        chunk_rows = holes.args.number("chunk_rows", schedule.chunk_rows)
        holes.function(
            "int64_t", "chunk_rows", ("const struct args *p",), f"return {chunk_rows};"
        )
        for name, factors in (("a", schedule.a), ("b", schedule.b)):
            write_factors(holes, blocks, name, factors, BFLOAT16)
        finish_blocks(holes, blocks, has_lanes=True)
        made = assemble(
            "matmul_bf16", "matmul", holes, blocks.tiling.num_tasks, blocks.work_us
        )
        return replace(
            made,
            thread_bytes=thread_bytes,
            features=FEATURES,
        )


def _are_bf16(region: Region) -> bool:
    """Whether all anchors are products of bfloat16 factors, added up in float."""
    values = [region.values[i] for i in region.anchors]
    return all(
        v.op == "matmul"
        and v.compute in (FLOAT, BFLOAT16)
        and all(region.values[a].dtype is BFLOAT16 for a in v.args)
        for v in values
    )


def _schedule(region: Region, device: Device) -> Bf16Schedule:
    rank, num_products = len(region.domain), len(region.anchors)
    blocks = schedule_blocks(region, device, rank - 1, keep=(rank - 2,))
    most = max(_STEP, _DEEPEST // num_products // _STEP * _STEP)
    terms = deepest(region)
    num_blocks = -(-terms // most)
    depth_block = -(-terms // num_blocks // _STEP) * _STEP
    chunk_rows = min(_CHUNK_ROWS, -(-rows_of_one_b(region) // _TILE_ROWS) * _TILE_ROWS)
    if region.graph.is_dynamic:
        chunk_rows = _CHUNK_ROWS
    group = _KEPT_COLUMNS if num_blocks > 1 else _COLUMNS
    num_sums = chunk_rows * group * num_products if num_blocks > 1 else 0
    tiles = product_tiling(blocks, COLUMNS, device)
    us = product_us(region, device, tiles.num_tasks, _SHARE)
    a = tuple([factors_of(region, i, 0, BFLOAT16) for i in blocks.anchors])
    b = tuple([factors_of(region, i, 1, BFLOAT16) for i in blocks.anchors])
    return Bf16Schedule(
        replace(blocks, tiling=tiles, expected_us=us), a, b, False, group, depth_block, num_sums,
        chunk_rows,
    )  # fmt: skip


def _thread_bytes(schedule: Bf16Schedule) -> int:
    """What the kernel's `memory_of` lays out."""
    products = len(schedule.blocks.region.anchors)
    panels = products * schedule.depth_block * _BLOCK * BFLOAT16.itemsize
    sums = (2 * products * _TILE_ROWS * _BLOCK + schedule.num_sums) * FLOAT.itemsize
    row_bytes = (schedule.depth_block + _ROW_GAP) * BFLOAT16.itemsize
    position_bytes = 8 * len(schedule.blocks.labels)
    return panels + sums + schedule.chunk_rows * (products * row_bytes + position_bytes)
