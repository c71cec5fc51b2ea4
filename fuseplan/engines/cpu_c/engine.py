"""The CPU engine: one readable C kernel per region, single-threaded and plain; right before it is fast."""

from __future__ import annotations

from math import prod

from fuseplan.codegen import c_expr
from fuseplan.codegen.writer import node_numbers, region_summary
from fuseplan.engines.base import YES, Config, Executable, FusionLimits, KnobSpace, Support, no
from fuseplan.engines.cpu_c.emit import Kernel, emit, form_refusal
from fuseplan.ir.limits import ROWS
from fuseplan.ir.region import Region
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind
from fuseplan.runtime.toolchain import compile_shared, gap

FLAGS = ("-fopenmp-simd",)
_ANCHORS = frozenset({"matmul", "conv_fprop"})
_TAKEN = ROWS | _ANCHORS | {"load"}
_MODES = frozenset({"add", "mul", "max", "min"})
_MEMO_LIMIT = 4096

# table: nanoseconds per element, one core of a 2.6 GHz server CPU, `expf` and so on of glibc 2.36
_LIBM_NS = {"exp": 2.0, "log": 2.3, "log1p": 11.0, "sin": 5.7, "cos": 5.7, "tan": 12.0, "tanh": 14.0, "erf": 12.0,
            "pow": 5.4, "mod": 3.0}  # fmt: skip
_CALL_US = 0.5
_MEMORY_SHARE = 0.5  # of the bandwidth that all cores reach together
_PEAK_SHARE = 0.12  # of one core's peak: what the plain main loops reach on the same machine

_LIMITS = FusionLimits(
    ops=ROWS | {"matmul", "conv_fprop"},
    reuse_reduction=True,
    reduce_after_anchor=_MODES,
    max_nodes=64,
    max_operands=64,
)


class CpuCEngine:
    """Generates C for pointwise, reduction, norm, matmul and convolution regions on host memory."""

    name = "cpu_c"
    engine_ids = range(20100, 20101)
    device_kinds = frozenset({"cpu"})
    is_general = False
    is_compiled = True

    def __init__(self) -> None:
        self._built: dict[tuple[object, ...], Executable] = {}
        self._compiled: dict[str, Artifact] = {}

    def limits(self, device: Device) -> FusionLimits:
        return _LIMITS

    def supports(self, region: Region, device: Device) -> Support:
        if device.kind not in self.device_kinds:
            return no(f"tensors are on {device}, this engine needs host memory")
        if self._built and self._key(region) in self._built:
            return YES
        if missing := gap():
            return no(missing)
        reason = _type_refusal(region) or _op_refusal(region) or form_refusal(region)
        return no(reason) if reason else YES

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace()

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        if supply.is_given():
            return self._executable(region, emit(region))
        key = self._key(region)
        found = self._built.get(key)
        if found is None:
            found = self._executable(region, emit(region))
            if len(self._built) >= _MEMO_LIMIT:
                self._built.clear()
            self._built[key] = found
        return found

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        """Time of memory traffic and arithmetic, one after the other, at the rates that plain loops reach."""
        cost = region.cost
        core_gflops = device.peak_gflops / max(1, device.sm_count)
        libm_ns = sum([_LIBM_NS[v.op] * prod(v.dim) for v in region.values if v.op in _LIBM_NS])
        bytes_us = (cost.read_bytes + cost.write_bytes) / (1e3 * _MEMORY_SHARE * device.memory_gbps)
        return _CALL_US + bytes_us + libm_ns / 1e3 + cost.flops / (1e3 * _PEAK_SHARE * core_gflops)

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()

    @staticmethod
    def _key(region: Region) -> tuple[object, ...]:
        """Structure, and the node numbers that stand in comments."""
        return (region.structure, node_numbers(region.values))

    def _executable(self, region: Region, kernel: Kernel) -> Executable:
        artifact = self._compiled.get(kernel.source)
        if artifact is None or supply.is_given():
            artifact = compile_shared(kernel.source, FLAGS, label=kernel.symbol, symbol=kernel.symbol)
        if not supply.is_given():
            if len(self._compiled) >= _MEMO_LIMIT:
                self._compiled.clear()
            self._compiled[kernel.source] = artifact
        launch = Launch(
            LaunchKind.HOST, kernel.template, kernel.patches, artifact, kernel.symbol, label=kernel.symbol
        )  # fmt: skip
        header = "\n".join([f"/* {kernel.symbol}: region", *(f"   {line}" for line in region_summary(region)), "*/"])
        return Executable((launch,), kernel.scratch_bytes, source=f"{header}\n{kernel.source}")


def _type_refusal(region: Region) -> str:
    for k, o in enumerate(region.operands):
        if not c_expr.is_storable(o.dtype):
            return f"operand {k} (tensor {o.uid}) has type {o.dtype}, which generated C does not read or write"
    for i, v in enumerate(region.values):
        if not c_expr.is_storable(v.dtype):
            return f"value {i} ({v.op}) rounds to type {v.dtype}, which generated C does not have"
        if not c_expr.is_computable(v.compute):
            return f"value {i} ({v.op}) computes in {v.compute}, which generated C does not have"
    return ""


def _op_refusal(region: Region) -> str:
    for i, v in enumerate(region.values):
        if v.op not in _TAKEN:
            return f"value {i} is {v.op}, which this engine does not emit"
        if v.op == "reduce" and v.mode not in _MODES:
            return f"value {i} reduces with mode {v.mode!r}, which this engine does not emit"
        if v.op == "conv_fprop" and not 3 <= len(v.dim) <= 5:
            return f"value {i} convolves {len(v.dim) - 2} spatial axes, this engine takes 1 to 3"
        if v.op == "conv_fprop" and len(v.attr("stride")) != len(v.dim) - 2:  # type: ignore[arg-type]
            return f"value {i} convolves fewer axes than the region has behind the channels"
        if v.op in _ANCHORS and v.compute.name == "BOOLEAN":
            return f"value {i} ({v.op}) computes in BOOLEAN, which has no sum of products"
    return ""


ENGINE = CpuCEngine()
