"""Nodes as users see them, and the kinds they have."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from fuseplan.api import enums
from fuseplan.api.datatypes import to_dtype, to_member
from fuseplan.api.tensor import Tensor
from fuseplan.dtypes import DType
from fuseplan.ir.graph import DraftNode, DraftTensor, GraphBuilder
from fuseplan.ops import infer, schema

_KIND_SUFFIX = ("_backward", "_BWD")


@dataclass(frozen=True)
class GraphContext:
    """Name and type defaults of a graph."""

    name: str = ""
    io_data_type: enums.data_type = enums.data_type.NOT_SET
    intermediate_data_type: enums.data_type = enums.data_type.NOT_SET
    compute_data_type: enums.data_type = enums.data_type.NOT_SET


class Node:
    """One operation of a graph: its tensors by port, and its parameters.

    Args:
        name: label; `graph.get_node` finds the node by it
        node_type: kind of the node
        compute_data_type: None takes the graph's
    """

    __slots__ = ("_op", "_type", "compute", "inputs", "name", "outputs", "params")

    def __init__(self, name: str, node_type: enums.NodeType | None, compute_data_type: object = None, *, op: str = ""):
        self.name = name
        self._op, self._type = op, node_type
        self.compute: DType | None = to_dtype(compute_data_type, f"compute_data_type of node {name!r}")
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.params: dict[str, Any] = {}

    @property
    def op(self) -> str:
        """The op's name; from the kind for a node that no graph method made."""
        return self._op or op_of_kind(self.node_type)

    @property
    def node_type(self) -> enums.NodeType:
        return self._type or kind_of_op(self._op)

    @property
    def compute_data_type(self) -> enums.data_type:
        return to_member(self.compute)

    def draft(self, drafts: dict[Tensor, DraftTensor]) -> DraftNode:
        """A copy for inference, in the IR's names; `drafts` collects the copies of the tensors."""
        for tensor in (*self.inputs.values(), *self.outputs.values()):
            if tensor not in drafts:
                drafts[tensor] = copy.copy(tensor._draft)
        own = {name: inner for inner, name in schema.schema_of(self.op).call.names.items()}
        inputs = {own.get(port, port): drafts[t] for port, t in self.inputs.items()}
        outputs = {own.get(port, port): drafts[t] for port, t in self.outputs.items()}
        params = {own.get(name, name): value for name, value in self.params.items()}
        return DraftNode(self.op, self.name, inputs, outputs, params, self.compute)

    def validate(self) -> None:
        """Check that the ports and parameters that the op needs are there. Raises InvalidGraphError."""
        infer.need_arguments(self.draft({}))

    def infer_properties(self, context: GraphContext) -> None:
        """Set the dims, strides and types of the results that are still unset, for this node alone."""
        names = ("io_data_type", "intermediate_data_type", "compute_data_type")
        io, intermediate, compute = (to_dtype(getattr(context, name), name) for name in names)
        builder = GraphBuilder(context.name, io, intermediate, compute)
        draft = self.draft({})
        for made in draft.inputs.values():
            made.is_virtual = False
        builder.nodes.append(draft)
        infer.complete(builder)
        for result, found in zip(self.outputs.values(), draft.outputs.values(), strict=True):
            if result._draft.dim is None and found.dim:
                result.set_dim(found.dim)
            if result._draft.stride is None and found.stride:
                result.set_stride(found.stride)
            if result._draft.dtype is None and found.dtype:
                result.set_data_type(found.dtype)

    def _as_dict(self) -> dict[str, Any]:
        inputs, outputs = ({p: t.get_name() for p, t in side.items()} for side in (self.inputs, self.outputs))
        names = {"name": self.name, "op": self.op, "type": self.node_type.name}
        return {**names, "inputs": inputs, "outputs": outputs, "params": dict(self.params)}

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.node_type.name})"


def kind_of_op(op: str) -> enums.NodeType:
    """The kind of node that an op makes; every elementwise op is POINTWISE."""
    for name in (op.replace(*_KIND_SUFFIX).upper(), op.upper()):
        if name in enums.NodeType.__members__:
            return enums.NodeType[name]
    try:
        is_pointwise = schema.schema_of(op).family == "pointwise"
    except KeyError:
        is_pointwise = False
    return enums.NodeType.POINTWISE if is_pointwise else enums.NodeType.COMPOSITE


def op_of_kind(kind: enums.NodeType) -> str:
    """The op of a kind that has only one."""
    name = kind.name.lower()
    return name.removesuffix("_bwd") + "_backward" if name.endswith("_bwd") else name
