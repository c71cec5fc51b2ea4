"""From generated kernels to launches: compiled artifacts, parameter blocks and patches."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fuseplan.codegen.writer import region_summary
from fuseplan.engines.base import Executable
from fuseplan.engines.triton.compile import Box, Compiled, compilation, compile_kernel
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamKind, TileView
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.launch import Attribute, Launch, LaunchKind, Patch, PatchKind, TensorMap

# table: bytes of a parameter by its signature type, and how a number of that type is packed
_SIZES = {"i32": (4, "<i"), "i64": (8, "<q"), "fp32": (4, "<f"), "fp64": (8, "<d"),
          "fp16": (2, "<e"), "bf16": (2, ""), "i8": (1, "<b"), "u8": (1, "<B")}  # fmt: skip
_MAP_BYTES, _MAP_ALIGN = 128, 64
_PROMOTION_128 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


def assemble(region: Region, emitted: Emitted, sm: int, *, aligned: bool) -> Executable:
    """Compile the kernels of a region. Raises ToolchainError."""
    if not aligned and emitted.unaligned is not None:
        emitted = emitted.unaligned()
    launches: list[Launch] = []
    for step in emitted.steps:
        if isinstance(step, Fill):
            launches.append(_fill_launch(step))
        else:
            launches.append(_kernel_launch(step, compile_kernel(compilation(step, sm, aligned=aligned))))
    alignments: tuple[int, ...] = ()
    if aligned:
        alignments = tuple(1 if o.role is Role.SCALAR else 16 for o in region.operands)
    scratch_alignment = 16 if aligned else 8
    source = _shown_source(region, emitted)
    return Executable(tuple(launches), emitted.scratch_bytes, alignments, source, scratch_alignment)


def _shown_source(region: Region, emitted: Emitted) -> str:
    """What runs, as text: the region as comments, then each kernel with the constants of its launch."""
    parts = ["".join(f"# {line}\n" for line in region_summary(region))]
    for step in emitted.steps:
        if isinstance(step, Kernel):
            constants = ", ".join(f"{name}={value}" for name, value in step.constants)
            launch = f"{step.grid} programs of {step.num_warps} warps, {step.num_stages} stages"
            parts.append(f"# {step.function}: {launch}; {constants or 'no constants'}\n{step.source}")
    return "\n\n".join(parts)


def _fill_launch(fill: Fill) -> Launch:
    if fill.operand < 0:
        patch = Patch(PatchKind.SCRATCH, 0, addend=fill.offset_bytes)
    else:
        patch = Patch(PatchKind.POINTER, 0, fill.operand, addend=fill.offset_bytes)
    return Launch(
        LaunchKind.MEMSET,
        template=bytes(8),
        patches=(patch,),
        memset_value=fill.word,
        memset_words=fill.words,
        label="fill",
    )


def parameter_block(
    kernel: Kernel, boxes: Sequence[Box] = ()
) -> tuple[bytes, tuple[int, ...], tuple[Patch, ...], tuple[tuple[int, bytes], ...]]:
    """Template, offsets of the parameters in it, patches, and tables.

    Triton's convention: parameters in signature order, then the addresses of two scratch areas of the
    compiler's own, which our kernels do not use. A tensor map is followed by its extents and strides.

    Args:
        boxes: of the tensor maps in order
    """
    block, offsets, patches, tables, rest = bytearray(), [], [], [], list(boxes)
    for param in kernel.params:
        if param.view is not None:
            offsets += _append_view(block, param.view)
            tensor_map = _tensor_map(param.view, rest.pop(0))
            where = offsets[-1 - 2 * len(param.view.dims)]
            patches.append(Patch(PatchKind.TENSOR_MAP, where, param.operand, param.value, map=tensor_map))
            continue
        size, code = (8, "<Q") if param.is_address else _SIZES[param.type]
        block += bytes(-len(block) % size)
        offset = len(block)
        offsets.append(offset)
        block += struct.pack(code, param.value) if param.kind is ParamKind.NUMBER else bytes(size)
        if param.kind is ParamKind.POINTER:
            patches.append(Patch(PatchKind.POINTER, offset, param.operand, addend=param.value))
        elif param.kind is ParamKind.SCALAR:
            patches.append(Patch(PatchKind.SCALAR, offset, param.operand, size=size))
        elif param.kind is ParamKind.SCRATCH:
            patches.append(Patch(PatchKind.SCRATCH, offset, addend=param.value))
        elif param.kind is ParamKind.TABLE:
            tables.append((offset, struct.pack(f"<{len(param.numbers)}i", *param.numbers)))
    block += bytes(-len(block) % 8)
    offsets += [len(block), len(block) + 8]
    return bytes(block) + bytes(16), tuple(offsets), tuple(patches), tuple(tables)


def _append_view(block: bytearray, view: TileView) -> list[int]:
    """Add a map, extents and strides to a block; their offsets."""
    block += bytes(-len(block) % _MAP_ALIGN)
    offsets = [len(block)]
    block += bytes(_MAP_BYTES)
    for numbers, (size, code) in ((view.dims, _SIZES["i32"]), (view.strides, _SIZES["i64"])):
        for number in numbers:
            block += bytes(-len(block) % size)
            offsets.append(len(block))
            block += struct.pack(code, number)
    return offsets


def _tensor_map(view: TileView, box: Box) -> TensorMap:
    itemsize = view.dtype.itemsize
    return TensorMap(
        view.dtype,
        view.dims[::-1],
        tuple([s * itemsize for s in view.strides[-2::-1]]),
        box.sides[::-1],
        swizzle=box.swizzle,
        promotion=_PROMOTION_128,
    )


def _kernel_launch(kernel: Kernel, compiled: Compiled) -> Launch:
    template, offsets, patches, tables = parameter_block(kernel, compiled.boxes)
    return Launch(
        LaunchKind.CUDA,
        template=template,
        patches=patches,
        artifact=compiled.artifact,
        symbol=compiled.symbol,
        param_offsets=offsets,
        grid=(kernel.grid, 1, 1),
        block=(32 * compiled.num_warps, 1, 1),
        shared_bytes=compiled.shared_bytes,
        label=kernel.function,
        tables=tables,
        attributes=((Attribute.COOPERATIVE, (1,)),) if kernel.is_cooperative else (),
    )
