"""Looking at a graph: nodes, tensors, keys, and what was fused and why."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from fuseplan.api import structure
from fuseplan.api.datatypes import to_member
from fuseplan.api.execution import Execution
from fuseplan.api.node import GraphContext, Node
from fuseplan.api.tensor import Tensor
from fuseplan.errors import InvalidGraphError
from fuseplan.ir import serialize


class Inspection(Execution):
    """Read-only views of a graph."""

    @property
    def nodes(self) -> list[Node]:
        return list(self.node_list)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name; a name that several share gets ``#<uid>`` appended."""
        found: dict[str, Tensor] = {}
        for tensor in self.tensor_list:
            name = tensor._name if tensor._name not in found else f"{tensor._name}#{tensor._uid}"
            found[name] = tensor
        return found

    @property
    def context(self) -> GraphContext:
        """Name and type defaults."""
        types = (self.io_dtype, self.intermediate_dtype, self.compute_dtype)
        return GraphContext(self.name, *map(to_member, types))

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None:
        """The first tensor with this name, or the tensor with this uid."""
        if isinstance(name_or_uid, str):
            return next((t for t in self.tensor_list if t._name == name_or_uid), None)
        return self.uids.holders.get(name_or_uid)

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor with this uid. Raises InvalidGraphError if there is none."""
        tensor = self.uids.holders.get(uid)
        if tensor is None:
            raise InvalidGraphError(f"graph {self.name!r} has no tensor with uid {uid}", fix="use a tensor's get_uid()")
        return tensor

    def get_node(self, name: str) -> Node | None:
        return next((n for n in self.node_list if n.name == name), None)

    def get_inputs(self) -> list[Tensor]:
        """Tensors that nodes read and no node makes, in order of first use."""
        made = {t for n in self.node_list for t in n.outputs.values()}
        return list(dict.fromkeys(t for n in self.node_list for t in n.inputs.values() if t not in made))

    def get_outputs(self) -> list[Tensor]:
        """Results that are stored, in node order."""
        return [t for n in self.node_list for t in n.outputs.values() if not t._is_virtual]

    def inspect(self) -> dict[str, Any]:
        """The graph's state as plain data."""
        built = self.current_plan()
        return {
            "name": self.name,
            "state": self._state_name(),
            "device": str(self.device),
            "nodes": [
                {
                    "name": n.name,
                    "op": n.op,
                    "type": n.node_type.name,
                    "inputs": {p: t._name for p, t in n.inputs.items()},
                    "outputs": {p: t._name for p, t in n.outputs.items()},
                    "params": dict(n.params),
                }
                for n in self.node_list
            ],
            "tensors": {name: t._as_dict() for name, t in self.tensors.items()},
            "plans": [entry.name for entry in self.plans],
            "selected_plan": built.name if built else None,
            "workspace_bytes": built.workspace_bytes if built else None,
        }

    def _state_name(self) -> str:
        if self.current_plan() is not None:
            return "built"
        if self.plan_list is not None:
            return "planned"
        return "frozen" if self.is_frozen else "validated" if self.graph is not None else "open"

    def explain(self) -> str:
        """Regions, ranking, refusals and keys as text; validates and plans nothing that is not there yet."""
        if self.plan_list is None:
            steps = "call create_execution_plans() or build() to see regions and plans"
            return f"graph {self.name!r} ({self._state_name()}): {len(self.node_list)} nodes; {steps}"
        built = self.current_plan()
        chosen = f"selected: plan {self.selected} {built.name}" if built else "selected: none is built"
        return f"{self.plan_list.explain()}\n{chosen}"

    def __repr__(self) -> str:
        return structure.to_json(self)

    def key(self) -> int:
        """Hash of the structure with uids and names; equal graphs have equal keys.

        Graphs with dynamic shapes leave dims and strides out.
        """
        graph = self.validated()
        if self.options["is_dynamic_shape_enabled"]:
            return int(serialize.structure_key(graph)[:15], 16)
        return int(sha256(serialize.dumps(graph).encode()).hexdigest()[:15], 16)

    @property
    def canonical_key(self) -> str:
        """Hex digest free of uids and names, for caches and files."""
        return serialize.canonical_key(self.validated())
