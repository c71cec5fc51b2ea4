"""What an engine is: a few methods over data. Holds no engine's name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from fuseplan.engines.knobs import ENGINE_KNOB, Config, Knob, KnobSpace, Value, config
from fuseplan.ir.limits import FusionLimits
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch


@dataclass(frozen=True, slots=True)
class Support:
    """Whether an engine takes a region; a "no" has a reason.

    Args:
        at: value of the region in front of which a cut may help, -1 if no single one is at fault
    """

    is_supported: bool
    reason: str = ""
    at: int = -1


YES = Support(True)


def no(reason: str, at: int = -1) -> Support:
    """A refusal with its reason and, where one value of the region is at fault, that value."""
    return Support(False, reason, at)


@dataclass(frozen=True)
class Executable:
    """A built region as data.

    Args:
        launches: in order; slots of their patches index the region's operands; a PYTHON launch stands alone
        scratch_bytes: private scratch; SCRATCH patches are offsets into it
        scratch_alignment: bytes that the start of it is a multiple of
        alignments: address alignment in bytes that each operand must have, or () for none
        source: readable source, empty if there is none
    """

    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    alignments: tuple[int, ...] = ()
    source: str = field(default="", repr=False)
    scratch_alignment: int = 8


class Engine(Protocol):
    """An engine; stateless but for caches. `Device` is always an argument."""

    name: str  # stable, goes into saved plans
    engine_ids: range  # stable, in the API's id space; 20000 to 29999 are for engines of this tree
    device_kinds: frozenset[str]  # "cpu", "cuda"
    is_general: bool  # takes any graph as one region, node by node: the fallback
    is_compiled: bool  # building runs a tool-chain

    def limits(self, device: Device) -> FusionLimits:
        """What may fuse."""
        ...

    def supports(self, region: Region, device: Device) -> Support:
        """Whether this region can be built: fast, pure, no compile."""
        ...

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        """The choices for this region; an engine of several ids has a knob ENGINE_KNOB among them."""
        ...

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        """Compile.

        A saved plan is built again when it is loaded, from its graph, regions and configs; its compiled files are then
        given (`runtime.supply`), so nothing is compiled, and the result must be the same. An engine that remembers
        results does not while `supply.is_given()`.

        Args:
            aligned: whether the kernels may rely on addresses; if not, `alignments` of the result is ()
        Raises:
            ToolchainError: the tool-chain fails
        """
        ...

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        """Expected time without timing it, in microseconds; used for ranking only."""
        ...

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        """Names of the numerical notes that hold for this region: fast, pure, no compile.

        TENSOR_CORE: products on matrix units; DOWN_CONVERT_INPUTS: operands are rounded before they are multiplied;
        NONDETERMINISTIC: floats are added up in an order that may change from run to run.
        """
        ...


__all__ = [
    "Config", "ENGINE_KNOB", "Engine", "Executable", "FusionLimits", "Knob", "KnobSpace", "Support", "Value", "YES",
    "config", "no",
]  # fmt: skip
