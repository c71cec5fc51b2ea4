"""An engine that plans everything and launches nothing: proves that planning needs no kernels. Never listed."""

from __future__ import annotations

from fuseplan.engines.base import (
    YES,
    Config,
    Executable,
    FusionLimits,
    KnobSpace,
    Support,
)
from fuseplan.ir.limits import everything
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device


class NullEngine:
    """Takes everything."""

    name = "null"
    engine_ids = range(20900, 20901)
    device_kinds = frozenset({"cpu", "cuda"})
    is_general = False
    is_compiled = False

    def limits(self, device: Device) -> FusionLimits:
        return everything()

    def supports(self, region: Region, device: Device) -> Support:
        return YES

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace()

    def build(
        self, region: Region, device: Device, config: Config, *, aligned: bool = True
    ) -> Executable:
        return Executable(())

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        return 0.0

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


ENGINE = NullEngine()
