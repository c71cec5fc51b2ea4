"""The CPU engine: one readable C kernel per region on all cores, in plain loops; right before it is fast."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fuseplan.codegen import c_expr
from fuseplan.codegen.writer import region_summary
from fuseplan.engines.base import YES, Config, Executable, FusionLimits, Support, no
from fuseplan.engines.cpu_c.forms.attention import AttentionForm
from fuseplan.engines.cpu_c.forms.attention_backward import AttentionBackwardForm
from fuseplan.engines.cpu_c.forms.columns import ColumnsForm
from fuseplan.engines.cpu_c.forms.conv import ConvForm
from fuseplan.engines.cpu_c.forms.matmul import MatmulForm
from fuseplan.engines.cpu_c.forms.matmul_bf16 import MatmulBf16Form
from fuseplan.engines.cpu_c.forms.rows import RowsForm
from fuseplan.engines.cpu_c.source import Source
from fuseplan.engines.forms import FormEngine, Memo
from fuseplan.errors import FuseplanError
from fuseplan.ir.limits import POINTWISE, ROWS
from fuseplan.ir.region import Operand, Region, Role
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device, is_x86
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Tasks
from fuseplan.runtime.toolchain import compile_shared, gap

# where there are vectors of 512 bits they are used; by itself gcc stays at 256 on most of those machines. Loops stay
# whole: cut off from what it stands beside, the column of `IS_READ` would widen nothing
FLAGS = (
    "-fopenmp-simd",
    "-fno-tree-loop-distribution",
    "-fno-tree-loop-distribute-patterns",
    *(("-mprefer-vector-width=512",) if is_x86() else ()),
)
_ANCHORS = frozenset({"matmul", "conv_fprop", "sdpa", "sdpa_backward"})
_TAKEN = ROWS | _ANCHORS | {"load", "pick"}
_MODES = frozenset({"add", "mul", "max", "min"})

_LIMITS = FusionLimits(
    ops=ROWS | _ANCHORS | {"pick"},
    anchors=8,
    in_front=dict.fromkeys(
        ("matmul.a", "matmul.b", "conv_fprop.x", "conv_fprop.w"), POINTWISE
    ),
    reuse_reduction=True,
    reduce_after_anchor=_MODES,
    max_nodes=64,
    max_operands=64,
)


class CpuCEngine(FormEngine[Source]):
    """Generates C for pointwise, reduction, norm, matmul and convolution regions on host memory."""

    name = "cpu_c"
    engine_ids = range(20100, 20101)
    device_kinds = frozenset({"cpu"})
    is_general = False
    is_compiled = True
    forms = (
        MatmulBf16Form(), MatmulForm(), ConvForm(), AttentionForm(), AttentionBackwardForm(),
        ColumnsForm(), RowsForm(),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._compiled: Memo[Artifact] = Memo()

    def limits(self, device: Device) -> FusionLimits:
        return _LIMITS

    def unavailable(self, device: Device) -> str:
        if device.kind not in self.device_kinds:
            return f"tensors are on {device}, this engine needs host memory"
        return gap()

    def refusal(self, region: Region, device: Device) -> Support:
        for fit in (_operand_refusal(region), _value_refusal(region)):
            if not fit.is_supported:
                return fit
        return YES

    def compile_ahead(
        self, work: Sequence[tuple[Region, Config]], device: Device, until: float
    ) -> None:
        """Build these in threads side by side; none is started after `until` (of `time.monotonic`)."""

        def one(region: Region, config: Config) -> None:
            if time.monotonic() < until:
                with contextlib.suppress(
                    FuseplanError
                ):  # the build that is asked for says why
                    self.build(region, device, config)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, *zip(*work, strict=True)))

    def compile(
        self, source: Source, region: Region, device: Device, *, aligned: bool
    ) -> Executable:
        symbol = source.symbol

        def build() -> Artifact:
            return compile_shared(
                source.source,
                FLAGS,
                features=source.features,
                label=symbol,
                symbol=symbol,
            )

        artifact = (
            build() if supply.is_given() else self._compiled.get(source.source, build)
        )
        tasks = Tasks(source.num_tasks, source.work_us, source.thread_bytes)
        launch = Launch(
            LaunchKind.HOST, source.template, source.patches, artifact, symbol, label=symbol, tasks=tasks
        )  # fmt: skip
        header = "\n".join(
            [
                f"/* {symbol}: region",
                *(f"   {line}" for line in region_summary(region)),
                "*/",
            ]
        )
        return Executable(
            (launch,), source.scratch_bytes, source=f"{header}\n{source.source}"
        )


def _operand_refusal(region: Region) -> Support:
    for value, k in (*region.loads, *region.stores):
        o = region.operands[k]
        name = f"operand {k} (tensor {o.uid})"
        if not c_expr.is_storable(o.dtype):
            return no(
                f"{name} has type {o.dtype}, which generated C does not read or write",
                at=value,
            )
        if o.rows is not None:
            return no(
                f"{name} holds packed sequences, which this engine does not walk",
                at=value,
            )
        if o.combine or o.init is not None:
            return no(
                f"{name} is combined with what is there, which this engine does not do",
                at=value,
            )
        if o.role is Role.SCRATCH:
            return no(
                f"{name} is scratch memory, which this engine lays out itself", at=value
            )
        if o.role.is_written and any(_overlaps(o, other) for other in region.operands):
            return no(f"{name} is written, and read through another window", at=value)
    return YES


def _overlaps(written: Operand, other: Operand) -> bool:
    """Whether another window on the memory of a written operand may show elements that are written at other times."""
    return other.uid == written.uid and _window(other) != _window(written)


def _window(o: Operand) -> tuple[object, ...]:
    return o.dim, o.stride, o.offset


def _value_refusal(region: Region) -> Support:
    for i, v in enumerate(region.values):
        if v.op not in _TAKEN or v.body is not None:
            return no(f"value {i} is {v.op}, which this engine does not emit", at=i)
        if not c_expr.is_storable(v.dtype):
            return no(
                f"value {i} ({v.op}) rounds to type {v.dtype}, which generated C does not have",
                at=i,
            )
        if not c_expr.is_computable(v.compute):
            return no(
                f"value {i} ({v.op}) computes in {v.compute}, which generated C does not have",
                at=i,
            )
        if v.op == "reduce" and v.mode not in _MODES:
            return no(
                f"value {i} reduces with mode {v.mode!r}, which this engine does not emit",
                at=i,
            )
        if v.op in _ANCHORS and v.compute.name == "BOOLEAN":
            return no(
                f"value {i} ({v.op}) computes in BOOLEAN, which has no sum of products",
                at=i,
            )
    return YES


ENGINE = CpuCEngine()
