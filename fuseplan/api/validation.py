"""The first two steps: validate, and freeze the operation graph."""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.api.node import draft_tensor
from fuseplan.api.op_methods import OpMethods
from fuseplan.api.tensor import Tensor
from fuseplan.errors import InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir import serialize
from fuseplan.ir.graph import DraftTensor, Graph, GraphBuilder
from fuseplan.ops import infer
from fuseplan.runtime import collector

Layouts = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]  # uid -> dims and strides


class Validation(OpMethods):
    """Validation and freezing."""

    def validate(self) -> None:
        """Infer what is unset and check every node and tensor; repeatable.

        Raises:
            InvalidGraphError: naming the node or tensor, what is wrong and how to fix it
        """
        self.validated()

    def validated(self) -> Graph:
        """The frozen form of the graph, made now if needed."""
        if self.graph is None:
            with collector.paused():
                self.graph = self.infer_graph({})
        return self.graph

    def build_operation_graph(self) -> None:
        """Validate if needed, and freeze the graph: from here on it cannot be changed."""
        graph, cache = self.validated(), self.options["kernel_cache"]
        if not self.is_frozen:
            self.is_frozen = True
            if cache is not None:
                cache.note(serialize.structure_key(graph, is_canonical=True))

    def infer_graph(self, layouts: Layouts) -> Graph:
        """The frozen form of what the user declared, with other dims and strides for some tensors."""
        if not self.node_list:
            raise InvalidGraphError(f"graph {self.name!r} has no nodes", fix="add operations before validate()")
        self.uids.check()
        drafts: dict[Tensor, DraftTensor] = {}
        for tensor in self.tensor_list:
            tensor.validate()
            draft = draft_tensor(tensor, drafts)
            if tensor._uid in layouts:
                draft.dim, draft.stride = layouts[tensor._uid]
        for tensor in {t: None for n in self.node_list for t in (*n.inputs.values(), *n.outputs.values())}:
            _refuse_layout(tensor)
        builder = GraphBuilder(self.name, self.io_dtype, self.intermediate_dtype, self.compute_dtype)
        builder.is_dynamic = bool(self.options["is_dynamic_shape_enabled"])
        builder.nodes = [node.draft(drafts) for node in self.node_list]
        infer.complete(builder)
        return builder.freeze()


def _refuse_layout(tensor: Tensor) -> None:
    """Refuse layouts that dims and strides do not describe. Raises cudnnGraphNotSupportedError."""
    what = ""
    if tensor._ragged_offset is not None:
        what = "ragged offsets"
    elif tensor._reordering not in (None, "NONE"):
        what = f"reordering type {tensor._reordering}"
    elif tensor._vector[0] != 1:
        what = f"vectors of {tensor._vector[0]} elements"
    if what:
        raise cudnnGraphNotSupportedError(
            f"tensor {tensor._name!r} has {what}, which no engine here reads",
            fix="lay the tensor out by dims and strides alone, for instance padded instead of ragged",
        )
