"""Tiles of products, and what one costs: the choice of a config without timing.

A tile is (BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, SPLIT_N, SWAP, MAPS, PROGRAMS, SPLIT_K,
FLOAT_PARTS). SWAP computes
the transposed product, whose rows are the columns of the result: matrix units take at least 64 rows, but as few as
16 columns. MAPS moves tiles through tensor maps. PROGRAMS is how many programs of a multiprocessor walk over all
tiles; with 0 each tile has its own. SPLIT_K parts of K have programs of their own, and a second kernel joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.codegen.axes import MergedAxis, merge
from fuseplan.engines.triton.body import TileAxis
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, behind
from fuseplan.engines.triton.products.views import mapped_tile

KNOBS = (
    "BLOCK_M",
    "BLOCK_N",
    "BLOCK_K",
    "num_warps",
    "num_stages",
    "SPLIT_N",
    "SWAP",
    "MAPS",
    "PROGRAMS",
    "SPLIT_K",
    "FLOAT_PARTS",
)
Tile = Sequence[int]

# table: tiles through pointers, large first
_HALF_TILES = (
    (128, 256, 64, 8, 3, 2), (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 3, 2), (128, 256, 64, 8, 4, 2),
    (64, 128, 64, 4, 4, 1), (64, 64, 64, 4, 4, 1), (32, 64, 128, 4, 4, 1), (16, 64, 128, 4, 4, 1),
)  # fmt: skip
_FLOAT_TILES = (
    (128, 128, 16, 8, 3, 1), (64, 128, 16, 4, 3, 1), (64, 64, 16, 4, 3, 1), (32, 64, 32, 4, 3, 1),
    (32, 32, 32, 4, 3, 1), (16, 32, 32, 4, 3, 1),
)  # fmt: skip
_FLOAT_PART_TILES = (  # table: of float32 operands in parts
    (128, 128, 32, 8, 3, 1), (64, 128, 32, 4, 3, 1), (64, 64, 32, 4, 3, 1), (32, 64, 32, 4, 3, 1)
)  # fmt: skip
_LEAST_TILE = (16, 32, 32, 4, 2, 1)  # where the operands of several products leave no room for another one
# table: tiles through tensor maps, up to PROGRAMS
_MAP_TILES = (
    (128, 256, 64, 8, 3, 1, 0, 1, 1), (128, 256, 64, 8, 3, 2, 0, 1, 1), (128, 256, 64, 8, 4, 2, 0, 1, 1),
    (128, 256, 64, 8, 3, 2, 0, 1, 0), (128, 128, 64, 8, 4, 1, 0, 1, 1),
    (128, 128, 64, 4, 3, 2, 0, 1, 0), (64, 128, 64, 4, 4, 1, 0, 1, 0), (64, 64, 128, 4, 5, 1, 0, 1, 0),
    (64, 256, 64, 4, 4, 1, 0, 1, 1),
    (16, 64, 256, 4, 4, 1, 1, 1, 0), (32, 64, 128, 4, 4, 1, 1, 1, 0), (64, 64, 128, 4, 4, 1, 1, 1, 0),
)  # fmt: skip
# table: values of knobs that a tuner tries
VALUES = {
    "BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (16, 32, 64, 128, 256), "BLOCK_K": (16, 32, 64, 128, 256),
    "num_warps": (4, 8), "num_stages": (2, 3, 4, 5, 6, 7, 8), "SPLIT_N": (1, 2), "SWAP": (0, 1), "MAPS": (0, 1),
    "PROGRAMS": (0, 1, 2), "SPLIT_K": (1, 2, 4, 8, 16, 32, 64, 128), "GROUP_M": (1, 2, 4, 8, 16, 32),
    "FLOAT_PARTS": (0, 1),
}  # fmt: skip
_ACCUMULATORS = 128 * 256  # elements of all accumulators of a program that its registers hold
_FEW_VALUES = 3
_MAX_PARTS, _LEAST_STEPS = 64, 4  # parts of K, and steps of each

_TENSOR_CORE_GAIN = 11.0  # rate of half-type matrix units over float32 lanes, H100 and H200
_PARTS_GAIN = 1.2  # the same for float32 operands in parts: six products, and cutting
_L2_BYTES_PER_US = 80e3  # that a multiprocessor loads, H200
_LAUNCH_US, _FILL_US, _STORE_BYTES_PER_US = 2.5, 1.2, 100e3  # of a kernel; of its first loads; of an epilogue
_RATES = ((256, 1.0), (128, 0.92), (64, 0.75), (32, 0.5), (16, 0.3))  # of matrix units, by columns of an instruction
_MAX_RESIDENT, _SHARED_BYTES, _REGISTERS, _RESERVED = 8, 228 << 10, 65536, 1024


def candidates(schedule: GemmSchedule) -> list[Tile]:
    """All tiles that fit a schedule, cheapest first; for all extents, those near one size."""
    if schedule.region.graph.is_dynamic:
        wanted = (16384 if schedule.has_matrix_units else 4096) // len(schedule.pairs)
        return sorted(_fitting(schedule), key=lambda t: abs(t[0] * t[1] - wanted))
    found = [split for tile in _fitting(schedule) for split in _splits(tile, schedule)]
    return sorted(found, key=lambda t: tile_us(t, schedule))


def _fitting(schedule: GemmSchedule) -> list[Tile]:
    if schedule.has_matrix_units:
        plain = [(*t, 0, 0, 0, 1, 0) for t in _HALF_TILES]
    else:
        plain = [(*t, 0, 0, 0, 1, 1) for t in _FLOAT_PART_TILES] + [(*t, 0, 0, 0, 1, 0) for t in _FLOAT_TILES]
    mapped = [
        (*t, 1, 0) for t in _MAP_TILES if can_map(t, schedule) and not (_is_heavy(schedule) and _fills_registers(t))
    ]
    products, limit = len(schedule.pairs), schedule.device.shared_bytes or 99 * 1024
    fitting = [
        t for t in (mapped or plain)
        if gemm_shared_bytes(t, schedule) <= limit and (products == 1 or t[0] * t[1] * products <= _ACCUMULATORS)
    ]  # fmt: skip
    return [*fitting] or [(*_LEAST_TILE, 0, 0, 0, 1, 0)]


def _fills_registers(tile: Tile) -> bool:
    """Whether an epilogue on all columns at once has but few registers beside the sums."""
    return tile[0] * tile[1] // (tile[3] * tile[5]) >= _ACCUMULATORS // 8


def _is_heavy(schedule: GemmSchedule) -> bool:
    """Whether the epilogue needs many registers: it folds tiles, or computes more than a few values."""
    region = schedule.region
    values = [region.values[i] for i in behind(region) if i not in region.anchors]
    computed = [v for v in values if v.args and v.op != "cast" and schedule.is_tile(v.dim)]
    return bool(region.reductions) or len(computed) > _FEW_VALUES


def _splits(tile: Tile, schedule: GemmSchedule) -> list[Tile]:
    """A tile with every number of parts of K that may pay."""
    programs, steps = _num_tiles(tile, schedule), -(-schedule.k // tile[2])
    found, parts = [tile], 2
    size = schedule.batch * schedule.m * schedule.n * len(schedule.pairs)
    while parts <= min(_MAX_PARTS, steps // _LEAST_STEPS) and parts * size < 2**30:
        if programs * parts > 2 * schedule.device.sm_count:
            break
        found.append((*tile[:5], 1, *tile[6:8], 0, parts, tile[10]))
        parts *= 2
    return found


def tile_gap(tile: Tile, schedule: GemmSchedule) -> str:
    """Why a tile does not work for a schedule; empty if it does."""
    m, n, k, warps, parts = *tile[:4], tile[9]
    needed, limit = gemm_shared_bytes(tile, schedule), schedule.device.shared_bytes or 99 * 1024
    if needed > limit:
        return f"its tiles take {needed} bytes of shared memory, a block has {limit}"
    if m * n * len(schedule.pairs) > warps * _ACCUMULATORS // 8:
        return f"{warps} warps do not hold {len(schedule.pairs)} x {m} x {n} sums"
    if schedule.has_matrix_units and k < 16:
        return "BLOCK_K is at least 16"
    if tile[7] and not can_map(tile, schedule):
        return "tensor maps do not reach its operands"
    if parts > 1 and (parts * k > schedule.k or parts * schedule.batch * schedule.m * schedule.n >= 2**30):
        return f"K does not have {parts} parts worth a program"
    return ""


def can_map(tile: Tile, schedule: GemmSchedule) -> bool:
    """Whether tensor maps move everything that products are computed from, on a device that has them."""
    region = schedule.region
    if schedule.device.sm_version < 90 or region.graph.is_dynamic or not schedule.has_matrix_units:
        return False
    rank = len(region.domain)
    batch = TileAxis("b", merge(region, range(rank - 2)))
    m, n, k = tile[:3]
    left = [batch, _axis(rank - 2, schedule.m), _axis(rank - 1, schedule.k)]
    right = [batch, _axis(rank - 2, schedule.k), _axis(rank - 1, schedule.n)]

    def is_mapped(operands: Sequence[DotOperand], axes: list[TileAxis], sides: tuple[int, int]) -> bool:
        loaded = [region.operand_of[o.value] for o in operands if region.values[o.value].op == "load"]
        return all(mapped_tile(region.operands[number], axes, sides) is not None for number in loaded)

    return is_mapped(schedule.left, left, (m, k)) and is_mapped(schedule.right, right, (k, n))


def _axis(place: int, extent: int) -> TileAxis:
    return TileAxis("", (MergedAxis((place,), extent),))


def gemm_shared_bytes(tile: Tile, schedule: GemmSchedule) -> int:
    """Shared memory of a tile: load buffers, and beside them, where programs go on to a next tile, the stored one."""
    m, n, k, _, stages = tile[:5]
    parts = 3 * 2 * k * (m + n) if len(tile) > 10 and tile[10] else 0
    loads = parts + (len(schedule.left) * m * k + len(schedule.right) * k * n) * schedule.itemsize * stages
    is_walking = len(tile) > 8 and tile[8]
    return loads + (m * n // tile[5] * schedule.output_itemsize + 1024 if is_walking else 0)


def _num_tiles(tile: Tile, schedule: GemmSchedule) -> int:
    return schedule.batch * -(-schedule.m // tile[0]) * -(-schedule.n // tile[1])


def tile_us(tile: Tile, schedule: GemmSchedule) -> float:
    """Expected time of all launches of a tile's kernels."""
    m, n, k, programs_per_sm, parts = *tile[:3], *tile[8:10]
    products, device = len(schedule.pairs), schedule.device
    sms = max(1, device.sm_count)
    resident = _resident(tile, schedule)
    if programs_per_sm:
        resident = min(resident, programs_per_sm)
    programs = _num_tiles(tile, schedule) * parts
    steps = -(-schedule.k // (k * parts))
    step_us = max(_matrix_us(tile, schedule), (m + n) * k * schedule.itemsize / _L2_BYTES_PER_US)
    rounds = -(-programs // (sms * resident))
    busiest = min(-(-programs // sms), rounds * resident)  # programs of a multiprocessor one after another
    epilogue_us = products * m * n * 4 / _STORE_BYTES_PER_US
    hidden = 0.3 if resident > 1 else 1.0
    work_us = busiest * (steps * step_us + hidden * epilogue_us) + _FILL_US * (1 if programs_per_sm else rounds)
    cost = schedule.region.cost
    memory_us = (cost.read_bytes + cost.write_bytes) / (device.memory_gbps * 1e3)
    join_us = _LAUNCH_US * len(schedule.reductions.accumulators)
    if parts > 1:
        size = 4.0 * products * schedule.batch * schedule.m * schedule.n * parts
        join_us += _LAUNCH_US + 2 * size / (_L2_BYTES_PER_US * sms)
    return _LAUNCH_US + max(work_us, memory_us + _FILL_US) + join_us


def _matrix_us(tile: Tile, schedule: GemmSchedule) -> float:
    """Time of the products of one step of a tile on one multiprocessor."""
    m, n, k, _, _, _, is_swapped = tile[:7]
    peak = schedule.device.peak_gflops * 1e3 / max(1, schedule.device.sm_count)  # operations a microsecond
    if not schedule.has_matrix_units and not tile[10]:
        return 2.0 * m * n * k * len(schedule.pairs) / (0.5 * peak)
    width = m if is_swapped else n
    rate = next((r for columns, r in _RATES if width >= columns), _RATES[-1][1])
    height = max(64, n if is_swapped else m)
    gain = _TENSOR_CORE_GAIN if schedule.has_matrix_units else _PARTS_GAIN
    return 2.0 * height * width * k * len(schedule.pairs) / (peak * gain * rate)


def _resident(tile: Tile, schedule: GemmSchedule) -> int:
    """Programs that a multiprocessor holds at once."""
    m, n, _, warps = tile[:4]
    shared = gemm_shared_bytes(tile, schedule) + _RESERVED
    registers = 32 * warps * min(255, 48 + m * n * len(schedule.pairs) // (32 * warps))
    return max(1, min(_MAX_RESIDENT, _SHARED_BYTES // shared, _REGISTERS // registers))
