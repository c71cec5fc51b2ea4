"""Which attention `kernels/attention_special.py` takes, and its configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.base import Config, KnobSpace
from fuseplan.engines.triton.attention.bounds import ROWS, Bounds
from fuseplan.engines.triton.knobs import listed, power_of_two
from fuseplan.engines.triton.layout import index_bits
from fuseplan.ir.attention import Attention
from fuseplan.ir.region import Operand, Region
from fuseplan.runtime.device import Device

KNOBS = (
    "SPECIALISTS",
    "BLOCK_M",
    "BLOCK_N",
    "num_warps",
    "num_stages",
    "ORDER",  # heads whose tiles are walked together
    "TURNS",  # the groups issue their products in turn
    "HALF",  # the first group leaves out the half of its first block that is cut off
    "HOLD",  # waits for products stay below the powers
    "MIXED",  # one power in eight by multiply-adds
)
#: further values of knobs
VALUES = {
    "ORDER": (1, 2, 4, 8, 16, 32, 64),
    "TURNS": (0, 1),
    "HALF": (0, 1),
    "HOLD": (0, 1),
    "MIXED": (0, 1),
    "num_stages": (1, 2, 3, 4),
}
ALIGN = 16  # bytes, of what the copy engine walks over
_SM = 90
_MAX_HEADS = 1 << 15
_MAX_BLOCKS = 1 << 16
_MAX_TILES = 1 << 17
_FEW_ROWS, _SHORT = 64, 2048
_MAX_WIDTH = 256
_US_PER_BLOCK = {
    64: 1.12,
    128: 1.48,
    256: 2.95,
}  # of 128 queries and 128 keys on a multiprocessor, by width
_US_AT_ALL = 4.0


def special_gap(attention: Attention, device: Device) -> str:
    """Why warps of their own for loads and products do not take an attention that has a schedule; empty if they do."""
    region = attention.region
    if device.sm_version != _SM or region.graph.is_dynamic or index_bits(region) != 32:
        return f"warps of their own for loads and products need sm_{_SM}, fixed extents and offsets of 32 bits"
    has_more = attention.option("use_alibi_mask") or attention.scale <= 0
    if has_more or set(attention.arguments) != set("qkv"):
        return "warps of their own for loads and products take bounds and a scale above 0, no other option"
    results = sorted(attention.results.values())
    is_alone = (
        len(region.values) == 4 + len(results)
        and sorted(value for value, _ in region.stores) == results
    )
    if not is_alone:
        return "warps of their own for loads and products take no work in front of an attention or behind it"
    if "o" not in attention.results:
        return "warps of their own for loads and products store the output in any case"
    blocks = Bounds.of(attention).tiles
    heads = attention.batch * attention.heads
    if heads >= _MAX_HEADS or blocks >= _MAX_BLOCKS or heads * blocks >= _MAX_TILES:
        return "too many tiles for a list of them"
    return _memory_gap(attention)


def _memory_gap(attention: Attention) -> str:
    """Why types and strides do not fit."""
    region = attention.region
    tensors = [region.operands[attention.operand(port)] for port in "qkv"]
    tensors.append(stored(region, attention.results["o"]))
    kind = tensors[0].dtype
    if kind not in (BFLOAT16, HALF) or any(t.dtype is not kind for t in tensors):
        return "warps of their own for loads and products take q, k, v and o in one half type"
    others = [value for name, value in attention.results.items() if name != "o"]
    if any(stored(region, value).dtype is not FLOAT for value in others):
        return "warps of their own for loads and products give statistics in float32"
    if attention.dim("k")[1] != attention.dim("v")[1]:
        return "warps of their own for loads and products take as many heads of keys as of values"
    if width_of(attention) > _MAX_WIDTH or not all(_is_mapped(t) for t in tensors):
        return "the copy engine moves tiles of 256 columns at most, whose strides are multiples of 16 bytes"
    return ""


def stored(region: Region, value: int) -> Operand:
    """The operand that a value is stored to."""
    return region.operands[dict(region.stores)[value]]


def _is_mapped(operand: Operand) -> bool:
    """Whether the copy engine moves tiles of rows of the last axis."""
    size = operand.dtype.itemsize
    if (
        len(operand.dim) != 4
        or operand.stride[-1] != 1
        or operand.offset * size % ALIGN
    ):
        return False
    for extent, stride in zip(operand.dim[:-1], operand.stride, strict=False):
        step = stride * size
        if extent > 1 and (step % ALIGN or not 0 < step < 1 << 31):
            return False
    return True


def width_of(attention: Attention) -> int:
    """Columns of a tile: head dims are filled up with zeros."""
    widest = max(attention.dim("q")[3], attention.dim("v")[3])
    return max(64, power_of_two(widest))


def query_stages(width: int) -> int:
    """Stages of a tile's queries; through them its output leaves."""
    return 2 if width < _MAX_WIDTH else 1


def special_knobs(attention: Attention, device: Device) -> list[dict[str, int]]:
    """Configs, the default first."""
    bounds = Bounds.of(attention)
    width = width_of(attention)
    is_bound = bounds.right is not None
    is_short = bounds.rows <= _SHORT
    first = {
        "SPECIALISTS": 1,
        "BLOCK_M": ROWS,
        "BLOCK_N": 128 if width < _MAX_WIDTH else 64,
        "num_warps": 4,
        "num_stages": 3 if width == 64 else 2,
        "ORDER": _order(attention, device) if is_bound else 2,
        "TURNS": int(width == 128 or (width == 64 and is_bound)),
        "HALF": int(
            bounds.is_triangle and (width == 128 or (width == 64 and is_short))
        ),
        "HOLD": 0,
        "MIXED": 0,
    }
    found = [first, {**first, "TURNS": 1 - first["TURNS"]}]
    if bounds.is_triangle and width < _MAX_WIDTH:
        found.append({**first, "HALF": 1 - first["HALF"]})
    return found


def _order(attention: Attention, device: Device) -> int:
    """Heads that give each program a tile, as far as their keys and values stay in the L2 cache."""
    wave = device.sm_count // Bounds.of(attention).tiles
    order = min(64, max(8, power_of_two(wave)))
    shared = attention.heads // attention.dim("k")[1]
    head_bytes = 4 * attention.columns * width_of(attention)
    while order > 2 and order * head_bytes > shared * device.l2_bytes // 2:
        order //= 2
    return order


def special_knob_gap(
    attention: Attention, device: Device, knobs: Mapping[str, int]
) -> str:
    """Why a config does not work; empty if it does."""
    width, block_n = width_of(attention), knobs["BLOCK_N"]
    if knobs["BLOCK_M"] != ROWS or knobs["num_warps"] != 4:
        return f"warps of their own for loads and products are groups of 4, for {ROWS} queries"
    if block_n not in (64, 128) or width * block_n > 128 * 128:
        return "warps of their own for loads and products take 64 or 128 keys that fit"
    rows = ROWS * query_stages(width) + 2 * knobs["num_stages"] * block_n
    if rows * width * 2 + 1024 > device.shared_bytes:
        return "the stages exceed shared memory"
    if knobs["MIXED"] and width > 64:
        return "powers by multiply-adds take more registers than wide tiles leave"
    if knobs["HOLD"] and Bounds.of(attention).left is not None:
        return "with a left bound all registers are taken"
    if knobs["HALF"] and (block_n != ROWS or not Bounds.of(attention).is_triangle):
        return "the first block of a tile has no half that is always cut off"
    return ""


def space(
    attention: Attention, device: Device, plain: Sequence[dict[str, int]]
) -> KnobSpace:
    """All configs: those of this kernel, first but where there are few queries, and the general kernel's."""
    unused = {**dict.fromkeys(KNOBS, 0), "ORDER": 1}
    general = [{**unused, **knobs} for knobs in plain]
    own = [{**general[0], **knobs} for knobs in special_knobs(attention, device)]
    others = {name: value for name, value in own[0].items() if name not in KNOBS}

    def refuse(chosen: Config) -> str:
        knobs = {name: value for name, value in chosen if isinstance(value, int)}
        if knobs in general:
            return ""
        if not knobs["SPECIALISTS"] or not others.items() <= knobs.items():
            return "its knobs do not combine so here"
        return special_knob_gap(attention, device, knobs)

    configs = general + own if attention.rows <= _FEW_ROWS else own + general
    return listed(configs, VALUES, refuse)


def special_us(attention: Attention, device: Device) -> float:
    """Expected time."""
    bounds = Bounds.of(attention)
    costs = [bounds.cost(m, ROWS) for m in range(bounds.tiles)]
    total = sum(costs) * attention.batch * attention.heads
    longest = max(total / max(1, device.sm_count), *costs)
    return _US_AT_ALL + longest * _US_PER_BLOCK[width_of(attention)]
