"""Choices of each kernel form: a short list of configs per region, the default first."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, Knob, KnobSpace, config
from fuseplan.engines.triton.emit_gemm import dot_type, gemm_extents
from fuseplan.engines.triton.emit_pointwise import is_flat
from fuseplan.engines.triton.emit_rows import tile_shape
from fuseplan.errors import ArgumentError
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

_PERSISTENT_COLUMNS = 16384  # more would not fit the registers of a block
# table: rows and columns of a tile, for kernels that run at any extents; the first loses least over 64 to 16384 columns
_SHARED_ROW_TILES: tuple[tuple[int, int], ...] = ((2, 512), (1, 2048), (4, 256), (8, 128), (16, 64), (1, 4096))
_SHARED_COLUMN_TILES: tuple[tuple[int, int], ...] = ((64, 64), (32, 64), (64, 32))
_TRAFFIC_WEIGHT = 64.0  # elements of a tile that cost as much as one row or column of operands


def _listed(configs: list[dict[str, int]]) -> KnobSpace:
    """Configs that belong together; their free combinations would mostly not fit the chip."""
    knobs = {name: Knob(tuple(dict.fromkeys(c[name] for c in configs))) for name in configs[0]}
    return KnobSpace(knobs, tuple(dict.fromkeys(config(**c) for c in configs)))


def knob_space(region: Region, device: Device) -> KnobSpace:
    """The configs of a region's kernel form."""
    if region.anchors:
        return _listed(_gemm_configs(region, device))
    if is_flat(region):
        return _listed(_pointwise_configs(region, device))
    return _listed(_rows_configs(region, device))


def complete_knobs(space: KnobSpace, chosen: Config) -> dict[str, int]:
    """All knobs of a config. Raises ArgumentError for one that does not exist."""
    knobs: dict[str, int] = {}
    for name, value in (*space.default, *chosen):
        if name not in space.knobs:
            raise ArgumentError(
                f"the triton engine has no knob '{name}' for this region",
                fix=f"knobs are {', '.join(sorted(space.knobs))}",
            )
        is_size = name not in ("num_stages", "GROUP_M")
        if isinstance(value, str) or value < 0 or (is_size and (value < 1 or value & (value - 1))):
            raise ArgumentError(f"knob '{name}' of the triton engine must be a power of two, not {value}")
        knobs[name] = value
    if knobs.get("SPLIT_N", 1) > 2:
        raise ArgumentError(f"knob 'SPLIT_N' of the triton engine is 1 or 2, not {knobs['SPLIT_N']}")
    return knobs


def _pointwise_configs(region: Region, device: Device) -> list[dict[str, int]]:
    total = prod(region.domain)
    is_small = total < 512 * device.sm_count and not region.graph.is_dynamic
    if region.reductions:  # one atomic per program: fewer, larger ones
        return [{"BLOCK": 4096, "num_warps": 8}, {"BLOCK": 8192, "num_warps": 8}, {"BLOCK": 2048, "num_warps": 4}]
    small = {"BLOCK": 256, "num_warps": 4}
    configs = [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 2048, "num_warps": 8}, {"BLOCK": 512, "num_warps": 4}, small]
    return [small, *configs] if is_small else configs


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _warps(elements: int) -> int:
    return 4 if elements <= 4096 else 8 if elements <= 8192 else 16


def _rows_configs(region: Region, device: Device) -> list[dict[str, int]]:
    rows, columns, rows_adjacent = tile_shape(region)
    if region.graph.is_dynamic:
        shared = _SHARED_COLUMN_TILES if rows_adjacent else _SHARED_ROW_TILES
        return [{"ROWS": r, "BLOCK": c, "num_warps": _warps(r * c)} for r, c in shared]
    whole = _power_of_two(columns)
    if rows_adjacent and rows >= 16:
        lanes = min(_power_of_two(rows), 64)
        step = min(whole, 64)
        tiles = [(lanes, step), (min(lanes, 32), step), (lanes, min(whole, 32))]
    elif whole > _PERSISTENT_COLUMNS:
        tiles = [(1, 4096), (1, 8192), (1, 2048)]
    else:
        packed = max(1, min(_power_of_two(rows), 2048 // whole, max(1, rows // device.sm_count)))
        packed = 1 << (packed.bit_length() - 1)
        tiles = [(packed, whole), (1, whole)]
        if 2 * packed * whole <= _PERSISTENT_COLUMNS:
            tiles.append((min(2 * packed, _power_of_two(rows)), whole))
        if whole > 4096:
            tiles.append((1, 2048))  # looped: fewer registers, rows are read again from the L2
    configs = [{"ROWS": r, "BLOCK": c, "num_warps": _warps(r * c)} for r, c in tiles]
    doubled = {**configs[0], "num_warps": min(16, 2 * configs[0]["num_warps"])}
    return [*configs, doubled]


# table: tiles, large first: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, SPLIT_N
_HALF_TILES = (
    (128, 256, 64, 8, 3, 2), (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 3, 2), (128, 256, 64, 8, 4, 2),
    (64, 128, 64, 4, 4, 1), (64, 64, 64, 4, 4, 1), (32, 64, 128, 4, 4, 1), (16, 64, 128, 4, 4, 1),
)  # fmt: skip
_FLOAT_TILES = (
    (64, 128, 16, 8, 3, 1), (64, 64, 16, 4, 3, 1), (32, 64, 32, 4, 3, 1), (32, 32, 32, 4, 3, 1), (16, 32, 32, 4, 3, 1)
)  # fmt: skip
_TILE_KNOBS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "SPLIT_N")


def gemm_shared_bytes(tile: tuple[int, ...], itemsize: int) -> int:
    """Shared memory of the load buffers of a tile; the epilogue reuses it."""
    m, n, k, _, stages = tile[:5]
    return (m * k + k * n) * itemsize * stages


def _gemm_configs(region: Region, device: Device) -> list[dict[str, int]]:
    batch, m, n, _ = gemm_extents(region)
    kind = dot_type(region)
    tiles = _FLOAT_TILES if kind is FLOAT else _HALF_TILES
    limit = device.shared_bytes or 99 * 1024
    fitting = [t for t in tiles if gemm_shared_bytes(t, kind.itemsize) <= limit] or [tiles[-1]]
    if region.graph.is_dynamic:
        best = sorted(fitting, key=lambda t: abs(t[0] * t[1] - (4096 if kind is FLOAT else 16384)))[:6]
        return [_gemm_config(tile) for tile in best]
    best = sorted(fitting, key=lambda t: gemm_cost(t, batch, m, n, device.sm_count))[:6]
    return [_gemm_config(tile) for tile in best]


def _gemm_config(tile: tuple[int, ...]) -> dict[str, int]:
    return {**dict(zip(_TILE_KNOBS, tile, strict=True)), "GROUP_M": 8}


def gemm_cost(tile: tuple[int, ...], batch: int, m: int, n: int, sm_count: int) -> float:
    """Relative time of a tile: waves, times the work and the operand traffic of one tile."""
    block_m, block_n = tile[0], tile[1]
    programs = batch * -(-m // block_m) * -(-n // block_n)
    waves = -(-programs // sm_count)
    return waves * (block_m * block_n + _TRAFFIC_WEIGHT * (block_m + block_n))


def gemm_efficiency(knobs: Mapping[str, int], region: Region, device: Device) -> float:
    """Share of the peak that a config can reach by its tile count alone."""
    batch, m, n, _ = gemm_extents(region)
    tile = (knobs["BLOCK_M"], knobs["BLOCK_N"])
    ideal = batch * m * n * (1 + _TRAFFIC_WEIGHT * (1 / 128 + 1 / 256)) / max(1, device.sm_count)
    return min(1.0, ideal / gemm_cost(tile, batch, m, n, device.sm_count))
