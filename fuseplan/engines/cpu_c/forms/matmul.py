"""Matmul: one or several products over one domain, pointwise operations in front of and behind them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from fuseplan.codegen import c_expr
from fuseplan.dtypes import DType
from fuseplan.engines.base import Config, Support
from fuseplan.engines.cpu_c import tiling
from fuseplan.engines.cpu_c.blocks import (
    AT,
    BlockSchedule,
    begin_blocks,
    blocks_refusal,
    finish_blocks,
    schedule_blocks,
)
from fuseplan.engines.cpu_c.elements import most_tasks
from fuseplan.engines.cpu_c.factors import Factors, Q, factors_of, write_factors
from fuseplan.engines.cpu_c.form import OneWayForm
from fuseplan.engines.cpu_c.source import Holes, Source, assemble
from fuseplan.engines.cpu_c.tiling import Tiling
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

COLUMNS = 64  # a whole number of panels of any target
_PANEL_BYTES = 256 << 10  # of a group: half of a core's own cache
_DEEPEST, _DEEPEST_NARROW, _DEEPEST_DOT = 1024, 512, 4096  # terms of a block
_DEEPEST_WRITTEN = 256  # where A is written anew for each group, which is wider then
_NARROW_SUMS = 16384  # of few rows: they stay in a core's own caches
_ROW_COLUMNS, _NARROW_COLUMNS = 4096, 1024  # that one row, some rows read in a row of B
_DOT_COLUMNS = 256  # of a task that writes its rows of A into the buffer
_SPLIT_TERMS, _FEWEST_SPLITS = 256, 4  # of a task, tasks that divide the terms
NARROW_ROWS, _CHUNK_ROWS, _SUM_ROWS, _TILE_ROWS = 16, 48, 960, 6  # as in the kernel
_FEWEST_TASKS, _FEWEST_OF_CORE = 16, 4
_SPLIT_US = 20.0  # of such a task
_CALL_US = 0.3
_PRODUCT_SHARE, _NARROW_SHARE = (
    0.7,
    0.4,
)  # of the peak that products reach, few rows in the first cache
_RATES = {"f32": 1.0, "f64": 0.5, "i32": 0.2, "i64": 0.1}  # table: of products, by kind
_MEMORY_SHARE = 0.85  # of the bandwidth of all cores
_CORE_GFLOPS, _CORE_GBPS = 40.0, 10.0  # of a core that stands for all, see estimate.py
_FEWEST_ROWS = 96  # of a task: each packs B on its own
_STACK_BYTES = 32 << 10  # more memory than this comes from the workspace


@dataclass(frozen=True)
class MatmulSchedule:
    """How products are computed.

    Args:
        a, b: factors of each product
        is_narrow: few rows share a B, which is read and not packed
        group: columns whose factors are packed together
        depth_block: terms that are
        num_sums: that a thread keeps
        split_terms: of a task, where tasks divide the terms as well, else 0
    """

    blocks: BlockSchedule
    a: tuple[Factors, ...]
    b: tuple[Factors, ...]
    is_narrow: bool
    group: int
    depth_block: int
    num_sums: int
    split_terms: int = field(default=0, kw_only=True)

    @property
    def expected_us(self) -> float:
        return self.blocks.expected_us

    @property
    def num_tasks(self) -> int:
        splits = (
            -(-deepest(self.blocks.region) // self.split_terms)
            if self.split_terms
            else 1
        )
        return splits * self.blocks.tiling.num_tasks


class MatmulForm(OneWayForm):
    """Panels of B, tiles of sums in registers, and the epilogue on each finished tile."""

    name = "matmul"

    def match(self, region: Region, device: Device) -> MatmulSchedule | Support:
        if not region.anchors or region.values[region.anchors[0]].op != "matmul":
            return NOT_THIS
        fit = blocks_refusal(region, "matmul")
        if not fit.is_supported:
            return fit
        rank = len(region.domain)
        blocks = schedule_blocks(region, device, rank - 1, keep=(rank - 2,))
        dtype = factor_type(region)
        a = tuple([factors_of(region, i, 0, dtype) for i in blocks.anchors])
        b = tuple([factors_of(region, i, 1, dtype) for i in blocks.anchors])
        return _schedule(blocks, device, a, b)

    def emit(self, schedule: MatmulSchedule, config: Config) -> Source:
        blocks = schedule.blocks
        holes = begin_blocks(blocks, "PRODUCT", "PANEL")
        holes.macro("IS_NARROW", int(schedule.is_narrow))
        thread_bytes = write_stack(holes, _thread_bytes(schedule))
        write_geometry(holes, schedule)
        _write_split(holes, schedule)
        for name, factors in (("a", schedule.a), ("b", schedule.b)):
            write_factors(holes, blocks, name, factors, factor_type(blocks.region))
        finish_blocks(holes, blocks, has_lanes=True)
        made = assemble("matmul", "matmul", holes, schedule.num_tasks, blocks.work_us)
        return replace(made, thread_bytes=thread_bytes)


def write_stack(holes: Holes, thread_bytes: int) -> int:
    """The hole that says what a task keeps on the stack; what is left for each thread in the workspace."""
    is_small = thread_bytes <= _STACK_BYTES and not holes.region.graph.is_dynamic
    holes.macro("STACK_BYTES", _STACK_BYTES if is_small else 0)
    return 0 if is_small else thread_bytes


def _work_us(region: Region, gbps: float, gflops: float) -> float:
    """Time at the rates of memory and of products in float32, the longer of the two."""
    compute = region.values[region.anchors[0]].compute
    gflops *= _RATES[c_expr.KIND[compute.name]]
    memory = (region.cost.read_bytes + region.cost.write_bytes) / (1e3 * gbps)
    return max(memory, region.cost.flops / (1e3 * gflops))


def product_us(region: Region, device: Device, num_tasks: int, share: float) -> float:
    """Expected time where products reach a share of the device's peak in float32."""
    cores = max(1, min(num_tasks, device.num_threads or device.sm_count))
    gflops = cores * share * device.peak_gflops / max(1, device.sm_count)
    gbps = min(cores * _CORE_GBPS, _MEMORY_SHARE * device.memory_gbps)
    return _CALL_US + _work_us(region, gbps, gflops)


def _schedule(
    blocks: BlockSchedule,
    device: Device,
    a: tuple[Factors, ...],
    b: tuple[Factors, ...],
) -> MatmulSchedule:
    region = blocks.region
    blocks = replace(blocks, work_us=_work_us(region, _CORE_GBPS, _CORE_GFLOPS))
    num_columns = region.domain[-1]
    num_rows = rows_of_one_b(region)
    is_narrow = num_rows <= (1 if region.graph.is_dynamic else NARROW_ROWS)
    is_dot = is_narrow and all(f.is_along_k for f in b)
    most_terms = deepest(region)
    most = _DEEPEST if all(f.is_direct for f in a) else _DEEPEST_WRITTEN
    most = _DEEPEST_NARROW if is_narrow else most
    num_blocks = -(-most_terms // (_DEEPEST_DOT if is_dot else most))
    depth_block = -(-most_terms // num_blocks // 32) * 32
    widest = _ROW_COLUMNS if num_rows == 1 else _NARROW_COLUMNS
    if is_narrow:
        most = min(_ROW_COLUMNS, _NARROW_SUMS // num_rows // len(region.anchors))
        most = max(1, most // COLUMNS)
    else:
        row_bytes = depth_block * factor_type(region).itemsize * len(region.anchors)
        most = min(4, _PANEL_BYTES // (row_bytes * COLUMNS))
    group = COLUMNS * max(1, min(most, -(-num_columns // COLUMNS)))
    width, split_terms = group, 0
    if is_dot:
        is_direct = all(f.is_direct for f in a) and not any(f.is_bfloat for f in b)
        width = COLUMNS if is_direct else _DOT_COLUMNS
        split_terms = _split_terms(blocks, num_rows, _DOT_COLUMNS)
    elif is_narrow:
        split_terms = _split_terms(blocks, num_rows, widest)
        width = widest if split_terms else min(_NARROW_COLUMNS, num_columns // 4)
        width = max(1, width // COLUMNS) * COLUMNS
    tiles = product_tiling(blocks, width, device)
    if is_narrow:
        num_sums = (2 if num_blocks > 1 else 1) * num_rows * group
    else:
        num_sums = _SUM_ROWS * group if num_blocks > 1 else _TILE_ROWS * COLUMNS
    share = _NARROW_SHARE if is_narrow else _PRODUCT_SHARE
    made = MatmulSchedule(
        replace(blocks, tiling=tiles), a, b, is_narrow, group, depth_block,
        num_sums * len(region.anchors), split_terms=split_terms,
    )  # fmt: skip
    us = product_us(region, device, made.num_tasks, share)
    return replace(made, blocks=replace(made.blocks, expected_us=us))


def _split_terms(blocks: BlockSchedule, num_rows: int, width: int) -> int:
    """Terms of a task where columns, at least `width` together, give too few tasks; else 0."""
    region = blocks.region
    has_one_b = prod(region.domain[:-1]) == num_rows
    if region.graph.is_dynamic or blocks.reduces or not has_one_b:
        return 0
    most = min(_FEWEST_TASKS, int(blocks.work_us / _SPLIT_US))
    splits = min(
        most // -(-region.domain[-1] // width), deepest(region) // _SPLIT_TERMS
    )
    if splits < _FEWEST_SPLITS:
        return 0
    return -(-deepest(region) // splits // 32) * 32


def _write_split(holes: Holes, schedule: MatmulSchedule) -> None:
    """The holes that say which terms a task adds up, and where the sums of all tasks are."""
    terms = schedule.split_terms
    holes.macro("IS_SPLIT", int(terms > 0))
    if not terms:
        return
    p = ("const struct args *p",)
    region = holes.region
    splits = schedule.num_tasks // schedule.blocks.tiling.num_tasks
    columns = -(-region.domain[-1] // COLUMNS) * COLUMNS
    size = splits * columns * prod(region.domain[:-1]) * len(region.anchors)
    text = holes.args.number("split_terms", terms)
    holes.function("int64_t", "split_terms", p, f"return {text};")
    kind = c_expr.KIND[region.values[region.anchors[0]].compute.name]
    text = holes.args.scratch("parts", c_expr.MAIN_LOOP[kind].ctype, size)
    holes.function("ACC *", "parts", p, f"return {text};")


def factor_type(region: Region) -> DType:
    """The type of factors and sums."""
    compute = region.values[region.anchors[0]].compute
    return c_expr.KIND_TYPE[c_expr.KIND[compute.name]]


def deepest(region: Region) -> int:
    """Terms of the longest product."""
    values = region.values
    return max(values[values[i].args[0]].dim[-1] for i in region.anchors)


def _varies(region: Region, argument: int, axis: int) -> bool:
    """Whether any product's argument, 0 or 1, has an axis."""
    values = region.values
    return any(values[values[i].args[argument]].dim[axis] != 1 for i in region.anchors)


def shared_axes(region: Region) -> int:
    """How many of the axes in front of M, counted from there, have the same B at all positions."""
    rank = len(region.domain)
    shared = 0
    while shared < rank - 2 and not _varies(region, 1, rank - 3 - shared):
        shared += 1
    return shared


def rows_of_one_b(region: Region) -> int:
    """Rows of the products that have one B."""
    return prod(region.domain[-2 - shared_axes(region) : -1])


def product_tiling(blocks: BlockSchedule, width: int, device: Device) -> Tiling:
    """Whole batches that have a B of their own, then columns, at least `width`, then parts of rows (each packs B)."""
    if blocks.tiling.num_tasks == 1:
        return blocks.tiling
    region = blocks.region
    wanted = min(most_tasks(region, blocks.reduces), tiling.tasks_worth(blocks.work_us))
    rows, columns = blocks.tiling.num_rows, blocks.tiling.num_columns
    rank = len(region.domain)
    batches = prod(region.domain[: rank - 2 - shared_axes(region)])
    row_tasks = -(-batches // -(-batches // wanted))
    column_tasks = min(-(-columns // width), max(1, wanted // row_tasks))
    parts = min(
        min(wanted, _FEWEST_TASKS, _FEWEST_OF_CORE * device.sm_count)
        // (row_tasks * column_tasks),
        rows // row_tasks // _FEWEST_ROWS,
    )
    return Tiling(rows, columns, COLUMNS, row_tasks * max(1, parts), column_tasks)


def _thread_bytes(schedule: MatmulSchedule) -> int:
    """What the kernel's `memory_of` lays out, on any target."""
    region = schedule.blocks.region
    elements = schedule.num_sums
    products = len(region.anchors)
    has_rest = any(
        f.is_along_k and (f.is_bfloat or region.values[f.value].dim[-2] % 32)
        for f in schedule.b
    )
    if not schedule.is_narrow:
        elements += products * schedule.group * schedule.depth_block
    if not all(f.is_direct for f in schedule.a) or (schedule.is_narrow and has_rest):
        rows = NARROW_ROWS if schedule.is_narrow else _CHUNK_ROWS
        elements += products * rows * (schedule.depth_block + 64)
    return elements * factor_type(region).itemsize


def write_geometry(holes: Holes, schedule: MatmulSchedule) -> None:
    """The holes that say how deep products are, and what is packed and kept together."""
    region = holes.region
    number = holes.args.number
    rank = len(region.domain)
    p = ("const struct args *p",)
    depths = [
        f"return {number(f'depth{i}', region.values[f.value].dim[-1])};"
        for i, f in zip(region.anchors, schedule.a, strict=True)
    ]
    holes.per_anchor("int64_t", "depth", (*p, Q), depths)
    for name in ("group", "depth_block", "num_sums"):
        text = number(name, getattr(schedule, name))
        holes.function("int64_t", name, p, f"return {text};")
    left = f"return {number(f'n{rank - 2}', region.domain[-2])} - at->i{rank - 2};"
    holes.function("int64_t", "lines_left", AT, left)
    shared = range(rank - 3, rank - 3 - shared_axes(region), -1)
    for axis in (a for a in shared if a in schedule.blocks.labels):
        extent = number(f"n{axis}", region.domain[axis])
        left += f"\nleft += ({extent} - 1 - at->i{axis}) * rows;\nrows *= {extent};"
    if len(left.splitlines()) > 1:
        left = left.replace("return", "int64_t left =", 1).replace(
            ";", f";\nint64_t rows = {number(f'n{rank - 2}', region.domain[-2])};", 1
        )
        left += "\nreturn left;"
    holes.function("int64_t", "rows_left", AT, left)
