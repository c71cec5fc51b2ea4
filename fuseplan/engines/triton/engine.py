"""The triton engine: generated kernels for NVIDIA GPUs, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.engines.base import Config, Executable, FusionLimits, Support
from fuseplan.engines.forms import FormEngine
from fuseplan.engines.triton import ahead, support
from fuseplan.engines.triton.compile import compilation
from fuseplan.engines.triton.forms.apart import ApartForm
from fuseplan.engines.triton.forms.attention import AttentionForm
from fuseplan.engines.triton.forms.gemm import GemmForm
from fuseplan.engines.triton.forms.pointwise import PointwiseForm
from fuseplan.engines.triton.forms.rows import RowsForm
from fuseplan.engines.triton.kernel import Emitted, Kernel
from fuseplan.engines.triton.launches import assemble
from fuseplan.ir.limits import POINTWISE, ROWS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

LIMITS = FusionLimits(
    ops=ROWS | {"matmul", "sdpa", "pick"},
    anchors=4,
    in_front={"matmul.a": POINTWISE, "matmul.b": POINTWISE},
    reuse_reduction=True,
    reduce_after_anchor=frozenset({"add", "max", "min"}),
    max_nodes=64,
    max_operands=32,
)


class TritonEngine(FormEngine[Emitted]):
    """Pointwise, reduction, norm, matmul and attention regions on CUDA devices."""

    name = "triton"
    engine_ids = range(20200, 20201)
    device_kinds = frozenset({"cuda"})
    is_general = False
    is_compiled = True
    forms = (PointwiseForm(), RowsForm(), ApartForm(), AttentionForm(), GemmForm())

    def limits(self, device: Device) -> FusionLimits:
        """What may fuse."""
        return LIMITS

    def unavailable(self, device: Device) -> str:
        return support.device_gap(device)

    def refusal(self, region: Region, device: Device) -> Support:
        return support.region_support(region, device)

    def compile(self, source: Emitted, region: Region, device: Device, *, aligned: bool) -> Executable:
        return assemble(region, source, device.sm_version, aligned=aligned)

    def compile_ahead(self, work: Sequence[tuple[Region, Config]], device: Device, until: float) -> None:
        wanted = []
        for region, config in work:
            form, schedule = self._taken(region, device)
            steps = form.emit(schedule, config).steps
            wanted += [compilation(s, device.sm_version, aligned=True) for s in steps if isinstance(s, Kernel)]
        ahead.compile_all(wanted, until)


ENGINE = TritonEngine()
