"""Who holds which uid: automatic ones count from 1, the user's displace them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseplan.errors import InvalidGraphError

if TYPE_CHECKING:
    from fuseplan.api.tensor import Tensor


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
        """Enter a new tensor under the automatic uid it was given."""
        self.holders[tensor._uid] = tensor

    def claim(self, tensor: Tensor, uid: int) -> None:
        """Give a tensor a uid that the user chose."""
        self.release(tensor)
        holder = self.holders.get(uid)
        tensor._uid, tensor._is_user_uid = uid, True
        if holder is not None and holder._is_user_uid:
            self._contested.setdefault(uid, [holder]).append(tensor)
            return
        self.holders[uid] = tensor
        if holder is not None:
            holder._uid = self.take_next()
            self.holders[holder._uid] = holder

    def release(self, tensor: Tensor) -> None:
        """Forget that a tensor holds its uid."""
        uid = tensor._uid
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
            names = " and ".join(repr(t._name) for t in rivals)
            raise InvalidGraphError(f"tensors {names} have the same uid {uid}", fix="give each tensor its own uid")
