"""Shape and stride rules that several families share: SAME, KEEP, CL, ROW, and fitting of dims set by the user."""

from __future__ import annotations

from collections.abc import Callable

from fuseplan.ir.graph import DraftNode, DraftTensor, channels_last_order, packed_stride
from fuseplan.ops.infer import has_overlap
from fuseplan.ops.schema import api_name, broadcast, reject

Dims = tuple[int, ...]


def keep_order(dim: Dims, like: Dims) -> Dims:
    """Packed strides over `dim` with the axes in the order of the strides `like`; a stride of 0 counts as slowest."""
    lead = len(dim) - len(like)
    order = sorted(
        range(lead, len(dim)), key=lambda axis: (like[axis - lead] or 1 << 62, -axis)
    )
    return packed_stride(dim, (*order, *range(lead - 1, -1, -1)))


def same_stride(dim: Dims, stride: Dims) -> Dims:
    """The strides themselves, or packed ones in their order where elements would share an address."""
    return keep_order(dim, stride) if has_overlap(dim, stride) else stride


def channels_last(dim: Dims) -> Dims:
    """Packed strides with axis 1 innermost."""
    return packed_stride(dim, channels_last_order(len(dim)))


def need_stride(tensor: DraftTensor) -> Dims:
    """The strides; inference guarantees them for every input of a node."""
    assert tensor.stride is not None, tensor.name
    return tensor.stride


def set_dim(
    node: DraftNode, port: str, dim: Dims, stride: Callable[[Dims], Dims]
) -> DraftTensor | None:
    """Give an output its dims, or check those that the user set; the output, None if it is not connected.

    Args:
        stride: makes the strides where the user set none
    """
    out = node.outputs.get(port)
    if out is None:
        return None
    if out.dim is None:
        out.dim = dim
    elif out.dim != dim:
        raise reject(
            node,
            f"output {api_name(node, port)!r} ({out.name!r}) has dims {list(out.dim)}, but the inputs make {list(dim)}",
            "leave the output's dims unset or correct them",
        )
    if out.stride is None:
        out.stride = stride(dim)
    return out


def broadcasts_to(dim: Dims, target: Dims) -> bool:
    """Whether `dim` repeats to exactly `target`."""
    if len(dim) > len(target):
        return False
    return all(
        d in (1, t) for d, t in zip(dim, target[len(target) - len(dim) :], strict=True)
    )


def broadcast_inputs(node: DraftNode, dims: list[Dims]) -> Dims:
    """Broadcast of the inputs' dims. Raises InvalidGraphError naming the node and the dims."""
    try:
        return broadcast(dims)
    except ValueError as error:
        shown = ", ".join(
            f"{port} {list(t.need_dim())}" for port, t in node.inputs.items()
        )
        raise reject(
            node,
            f"inputs do not broadcast: {shown} ({error})",
            "extents must be equal or 1",
        ) from None


def check_scalar(node: DraftNode, port: str) -> None:
    """An input that must have a single element."""
    tensor = node.inputs.get(port)
    if tensor is not None and any(d != 1 for d in tensor.need_dim()):
        raise reject(
            node,
            f"input {api_name(node, port)!r} ({tensor.name!r}) has dims {list(tensor.need_dim())}",
            "give it one element: all dims 1",
        )
