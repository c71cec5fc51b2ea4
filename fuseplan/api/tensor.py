"""Graph tensors as users see them: chaining setters, getters that return copies, identity hash; and their uids."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Protocol

from fuseplan.api import enums
from fuseplan.api.datatypes import to_dtype, to_enum, to_int, to_ints, to_member, to_text
from fuseplan.errors import ArgumentError, InvalidGraphError
from fuseplan.ir.graph import DraftTensor, TensorSpec, packed_stride

Scalar = bool | int | float


class Owner(Protocol):
    """What a tensor asks of the graph that it belongs to."""

    name: str
    uids: UidTable

    def touch(self, action: str, tensor: Tensor | None = None) -> None:
        """Announce a change. Raises GraphStateError on a frozen graph."""

    def spec_of(self, uid: int) -> TensorSpec | None:
        """What validation found out about a tensor."""


class Tensor:
    """One tensor of a graph; setters return the tensor, hashing and comparing go by identity.

    Every setter raises GraphStateError once the graph is frozen, and before that undoes validation. Getters add what
    validation inferred to what was set.
    """

    __slots__ = (
        "_alignment", "_alignment_value", "_draft", "_is_result", "_is_user_uid", "_owner", "_ragged_multiplier",
        "_ragged_offset", "_reordering", "_vector",
    )  # fmt: skip

    def __init__(self, owner: Owner, draft: DraftTensor, *, is_result: bool = False) -> None:
        self._owner, self._draft, self._is_result = owner, draft, is_result
        self._is_user_uid = False
        self._ragged_offset: Tensor | None = None
        self._ragged_multiplier = 1
        self._reordering: str | None = None
        self._alignment_value, self._alignment = 1, 16
        self._vector = (1, -1)  # count and dimension of a vectorised layout

    def _spec(self) -> TensorSpec | None:
        return self._owner.spec_of(self._draft.uid)

    def get_uid(self) -> int:
        return self._draft.uid

    def get_name(self) -> str:
        return self._draft.name

    def get_dim(self) -> list[int]:
        """Dims; after validation the inferred ones, empty if unknown."""
        found = self._draft if self._draft.dim is not None else self._spec()
        return list(found.dim) if found and found.dim else []

    def get_stride(self) -> list[int]:
        """Strides in elements; after validation the inferred ones, empty if unknown."""
        draft = self._draft
        found = draft if draft.stride is not None else self._spec()
        if found and found.stride is not None:
            return list(found.stride)
        return list(packed_stride(draft.dim)) if draft.dim and not self._is_result else []

    def get_data_type(self) -> enums.data_type:
        """Element type; after validation the inferred one, NOT_SET if unknown."""
        found = self._draft if self._draft.dtype is not None else self._spec()
        return to_member(found.dtype if found else None)

    def get_is_virtual(self) -> bool:
        return self._draft.is_virtual

    def get_is_pass_by_value(self) -> bool:
        return self._draft.is_pass_by_value

    def get_has_compile_time_constant(self) -> bool:
        return self._draft.is_constant

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
    ragged_offset = property(attrgetter("_ragged_offset"))
    alignment_value = property(attrgetter("_alignment_value"), doc="Every stored value is a multiple of this.")
    pass_by_value_data = property(attrgetter("_draft.value"), doc="The value of a `tensor_scalar`, else None.")

    def __repr__(self) -> str:
        return json.dumps(self._as_dict())

    def _as_dict(self) -> dict[str, object]:
        return {
            "name": self._draft.name,
            "uid": self._draft.uid,
            "dim": self.get_dim(),
            "stride": self.get_stride(),
            "data_type": self.get_data_type().name,
            "is_virtual": self._draft.is_virtual,
            "is_pass_by_value": self._draft.is_pass_by_value,
            "pass_by_value": self._draft.value,
            "reordering_type": self._reordering,
        }

    def _set(self, method: str, **fields: Any) -> Tensor:
        """Set fields of the draft, or of the tensor where the name starts with an underscore."""
        self._owner.touch(method, self)
        for name, value in fields.items():
            setattr(self if name.startswith("_") else self._draft, name, value)
        return self

    def set_uid(self, uid: int) -> Tensor:
        """Name the tensor by a uid of the user's; an automatic holder of it moves away."""
        self._set("set_uid")._owner.uids.claim(self, to_int(uid, f"uid of tensor {self._draft.name!r}"))
        return self

    def set_name(self, name: str) -> Tensor:
        return self._set("set_name", name=to_text(name, f"name of tensor {self._draft.name!r}"))

    def set_dim(self, dim: Iterable[int]) -> Tensor:
        return self._set("set_dim", dim=to_ints(dim, f"dim of tensor {self._draft.name!r}") or None)

    def set_stride(self, stride: Iterable[int]) -> Tensor:
        return self._set("set_stride", stride=to_ints(stride, f"stride of tensor {self._draft.name!r}") or None)

    def set_data_type(self, dtype: object) -> Tensor:
        """Set the element type: a data_type member or a torch dtype."""
        return self._set("set_data_type", dtype=to_dtype(dtype, f"data type of tensor {self._draft.name!r}"))

    def set_is_virtual(self, value: bool) -> Tensor:
        return self._set("set_is_virtual", is_virtual=bool(value))

    def set_output(self, value: bool) -> Tensor:
        """Store this result into a buffer of the caller (True), or keep it virtual (False)."""
        return self.set_is_virtual(not value)

    def set_is_pass_by_value(self, value: bool) -> Tensor:
        return self._set("set_is_pass_by_value", is_pass_by_value=bool(value))

    def set_ragged_offset(self, ragged_offset: Tensor | None) -> Tensor:
        if ragged_offset is not None and not isinstance(ragged_offset, Tensor):
            wrong = f"ragged offset of {self._draft.name!r} must be a graph tensor"
            raise ArgumentError(wrong, fix="make it with tensor()")
        return self._set("set_ragged_offset", _ragged_offset=ragged_offset)

    def set_ragged_offset_multiplier(self, multiplier: int) -> Tensor:
        number = _at_least_one(multiplier, f"ragged offset multiplier of {self._draft.name!r}")
        return self._set("set_ragged_offset_multiplier", _ragged_multiplier=number)

    def set_reordering_type(self, reordering_type: enums.tensor_reordering) -> Tensor:
        named = to_enum(reordering_type, enums.tensor_reordering, f"reordering type of {self._draft.name!r}")
        return self._set("set_reordering_type", _reordering=named)

    def set_alignment_value(self, value: int) -> Tensor:
        """Promise that every stored value is a multiple of `value`."""
        number = _at_least_one(value, f"alignment value of {self._draft.name!r}")
        return self._set("set_alignment_value", _alignment_value=number)

    def set_alignment(self, alignment: int) -> Tensor:
        """Promise an address alignment in bytes; a fast path, never a condition."""
        number = _at_least_one(alignment, f"alignment of {self._draft.name!r}")
        return self._set("set_alignment", _alignment=number)

    def set_vector_count_and_dimension(self, vector_count: int, vector_dimension: int) -> Tensor:
        count, axis = _at_least_one(vector_count, f"vector count of {self._draft.name!r}"), int(vector_dimension)
        return self._set("set_vector_count_and_dimension", _vector=(count, axis))

    def validate(self) -> None:
        """Check what the user set on this tensor alone. Raises InvalidGraphError."""
        draft, what = self._draft, f"tensor {self._draft.name!r}"
        if draft.is_virtual and draft.is_pass_by_value:
            raise InvalidGraphError(f"{what} is virtual and pass-by-value", fix="choose one of the two")
        if draft.dim is not None and draft.stride is not None and len(draft.dim) != len(draft.stride):
            raise InvalidGraphError(
                f"{what} has {len(draft.dim)} dims but {len(draft.stride)} strides", fix="give one stride per dim"
            )
        if any(d < 1 for d in draft.dim or ()):
            raise InvalidGraphError(f"{what} has dims {self.get_dim()}", fix="extents must be at least 1")
        if self._ragged_multiplier != 1 and self._ragged_offset is None:
            raise InvalidGraphError(
                f"{what} has a ragged offset multiplier but no ragged offset",
                fix="call set_ragged_offset, or leave the multiplier at 1",
            )


tensor = Tensor


def _at_least_one(value: int, what: str) -> int:
    number = to_int(value, what, "pass an int of at least 1")
    if number < 1:
        raise InvalidGraphError(f"{what} is {number}", fix="it must be at least 1")
    return number


class UidTable:
    """uid -> tensor. A user's uid takes the place of an automatic one silently; two equal ones are an error later."""

    def __init__(self) -> None:
        self.holders: dict[int, Tensor] = {}
        self._next = 1
        self._contested: dict[int, list[Tensor]] = {}  # equal user uids, by uid

    def take_next(self) -> int:
        """The next automatic uid; `add` must follow."""
        uid = self._next
        while uid in self.holders:
            uid += 1
        self._next = uid + 1
        return uid

    def add(self, tensor: Tensor) -> None:
        """Enter a tensor under the uid that it has."""
        self.holders[tensor._draft.uid] = tensor

    def claim(self, tensor: Tensor, uid: int) -> None:
        """Give a tensor a uid that the user chose."""
        self.release(tensor)
        holder = self.holders.get(uid)
        tensor._draft.uid, tensor._is_user_uid = uid, True
        if holder is not None and holder._is_user_uid:
            self._contested.setdefault(uid, [holder]).append(tensor)
            return
        self.holders[uid] = tensor
        if holder is not None:
            holder._draft.uid = self.take_next()
            self.add(holder)

    def release(self, tensor: Tensor) -> None:
        """Forget that a tensor holds its uid."""
        uid = tensor._draft.uid
        rivals = self._contested.get(uid)
        if rivals and tensor in rivals:
            rivals.remove(tensor)
            self.holders[uid] = rivals[0]
            if len(rivals) == 1:
                del self._contested[uid]
        elif self.holders.get(uid) is tensor:
            del self.holders[uid]

    def check(self) -> None:
        """Raise InvalidGraphError if two tensors were given the same uid."""
        for uid, rivals in self._contested.items():
            names = " and ".join(repr(t._draft.name) for t in rivals)
            raise InvalidGraphError(f"tensors {names} have the same uid {uid}", fix="give each tensor its own uid")
