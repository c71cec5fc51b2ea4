"""Saving a built graph and loading it again; a structure as JSON text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseplan.api import structure
from fuseplan.api.handles import Handle, check_handle
from fuseplan.api.inspection import Inspection
from fuseplan.api.version import __version__
from fuseplan.errors import ArgumentError, GraphStateError, cudnnGraphNotSupportedError
from fuseplan.plan import plan_file
from fuseplan.plan.rank import Entry

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan


class Saving(Inspection):
    """Serialisation."""

    _file: bytes = b""  # what a loaded plan came from

    def serialize(self, *, as_bytes: bool = False, include_kernels: bool = True) -> list[int] | bytes:
        """The selected plan with its compiled kernels, as the bytes of a plan file.

        Args:
            as_bytes: return bytes instead of a list of ints
            include_kernels: accepted; compiled kernels are always in the file
        Raises:
            GraphStateError: the graph is not built; `repr(graph)` gives its structure
        """
        del include_kernels
        built = self.need_built()
        data = plan_file.dump(built, __version__) if self.loaded is None else self._file
        return data if as_bytes else list(data)

    def deserialize(self, *args: Any, **kwargs: Any) -> None:
        """Load a plan (bytes or list of ints) or a structure (JSON text) into an empty graph.

        Call forms: ``deserialize(pyobj, enforce_precompiled=False)`` and
        ``deserialize(handle_, pyobj, enforce_precompiled=False)``. After a plan the graph counts as built
        and runs with uids; after a structure the five steps follow.

        Raises:
            GraphStateError: the graph is not empty
            PlanFileError: the data is damaged or something else
            cudnnGraphNotSupportedError: the plan was made for another device or version
        """
        handle, data, enforce_precompiled = _deserialize_arguments(args, kwargs)
        if self.node_list or self.tensor_list or self.plan_list is not None:
            raise GraphStateError(f"graph {self.name!r} is not empty", fix="deserialise into a new pygraph()")
        if isinstance(data, str):
            if enforce_precompiled:
                raise cudnnGraphNotSupportedError(
                    "a structure holds no compiled kernels", fix="load a plan made by serialize(), or allow compiling"
                )
            structure.from_json(data, self)
        else:
            device = handle.target if handle is not None else self.device
            file = _to_bytes(data)
            loaded = plan_file.load(file, device, enforce_precompiled=enforce_precompiled)
            self._file = file
            self._device = device
            self._adopt_loaded(loaded)
        if handle is not None:
            self.handle = handle

    def _adopt_loaded(self, loaded: BuiltPlan) -> None:
        self.loaded, self.graph, self.is_frozen = loaded, loaded.graph, True
        plans: Any = LoadedPlans(loaded)
        self.plan_list, self.built = plans, {0: loaded}
        self.select_index(0)


class LoadedPlans:
    """The list of a graph that was loaded: one plan, index 0. Stands in for a PlanList."""

    def __init__(self, plan: BuiltPlan) -> None:
        self.plan, self.graph, self.device = plan, plan.graph, plan.device
        self.entries = [Entry(plan.name, plan.engine_name, plan.engine_id, plan.knobs, 0.0, ())]
        self.refusals: list[str] = []

    def build(self, index: int) -> BuiltPlan:
        del index
        return self.plan

    def build_entry(self, entry: Entry) -> BuiltPlan:
        del entry
        return self.plan

    def append(self, engine_id: int, knobs: dict[str, int]) -> int:
        del engine_id, knobs
        raise GraphStateError("a loaded graph holds one plan and no nodes to plan anew", fix="build the graph itself")

    def explain(self) -> str:
        return f"graph {self.graph.name!r} on {self.device}: loaded from a plan file\n   0 {self.plan.name}"


def _deserialize_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Handle | None, Any, bool]:
    """Handle, data and enforce_precompiled of either call form."""
    names = ["handle_", "pyobj", "enforce_precompiled"]
    has_handle = "handle_" in kwargs or (args and (args[0] is None or isinstance(args[0], Handle)))
    if "handle_" in kwargs or not has_handle:
        names.remove("handle_")
    if len(args) > len(names):
        raise ArgumentError("deserialize() got too many arguments", fix=f"pass {', '.join(names)}")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in ("handle_", "pyobj", "enforce_precompiled") or name in bound:
            raise ArgumentError(f"deserialize() cannot take {name!r} here", fix=f"pass {', '.join(names)}")
        bound[name] = value
    if bound.get("pyobj") is None:
        raise ArgumentError("deserialize() needs data", fix="pass what serialize() or repr(graph) gave")
    handle = check_handle(bound.get("handle_"), is_optional=True)
    return handle, bound["pyobj"], bool(bound.get("enforce_precompiled", False))


def _to_bytes(data: Any) -> bytes:
    try:
        if isinstance(data, (bytes, bytearray, memoryview, list, tuple)):
            return bytes(data)
    except (TypeError, ValueError):
        pass
    raise ArgumentError(
        f"a serialised plan is bytes or a list of ints 0..255, not {type(data).__name__}",
        fix="pass serialize()'s result",
    )
