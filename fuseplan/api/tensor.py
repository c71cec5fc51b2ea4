"""Graph tensors as users see them: chaining setters, getters that return copies, identity hash."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuseplan.api import enums
from fuseplan.api.arguments import to_int
from fuseplan.api.datatypes import to_dtype, to_enum, to_member
from fuseplan.dtypes import DType
from fuseplan.errors import ArgumentError, InvalidGraphError
from fuseplan.ir.graph import TensorSpec, packed_stride

if TYPE_CHECKING:
    from fuseplan.api.state import GraphState

Scalar = bool | int | float


def to_ints(value: object, what: str) -> tuple[int, ...]:
    """A list, tuple, torch size or the like as a tuple of int. Raises ArgumentError."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        try:
            return tuple(v.__index__() for v in value)
        except AttributeError:
            pass
    raise ArgumentError(f"{what} must be a list of int, not {value!r}", fix="pass a list such as [1, 2, 3]")


class TensorFields:
    """What the user set on a tensor; the getters add what validation inferred."""

    __slots__ = (
        "_alignment", "_alignment_value", "_dim", "_dtype", "_graph", "_is_constant", "_is_pass_by_value", "_is_result",
        "_is_user_uid", "_is_virtual", "_name", "_ragged_multiplier", "_ragged_offset", "_reordering", "_stride",
        "_uid", "_value", "_vector",
    )  # fmt: skip

    def __init__(self, graph: GraphState, uid: int, name: str, *, is_result: bool = False) -> None:
        self._graph, self._uid, self._name, self._is_result = graph, uid, name, is_result
        self._is_virtual = is_result
        self._is_user_uid = self._is_pass_by_value = self._is_constant = False
        self._dim: tuple[int, ...] | None = None
        self._stride: tuple[int, ...] | None = None
        self._dtype: DType | None = None
        self._value: Scalar | None = None
        self._ragged_offset: Tensor | None = None
        self._ragged_multiplier = 1
        self._reordering: str | None = None
        self._alignment_value, self._alignment = 1, 16
        self._vector = (1, -1)  # count and dimension of a vectorised layout

    def _spec(self) -> TensorSpec | None:
        return self._graph.spec_of(self._uid)

    def get_uid(self) -> int:
        return self._uid

    def get_name(self) -> str:
        return self._name

    def get_dim(self) -> list[int]:
        """Dims; after validation the inferred ones, empty if unknown."""
        if self._dim is not None:
            return list(self._dim)
        spec = self._spec()
        return list(spec.dim) if spec else []

    def get_stride(self) -> list[int]:
        """Strides in elements; after validation the inferred ones, empty if unknown."""
        if self._stride is not None:
            return list(self._stride)
        spec = self._spec()
        if spec:
            return list(spec.stride)
        return list(packed_stride(self._dim)) if self._dim and not self._is_result else []

    def get_data_type(self) -> enums.data_type:
        """Element type; after validation the inferred one, NOT_SET if unknown."""
        if self._dtype is not None:
            return to_member(self._dtype)
        spec = self._spec()
        return to_member(spec.dtype if spec else None)

    def get_is_virtual(self) -> bool:
        return self._is_virtual

    def get_is_pass_by_value(self) -> bool:
        return self._is_pass_by_value

    def get_has_compile_time_constant(self) -> bool:
        return self._is_constant

    def get_ragged_offset_multiplier(self) -> int:
        return self._ragged_multiplier

    def get_reordering_type(self) -> enums.tensor_reordering | None:
        """The memory order, None when it was never set."""
        return enums.tensor_reordering[self._reordering] if self._reordering else None

    def get_alignment(self) -> int:
        """Address alignment in bytes that was promised."""
        return self._alignment

    def get_vector_count(self) -> int:
        return self._vector[0]

    def get_vector_dimension(self) -> int:
        return self._vector[1]

    uid = property(get_uid)
    name = property(get_name)
    dim = property(get_dim)
    stride = property(get_stride)
    data_type = property(get_data_type)
    is_virtual = property(get_is_virtual)
    is_pass_by_value = property(get_is_pass_by_value)
    ragged_offset_multiplier = property(get_ragged_offset_multiplier)
    reordering_type = property(get_reordering_type)

    @property
    def ragged_offset(self) -> Tensor | None:
        return self._ragged_offset

    @property
    def alignment_value(self) -> int:
        """Promise that every stored value is a multiple of this."""
        return self._alignment_value

    @property
    def pass_by_value_data(self) -> Scalar | None:
        """The value that the graph owns (`tensor_scalar`), else None."""
        return self._value

    def __repr__(self) -> str:
        return json.dumps(self._as_dict())

    def _as_dict(self) -> dict[str, object]:
        return {
            "name": self._name,
            "uid": self._uid,
            "dim": self.get_dim(),
            "stride": self.get_stride(),
            "data_type": self.get_data_type().name,
            "is_virtual": self._is_virtual,
            "is_pass_by_value": self._is_pass_by_value,
            "pass_by_value": self._value,
            "reordering_type": self._reordering,
        }


class Tensor(TensorFields):
    """One tensor of a graph; setters return the tensor, hashing and comparing go by identity.

    Every setter raises GraphStateError once the graph is frozen, and before that undoes validation.
    """

    __slots__ = ()

    def set_uid(self, uid: int) -> Tensor:
        """Name the tensor by a uid of the user's; an automatic holder of it moves away."""
        self._graph.touch("set_uid", self)
        self._graph.uids.claim(self, to_int(uid, f"uid of tensor {self._name!r}"))
        return self

    def set_name(self, name: str) -> Tensor:
        self._graph.touch("set_name", self)
        if not isinstance(name, str):
            raise ArgumentError(f"name of tensor {self._name!r} must be a str, not {name!r}", fix="pass a str")
        self._name = name
        return self

    def set_dim(self, dim: Iterable[int]) -> Tensor:
        self._graph.touch("set_dim", self)
        self._dim = to_ints(dim, f"dim of tensor {self._name!r}") or None
        return self

    def set_stride(self, stride: Iterable[int]) -> Tensor:
        self._graph.touch("set_stride", self)
        self._stride = to_ints(stride, f"stride of tensor {self._name!r}") or None
        return self

    def set_data_type(self, dtype: object) -> Tensor:
        """Set the element type: a data_type member or a torch dtype."""
        self._graph.touch("set_data_type", self)
        self._dtype = to_dtype(dtype, f"data type of tensor {self._name!r}")
        return self

    def set_is_virtual(self, value: bool) -> Tensor:
        self._graph.touch("set_is_virtual", self)
        self._is_virtual = bool(value)
        return self

    def set_output(self, value: bool) -> Tensor:
        """Store this result into a buffer of the caller (True), or keep it virtual (False)."""
        return self.set_is_virtual(not value)

    def set_is_pass_by_value(self, value: bool) -> Tensor:
        self._graph.touch("set_is_pass_by_value", self)
        self._is_pass_by_value = bool(value)
        return self

    def set_ragged_offset(self, ragged_offset: Tensor) -> Tensor:
        self._graph.touch("set_ragged_offset", self)
        if ragged_offset is not None and not isinstance(ragged_offset, Tensor):
            raise ArgumentError(f"ragged offset of {self._name!r} must be a graph tensor", fix="make it with tensor()")
        self._ragged_offset = ragged_offset
        return self

    def set_ragged_offset_multiplier(self, multiplier: int) -> Tensor:
        self._graph.touch("set_ragged_offset_multiplier", self)
        self._ragged_multiplier = _at_least_one(multiplier, f"ragged offset multiplier of {self._name!r}")
        return self

    def set_reordering_type(self, reordering_type: enums.tensor_reordering) -> Tensor:
        self._graph.touch("set_reordering_type", self)
        self._reordering = to_enum(reordering_type, enums.tensor_reordering, f"reordering type of {self._name!r}")
        return self

    def set_alignment_value(self, value: int) -> Tensor:
        """Promise that every stored value is a multiple of `value`."""
        self._graph.touch("set_alignment_value", self)
        self._alignment_value = _at_least_one(value, f"alignment value of {self._name!r}")
        return self

    def set_alignment(self, alignment: int) -> Tensor:
        """Promise an address alignment in bytes; a fast path, never a condition."""
        self._graph.touch("set_alignment", self)
        self._alignment = _at_least_one(alignment, f"alignment of {self._name!r}")
        return self

    def set_vector_count_and_dimension(self, vector_count: int, vector_dimension: int) -> Tensor:
        self._graph.touch("set_vector_count_and_dimension", self)
        self._vector = (_at_least_one(vector_count, f"vector count of {self._name!r}"), int(vector_dimension))
        return self

    def validate(self) -> None:
        """Check what the user set on this tensor alone. Raises InvalidGraphError."""
        if self._is_virtual and self._is_pass_by_value:
            raise InvalidGraphError(f"tensor {self._name!r} is virtual and pass-by-value", fix="choose one of the two")
        if self._dim is not None and self._stride is not None and len(self._dim) != len(self._stride):
            raise InvalidGraphError(
                f"tensor {self._name!r} has {len(self._dim)} dims but {len(self._stride)} strides",
                fix="give one stride per dim",
            )
        if any(d < 1 for d in self._dim or ()):
            raise InvalidGraphError(
                f"tensor {self._name!r} has dims {self.get_dim()}", fix="extents must be at least 1"
            )
        if self._ragged_multiplier != 1 and self._ragged_offset is None:
            raise InvalidGraphError(
                f"tensor {self._name!r} has a ragged offset multiplier but no ragged offset",
                fix="call set_ragged_offset, or leave the multiplier at 1",
            )


tensor = Tensor


def _at_least_one(value: int, what: str) -> int:
    number = to_int(value, what, "pass an int of at least 1")
    if number < 1:
        raise InvalidGraphError(f"{what} is {number}", fix="it must be at least 1")
    return number
