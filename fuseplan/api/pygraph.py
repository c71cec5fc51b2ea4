"""The graph object of the API: its constructor, and names that are not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseplan.api import enums
from fuseplan.api.datatypes import to_enum
from fuseplan.api.handles import Handle
from fuseplan.api.kernel_cache import device_properties, kernel_cache
from fuseplan.api.pending import missing_graph_name
from fuseplan.api.saving import Saving
from fuseplan.settings import current

NOT_SET = enums.data_type.NOT_SET


class pygraph(Saving):  # noqa: N801 - the API's own name
    """A graph of tensors and operations, and the ranked plans that run it.

    Args:
        name: shown in messages and sources
        io_data_type: type of tensors that are not virtual
        intermediate_data_type: type of virtual tensors; unset: the io type, else FLOAT
        compute_data_type: type that nodes compute in; unset: the io type, else FLOAT
        handle: device and stream
        sm_count, sm_version: take the place of the device's own values in planning
        kernel_cache: giving one turns dynamic shapes on
        device_property: facts of a device to plan for, where the device is not
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` for a graph without a handle
    """

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: object = NOT_SET,
        intermediate_data_type: object = NOT_SET,
        compute_data_type: object = NOT_SET,
        handle: Handle | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: kernel_cache | None = None,
        device_property: device_properties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: enums.cuda_graph_retention | None = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        device: str | None = None,
    ) -> None:  # table
        options = dict(locals())
        for extra in ("self", "__class__"):
            options.pop(extra, None)
        super().__init__(options)

    def get_cuda_graph_retention(self) -> enums.cuda_graph_retention:
        """Whether native CUDA graph objects are kept: the constructor's choice, else the settings', else PER_GRAPH."""
        named = to_enum(self.options["cuda_graph_retention"], enums.cuda_graph_retention, "cuda_graph_retention")
        chosen = named or current().cuda_graph_retention.upper()
        return enums.cuda_graph_retention.__members__.get(chosen, enums.cuda_graph_retention.PER_GRAPH)

    if not TYPE_CHECKING:  # a type checker knows all names that there are, and shall report any other

        def __getattr__(self, name: str) -> Any:
            raise missing_graph_name(name)
