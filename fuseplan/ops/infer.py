"""Inference over a whole draft graph: type defaults, then each op's own rule, then the checks all tensors share."""

from __future__ import annotations

from math import prod

from fuseplan import dtypes
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import (
    DraftNode,
    DraftTensor,
    GraphBuilder,
    packed_stride,
    span_elements,
)
from fuseplan.ops.schema import api_name, reject, schema_of

#: so that the bytes of a tensor, and offsets in it, fit 64 bits
MAX_ELEMENTS = 1 << 56


def complete(builder: GraphBuilder) -> None:
    """Fill what the user left unset in every draft, in insertion order.

    Raises:
        InvalidGraphError: a node or tensor contradicts itself; names it
    """
    io = builder.io_dtype
    intermediate = builder.intermediate_dtype or io or dtypes.FLOAT
    compute = builder.compute_dtype or io or dtypes.FLOAT
    made: set[int] = set()
    seen: set[int] = set()
    for node in builder.nodes:
        schema = schema_of(node.op)
        need_arguments(node)
        rank = max((len(t.dim) for t in node.inputs.values() if t.dim), default=1)
        for tensor in node.inputs.values():
            if tensor.dim is None and tensor.value is not None:
                tensor.dim = (1,) * rank
            if id(tensor) not in seen:
                seen.add(id(tensor))
                if id(tensor) not in made:
                    _complete_input(node, tensor, io)
        node.compute = node.compute or compute
        schema.infer(node)
        for port, tensor in node.outputs.items():
            _check_maker(
                node,
                port,
                tensor,
                is_made=id(tensor) in made,
                is_read=id(tensor) in seen,
            )
            made.add(id(tensor))
            seen.add(id(tensor))
            if tensor.dtype is None:
                tensor.dtype = (
                    intermediate if tensor.is_virtual else (io or intermediate)
                )
            _check_result(node, port, tensor)


def need_arguments(node: DraftNode) -> None:
    """The ports and attributes that the op needs are there. Raises InvalidGraphError."""
    schema = schema_of(node.op)
    for port in schema.inputs:
        if not port.is_optional and port.name not in node.inputs:
            name = schema.call.name(port.name)
            raise reject(
                node, f"input {name!r} is missing", f"pass a tensor as {name}="
            )
    for attr in schema.attrs:
        if attr.is_required and node.attrs.get(attr.name) is None:
            name = schema.call.name(attr.name)
            raise reject(
                node, f"attribute {name!r} is missing", f"pass {name}= to {node.op}()"
            )


def _complete_input(
    node: DraftNode, tensor: DraftTensor, io: dtypes.DType | None
) -> None:
    if tensor.dim is None or not tensor.dim:
        if tensor.is_virtual:
            raise InvalidGraphError(
                f"tensor {tensor.name!r} is virtual, but no node before {node.name!r} makes it",
                fix="add the node that makes it first, or do not mark it virtual",
            )
        raise InvalidGraphError(
            f"tensor {tensor.name!r} (input of {node.name!r}) has no dims",
            fix="call set_dim",
        )
    if tensor.dtype is None:
        if io is None:
            raise InvalidGraphError(
                f"tensor {tensor.name!r} has no data type and the graph has no io_data_type",
                fix="pass data_type= or io_data_type=",
            )
        tensor.dtype = io
    if tensor.is_virtual:
        raise InvalidGraphError(
            f"tensor {tensor.name!r} is virtual, but no node makes it",
            fix="only results of nodes can be virtual: set_is_virtual(False)",
        )
    if tensor.stride is None:
        tensor.stride = packed_stride(tensor.dim)
    check_layout(tensor)
    if tensor.is_pass_by_value or tensor.value is not None:
        _check_scalar_value(tensor)


def _check_scalar_value(tensor: DraftTensor) -> None:
    """A host scalar has one element, and its type can hold the value that the graph owns. Raises InvalidGraphError."""
    assert tensor.dim is not None and tensor.dtype is not None
    if any(d != 1 for d in tensor.dim):
        raise InvalidGraphError(
            f"tensor {tensor.name!r} is pass-by-value, but has dims {list(tensor.dim)}",
            fix="give it one element (all dims 1), or pass it as an ordinary tensor",
        )
    value, dtype = tensor.value, tensor.dtype
    if value is None or dtype.is_float or dtype.kind == "bool":
        return
    if not dtype.holds(value):
        raise InvalidGraphError(
            f"scalar {tensor.name!r} has the value {value}, which its type {dtype.name} cannot hold",
            fix="set_data_type to a type that holds it, or change the value",
        )


def _check_maker(
    node: DraftNode, port: str, tensor: DraftTensor, *, is_made: bool, is_read: bool
) -> None:
    """A tensor is made once, before it is read, and is no value of the graph's. Raises InvalidGraphError."""
    what = f"output {api_name(node, port)!r} ({tensor.name!r})"
    if is_made:
        raise reject(
            node,
            f"{what} is made by an earlier output already",
            "pass a tensor of its own",
        )
    if is_read:
        raise reject(
            node,
            f"{what} is read by this node or an earlier one",
            "pass a tensor of its own",
        )
    if tensor.value is not None:
        raise reject(
            node,
            f"{what} is a scalar that the graph owns",
            "pass a tensor made with tensor()",
        )


def check_layout(tensor: DraftTensor) -> None:
    """Dims are positive and as many as strides. Raises InvalidGraphError."""
    dim, stride = tensor.dim or (), tensor.stride or ()
    if len(dim) != len(stride):
        raise InvalidGraphError(
            f"tensor {tensor.name!r} has {len(dim)} dims {list(dim)} but {len(stride)} strides {list(stride)}",
            fix="give one stride per dim",
        )
    if any(d < 1 for d in dim):
        raise InvalidGraphError(
            f"tensor {tensor.name!r} has dims {list(dim)}",
            fix="every extent must be at least 1",
        )
    if any(s < 0 for s in stride):
        raise InvalidGraphError(
            f"tensor {tensor.name!r} has strides {list(stride)}",
            fix="strides must not be negative",
        )
    if max(span_elements(dim, stride), prod(dim)) > MAX_ELEMENTS:
        raise InvalidGraphError(
            f"tensor {tensor.name!r} with dims {list(dim)} and strides {list(stride)} is larger than any memory",
            fix="correct its dims and strides: a tensor has less than 2^56 elements",
        )


def has_overlap(dim: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether two elements share an address; exact for nested strides, cautious (True) otherwise."""
    reach = 0
    for s, d in sorted((s, d) for d, s in zip(dim, stride, strict=True) if d > 1):
        if s <= reach:
            return True
        reach += (d - 1) * s
    return False


def _check_result(node: DraftNode, port: str, tensor: DraftTensor) -> None:
    if tensor.dim is None:
        raise reject(
            node,
            f"dims of output {api_name(node, port)!r} ({tensor.name!r}) are not set",
            "call set_dim on the output",
        )
    if tensor.stride is None:
        tensor.stride = packed_stride(tensor.dim)
    check_layout(tensor)
    if tensor.is_virtual and tensor.is_pass_by_value:
        raise InvalidGraphError(
            f"tensor {tensor.name!r} is virtual and pass-by-value",
            fix="choose one of the two",
        )
    if tensor.is_pass_by_value:
        raise reject(
            node,
            f"output {tensor.name!r} is pass-by-value",
            "outputs are written to device buffers",
        )
    if not tensor.is_virtual and has_overlap(tensor.dim, tensor.stride):
        raise InvalidGraphError(
            f"output {tensor.name!r} of node {node.name!r} has overlapping elements: dims {list(tensor.dim)}, "
            f"strides {list(tensor.stride)}",
            fix="give every element of an output its own address",
        )
