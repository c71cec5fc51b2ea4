"""Regions with reductions over one set of axes, or over some axes and over all others.

Programs own rows; columns are what is reduced. A row that fits a tile is computed at once (`WholeRows`), a longer one
in passes (`RowPasses`). Where nothing that is stored along the columns follows from the reductions, several programs
may share a row, each with a part of its columns. Sums over the rows beside sums over the columns (a norm's gradients)
stay with the program over all of its rows. Kernels for all extents are in passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseplan.codegen.axes import MergedAxis, element_operands, memory_order, merge
from fuseplan.engines.base import Config, KnobSpace, Support, no
from fuseplan.engines.forms import NOT_THIS
from fuseplan.engines.triton.atomic import dependent_values
from fuseplan.engines.triton.body import needed_for
from fuseplan.engines.triton.estimate import estimate_us
from fuseplan.engines.triton.kernel import Emitted
from fuseplan.engines.triton.knobs import complete_knobs, listed, power_of_two
from fuseplan.engines.triton.layout import num_non_unit, reduced_axes
from fuseplan.engines.triton.rows.held import HeldRows, is_held
from fuseplan.engines.triton.rows.partials import Partials
from fuseplan.engines.triton.rows.passes import RowPasses
from fuseplan.engines.triton.rows.shifted import shift_of
from fuseplan.engines.triton.rows.tiles import RowsSchedule
from fuseplan.engines.triton.rows.whole import WholeRows
from fuseplan.ir.region import Operand, Region, Role
from fuseplan.runtime.device import Device

_WHOLE_COLUMNS = 16384  # more would not fit the registers of a block
_FEW_ELEMENTS = 1 << 15  # below this one block reduces faster than a second launch starts
_SHARED_BYTES = 200 << 10
_ELEMENTS = 40  # of a tile, for each thread; with two sums over rows more would not fit its registers
_MOST = 6  # listed
_ONE_BLOCK_COLUMNS = 24576  # of more there is one block on a multiprocessor at a time
_EXCHANGED_BYTES = 4 << 10  # of shared memory, for reductions
_HELD_BYTES = 128 << 10  # of a row, half of the registers of a multiprocessor
_GRADIENT_COLUMNS = 10240
# table: rows and columns of a tile, for kernels that run at any extents; the first loses least over 64 to 16384 columns
_DYNAMIC_ROW_TILES = ((2, 512), (1, 2048), (4, 256), (8, 128), (16, 64), (1, 4096))
_DYNAMIC_COLUMN_TILES = ((64, 64), (32, 64), (64, 32))


class RowsForm:
    """`ROWS` rows per block, `BLOCK` columns per step."""

    name = "rows"

    def match(self, region: Region, device: Device) -> RowsSchedule | Support:
        if region.anchors or not region.reductions:
            return NOT_THIS
        axes = {i: found for i in region.reductions if (found := reduced_axes(region, i))}
        across = _across(region, axes)
        over_columns = {i: found for i, found in axes.items() if i not in across}
        reduced = next(iter(over_columns.values()), frozenset[int]())
        other = next((i for i, found in over_columns.items() if found != reduced), -1)
        if other >= 0:
            sets = sorted(sorted(s) for s in set(axes.values()))
            return no(f"reductions over different axes in one region: {sets}", at=other)
        inputs = [o for o in element_operands(region) if o.role in (Role.IN, Role.SCRATCH)]
        kept_axes = [a for a in range(len(region.domain)) if a not in reduced]
        kept = merge(region, memory_order(region, kept_axes, inputs))
        columns = merge(region, memory_order(region, sorted(reduced), inputs))
        adjacent = _rows_adjacent(region, kept, inputs)
        schedule = RowsSchedule(region, device, kept, columns, adjacent, across, _may_split(region, kept))
        if across and schedule.columns > _GRADIENT_COLUMNS:
            return no("sums over rows as well as over columns, of rows that do not fit a program", at=min(across))
        return schedule

    def configs(self, schedule: RowsSchedule) -> KnobSpace:
        return listed(_configs(schedule))

    def estimate_us(self, schedule: RowsSchedule, config: Config) -> float:
        launches = 2 if schedule.across or dict(config).get("SPLIT", 1) != 1 else 1
        return estimate_us(schedule.region, schedule.device, launches, schedule.device.peak_gflops)

    def notes(self, schedule: RowsSchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: RowsSchedule, config: Config) -> Emitted:
        return emit_rows(schedule, complete_knobs(self.configs(schedule), config))


def emit_rows(schedule: RowsSchedule, knobs: dict[str, int]) -> Emitted:
    """The kernels of a schedule: one, and where its programs leave partial results those that fold them."""
    is_whole = not schedule.region.graph.is_dynamic and knobs["BLOCK"] >= schedule.columns and knobs["SPLIT"] == 1
    whole = HeldRows if is_held(schedule, knobs) else WholeRows
    writer = whole(schedule, knobs) if is_whole or schedule.across else RowPasses(schedule, knobs)
    main, partials = writer.kernel(), writer.partials
    if isinstance(writer, WholeRows) and writer.shift:
        return Emitted((main,), unaligned=lambda: Emitted((whole(schedule, knobs, is_aligned=False).kernel(),)))
    if partials is None or not partials.reductions:
        return Emitted((main,))
    folding = _folding_kernels(schedule, partials, writer.folded_stores)
    return Emitted((main, *folding.steps), partials.scratch_bytes)


def _folding_kernels(schedule: RowsSchedule, partials: Partials, stored: Sequence[int]) -> Emitted:
    form, region = RowsForm(), partials.folding(stored)
    found = form.match(region, schedule.device)
    assert isinstance(found, RowsSchedule), found
    whole = RowsSchedule(region, found.device, found.kept, found.reduced, found.rows_adjacent)
    return emit_rows(whole, complete_knobs(form.configs(whole), ()))


def _across(region: Region, axes: dict[int, frozenset[int]]) -> frozenset[int]:
    """Reductions over the rows: those over all axes but those of the others, if they can stay with a program."""
    sets = set(axes.values())
    if len(sets) != 2 or region.graph.is_dynamic:
        return frozenset()
    everything = frozenset(a for a, extent in enumerate(region.domain) if extent > 1)
    for over in sorted(sets, key=sorted, reverse=True):
        (others,) = sets - {over}
        if over & others or over | others != everything:
            continue
        columns = frozenset(i for i, found in axes.items() if found == over)
        rows = frozenset(axes) - columns
        if _stay_apart(region, columns, rows):
            return rows
    return frozenset()


def _stay_apart(region: Region, columns: frozenset[int], rows: frozenset[int]) -> bool:
    """Whether reductions over rows take whole tiles, and what follows from them has no extent along the rows."""
    late = set(rows)
    for i, v in enumerate(region.values):
        if any(a in late for a in v.args) and v.op != "count":
            late.add(i)
    row_axes = next(reduced_axes(region, i) for i in rows)
    whole = tuple(region.domain)
    if any(region.values[region.values[i].args[0]].dim != whole for i in rows):
        return False
    return not (late & columns) and all(region.values[i].dim[a] == 1 for i in late for a in row_axes)


def _may_split(region: Region, kept: Sequence[MergedAxis]) -> bool:
    """Whether programs may share rows: what follows from reductions has no extent along the columns."""
    if region.graph.is_dynamic:
        return False
    later = dependent_values(region)
    if later.intersection(region.reductions):
        return False
    for i in region.reductions:
        if not reduced_axes(region, i):
            return False
        value = region.values[i]
        source = region.values[value.args[0]]
        if any(not g.varies(source.dim) for g in kept) or all(source.dim[a] == 1 for a in value.axes):
            return False
    axes = reduced_axes(region, region.reductions[0])
    stored = needed_for(region, [v for v, _ in region.stores])
    return all(region.values[i].dim[a] == 1 for i in later if i in stored for a in axes)


def _rows_adjacent(region: Region, kept: Sequence[MergedAxis], inputs: Sequence[Operand]) -> bool:
    if not kept or not inputs:
        return False
    size = num_non_unit if region.graph.is_dynamic else _num_elements
    return kept[-1].stride(max(inputs, key=size)) == 1


def _num_elements(operand: Operand) -> int:
    return prod(operand.dim)


def _config(rows: int, block: int, *, split: int = 1, warps: int = 0, parts: int = 1, stages: int = 0,
            per_sm: int = 1) -> dict[str, int]:  # fmt: skip
    elements = rows * block
    warps = warps or (4 if elements <= 4096 else 8 if elements <= 8192 else 16)
    return {
        "ROWS": rows, "BLOCK": block, "SPLIT": split, "PARTS": parts, "PER_SM": per_sm, "num_stages": stages,
        "num_warps": warps,
    }  # fmt: skip


def _configs(schedule: RowsSchedule) -> list[dict[str, int]]:
    """Choices, the default first."""
    if schedule.region.graph.is_dynamic:
        tiles = _DYNAMIC_COLUMN_TILES if schedule.rows_adjacent else _DYNAMIC_ROW_TILES
        return [_config(*tile) for tile in tiles]
    if schedule.across:
        return _gradient_configs(schedule)
    if schedule.rows_adjacent and schedule.rows >= 16:
        return _column_configs(schedule)
    rows, whole = schedule.rows, power_of_two(schedule.columns)
    if schedule.may_split and rows * 2 < schedule.device.sm_count and rows * schedule.columns > _FEW_ELEMENTS:
        return _long_configs(schedule)
    if whole <= _WHOLE_COLUMNS:
        return _whole_configs(schedule, whole)
    steps = ((16384, 32, 1), (4096, 16, 1), (8192, 4, 1), (4096, 4, 3), (8192, 8, 2))
    return [*_held_configs(schedule, whole), *(_config(1, b, warps=w, stages=s) for b, w, s in steps)][:_MOST]


def _held_configs(schedule: RowsSchedule, whole: int) -> list[dict[str, int]]:
    """Rows that fit the registers of a multiprocessor; with stages, the next two are on their way to shared memory."""
    row_bytes, shared_bytes = _row_bytes(schedule)
    if row_bytes > _HELD_BYTES:
        return []
    room = schedule.device.shared_bytes - _EXCHANGED_BYTES
    warps = (32, 16) if whole > 2 * _WHOLE_COLUMNS else (16, 32)
    pairs = [(0, warps[0]), (3, warps[0]), (0, warps[1])]
    if shift_of(schedule):  # the next rows would take registers as well
        pairs = [(0, 32), (0, 16)]
    elif schedule.columns > _ONE_BLOCK_COLUMNS:  # nothing else runs while a block waits
        pairs = [pairs[1], pairs[0], pairs[2]]
    fit = [(s, w) for s, w in pairs if (s - 1) * (row_bytes + shared_bytes) <= room]
    return [_config(1, whole, parts=16, stages=s, warps=w) for s, w in fit]


def _row_bytes(schedule: RowsSchedule) -> tuple[int, int]:
    """What is loaded of a row, and of what all rows share."""
    region, own, shared = schedule.region, 0, 0
    for _, number in region.loads:
        operand = region.operands[number]
        if operand.role is not Role.SCALAR and any(g.varies(operand.dim) for g in schedule.reduced):
            is_own = any(g.varies(operand.dim) for g in schedule.kept)
            size = operand.dtype.itemsize * schedule.columns
            own, shared = own + size * is_own, shared + size * (not is_own)
    return own, shared


def _whole_configs(schedule: RowsSchedule, whole: int) -> list[dict[str, int]]:
    """Rows that fit a tile."""
    rows, sms = schedule.rows, schedule.device.sm_count
    packed = max(1, min(power_of_two(rows), 2048 // whole, max(1, rows // sms)))
    packed = 1 << (packed.bit_length() - 1)
    warps = _warps(packed * schedule.columns)
    warps = min(16, 2 * warps) if rows <= sms else warps  # nothing else runs there
    found = [_config(packed, whole, parts=8, warps=w) for w in (warps, min(16, 2 * warps), max(1, warps // 2))]
    found += [_config(packed, whole, parts=1, warps=warps)]
    found += [_config(packed, whole, parts=8, stages=s, per_sm=p, warps=warps) for s, p in ((3, 4),)]
    if 2 * packed * whole <= _WHOLE_COLUMNS:
        height = min(2 * packed, power_of_two(rows))
        found.append(_config(height, whole, parts=8, warps=_warps(height * schedule.columns)))
    return found


def _warps(elements: int) -> int:
    """Warps for a tile of which each thread keeps 40 elements at most."""
    return min(16, power_of_two(-(-elements // (32 * _ELEMENTS))))


def _gradient_configs(schedule: RowsSchedule) -> list[dict[str, int]]:
    """Rows that a program takes in turn, with sums over them kept in registers."""
    region, whole = schedule.region, power_of_two(schedule.columns)
    packed = max(1, min(1024 // whole, power_of_two(schedule.rows) // 4))
    warps = _warps(packed * schedule.columns)
    row_bytes = sum(o.dtype.itemsize for o in region.operands if o.dim == region.domain) * packed * schedule.columns
    choices = [(3, 2, 1), (4, 1, 2), (2, 2, 1), (3, 1, 2), (3, 2, 2), (4, 2, 1)]
    if _is_wide(schedule):  # one program on each multiprocessor
        choices.insert(0, choices.pop(3))
    elif len(schedule.across) == 1:
        choices.insert(0, choices.pop(1))
    found = []
    for stages, per_sm, factor in choices:
        if (stages - 1) * per_sm * row_bytes <= _SHARED_BYTES:
            per_sm = per_sm * max(1, 4 // warps)
            found.append(_config(packed, whole, parts=8, stages=stages, per_sm=per_sm, warps=min(16, warps * factor)))
    return found or [_config(packed, whole, parts=8, stages=1, per_sm=1, warps=warps)]


def _is_wide(schedule: RowsSchedule) -> bool:
    """Whether elements that are read are of four bytes or more."""
    region = schedule.region
    read = [o for o in element_operands(region) if not o.role.is_written and o.dim == region.domain]
    return any(o.dtype.itemsize >= 4 for o in read)


def _split(schedule: RowsSchedule, rows: int, block: int, per_sm: int) -> int:
    """Programs that share a row, so that each multiprocessor has so many; each has four steps at least."""
    if not schedule.may_split:
        return 1
    blocks, steps = -(-schedule.rows // rows), -(-schedule.columns // block)
    wanted = max(1, min(per_sm * schedule.device.sm_count // blocks, steps // 4))
    return 1 << (wanted.bit_length() - 1)


def _column_configs(schedule: RowsSchedule) -> list[dict[str, int]]:
    """Columns that are far apart in memory: tiles of neighbouring rows."""
    rows, columns = power_of_two(schedule.rows), power_of_two(schedule.columns)
    found = []
    first = (8, 4) if _is_wide(schedule) and columns > 64 else (4, 8)
    for lanes, step, warps, per_sm, stages in (
        (64, 64, first[0], 4, 1), (64, 64, first[1], 4, 1), (64, 32, 4, 8, 2), (128, 32, 4, 4, 3), (256, 32, 8, 4, 1),
    ):  # fmt: skip
        lanes, step = min(lanes, rows), min(step, columns)
        split = _split(schedule, lanes, step, per_sm)
        is_whole = step == columns and split == 1
        found.append(_config(lanes, step, split=split, warps=warps, stages=0 if is_whole else stages))
    if schedule.may_split and schedule.rows * schedule.columns > _FEW_ELEMENTS:
        return found
    lanes = max(16, min(128, rows, 1 << (schedule.rows // schedule.device.sm_count).bit_length() >> 1))
    lanes = min(lanes, 16) if columns == 256 else lanes  # one step for the partial sums of a norm's gradients
    step = min(columns, 4096 // lanes, 256 if columns == 256 else 128)
    return [_config(min(lanes, rows), step, stages=int(step < columns), warps=4), *found]


def _long_configs(schedule: RowsSchedule) -> list[dict[str, int]]:
    """Few long rows, each shared by many programs."""
    tiles = ((8192, 8, 4, 1), (8192, 8, 2, 3), (4096, 4, 4, 2), (2048, 4, 8, 1), (16384, 16, 2, 2))
    return [
        _config(1, block, split=_split(schedule, 1, block, per_sm), warps=warps, stages=stages)
        for block, warps, per_sm, stages in tiles
    ]  # fmt: skip
