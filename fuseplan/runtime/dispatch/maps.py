"""Tensor maps: what both dispatchers ask the driver for, and when a map does not fit its buffers."""

from __future__ import annotations

from typing import NamedTuple

from fuseplan.errors import ArgumentError
from fuseplan.runtime import cuda
from fuseplan.runtime.dispatch.failures import fail_map
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, Program, TensorMap

MAP_BYTES = 128
MAP_ALIGN = 64
_MOST_STRIDE = 1 << 40
_TYPES = {"FLOAT": 7, "HALF": 6, "BFLOAT16": 9, "DOUBLE": 8, "INT32": 3, "INT64": 5}  # CUtensorMapDataType
_BYTES = 0  # any type of 8 bits


class MapForm(NamedTuple):
    """A `TensorMap` as the native dispatcher reads it (module.c); a slot of -1 is the workspace, -2 is none."""

    label: str
    numbers: tuple[int, int, int, int, int]  # type, interleave, swizzle, promotion, fill
    first: tuple[int, int]  # slot and addend
    second: tuple[int, int]
    swap_offset: int  # in the frame
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]


def form_of(m: TensorMap, patch: Patch, label: str, block: int) -> MapForm:
    """The map of a patch whose block begins at `block` in the frame."""
    numbers = (_TYPES.get(m.dtype.name, _BYTES), m.interleave, m.swizzle, m.promotion, m.fill)
    strides = m.strides if m.second is None else (*m.strides, 0)
    swap = block + m.swap_offset if m.swap_offset >= 0 else -1
    steps = m.steps or (1,) * len(m.dims)
    return MapForm(
        label, numbers, (patch.slot, patch.addend), m.second or (-2, 0), swap, m.dims, strides, m.box, steps
    )  # fmt: skip


def check_map(program: Program, launch: Launch, patch: Patch) -> None:
    """Whether a map lies in its block and stays inside of its buffers.

    Raises:
        ArgumentError: it does not (a fault of the engine)
    """
    what, m = f"launch '{launch.label}', tensor map at {patch.offset}", patch.map
    if m is None or launch.kind is not LaunchKind.CUDA:
        raise ArgumentError(f"{what}: only a patch with a map, of a CUDA launch, can be one")
    if patch.offset % MAP_ALIGN or not 0 <= patch.offset <= len(launch.template) - MAP_BYTES:
        raise ArgumentError(f"{what}: not at a multiple of {MAP_ALIGN}, or outside of the block")
    if m.swap_offset != -1 and not 0 <= m.swap_offset <= len(launch.template) - 4:
        raise ArgumentError(f"{what}: swap_offset lies outside of the block")
    rank = len(m.dims)
    given = (rank - 1 - (m.second is not None), rank, rank)
    if not 1 <= rank <= 5 or (len(m.strides), len(m.box), len(m.steps or m.box)) != given:
        raise ArgumentError(f"{what}: {rank} dims, {len(m.strides)} strides, a box of {len(m.box)}")
    if m.dtype.bits < 8 or min(*m.dims, *m.box, *m.strides, *m.steps, 1) < 1:
        raise ArgumentError(f"{what}: type {m.dtype.name}, dims {m.dims}, strides {m.strides}, box {m.box}")
    if m.second is not None and m.dims[-1] != 2:
        raise ArgumentError(f"{what}: {m.dims[-1]} entries along the axis of its two buffers")
    inner = m.dims if m.second is None else m.dims[:-1]
    span = m.dtype.itemsize * m.dims[0] + sum((d - 1) * s for d, s in zip(inner[1:], m.strides, strict=True))
    for slot, addend in ((patch.slot, patch.addend), *([] if m.second is None else [m.second])):
        if not -1 <= slot < len(program.slots) or (slot >= 0 and program.slots[slot].place != "cuda"):
            raise ArgumentError(f"{what}: there is no slot {slot} in the device's memory")
        room = program.workspace_bytes if slot < 0 else program.slots[slot].span_bytes
        if addend < 0 or addend + span > room:
            raise ArgumentError(f"{what}: {span} bytes from {addend} on do not fit a buffer of {room}")


def encode(form: MapForm, address: int, other: int) -> bytes:
    """The 128 bytes of a map for its buffers, asked of the driver.

    Raises:
        DeviceError, MisalignedError: see `fail_map`
    """
    strides = form.strides
    if form.second[0] != -2:
        distance = abs(address - other)
        if not fits_stride(distance):
            fail_map(0, form.label, distance)
        address, strides = min(address, other), (*strides[:-1], distance)
    code, data = cuda.encode_tensor_map(form.numbers, address, form.dims, strides, form.box, form.steps)
    if code:
        fail_map(code, form.label, 0)
    return data


def fits_stride(distance: int) -> bool:
    """Whether two buffers so far apart are one map."""
    return 0 < distance < _MOST_STRIDE and distance % 16 == 0
