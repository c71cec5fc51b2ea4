"""What a user declares: tensors, scalars and nodes, until they are validated and frozen."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

from fuseplan import dtypes
from fuseplan.api import enums
from fuseplan.api.datatypes import to_dtype, to_enum, to_text
from fuseplan.api.handles import Handle, resolve_device
from fuseplan.api.kernel_cache import device_properties, kernel_cache
from fuseplan.api.node import Node
from fuseplan.api.tensor import Scalar, Tensor, UidTable
from fuseplan.dtypes import DType
from fuseplan.errors import ArgumentError, GraphStateError, InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir import keys
from fuseplan.ir.graph import DraftTensor, Graph, GraphBuilder, TensorSpec
from fuseplan.ops import infer
from fuseplan.ops.array_facts import describe, is_array
from fuseplan.plan import collector
from fuseplan.runtime.device import Device

Layouts = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]  # uid -> dims and strides


@dataclass(frozen=True)
class Options:
    """What a graph was made with; `pygraph` says what each means."""

    name: str
    io_dtype: DType | None
    intermediate_dtype: DType | None
    compute_dtype: DType | None
    handle: Handle | None
    device: str | None
    sm_count: int | None
    sm_version: int | None
    kernel_cache: kernel_cache | None
    device_property: device_properties | None
    is_dynamic: bool
    can_override: bool
    retention: str | None

    def __post_init__(self) -> None:
        to_text(self.name, "name of a graph")
        for field, kind in (("kernel_cache", kernel_cache), ("device_property", device_properties)):
            value = getattr(self, field)
            if value is not None and not isinstance(value, kind):
                maker = f"create_{kind.__name__}()"
                raise ArgumentError(f"{field} must come from {maker}, not {value!r}", fix="create one")


class GraphDraft:
    """The tensors and nodes of a graph, and the frozen form that they have once they are valid."""

    def __init__(self, options: Options) -> None:
        self.options, self.name, self.handle = options, options.name, options.handle
        self.io_dtype, self.intermediate_dtype = options.io_dtype, options.intermediate_dtype
        self.compute_dtype = options.compute_dtype
        self.uids = UidTable()
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []
        self.default_buffers: dict[Tensor, object] = {}  # arrays that were given to ops, by their tensors
        self.graph: Graph | None = None  # the frozen form; None before validation and after a change
        self.is_frozen = False  # no more changes
        self._device: Device | None = None
        self._counts = defaultdict[str, Iterator[int]](count)

    @property
    def device(self) -> Device:
        """The handle's device, else that of `device=`, else the first usable GPU, else the CPU."""
        if self._device is None:
            o = self.options
            facts = o.device_property.device if o.device_property else None
            self._device = resolve_device(self.handle, o.device, facts, o.sm_count, o.sm_version)
        return self._device

    def adopt(self, graph: Graph, device: Device) -> None:
        """Take over the frozen graph of a loaded plan, which has no declarations."""
        self.graph, self._device, self.is_frozen = graph, device, True

    def touch(self, action: str, tensor: Tensor | None = None) -> None:
        """Announce a change: undoes validation. Raises GraphStateError on a frozen graph."""
        if self.is_frozen:
            where = f" on tensor {tensor._draft.name!r}" if tensor is not None else ""
            raise GraphStateError(
                f"graph {self.name!r} is frozen, so {action}{where} is too late",
                fix="change the graph before build_operation_graph(), or make a new one",
            )
        self.graph = None

    def spec_of(self, uid: int) -> TensorSpec | None:
        """What validation found out about a tensor."""
        return self.graph.tensors.get(uid) if self.graph is not None else None

    def number(self, kind: str) -> int:
        """Count unnamed things of a kind, from 0."""
        return next(self._counts[kind])

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Take the tensors made in the block away again if it fails: a refused call leaves nothing."""
        before = len(self.tensors)
        try:
            yield
        except BaseException:
            for tensor in self.tensors[before:]:
                self.uids.release(tensor)
                self.default_buffers.pop(tensor, None)
            del self.tensors[before:]
            raise

    def new_tensor(self, name: str) -> Tensor:
        """A tensor of this name, or of an automatic one. Raises GraphStateError on a frozen graph."""
        self.touch("adding a tensor")
        return self.enter(to_text(name or f"tensor_{self.number('tensor')}", "name of a tensor"))

    def enter(self, name: str, *, is_result: bool = False) -> Tensor:
        """Add a tensor under the next automatic uid."""
        made = Tensor(self, DraftTensor(self.uids.take_next(), name, is_virtual=is_result), is_result=is_result)
        self.uids.add(made)
        self.tensors.append(made)
        return made

    def tensor_like(self, template: Any, name: str, is_virtual: bool) -> Tensor:
        """A tensor like another one, or like an array."""
        if not isinstance(template, Tensor):
            if not is_array(template):
                raise ArgumentError(
                    f"tensor_like needs a graph tensor or an array that exports DLPack, not {template!r}",
                    fix="pass an array, or declare the tensor with tensor(dim=..., stride=...)",
                )
            return self.wrap(template, name, is_virtual)
        made = self.new_tensor(name)
        made._draft.dim = tuple(template.get_dim()) or None
        made._draft.stride = tuple(template.get_stride()) or None
        made._draft.dtype = to_dtype(template.get_data_type(), "data_type")
        made._draft.is_pass_by_value = template.get_is_pass_by_value()
        made._draft.is_virtual = bool(is_virtual)
        return made

    def wrap(self, array: object, name: str, is_virtual: bool = False) -> Tensor:
        """A tensor like an array; one element in host memory is a pass-by-value scalar."""
        with self.whole():
            made = self.new_tensor(name)
            draft = made._draft
            draft.dim, draft.stride, draft.dtype, is_host = describe(array, f"tensor {draft.name!r}")
            is_scalar = is_host and prod(draft.dim) == 1
            if is_host and not is_scalar and self.device.kind == "cuda":
                raise InvalidGraphError(
                    f"tensor {draft.name!r} is like an array of {prod(draft.dim)} elements in host memory, "
                    f"but graph {self.name!r} is for {self.device}",
                    fix="move the array to the GPU, or make the graph with device='cpu'",
                )
            draft.is_pass_by_value, draft.is_virtual = is_scalar and not is_virtual, bool(is_virtual)
        return made

    def constant(self, value: object, name: str, compute: DType | None) -> Tensor:
        """A number that stands for an operand; inference gives it its dims."""
        made = self.new_tensor(name)
        _own(made, _to_scalar(value, name), is_constant=True, compute=compute or self.compute_dtype or self.io_dtype)
        return made

    def scalar(self, value: Any, scalar_type: enums.scalar_type, name: str) -> Tensor:
        """A scalar whose value the graph owns."""
        with self.whole():
            made = self.new_tensor(name)
            name = made._draft.name
            kind = to_enum(scalar_type, enums.scalar_type, f"scalar_type of {name!r}")
            if kind is None:
                raise ArgumentError(f"scalar {name!r} has no scalar_type", fix="pass scalar_type.RUNTIME_PARAM")
            _own(made, _to_scalar(value, name), is_constant=kind == "COMPILE_TIME_CONST")
            made._draft.dim = made._draft.stride = (1,)
        return made

    def validated(self) -> Graph:
        """The frozen form of the graph, made now if needed."""
        if self.graph is None:
            with collector.paused():
                self.graph = self.infer({})
        return self.graph

    def freeze(self) -> Graph:
        """Validate if needed; from here on the graph cannot be changed."""
        graph, cache = self.validated(), self.options.kernel_cache
        if not self.is_frozen:
            self.is_frozen = True
            if cache is not None:
                cache.note(keys.structure_key(graph, is_canonical=True))
        return graph

    def infer(self, layouts: Layouts) -> Graph:
        """The frozen form of what the user declared, with other dims and strides for some tensors."""
        if not self.nodes:
            raise InvalidGraphError(f"graph {self.name!r} has no nodes", fix="add operations before validate()")
        self.uids.check()
        drafts: dict[Tensor, DraftTensor] = {}
        for tensor in self.tensors:
            tensor.validate()
            draft = drafts[tensor] = copy.copy(tensor._draft)
            if draft.uid in layouts:
                draft.dim, draft.stride = layouts[draft.uid]
        for tensor in {t: None for n in self.nodes for t in (*n.inputs.values(), *n.outputs.values())}:
            _refuse_layout(tensor)
        builder = GraphBuilder(self.name, self.io_dtype, self.intermediate_dtype, self.compute_dtype)
        builder.is_dynamic = self.options.is_dynamic
        builder.nodes = [node.draft(drafts) for node in self.nodes]
        infer.complete(builder)
        return builder.freeze()


def _own(tensor: Tensor, value: Scalar, *, is_constant: bool, compute: DType | None = None) -> None:
    """Make a tensor a scalar of the graph's; its type is that of the value, wide enough for the arithmetic."""
    if isinstance(value, bool):
        dtype = dtypes.BOOLEAN
    elif isinstance(value, float):
        dtype = dtypes.DOUBLE if compute is dtypes.DOUBLE else dtypes.FLOAT
    else:
        dtype = dtypes.INT32 if dtypes.INT32.holds(value) else dtypes.INT64
    draft = tensor._draft
    draft.value, draft.dtype, draft.is_pass_by_value, draft.is_constant = value, dtype, True, is_constant


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
            f"tensor {tensor.get_name()!r} has {what}, which no engine here reads",
            fix="lay the tensor out by dims and strides alone, for instance padded instead of ragged",
        )


def _to_scalar(value: Any, name: str) -> Scalar:
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
