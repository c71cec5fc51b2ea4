"""Runners: a built plan with every way that a pack may name its tensors, also under other dims and strides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fuseplan.api.handles import CPU_ORDINAL, Handle, check_handle, default_handle
from fuseplan.api.pack import Overrides, names_of, normalise
from fuseplan.api.planning import DECLINES
from fuseplan.api.plans import PlanQueries
from fuseplan.errors import BindError, GraphStateError, InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.plan.execute import Runner
from fuseplan.plan.planner import make_plans

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan
    from fuseplan.plan.planner import PlanList

Key = TypeVar("Key")
Value = TypeVar("Value")
MAX_OVERRIDES = 64  # shapes kept per graph; the oldest goes first


class Runners(PlanQueries):
    """Finds or makes the runner of a call."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.ready: Runner | None = None
        self._runners: dict[int, Runner] = {}
        self._siblings: dict[Overrides, PlanList] = {}
        self._sibling_runners: dict[tuple[Overrides, str], Runner] = {}

    def select_index(self, index: int) -> None:
        super().select_index(index)
        self.ready = None

    def unbuild(self, index: int) -> None:
        super().unbuild(index)
        self._runners.pop(index, None)
        self.ready = None

    def stream_of(self, handle: Handle | None) -> int:
        """The stream to run on. Raises where the handle is dead or belongs to another device."""
        device = self.device
        if handle is None:
            handle = self.handle
            if handle is None:
                return 0 if device.kind == "cpu" else default_handle(device).stream or 0
        if type(handle) is not Handle or handle.backend_handle is None:
            check_handle(handle)
        if handle._ordinal != (CPU_ORDINAL if device.kind == "cpu" else device.index):
            raise BindError(
                f"graph {self.name!r} is for {device}, but the handle is {handle!r}",
                fix="use a handle of the graph's device, or make the graph with this handle",
            )
        return handle.stream or 0

    def runner_for(self, index: int | None, overrides: Overrides) -> Runner:
        """The runner of a plan (None: the selected one), under other dims if there are overrides."""
        if index is None:
            self.build()
            index = self.selected
        built = self.build_index(index)
        if overrides:
            return self._sibling_runner(built, overrides)
        runner = self._runners.get(index)
        if runner is None:
            runner = self._runners.setdefault(index, self.make_runner(built))
        if index == self.selected:
            self.ready = runner
        return runner

    def make_runner(self, built: BuiltPlan, plans: PlanList | None = None) -> Runner:
        """A runner whose packs may name tensors in every way that the API has."""
        names = self.uids_by_name()
        keys: dict[int, tuple[object, ...]] = {}
        for slot in built.program.slots:
            tensor = self.uids.holders.get(slot.uid)
            own = () if tensor is None else (tensor,)
            keys[slot.uid] = (*own, slot.uid, slot.name) if names.get(slot.name) == slot.uid else (*own, slot.uid)
        defaults = {tensor._uid: buffer for tensor, buffer in self.default_buffers.items()}
        general = getattr(plans or self.plan_list, "general", None)
        virtual = self.virtual_keys()
        return Runner(built, keys, defaults, lambda pack: normalise(pack, names, self.name, virtual), general, virtual)

    def virtual_keys(self) -> Mapping[object, str]:
        """What a pack may mean a virtual tensor by, with its name: itself, its name, a uid that the user gave it.

        Not a uid that it was given here: a pack that serves several graphs may have another graph's under the number.
        """
        found: dict[object, str] = {}
        names = self.uids_by_name()
        for tensor in self.tensor_list if self.loaded is None else ():
            if tensor._is_virtual:
                found[tensor] = tensor._name
                if names.get(tensor._name) == tensor._uid:
                    found[tensor._name] = tensor._name
                if tensor._is_user_uid:
                    found[tensor._uid] = tensor._name
        return found

    def uids_by_name(self) -> Mapping[str, int | None]:
        if self.loaded is not None:
            return names_of((slot.name, slot.uid) for slot in self.loaded.program.slots)
        return names_of((t._name, t._uid) for t in self.tensor_list)

    def _sibling_runner(self, built: BuiltPlan, overrides: Overrides) -> Runner:
        key = (overrides, built.name)
        runner = self._sibling_runners.get(key)
        if runner is None:
            runner = _keep(self._sibling_runners, key, self.make_runner(*self.sibling_plan(built, overrides)))
        return runner

    def sibling_plan(self, built: BuiltPlan, overrides: Overrides) -> tuple[BuiltPlan, PlanList]:
        """The plan of the same engine and knobs under other dims; if that does not build, the first that does."""
        plans = self._siblings.get(overrides)
        if plans is None:
            plans = make_plans(self._override_graph(overrides), self.device, None)
            plans = _keep(self._siblings, overrides, plans)
        reasons = []
        for index in plans.again(built):
            entry = plans.entries[index]
            barred = next((why for keep in self.filters if (why := keep(entry))), "")
            if barred:
                reasons.append(f"{entry.name}: barred by a filter: {barred}")
                continue
            try:
                return plans.build(index), plans
            except DECLINES as error:
                reasons.append(f"{entry.name}: {error}")
        raise cudnnGraphNotSupportedError(
            f"no plan of graph {self.name!r} takes these shapes: {reasons}",
            fix="make a graph with these dims and strides to see what each engine refuses",
        )

    def _override_graph(self, overrides: Overrides) -> Graph:
        if not self.options["is_override_shape_enabled"]:
            raise GraphStateError(
                f"graph {self.name!r} was not made for other shapes",
                fix="pass is_override_shape_enabled=True to pygraph",
            )
        if self.loaded is not None or self.graph is None:
            raise GraphStateError(
                f"graph {self.name!r} was loaded and has no tensors to override", fix="build it from its operations"
            )
        for uid, (dim, _) in overrides:
            spec = self.graph.tensors.get(uid)
            if spec is None:
                raise BindError(
                    f"graph {self.name!r} has no tensor with uid {uid} to override", fix="use a tensor's uid"
                )
            if len(spec.dim) != len(dim):
                raise InvalidGraphError(
                    f"override of tensor {spec.name!r} has {len(dim)} dims, the tensor {len(spec.dim)}",
                    fix="an override keeps the rank",
                )
        return self.infer_graph(dict(overrides))


def _keep(held: dict[Key, Value], key: Key, made: Value) -> Value:
    """Enter a value under a new key, at most MAX_OVERRIDES of them; the value of a thread that came first stays."""
    while len(held) >= MAX_OVERRIDES:
        held.pop(next(iter(held)), None)
    return held.setdefault(key, made)
