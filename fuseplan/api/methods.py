"""Graph methods made from op schemas, in both call orders; their types stand in the stub file beside this one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import fuseplan.ops  # noqa: F401 - registers the ops
from fuseplan.api.binding import CallForm, bind, call_form, is_number
from fuseplan.api.datatypes import to_text
from fuseplan.api.draft import GraphDraft
from fuseplan.api.node import Node
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError, InvalidGraphError
from fuseplan.ops.array_facts import is_array
from fuseplan.ops.schema import OpSchema, all_schemas


class OpMethods:
    """The building methods of a graph, one for each registered op."""

    _draft: GraphDraft


def add_node(draft: GraphDraft, form: CallForm, bound: dict[str, Any]) -> Any:
    """Append the node of an op call, with its arguments by name, and return its results."""
    draft.touch("adding a node")
    op, call = form.schema.name, form.schema.call
    name, compute, dims = bound.pop("name", ""), bound.pop("compute_data_type", None), bound.pop("out_dims", None)
    if call.prepare is not None:
        call.prepare(bound)
    node = Node(to_text(name, f"{op}(): name") or f"{op}.{draft.number(op)}", None, compute, op=op)
    with draft.whole():
        for port in form.ports:
            if bound.get(port) is not None:
                node.inputs[port] = _take(draft, bound[port], node, port)
        for attr, default in form.defaults.items():
            value = bound.get(attr)
            node.params[attr] = default if value is None else form.converts[attr](value)
        made = _add_results(draft, form, node, bound)
        if dims is not None:
            _set_out_dims(node, dims, tuple(made))
    draft.nodes.append(node)
    if call.returns_list:
        return [made.get(port) for port, _ in form.results]
    return next(iter(made.values()))


def _add_results(draft: GraphDraft, form: CallForm, node: Node, bound: Mapping[str, Any]) -> dict[str, Tensor]:
    """Make the tensors of a node's results; returns those that the method hands back."""
    wanted = form.schema.call.results
    left_out = form.optional_results.difference(wanted(bound)) if wanted is not None else ()
    made: dict[str, Tensor] = {}
    for port, label in form.results:
        if port not in left_out:
            made[port] = node.outputs[port] = draft.enter(f"{node.name}::{label}", is_result=True)
    for port in form.given_results:
        if bound.get(port) is not None:
            if is_number(bound[port]):
                raise ArgumentError(
                    f"node {node.name!r} ({node.op}): {port} must be a graph tensor, not {bound[port]!r}",
                    fix="make the tensor of a result with tensor()",
                )
            node.outputs[port] = _take(draft, bound[port], node, port)
            node.outputs[port]._is_result = True
    return made


def _take(draft: GraphDraft, value: object, node: Node, port: str) -> Tensor:
    """The tensor that an argument stands for: an array is wrapped and bound by default, a number is a constant."""
    if isinstance(value, Tensor):
        if value._owner is draft:
            return value
        raise InvalidGraphError(
            f"node {node.name!r} ({node.op}): {port} is tensor {value.get_name()!r} of graph {value._owner.name!r}",
            fix=f"declare it in graph {draft.name!r} too: tensor_like(...)",
        )
    name = f"{node.name}::{port}"
    if is_array(value):
        made = draft.wrap(value, name)
        draft.default_buffers[made] = value
    elif is_number(value):
        made = draft.constant(value, name, node.compute)
    else:
        raise ArgumentError(
            f"node {node.name!r} ({node.op}): {port} must be a graph tensor or an array, not {value!r}",
            fix="make a tensor with tensor(), tensor_like() or tensor_scalar(), or pass a number",
        )
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


def make_method(schema: OpSchema) -> Callable[..., Any]:
    """The method of an op."""
    form = call_form(schema)

    def method(self: OpMethods, *args: object, **kwargs: Any) -> Any:
        return add_node(self._draft, form, bind(form, args, kwargs))

    method.__name__ = schema.name
    method.__qualname__ = f"pygraph.{schema.name}"
    method.__doc__ = document(form)
    method.__signature__ = signature(form)  # type: ignore[attr-defined]
    return method


def document(form: CallForm) -> str:
    """Docstring of an op's method."""
    schema = form.schema
    names = [name for name, _ in form.results]
    result = f"[{', '.join(names)}]" if schema.call.returns_list else names[0]
    return f"{(schema.call.doc or schema.name).rstrip()}\n\nReturns:\n    {result}\n"


def signature(form: CallForm, listed: tuple[str, ...] | None = None) -> inspect.Signature:
    """Signature with the listed parameters first; the others follow by keyword only.

    Args:
        listed: positional order; None is the classic one, which has all parameters
    """
    if listed is None:
        listed = tuple(dict.fromkeys((*form.schema.call.classic, *form.schema.call.positional)))
    made = inspect.Parameter
    parameters = [made("self", made.POSITIONAL_OR_KEYWORD)]
    is_open = True  # no default so far, so a required parameter may still come without one
    for name in listed:
        is_open = is_open and name in form.required
        default = made.empty if is_open else form.defaults.get(name)
        parameters.append(made(name, made.POSITIONAL_OR_KEYWORD, default=default))
    for name in sorted(set(form.matches) - set(listed)):
        default = made.empty if name in form.required else form.defaults.get(name)
        parameters.append(made(name, made.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def attach(schema: OpSchema) -> None:
    """Give graphs the method of an op, under each of its names."""
    method = make_method(schema)
    for name in (schema.name, *schema.call.aliases):
        setattr(OpMethods, name, method)


for _schema in all_schemas():
    attach(_schema)
