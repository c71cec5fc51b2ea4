"""Variant packs: the keys a program may use, brought to uids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuseplan.api.datatypes import to_int, to_ints, to_list
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError, BindError, UnknownNameError

Names = Mapping[str, int | None]  # name -> uid, None where several tensors share it


def names_of(tensors: Iterable[tuple[str, int]]) -> dict[str, int | None]:
    """Which uid a name stands for."""
    found: dict[str, int | None] = {}
    for name, uid in tensors:
        found[name] = None if name in found and found[name] != uid else uid
    return found


def normalise(
    pack: Mapping[Any, Any],
    names: Names,
    graph: str,
    virtual: Mapping[object, str],
    holders: Mapping[int, Tensor] | None,
) -> dict[int, Any]:
    """The pack by uid. Keys that are None are left out; a buffer that is None counts as missing.

    Args:
        virtual: keys that name a virtual tensor, with its name
        holders: the graph's tensors by uid; None for a loaded graph, which has none: the tensors of the graph that was
            saved stand for their uids
    """
    if not isinstance(pack, Mapping):
        raise ArgumentError(
            f"the pack for graph {graph!r} must be a dict, not {type(pack).__name__}",
            fix="pass {tensor: buffer}, or a list of buffers with tensor_uids=",
        )
    found: dict[int, Any] = {}
    foreign: list[Tensor] = []
    for key, buffer in pack.items():
        if key is None or buffer is None:
            continue
        uid = _uid_of(key, names, graph)
        if isinstance(key, Tensor) and holders is not None and not _is_meant(key, holders.get(uid)):
            foreign.append(key)
            continue
        if key in virtual:
            raise BindError(
                f"tensor {virtual[key]!r} (uid {uid}) of graph {graph!r} is virtual: nothing is stored in its buffer",
                fix="call set_output(True) on it before the graph is validated, or leave it out of the pack",
            )
        other = found.setdefault(uid, buffer)
        if other is not buffer and not (isinstance(buffer, int) and other == buffer):
            raise BindError(
                f"the pack for graph {graph!r} has two buffers for uid {uid}, one of them under {key!r}",
                fix="give each tensor one buffer, under one of its keys",
            )
    for key in foreign:  # of another graph: harmless unless it would stand for a tensor of this one
        if holders and key.get_uid() in holders and key.get_uid() not in found:
            raise BindError(
                f"a key of the pack for graph {graph!r} is tensor {key.get_name()!r} of graph {key._owner.name!r}",
                fix=f"use the tensors of graph {graph!r}, their names, or uids that you gave to both with set_uid",
            )
    return found


def _is_meant(key: Tensor, own: Tensor | None) -> bool:
    """Whether a key is the graph's own tensor, or one of another graph that the user gave the same uid."""
    return key is own or (own is not None and key._is_user_uid and own._is_user_uid)


def _uid_of(key: Any, names: Names, graph: str) -> int:
    """The uid that a key stands for. Raises UnknownNameError, BindError, ArgumentError."""
    if isinstance(key, Tensor):
        return key.get_uid()
    if not isinstance(key, str):
        if hasattr(key, "__index__"):
            return int(key.__index__())
        raise ArgumentError(
            f"a pack's keys are tensors, uids or names, not {key!r}", fix="use the tensor that the graph returned"
        )
    uid = names.get(key)
    if uid is not None:
        return uid
    if key in names:
        raise BindError(f"several tensors of graph {graph!r} are named {key!r}", fix="use the tensor or its uid as key")
    listed = ", ".join(repr(n) for n in list(names)[:12])
    raise UnknownNameError(f"graph {graph!r} has no tensor named {key!r}", fix=f"it has {listed}")


def from_sequence(buffers: Any, tensor_uids: Any) -> dict[int, Any]:
    """The pack of a list of buffers and the uids that go with them, in order. Raises BindError."""
    if not isinstance(buffers, (list, tuple)):
        raise ArgumentError(f"tensor_uids goes with a list of buffers, not {type(buffers).__name__}", fix="pass a list")
    uids = [to_int(uid, "an entry of tensor_uids") for uid in to_list(tensor_uids, "tensor_uids")]
    if len(uids) != len(buffers):
        raise BindError(f"{len(buffers)} buffers but {len(uids)} tensor_uids", fix="give one uid per buffer")
    if len(set(uids)) != len(uids):
        raise BindError(f"tensor_uids {uids} names a tensor twice", fix="give every uid once")
    return dict(zip(uids, buffers, strict=True))


Layout = tuple[tuple[int, ...], tuple[int, ...]]
Overrides = tuple[tuple[int, Layout], ...]


def to_overrides(uids: Sequence[int] | None, shapes: Any, strides: Any) -> Overrides:
    """Override arguments as one sorted value: uid with its dims and strides. Raises BindError."""
    if uids is None and shapes is None and strides is None:
        return ()
    fix, what = "give dims and strides for every overridden uid", "override_uids, override_shapes and override_strides"
    if uids is None or shapes is None or strides is None:
        raise BindError(f"{what} go together", fix=fix)
    uids, shapes = to_list(uids, "override_uids"), to_list(shapes, "override_shapes")
    strides = to_list(strides, "override_strides")
    if not len(uids) == len(shapes) == len(strides):
        raise BindError(f"{what} have {len(uids)}, {len(shapes)} and {len(strides)} entries", fix=fix)
    made: dict[int, Layout] = {}
    for given, d, s in zip(uids, shapes, strides, strict=True):
        uid = to_int(given, "an entry of override_uids")
        if uid in made:
            raise BindError(f"override_uids {uids} names uid {uid} twice", fix="give every uid once")
        made[uid] = (to_ints(d, f"override shape of uid {uid}"), to_ints(s, f"override strides of uid {uid}"))
    for uid, (dim, stride) in made.items():
        if len(dim) != len(stride):
            raise BindError(f"override of uid {uid}: {len(dim)} dims but {len(stride)} strides", fix="give one per dim")
    return tuple(sorted(made.items()))
