"""fuseplan: an open graph API for fused deep-learning kernels; speaks the Python API of cudnn-frontend."""

from __future__ import annotations

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
from fuseplan.api.handles import DeviceInfo, Handle, create_handle, destroy_handle, get_stream, set_stream
from fuseplan.api.kernel_cache import create_device_properties, create_kernel_cache
from fuseplan.api.knobs import knob
from fuseplan.api.module import get_attribute as __getattr__  # noqa: F401 - the module's lazy names
from fuseplan.api.node import GraphContext, Node
from fuseplan.api.pygraph import pygraph
from fuseplan.api.tensor import Tensor, tensor
from fuseplan.api.version import (
    __version__,
    backend_version,
    backend_version_string,
    get_last_error_string,
    sdpa_capabilities,
)
from fuseplan.api.wrappers import graph, graph_cache, jit
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
    "GraphContext", "GraphStateError", "Handle", "InvalidGraphError", "Node", "NodeType", "NotYetAvailableError",
    "PlanFileError", "PlanIndexError", "Tensor", "ToolchainError", "UnknownNameError", "__version__",
    "attention_implementation", "backend_version", "backend_version_string", "behavior_note", "build_plan_policy",
    "create_device_properties", "create_handle", "create_kernel_cache", "cuda_graph_retention",
    "cudnnGraphNotSupportedError", "data_type", "destroy_handle", "diagonal_alignment", "get_last_error_string",
    "get_stream", "gnn_activation_op", "gnn_agg_op", "graph", "graph_cache", "heur_mode", "is_frontend_knob_type",
    "jit", "knob", "knob_type", "moe_grouped_matmul_mode", "norm_forward_phase", "numerical_note", "pygraph",
    "reduction_mode", "reshape_mode", "scalar_type", "sdpa_capabilities", "set_stream", "tensor", "tensor_reordering",
]  # fmt: skip
