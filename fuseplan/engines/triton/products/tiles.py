"""Tiles of products, and what one costs: the choice of a config without timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fuseplan.codegen.axes import MergedAxis, merge
from fuseplan.engines.triton.body import TileAxis
from fuseplan.engines.triton.products.schedule import DotOperand, GemmSchedule, Shares, behind
from fuseplan.engines.triton.products.special import IN_TURN, special_gap
from fuseplan.engines.triton.products.views import mapped_tile


class Tile(NamedTuple):
    """The knobs of products but for GROUP_M.

    Args:
        split_n: parts of the columns on which the epilogue runs one after another
        swap: whether the transposed product is computed: matrix units take at least 64 rows, but as few as 16 columns
        maps: whether tiles come and go through tensor maps
        programs: of a multiprocessor, that walk over all tiles; with 0 each tile has its own program
        split_k: parts of K that have programs of their own; a second kernel joins them
        float_parts: whether float32 operands are cut in three bfloat16 parts, whose products are as exact
        shared_tail: whether programs share the tiles that would not keep all of them busy
        specialists: whether loads and products have warps of their own, num_warps counting one group's; with 2 each
            group has tiles of its own
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    split_n: int = 1
    swap: int = 0
    maps: int = 0
    programs: int = 0
    split_k: int = 1
    float_parts: int = 0
    shared_tail: int = 0
    specialists: int = 0

    @property
    def takes_turns(self) -> bool:
        """Whether one group of warps multiplies beside the epilogue of the other."""
        return self.specialists == IN_TURN

    @property
    def knobs(self) -> dict[str, int]:
        return dict(zip(KNOBS, self, strict=True))

    @classmethod
    def of(cls, knobs: Mapping[str, int]) -> Tile:
        """The tile of a config."""
        return cls(*(knobs[name] for name in KNOBS))


KNOBS = tuple([name if name.startswith("num_") else name.upper() for name in Tile._fields])


# tiles through pointers, large first
_HALF_TILES = (
    (128, 256, 64, 8, 3, 2),
    (128, 128, 64, 8, 4, 1),
    (128, 128, 64, 4, 3, 2),
    (128, 256, 64, 8, 4, 2),
    (64, 128, 64, 4, 4, 1),
    (64, 64, 64, 4, 4, 1),
    (32, 64, 128, 4, 4, 1),
    (16, 64, 128, 4, 4, 1),
)
_FLOAT_TILES = (
    (128, 128, 16, 8, 3, 1),
    (64, 128, 16, 4, 3, 1),
    (64, 64, 16, 4, 3, 1),
    (32, 64, 32, 4, 3, 1),
    (32, 32, 32, 4, 3, 1),
    (16, 32, 32, 4, 3, 1),
)
_FLOAT_PART_TILES = (  # of float32 operands in parts
    (128, 128, 32, 8, 3, 1),
    (64, 128, 32, 4, 3, 1),
    (64, 64, 32, 4, 3, 1),
    (32, 64, 32, 4, 3, 1),
)
_LEAST_TILE = Tile(16, 32, 32, 4, 2)  # where the operands of several products leave no room for another one
_SPECIAL_TILES = [
    Tile(128, columns, 64, 4, stages, parts, maps=1, programs=1, specialists=kind)
    for columns, stages, parts, kind in (
        (256, 4, 2, 1),
        (256, 3, 1, 1),
        (128, 6, 2, 2),
        (128, 6, 4, 2),
    )
]
# tiles through tensor maps, up to PROGRAMS
_MAP_TILES = (
    (128, 256, 64, 8, 3, 1, 0, 1, 1),
    (128, 256, 64, 8, 3, 2, 0, 1, 1),
    (128, 256, 64, 8, 4, 2, 0, 1, 1),
    (128, 128, 64, 8, 4, 1, 0, 1, 1),
    (128, 128, 64, 4, 3, 2, 0, 1, 0),
    (128, 256, 64, 8, 3, 2, 0, 1, 0),
    (128, 128, 64, 8, 3, 1, 0, 1, 0),
    (128, 128, 64, 8, 4, 1, 0, 1, 0),
    (64, 128, 64, 4, 4, 1, 0, 1, 0),
    (64, 128, 128, 4, 4, 1, 0, 1, 0),
    (64, 64, 128, 4, 6, 1, 0, 1, 0),
    (64, 64, 128, 4, 5, 1, 1, 1, 0),
    (64, 64, 64, 4, 4, 1, 0, 1, 0),
    (16, 64, 128, 4, 8, 1, 1, 1, 0),
    (16, 64, 256, 4, 4, 1, 1, 1, 0),
    (32, 64, 128, 4, 6, 1, 1, 1, 0),
    (32, 64, 64, 4, 4, 1, 1, 1, 0),
)
# values of knobs that a tuner tries
VALUES = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128, 256),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6, 7, 8),
    "SPLIT_N": (1, 2, 4),
    "SWAP": (0, 1),
    "MAPS": (0, 1),
    "PROGRAMS": (0, 1, 2),
    "SPLIT_K": (1, 2, 4, 8, 16, 32, 64, 128),
    "GROUP_M": (1, 2, 4, 8, 16, 32),
    "FLOAT_PARTS": (0, 1),
    "SHARED_TAIL": (0, 1),
    "SPECIALISTS": (0, 1, 2),
}
_MAPPED_SM = 9  # major version; newer ones keep sums elsewhere, and these tiles are not measured there
_ACCUMULATORS = 128 * 256  # elements of all accumulators of a program that its registers hold
_FEW_VALUES = 3
_MAX_GROUP, _LEAST_SHARED, _LEAST_SAVING, _SHARE_US = 32, 32, 0.05, 3.0  # of shared tiles: see `shares_of`
_MAX_PARTS, _LEAST_STEPS = 64, 4  # parts of K, and steps of each
_LEAST_JOINED = 8  # parts that one kernel joins: slices of a tile for fewer are large

_TENSOR_CORE_GAIN = 12.0  # rate of half-type matrix units over float32 lanes, H100 and H200
_SPECIAL_GAIN = 1.02  # of the rate where loads and products have warps of their own
_POINTERS_GAIN = 0.9  # of the rate where operands come through pointers
_PARTS_GAIN = 1.2  # the same for float32 operands in parts: six products, and cutting
_L2_BYTES_PER_US = 110e3  # that a multiprocessor loads, H200
_NOT_HIDDEN = 0.25  # of the shorter one of memory time and work
_STEP_US = 0.03  # of a step along K, whatever it does
_OUTSIDE = 4  # a row outside of a tensor map costs the copy engine this many times one inside
_LAUNCH_US, _FILL_US, _STORE_BYTES_PER_US = 2.5, 1.2, 100e3  # of a kernel; of its first loads; of an epilogue
_WAIT_US = 2.4  # of programs for each other, and for what they kept to reach memory
_HEAVY_PER_US, _BUSY_WARPS = 14e3, 16  # elements that a multiprocessor finishes where that is work; warps it takes
_RATES = ((256, 1.0), (128, 0.92), (64, 0.75), (32, 0.5), (16, 0.3))  # of matrix units, by columns of an instruction
_MAX_RESIDENT, _SHARED_BYTES, _REGISTERS, _RESERVED = 8, 228 << 10, 65536, 1024


def candidates(schedule: GemmSchedule) -> list[Tile]:
    """All tiles that fit a schedule, cheapest first; for all extents, those near one size."""
    if schedule.region.graph.is_dynamic:
        wanted = (16384 if schedule.has_matrix_units else 4096) // len(schedule.pairs)
        return sorted(_fitting(schedule), key=lambda t: abs(t.block_m * t.block_n - wanted))
    found = [split for tile in _fitting(schedule) for split in _splits(tile, schedule)]
    return sorted(found, key=lambda t: tile_us(t, schedule))


def through_pointers(schedule: GemmSchedule) -> list[Tile]:
    """The cheapest tile without tensor maps, in a list: a caller can launch its kernel with nothing but addresses."""
    return sorted((t for t in _plain(schedule) if not tile_gap(t, schedule)), key=lambda t: tile_us(t, schedule))[:1]


def _plain(schedule: GemmSchedule) -> list[Tile]:
    if schedule.has_matrix_units:
        return [Tile(*t) for t in _HALF_TILES]
    return [Tile(*t, float_parts=1) for t in _FLOAT_PART_TILES] + [Tile(*t) for t in _FLOAT_TILES]


def _fitting(schedule: GemmSchedule) -> list[Tile]:
    mapped = [t for t in [*_SPECIAL_TILES, *(Tile(*made) for made in _MAP_TILES)] if can_map(t, schedule)]
    lean = mapped
    if _is_heavy(schedule):
        lean = [t for t in mapped if t.takes_turns or not (t.programs or _fills_registers(t))]
    fitting = [t for t in lean or _plain(schedule) if not tile_gap(t, schedule)]
    return fitting or [_LEAST_TILE]


def _fills_registers(tile: Tile) -> bool:
    """Whether an epilogue on all columns at once has but few registers beside the sums."""
    return tile.block_m * tile.block_n // (tile.num_warps * tile.split_n) >= _ACCUMULATORS // 8


def _is_heavy(schedule: GemmSchedule) -> bool:
    """Whether the epilogue needs many registers: it folds tiles, or computes more than a few values."""
    region = schedule.region
    values = [region.values[i] for i in behind(region) if i not in region.anchors]
    computed = [v for v in values if v.args and v.op != "cast" and schedule.is_tile(v.dim)]
    return bool(region.reductions) or len(computed) > _FEW_VALUES


def _splits(tile: Tile, schedule: GemmSchedule) -> list[Tile]:
    """A tile with every number of parts of K that may pay, and with a shared tail where it may."""
    programs, steps = _num_tiles(tile, schedule), -(-schedule.k // tile.block_k)
    found, parts = [tile], 2
    if shares_of(tile, schedule) is not None:
        found.append(tile._replace(shared_tail=1))
    if tile.specialists:
        return found
    size = schedule.batch * schedule.m * schedule.n * len(schedule.pairs)
    while parts <= min(_MAX_PARTS, steps // _LEAST_STEPS) and parts * size < 2**30:
        if programs * parts > 2 * schedule.device.sm_count:
            break
        found.append(tile._replace(split_n=1, programs=0, split_k=parts))
        if parts >= _LEAST_JOINED and not _waits_gap(found[-1], schedule):
            found.append(found[-1]._replace(shared_tail=1))
        parts *= 2
    return found


def shares_of(tile: Tile, schedule: GemmSchedule) -> Shares | None:
    """How the tiles of the last wave are shared; None where that saves little or is not possible."""
    programs, tiles = schedule.device.sm_count, _num_tiles(tile, schedule)
    steps, left = -(-schedule.k // tile.block_k), tiles % programs
    is_known = (tile.programs, tile.split_n, tile.split_k, tile.swap, tile.takes_turns) == (1, 2, 1, 0, False)
    if not is_known or not left or steps < _LEAST_SHARED:
        return None
    step_us, best, least = step_us_of(tile, schedule), None, (1 - _LEAST_SAVING) * steps
    for group in range(1, min(left, _MAX_GROUP) + 1):
        shares = programs // (left // group)
        if left % group or shares <= group:
            continue
        length = steps * group / shares + shares * _SHARE_US / step_us
        if length < least:
            best, least = Shares(tiles - left, left // group, group, shares), length
    return best


def tile_gap(tile: Tile, schedule: GemmSchedule) -> str:
    """Why a tile does not work for a schedule; empty if it does."""
    needed, limit = gemm_shared_bytes(tile, schedule), schedule.device.shared_bytes or 99 * 1024
    if needed > limit:
        return f"its tiles take {needed} bytes of shared memory, a block has {limit}"
    if tile.specialists:
        if _fixed(tile) not in map(_fixed, _SPECIAL_TILES):
            return "warps of their own for loads and products have other tiles"
        if reason := special_gap(schedule):
            return reason
    warps = tile.num_warps * (2 if tile.specialists == 1 else 1)
    if tile.block_m * tile.block_n * len(schedule.pairs) > warps * _ACCUMULATORS // 8:
        return f"{warps} warps do not hold {len(schedule.pairs)} x {tile.block_m} x {tile.block_n} sums"
    if tile.maps and not can_map(tile, schedule):
        return "tensor maps do not reach its operands"
    parts = tile.split_k
    if tile.shared_tail and parts > 1 and (reason := _waits_gap(tile, schedule)):
        return reason
    if tile.shared_tail and parts == 1 and shares_of(tile, schedule) is None:
        return "there is no tail worth sharing"
    if parts > 1 and (parts * tile.block_k > schedule.k or parts * schedule.batch * schedule.m * schedule.n >= 2**30):
        return f"K does not have {parts} parts worth a program"
    return ""


def _waits_gap(tile: Tile, schedule: GemmSchedule) -> str:
    """Why parts of K are not joined in one kernel; empty if they can be."""
    if _num_tiles(tile, schedule) * tile.split_k > schedule.device.sm_count:
        return "programs that wait for each other are not all on the device at once"
    if schedule.region.graph.is_dynamic or tile.block_m * tile.block_n < 16 * tile.split_k:
        return "slices of a tile are too small"
    return ""


def _fixed(tile: Tile) -> Tile:
    """What is not free where loads and products have warps of their own."""
    return tile._replace(block_k=64, num_stages=1, split_n=1, shared_tail=0)


def can_map(tile: Tile, schedule: GemmSchedule) -> bool:
    """Whether tensor maps move everything that products are computed from, on a device that has them."""
    region = schedule.region
    if schedule.device.sm_version // 10 != _MAPPED_SM or region.graph.is_dynamic or not schedule.has_matrix_units:
        return False
    rank = len(region.domain)
    batch = TileAxis("b", merge(region, range(rank - 2)))
    left = [batch, _axis(rank - 2, schedule.m), _axis(rank - 1, schedule.k)]
    right = [batch, _axis(rank - 2, schedule.k), _axis(rank - 1, schedule.n)]

    def is_mapped(operands: Sequence[DotOperand], axes: list[TileAxis], sides: tuple[int, int]) -> bool:
        loaded = [region.operand_of[o.value] for o in operands if region.values[o.value].op == "load"]
        return all(mapped_tile(region.operands[number], axes, sides) is not None for number in loaded)

    return is_mapped(schedule.left, left, (tile.block_m, tile.block_k)) and is_mapped(
        schedule.right, right, (tile.block_k, tile.block_n)
    )


def _axis(place: int, extent: int) -> TileAxis:
    return TileAxis("", (MergedAxis((place,), extent),))


def gemm_shared_bytes(tile: Tile, schedule: GemmSchedule) -> int:
    """Shared memory of a tile: load buffers, and beside them, where programs go on to a next tile, the stored one.

    Where loads and products have warps of their own, each output that lies by rows has room for itself.
    """
    m, n, k = tile[:3]
    loads = (len(schedule.left) * m * k + len(schedule.right) * k * n) * schedule.itemsize * tile.num_stages
    parts = 3 * 2 * k * (m + n) if tile.float_parts else 0
    size = max((o.dtype.itemsize for o in schedule.tile_outputs), default=0)
    if tile.specialists:
        size = tile.specialists * sum(o.dtype.itemsize for o in schedule.tile_outputs if o.stride[-1] == 1)
    stored = m * n // tile.split_n * size + 1024 if tile.programs else 0
    return loads + parts + stored


def _num_tiles(tile: Tile, schedule: GemmSchedule) -> int:
    return schedule.batch * -(-schedule.m // tile.block_m) * -(-schedule.n // tile.block_n)


def tile_us(tile: Tile, schedule: GemmSchedule) -> float:
    """Expected time of all launches of a tile's kernels."""
    m, n, parts = tile.block_m, tile.block_n, tile.split_k
    products, device = len(schedule.pairs), schedule.device
    sms, resident = max(1, device.sm_count), _resident(tile, schedule)
    if tile.programs:
        resident = min(resident, tile.programs)
    programs = _num_tiles(tile, schedule) * parts
    steps = -(-schedule.k // (tile.block_k * parts))
    rounds = -(-programs // (sms * resident))
    busiest: float = min(-(-programs // sms), rounds * resident)  # programs of a multiprocessor one after another
    shares = shares_of(tile, schedule) if tile.shared_tail else None
    launches = 1 + len(schedule.reductions.accumulators)
    work_us = 0.0
    if shares is not None:
        busiest = shares.whole // sms + shares.tiles / shares.shares
        launches, work_us = launches + 1, _SHARE_US * shares.shares
    epilogue_us = products * m * n * 4 / _STORE_BYTES_PER_US * (0.3 if resident > 1 else 1.0)
    if _is_heavy(schedule):
        epilogue_us += products * m * n / _HEAVY_PER_US / min(1.0, resident * tile.num_warps / _BUSY_WARPS)
    sums_us = steps * step_us_of(tile, schedule)
    if tile.takes_turns:
        work_us += busiest * max(sums_us, (sums_us + epilogue_us) / 2) + epilogue_us
    else:
        work_us += busiest * (sums_us + epilogue_us)
    work_us += _FILL_US * (1 if tile.programs else rounds)
    cost = schedule.region.cost
    reach = min(1.0, programs / sms)  # of the memory's rate: few programs do not have enough loads under way
    memory_us = (cost.read_bytes + cost.write_bytes) / (device.memory_gbps * 1e3 * reach)
    join_us = 0.0
    if parts > 1:
        size = 4.0 * products * schedule.batch * schedule.m * schedule.n * parts
        join_us = 2 * size / (_L2_BYTES_PER_US * sms) + (_WAIT_US if tile.shared_tail else _LAUNCH_US)
    both = (work_us, memory_us + _FILL_US)
    return launches * _LAUNCH_US + max(both) + _NOT_HIDDEN * min(both) + join_us


def step_us_of(tile: Tile, schedule: GemmSchedule) -> float:
    """Time of one step along K of a tile."""
    m, n = min(tile.block_m, schedule.m), min(tile.block_n, schedule.n)
    outside = (tile.block_m - m + tile.block_n - n) * (_OUTSIDE if tile.maps else 0)
    loads = (m + n + outside) * tile.block_k * schedule.itemsize
    step_us = _STEP_US / 2 if tile.takes_turns else _STEP_US  # the other group's products fill some of it
    return step_us + max(_matrix_us(tile, schedule), loads / _L2_BYTES_PER_US)


def _matrix_us(tile: Tile, schedule: GemmSchedule) -> float:
    """Time of the products of one step of a tile on one multiprocessor."""
    m, n, k = tile[:3]
    peak = schedule.device.peak_gflops * 1e3 / max(1, schedule.device.sm_count)  # operations a microsecond
    if not schedule.has_matrix_units and not tile.float_parts:
        return 2.0 * m * n * k * len(schedule.pairs) / (0.5 * peak)
    width = m if tile.swap else n
    rate = next((r for columns, r in _RATES if width >= columns or tile.takes_turns), _RATES[-1][1])
    height = max(64, n if tile.swap else m)
    gain = _TENSOR_CORE_GAIN if schedule.has_matrix_units else _PARTS_GAIN
    gain *= _SPECIAL_GAIN if tile.specialists and not tile.takes_turns else 1.0
    gain *= _POINTERS_GAIN if schedule.has_matrix_units and not tile.maps else 1.0
    return 2.0 * height * width * k * len(schedule.pairs) / (peak * gain * rate)


def _resident(tile: Tile, schedule: GemmSchedule) -> int:
    """Programs that a multiprocessor holds at once."""
    shared = gemm_shared_bytes(tile, schedule) + _RESERVED
    threads = 32 * tile.num_warps * (2 if tile.specialists else 1)
    sums = tile.block_m * tile.block_n * len(schedule.pairs) // threads
    registers = threads * min(255, 48 + sums)
    return max(1, min(_MAX_RESIDENT, _SHARED_BYTES // shared, _REGISTERS // registers))
