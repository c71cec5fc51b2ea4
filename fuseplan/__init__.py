"""fuseplan: an open graph API for fused deep-learning kernels; speaks the Python API of cudnn-frontend."""

from __future__ import annotations

from fuseplan.api import ops
from fuseplan.api import wrappers as wrapper
from fuseplan.api.enums import (
    FRONTEND_KNOB_TYPE_BASE,
    NodeType,
    attention_implementation,
    behavior_note,
    build_plan_policy,
    cuda_graph_retention,
    data_type,
    diagonal_alignment,
    gnn_activation_op,
    gnn_agg_op,
    heur_mode,
    is_frontend_knob_type,
    knob_type,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    numerical_note,
    reduction_mode,
    reshape_mode,
    scalar_type,
    tensor_reordering,
)
from fuseplan.api.handles import DeviceInfo, Handle, create_handle, destroy_handle, get_stream, handle, set_stream
from fuseplan.api.kernel_cache import create_device_properties, create_kernel_cache
from fuseplan.api.knobs import knob
from fuseplan.api.node import GraphContext, Node
from fuseplan.api.pending import get_module_name as __getattr__  # noqa: F401 - the module's names that are not there
from fuseplan.api.pygraph import pygraph
from fuseplan.api.tensor import Tensor, tensor
from fuseplan.api.version import (
    __version__,
    backend_version,
    backend_version_string,
    get_last_error_string,
    sdpa_capabilities,
)
from fuseplan.api.wrappers import Graph, graph, graph_cache, jit
from fuseplan.errors import (
    ArgumentError,
    BindError,
    DeviceError,
    FuseplanError,
    GraphStateError,
    InvalidGraphError,
    NotYetAvailableError,
    PlanFileError,
    PlanIndexError,
    ToolchainError,
    UnknownNameError,
    cudnnGraphNotSupportedError,
)

__all__ = [
    "ArgumentError", "BindError", "DeviceError", "DeviceInfo", "FRONTEND_KNOB_TYPE_BASE", "FuseplanError",
    "Graph", "GraphContext", "GraphStateError", "Handle", "InvalidGraphError", "Node", "NodeType",
    "NotYetAvailableError", "PlanFileError", "PlanIndexError", "Tensor", "ToolchainError", "UnknownNameError",
    "__version__", "attention_implementation", "backend_version", "backend_version_string", "behavior_note",
    "build_plan_policy", "create_device_properties", "create_handle", "create_kernel_cache",
    "cuda_graph_retention", "cudnnGraphNotSupportedError", "data_type", "destroy_handle", "diagonal_alignment",
    "get_last_error_string", "get_stream", "gnn_activation_op", "gnn_agg_op", "graph", "graph_cache", "handle",
    "heur_mode", "is_frontend_knob_type", "jit", "knob", "knob_type", "moe_grouped_matmul_mode",
    "norm_forward_phase", "numerical_note", "ops", "pygraph", "reduction_mode", "reshape_mode", "scalar_type",
    "sdpa_capabilities", "set_stream", "tensor", "tensor_reordering", "wrapper",
]  # fmt: skip
