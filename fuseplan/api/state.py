"""What a graph object holds, and which changes are allowed when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseplan.api import enums
from fuseplan.api.arguments import to_int
from fuseplan.api.datatypes import to_dtype, to_enum
from fuseplan.api.handles import Handle, check_handle, resolve_device
from fuseplan.api.kernel_cache import device_properties, kernel_cache
from fuseplan.api.node import Node
from fuseplan.api.tensor import Tensor
from fuseplan.api.uids import UidTable
from fuseplan.errors import ArgumentError, GraphStateError
from fuseplan.ir.graph import Graph, TensorSpec
from fuseplan.runtime.device import Device

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan
    from fuseplan.plan.planner import PlanList


class GraphState:
    """Fields of a graph object; the layers above it add the steps.

    Attributes:
        graph: the validated graph, None before validation and after a change
        is_frozen: no more changes
        plan_list: the ranked plans, None before planning
        built: plans by index that were built
        selected: index of the chosen plan
    """

    def __init__(self, options: dict[str, Any]) -> None:
        name = options.pop("name")
        if not isinstance(name, str):
            raise ArgumentError(f"name of a graph must be a str, not {name!r}", fix="pass name='...'")
        self.name = name
        self.io_dtype = to_dtype(options.pop("io_data_type"), "io_data_type")
        self.intermediate_dtype = to_dtype(options.pop("intermediate_data_type"), "intermediate_data_type")
        self.compute_dtype = to_dtype(options.pop("compute_data_type"), "compute_data_type")
        self.handle: Handle | None = check_handle(options.pop("handle"), is_optional=True)
        self.options = options
        self.uids = UidTable()
        self.node_list: list[Node] = []
        self.tensor_list: list[Tensor] = []
        self.default_buffers: dict[Tensor, object] = {}
        self.graph: Graph | None = None
        self.is_frozen = False
        self.plan_list: PlanList | None = None
        self.built: dict[int, BuiltPlan] = {}
        self.loaded: BuiltPlan | None = None
        self.selected = 0
        self.is_pinned = False
        self._device: Device | None = None
        self._counts: dict[str, int] = {}
        self._check_options()

    def _check_options(self) -> None:
        cache, facts = self.options["kernel_cache"], self.options["device_property"]
        if cache is not None and not isinstance(cache, kernel_cache):
            raise ArgumentError(f"kernel_cache must come from create_kernel_cache(), not {cache!r}", fix="create one")
        if facts is not None and not isinstance(facts, device_properties):
            raise ArgumentError(
                f"device_property must come from create_device_properties(), not {facts!r}", fix="create one"
            )
        to_enum(self.options["cuda_graph_retention"], enums.cuda_graph_retention, "cuda_graph_retention")
        for name in ("sm_count", "sm_version"):
            if self.options[name] is not None:
                self.options[name] = to_int(self.options[name], name)
        if cache is not None:
            self.options["is_dynamic_shape_enabled"] = True

    @property
    def device(self) -> Device:
        """The handle's device, else that of `device=`, else the first usable GPU, else the CPU."""
        if self._device is None:
            self._device = resolve_device(self.handle, self.options)
        return self._device

    def touch(self, action: str, tensor: Tensor | None = None) -> None:
        """Announce a change: undoes validation. Raises GraphStateError on a frozen graph."""
        if self.is_frozen:
            where = f" on tensor {tensor._name!r}" if tensor is not None else ""
            raise GraphStateError(
                f"graph {self.name!r} is frozen, so {action}{where} is too late",
                fix="change the graph before build_operation_graph(), or make a new one",
            )
        self.graph = None

    def spec_of(self, uid: int) -> TensorSpec | None:
        """What validation found out about a tensor."""
        return self.graph.tensors.get(uid) if self.graph is not None else None

    def number(self, kind: str) -> int:
        """Count unnamed things of a kind, from 0."""
        n = self._counts.get(kind, 0)
        self._counts[kind] = n + 1
        return n
