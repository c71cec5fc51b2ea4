"""Putting a graph together: tensors, scalars, and the node behind every op method."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fuseplan import dtypes
from fuseplan.api import enums
from fuseplan.api.arrays import describe, is_array
from fuseplan.api.binding import CallForm
from fuseplan.api.datatypes import to_dtype, to_enum
from fuseplan.api.node import Node
from fuseplan.api.state import GraphState
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError, InvalidGraphError


class Construction(GraphState):
    """Building methods of a graph."""

    def tensor(
        self,
        dim: Iterable[int],
        stride: Iterable[int] | None = None,
        data_type: object = enums.data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: enums.tensor_reordering = enums.tensor_reordering.NONE,
        name: str = "",
        uid: int | None = -1,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> Tensor:  # table
        """Declare a tensor; strides default to row-major packed.

        Args:
            uid: the user's own uid; -1 or None takes an automatic one
            alignment_value: promise that every stored value is a multiple of it
        """
        made = self._new_tensor(name or f"tensor_{self.number('tensor')}")
        with self._whole(len(self.tensor_list) - 1):
            made.set_dim(dim)
            if stride is not None:
                made.set_stride(stride)
            made._dtype = to_dtype(data_type, f"data_type of tensor {made._name!r}")
            made._is_virtual, made._is_pass_by_value = bool(is_virtual), bool(is_pass_by_value)
            if is_virtual and made._dtype is None:
                made._dtype = self.intermediate_dtype
            if uid is not None and uid != -1:
                made.set_uid(uid)
            if ragged_offset is not None:
                made.set_ragged_offset(ragged_offset)
            if reordering_type is not enums.tensor_reordering.NONE:
                made.set_reordering_type(reordering_type)
            if ragged_offset_multiplier != 1:
                made.set_ragged_offset_multiplier(ragged_offset_multiplier)
            if alignment_value != 1:
                made.set_alignment_value(alignment_value)
        return made

    @contextmanager
    def _whole(self, count: int) -> Iterator[None]:
        """Take all tensors after the first `count` away again if the block fails: a refused call leaves nothing."""
        try:
            yield
        except BaseException:
            for tensor in self.tensor_list[count:]:
                self.uids.release(tensor)
                self.default_buffers.pop(tensor, None)
            del self.tensor_list[count:]
            raise

    def tensor_like(
        self, template: Any = None, name: str = "", is_virtual: bool = False, *, input: Any = None
    ) -> Tensor:
        """Declare a tensor like another one, or like an array.

        A one-element array in host memory becomes a pass-by-value scalar, read at each call.
        """
        template = input if template is None else template
        if isinstance(template, Tensor):
            made = self._new_tensor(name or f"tensor_{self.number('tensor')}")
            made._dim = template._dim or tuple(template.get_dim()) or None
            made._stride = template._stride or tuple(template.get_stride()) or None
            made._dtype = to_dtype(template.get_data_type(), "data_type")
            made._is_pass_by_value = template._is_pass_by_value
            made._is_virtual = bool(is_virtual)
            return made
        if not is_array(template):
            raise ArgumentError(
                f"tensor_like needs a graph tensor or an array that exports DLPack, not {template!r}",
                fix="pass an array, or declare the tensor with tensor(dim=..., stride=...)",
            )
        return self._wrap_array(template, name or f"tensor_{self.number('tensor')}", is_virtual)

    def _wrap_array(self, array: object, name: str, is_virtual: bool) -> Tensor:
        facts = describe(array, f"tensor {name!r}")
        is_scalar = facts.is_host and facts.numel == 1
        if facts.is_host and not is_scalar and self.device.kind == "cuda":
            raise InvalidGraphError(
                f"tensor {name!r} is like an array of {facts.numel} elements in host memory, "
                f"but graph {self.name!r} is for {self.device}",
                fix="move the array to the GPU, or make the graph with device='cpu'",
            )
        made = self._new_tensor(name)
        made._dim, made._stride, made._dtype = facts.dim, facts.stride, facts.dtype
        made._is_pass_by_value, made._is_virtual = is_scalar and not is_virtual, bool(is_virtual)
        return made

    def tensor_scalar(self, value: Any, scalar_type: enums.scalar_type, name: str = "") -> Tensor:
        """Declare a scalar whose value the graph owns; it is never in a pack.

        Args:
            value: a float is FLOAT, an int INT32 or INT64, a bool BOOLEAN; text is read as one of these
            scalar_type: patched at execution, or baked into the plan
        """
        name = name or f"tensor_{self.number('tensor')}"
        kind = to_enum(scalar_type, enums.scalar_type, f"scalar_type of {name!r}")
        if kind is None:
            raise ArgumentError(f"scalar {name!r} has no scalar_type", fix="pass scalar_type.RUNTIME_PARAM")
        number = _to_scalar(value, name)
        made = self._new_tensor(name)
        made._value = number
        if isinstance(number, float):
            made._dtype = dtypes.FLOAT
        elif isinstance(number, bool):
            made._dtype = dtypes.BOOLEAN
        else:
            made._dtype = dtypes.INT32 if dtypes.INT32.holds(number) else dtypes.INT64
        made._dim = made._stride = (1,)
        made._is_pass_by_value, made._is_constant = True, kind == "COMPILE_TIME_CONST"
        return made

    def _new_tensor(self, name: str) -> Tensor:
        self.touch("adding a tensor")
        if not isinstance(name, str):
            raise ArgumentError(f"name of a tensor must be a str, not {name!r}", fix="pass name='...'")
        return self._enter(name)

    def _enter(self, name: str, *, is_result: bool = False) -> Tensor:
        made = Tensor(self, self.uids.take_next(), name, is_result=is_result)
        self.uids.add(made)
        self.tensor_list.append(made)
        return made

    def add_node(self, form: CallForm, bound: dict[str, Any]) -> Any:
        """Append the node of an op call and return its results.

        Args:
            bound: arguments by name
        """
        self.touch("adding a node")
        with self._whole(len(self.tensor_list)):
            return self._add_node(form, bound)

    def _add_node(self, form: CallForm, bound: dict[str, Any]) -> Any:
        op = form.schema.name
        name, compute, dims = bound.pop("name", ""), bound.pop("compute_data_type", None), bound.pop("out_dims", None)
        if form.schema.call.prepare is not None:
            form.schema.call.prepare(bound)
        if not isinstance(name, str):
            raise ArgumentError(f"{op}(): name must be a str, not {name!r}", fix="pass name='...'")
        node = Node(name or f"{op}.{self.number(op)}", None, compute, op=op)
        for port in form.ports:
            value = bound.get(port)
            if value is not None:
                is_own = type(value) is Tensor and value._graph is self
                node.inputs[port] = value if is_own else self._adopt(value, node, port)
        params = node.params
        for attr, default in form.defaults.items():
            value = bound.get(attr)
            params[attr] = default if value is None else form.converts[attr](value)
        made = self._add_results(form, node, bound)
        if dims is not None:
            _set_out_dims(node, dims, tuple(made))
        self.node_list.append(node)
        if form.schema.call.returns_list:
            return [made.get(port) for port, _ in form.results]
        return next(iter(made.values()))

    def _add_results(self, form: CallForm, node: Node, bound: Mapping[str, Any]) -> dict[str, Tensor]:
        """Make the tensors of a node's results; returns those that the method hands back."""
        left_out: Container[str] = ()
        if form.schema.call.results is not None:
            left_out = form.optional_results.difference(form.schema.call.results(bound))
        made: dict[str, Tensor] = {}
        for port, label in form.results:
            if port not in left_out:
                made[port] = node.outputs[port] = self._enter(f"{node.name}::{label}", is_result=True)
        for port in form.given_results:
            if bound.get(port) is not None:
                node.outputs[port] = self._adopt(bound[port], node, port)
                node.outputs[port]._is_result = True
        return made

    def _adopt(self, value: object, node: Node, port: str) -> Tensor:
        """The graph tensor that an argument stands for; an array is wrapped and bound by default."""
        if isinstance(value, Tensor):
            if value._graph is self:
                return value
            raise InvalidGraphError(
                f"node {node.name!r} ({node.op}): {port} is tensor {value._name!r} of graph {value._graph.name!r}",
                fix=f"declare it in graph {self.name!r} too: tensor_like(...)",
            )
        if not is_array(value):
            raise ArgumentError(
                f"node {node.name!r} ({node.op}): {port} must be a graph tensor or an array, not {value!r}",
                fix="make a tensor with tensor(), tensor_like() or tensor_scalar()",
            )
        made = self._wrap_array(value, f"{node.name}::{port}", False)
        self.default_buffers[made] = value
        return made


def _set_out_dims(node: Node, dims: Any, returned: tuple[str, ...]) -> None:
    """Apply out_dims: one list for the only result, or lists by the names of results."""
    if not isinstance(dims, dict):
        if len(returned) != 1:
            raise ArgumentError(
                f"node {node.name!r} ({node.op}): out_dims must be a dict, as the op has results {', '.join(returned)}",
                fix=f"pass out_dims={{{returned[0]!r}: [...]}}",
            )
        dims = {returned[0]: dims}
    for port, dim in dims.items():
        if port not in node.outputs:
            raise ArgumentError(
                f"node {node.name!r} ({node.op}): out_dims names {port!r}", fix=f"its results are {', '.join(returned)}"
            )
        node.outputs[port].set_dim(dim)


def _to_scalar(value: Any, name: str) -> bool | int | float:
    """The plain number in a value or text. Raises ArgumentError."""
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    elif isinstance(value, (bool, int, float)):
        return value
    elif hasattr(value, "__index__"):
        return int(value.__index__())
    elif hasattr(value, "__float__") and not isinstance(value, Tensor):
        return float(value)
    raise ArgumentError(f"scalar {name!r} has the value {value!r}", fix="pass an int, a float or a bool")
