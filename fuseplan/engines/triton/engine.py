"""The triton engine: generated kernels for NVIDIA GPUs, compiled ahead of time."""

from __future__ import annotations

import struct
from collections import OrderedDict

from fuseplan.codegen.writer import region_summary
from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import Config, Executable, FusionLimits, KnobSpace, Support
from fuseplan.engines.triton.compile import Compiled, compilation, compile_kernel
from fuseplan.engines.triton.emit_gemm import dot_type, emit_gemm
from fuseplan.engines.triton.emit_pointwise import emit_pointwise, is_flat
from fuseplan.engines.triton.emit_rows import emit_rows
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamKind
from fuseplan.engines.triton.knobs import complete_knobs, gemm_efficiency, knob_space
from fuseplan.engines.triton.support import LIMITS, supports
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.region import Region, Role
from fuseplan.runtime import forks, supply
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind

_LAUNCH_US = 2.5
_TENSOR_CORE_GAIN = 11.0  # rate of half-type matrix units over float32 lanes, H100 and H200
_MEMO_SIZE = 512

# table: bytes of a parameter by its signature type, and how a number of that type is packed
_SIZES = {"i32": (4, "<i"), "i64": (8, "<q"), "fp32": (4, "<f"), "fp64": (8, "<d"),
          "fp16": (2, "<e"), "bf16": (2, ""), "i8": (1, "<b"), "u8": (1, "<B")}  # fmt: skip


class TritonEngine:
    """Pointwise, reduction, norm and matmul regions on CUDA devices."""

    name = "triton"
    engine_ids = range(20200, 20201)
    device_kinds = frozenset({"cuda"})
    is_general = False
    is_compiled = True

    def __init__(self) -> None:
        self._memo: OrderedDict[tuple[object, ...], Executable] = OrderedDict()
        self._lock = forks.Lock()

    def limits(self, device: Device) -> FusionLimits:
        """What may fuse."""
        return LIMITS

    def supports(self, region: Region, device: Device) -> Support:
        """Whether this region can be built."""
        return supports(region, device)

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        """A short list of configs, the default first."""
        return knob_space(region, device)

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        """Generate and compile; a kernel that was built before comes from memory or from disk.

        Raises:
            cudnnGraphNotSupportedError: `supports` says no
            ArgumentError: a knob that does not exist
            ToolchainError: Triton fails
        """
        key = (region.structure, device.arch, device.sm_count, device.shared_bytes, config, aligned)
        with self._lock:
            if key in self._memo and not supply.is_given():
                self._memo.move_to_end(key)
                return self._memo[key]
        support = supports(region, device)
        if not support.is_supported:
            raise cudnnGraphNotSupportedError(
                f"the triton engine cannot build this region: {support.reason}", fix="take another engine's plan"
            )
        knobs = complete_knobs(knob_space(region, device), config)
        built = _assemble(region, emit(region, knobs), device.sm_version, aligned=aligned)
        if supply.is_given():
            return built
        with self._lock:
            self._memo[key] = built
            if len(self._memo) > _MEMO_SIZE:
                self._memo.popitem(last=False)
        return built

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        """Launches, plus the larger of memory time and arithmetic time."""
        cost = region.cost
        memory_us = (cost.read_bytes + cost.write_bytes) / (device.memory_gbps * 1e3)
        rate, launches = device.peak_gflops, 1
        if region.reductions and not region.anchors and is_flat(region):
            launches += len(region.reductions)
        if region.anchors:
            knobs = complete_knobs(knob_space(region, device), config)
            gain = 0.5 if dot_type(region) is FLOAT else _TENSOR_CORE_GAIN
            rate *= gain * gemm_efficiency(knobs, region, device)
            launches += len(region.reductions)
        return launches * _LAUNCH_US + max(memory_us, cost.flops / (rate * 1e3))

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        """Matrix units for half types; sums that programs add up with atomics. Maxima by atomics have one result."""
        found = set()
        if region.anchors:
            anchor, kind = region.values[region.anchors[0]], dot_type(region)
            if kind is not FLOAT:
                found.add("TENSOR_CORE")
            if any(region.values[a].dtype.bits > kind.bits for a in anchor.args):
                found.add("DOWN_CONVERT_INPUTS")
        is_closed = bool(region.anchors) or is_flat(region)
        if is_closed and any(region.values[i].mode == "add" for i in region.reductions):
            found.add("NONDETERMINISTIC")
        return frozenset(found)


def emit(region: Region, knobs: dict[str, int]) -> Emitted:
    """Generated kernels of a region that the engine supports."""
    if region.anchors:
        return emit_gemm(region, knobs)
    return emit_pointwise(region, knobs) if is_flat(region) else emit_rows(region, knobs)


def _assemble(region: Region, emitted: Emitted, sm: int, *, aligned: bool) -> Executable:
    launches: list[Launch] = []
    for step in emitted.steps:
        if isinstance(step, Fill):
            launches.append(_fill_launch(step))
        else:
            launches.append(_kernel_launch(step, compile_kernel(compilation(step, sm, aligned=aligned))))
    alignments: tuple[int, ...] = ()
    if aligned:
        alignments = tuple(1 if o.role is Role.SCALAR else 16 for o in region.operands)
    return Executable(tuple(launches), emitted.scratch_bytes, alignments, _shown_source(region, emitted))


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


def parameter_block(kernel: Kernel) -> tuple[bytes, tuple[int, ...], tuple[Patch, ...]]:
    """Template, offsets of the parameters in it, and patches.

    Triton's convention: parameters in signature order, then the addresses of two scratch areas of the
    compiler's own, which our kernels do not use.
    """
    block, offsets, patches = bytearray(), [], []
    for param in kernel.params:
        size, code = (8, "<Q") if param.is_address else _SIZES[param.type]
        block += bytes(-len(block) % size)
        offset = len(block)
        offsets.append(offset)
        block += struct.pack(code, param.value) if param.kind is ParamKind.NUMBER else bytes(size)
        if param.kind is ParamKind.POINTER:
            patches.append(Patch(PatchKind.POINTER, offset, param.operand))
        elif param.kind is ParamKind.SCALAR:
            patches.append(Patch(PatchKind.SCALAR, offset, param.operand, size=size))
        elif param.kind is ParamKind.SCRATCH:
            patches.append(Patch(PatchKind.SCRATCH, offset, addend=param.value))
    block += bytes(-len(block) % 8)
    offsets += [len(block), len(block) + 8]
    return bytes(block) + bytes(16), tuple(offsets), tuple(patches)


def _kernel_launch(kernel: Kernel, compiled: Compiled) -> Launch:
    template, offsets, patches = parameter_block(kernel)
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
    )


ENGINE = TritonEngine()
