"""Expected time of the references, run node by node with NumPy on host memory or PyTorch on CUDA memory."""

from __future__ import annotations

from math import prod

from fuseplan.dtypes import DOUBLE, FLOAT
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.graph import Node
from fuseplan.ir.region import Region
from fuseplan.ops.schema import NodeView, schema_of
from fuseplan.runtime.device import Device

_CALL_US = 25.0
_NODE_US = 25.0
_ELEMENT_NS = 1.3  # one pass over float32 with a new array for the result, on one core
_CAST_NS = 2.0  # an element that is kept in a type of fewer than 32 bits
_BLAS_SHARE = 0.5  # of the peak of all cores
_MEMORY_SHARE = 0.5  # of the bandwidth of all cores, while operands are read
_NO_BLAS_NS = 0.5  # a multiplication or addition in a type that BLAS does not have
_TAP_US = 30.0  # convolutions are one product for each tap of the filter
_SCORE_NS = 12.0  # softmax of one score of attention, with mask and scale
_CUDA_NODE_US = 15.0

# table: nanoseconds per element where NumPy needs more than a pass or two: NaN rules, several passes, calls of libm
_SLOW_NS = {
    "binary_select": 4.0, "cos": 3.5, "elu": 7.0, "erf": 200.0, "gelu": 300.0, "gelu_approx_tanh": 25.0, "log": 2.5,
    "max": 8.0, "min": 8.0, "mod": 25.0, "pow": 4.0, "relu": 5.0, "sigmoid": 25.0, "softplus": 30.0, "swish": 25.0,
}  # fmt: skip


def host_us(region: Region, device: Device) -> float:
    """Calls, passes over elements on one core, and products at the rate of BLAS on all of them."""
    return _CALL_US + sum(
        [_node_us(node, region, device) for node in region.graph.nodes]
    )


def _node_us(node: Node, region: Region, device: Device) -> float:
    view = NodeView(node, region.graph)
    schema = schema_of(node.op)
    cost = schema.cost(view)
    tensors = [region.graph.tensors[uid] for _, uid in (*node.inputs, *node.outputs)]
    made = max(region.graph.tensors[uid].numel for _, uid in node.outputs)
    ns = _CAST_NS * sum(
        [t.numel for t in tensors if t.dtype.is_float and t.dtype.bits < FLOAT.bits]
    )
    us = _NODE_US
    if node.op not in ANCHORS:
        passes = made if schema.family == "pointwise" else max(made, cost.flops)
        return (
            us
            + (ns + max(_ELEMENT_NS * passes, _SLOW_NS.get(node.op, 0.0) * made)) / 1e3
        )
    if not node.compute.is_float:
        return us + (ns + _NO_BLAS_NS * cost.flops) / 1e3
    if node.op.startswith("conv"):
        taps = (
            prod(view.need("weight").dim[2:]) if view.input("weight") is not None else 1
        )
        us += taps * _TAP_US
        ns += taps * made * _ELEMENT_NS
    if node.op.startswith("sdpa"):
        q, k = (view.need(port).dim for port in ("q", "k"))
        ns += _SCORE_NS * prod(q[:3]) * k[2]
    rate = device.peak_gflops * (0.5 if node.compute is DOUBLE else 1.0)
    us += cost.read_bytes / (1e3 * _MEMORY_SHARE * device.memory_gbps)
    return (
        us + (ns + _ELEMENT_NS * made) / 1e3 + cost.flops / (1e3 * _BLAS_SHARE * rate)
    )


def cuda_us(region: Region, device: Device) -> float:
    """A kernel for each node, each reading and writing memory."""
    cost = region.cost
    moved = (cost.read_bytes + cost.write_bytes) * 3
    work = cost.flops / (device.peak_gflops * 1e3) * 4
    return (
        _CUDA_NODE_US * len(region.graph.nodes)
        + work
        + moved / (device.memory_gbps * 1e3)
    )
