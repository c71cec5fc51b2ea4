"""Running the plans of a graph: runners by plan, also under other dims and strides; streams, tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fuseplan.api.draft import GraphDraft
from fuseplan.api.handles import CPU_ORDINAL, Handle, check_handle, default_handle
from fuseplan.api.pack import Overrides, names_of, normalise
from fuseplan.api.planning import DECLINES, PlanSet
from fuseplan.errors import BindError, GraphStateError, InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.plan import tune
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import PlanList, make_plans
from fuseplan.plan.tune import Progress, TuneReport

Key = TypeVar("Key")
Value = TypeVar("Value")
MAX_OVERRIDES = 64  # shapes kept per graph; the oldest goes first


class RunnerCache:
    """Finds or makes the runner of a call: a built plan with every way that a pack may name its tensors."""

    def __init__(self, draft: GraphDraft, plans: PlanSet) -> None:
        self.draft, self.plans = draft, plans
        self.ready: Runner | None = None  # of the selected plan
        self.by_index: dict[int, Runner] = {}
        self.siblings: dict[Overrides, PlanList] = {}
        self._sibling_runners: dict[tuple[Overrides, str], Runner] = {}
        plans.forget = self._forget

    def _forget(self) -> None:
        self.ready = None
        for index in [i for i in list(self.by_index) if i not in self.plans.built]:
            self.by_index.pop(index, None)

    def selected(self, overrides: Overrides) -> Runner:
        """The runner of the selected plan, under other dims if there are overrides."""
        if overrides:
            return self._sibling(self.plans.need_built(), overrides)
        index = self.plans.selected
        runner = self.at(index, ())
        if index == self.plans.selected:
            self.ready = runner
        return runner

    def at(self, index: int, overrides: Overrides) -> Runner:
        """The runner of a plan, built now if needed."""
        built = self.plans.build(index)
        if overrides:
            return self._sibling(built, overrides)
        return self.by_index.get(index) or self.by_index.setdefault(index, self.make(built))

    def make(self, built: BuiltPlan, plans: PlanList | None = None) -> Runner:
        """A runner whose packs may name tensors in every way that the API has."""
        names, keys = self._uids_by_name(), {}
        for slot in built.program.slots:
            tensor = self.draft.uids.holders.get(slot.uid)
            own: tuple[object, ...] = (slot.uid,) if tensor is None else (tensor, slot.uid)
            keys[slot.uid] = (*own, slot.name) if names.get(slot.name) == slot.uid else own
        general = getattr(plans or self.plans.ranked, "general", None)
        return Runner(built, keys, self._defaults(), self._normaliser(), general, self._virtual_keys())

    def _normaliser(self) -> Callable[[Any], dict[int, Any]]:
        """What makes a pack by uid of any other, or raises what is wrong with it."""
        names, virtual = self._uids_by_name(), self._virtual_keys()
        holders = None if self.plans.loaded is not None else self.draft.uids.holders
        return lambda pack: normalise(pack, names, self.draft.name, virtual, holders)

    def _defaults(self) -> dict[int, object]:
        return {tensor.get_uid(): buffer for tensor, buffer in self.draft.default_buffers.items()}

    def _uids_by_name(self) -> Mapping[str, int | None]:
        if self.plans.loaded is not None:
            return names_of((slot.name, slot.uid) for slot in self.plans.loaded.program.slots)
        return names_of((t.get_name(), t.get_uid()) for t in self.draft.tensors)

    def _virtual_keys(self) -> Mapping[object, str]:
        """What a pack may mean a virtual tensor by, with its name: itself, its name, a uid that the user gave it.

        Not a uid that it was given here: a pack that serves several graphs may have another graph's under the number.
        """
        found: dict[object, str] = {}
        names = self._uids_by_name()
        for tensor in (t for t in self.draft.tensors if t.get_is_virtual()):
            name, uid = tensor.get_name(), tensor.get_uid()
            keys = {tensor: True, name: names.get(name) == uid, uid: tensor._is_user_uid}
            found.update((key, name) for key, is_meant in keys.items() if is_meant)
        return found

    def stream(self, handle: Handle | None) -> int:
        """The stream to run on. Raises where the handle is dead or belongs to another device."""
        device = self.draft.device
        if handle is None:
            handle = self.draft.handle
            if handle is None:
                return 0 if device.kind == "cpu" else default_handle(device).stream or 0
        if type(handle) is not Handle or handle.backend_handle is None:
            check_handle(handle)
        if handle._ordinal != (CPU_ORDINAL if device.kind == "cpu" else device.index):
            raise BindError(
                f"graph {self.draft.name!r} is for {device}, but the handle is {handle!r}",
                fix="use a handle of the graph's device, or make the graph with this handle",
            )
        return handle.stream or 0

    def autotune(
        self, pack: Any, workspace: Any, handle: Handle | None, budget_s: float, progress: Progress | None
    ) -> TuneReport:
        """Compare plans with the judge, time those that are right, select the fastest."""
        ranked = self.plans.need_list("autotune()")
        by_uid, stream = {**self._defaults(), **self._normaliser()(pack)}, self.stream(handle)
        report = tune.autotune(ranked, self.make, by_uid, workspace, stream, budget_s, progress, self.plans.barred_by)
        if report.best is not None:
            self.plans.build(report.best)
            self.plans.select(report.best)
        return report

    def _sibling(self, built: BuiltPlan, overrides: Overrides) -> Runner:
        key = (overrides, built.name)
        known = self._sibling_runners.get(key)
        return known or _keep(self._sibling_runners, key, self.make(*self.sibling_plan(built, overrides)))

    def sibling_plan(self, built: BuiltPlan, overrides: Overrides) -> tuple[BuiltPlan, PlanList]:
        """The plan of the same engine and knobs under other dims; if that does not build, the first that does."""
        plans = self.siblings.get(overrides)
        if plans is None:
            plans = make_plans(self._override_graph(overrides), self.draft.device, None)
            plans = _keep(self.siblings, overrides, plans)
        reasons = []
        for index in plans.again(built):
            entry = plans.entries[index]
            barred = next((why for keep in self.plans.filters if (why := keep(entry))), "")
            if barred:
                reasons.append(f"{entry.name}: barred by a filter: {barred}")
                continue
            try:
                return plans.build(index), plans
            except DECLINES as error:
                reasons.append(f"{entry.name}: {error}")
        raise cudnnGraphNotSupportedError(
            f"no plan of graph {self.draft.name!r} takes these shapes: {reasons}",
            fix="make a graph with these dims and strides to see what each engine refuses",
        )

    def _override_graph(self, overrides: Overrides) -> Graph:
        name, graph = self.draft.name, self.draft.graph
        if not self.draft.options.can_override:
            raise GraphStateError(
                f"graph {name!r} was not made for other shapes", fix="pass is_override_shape_enabled=True to pygraph"
            )
        if self.plans.loaded is not None or graph is None:
            raise GraphStateError(
                f"graph {name!r} was loaded and has no tensors to override", fix="build it from its operations"
            )
        for uid, (dim, _) in overrides:
            spec = graph.tensors.get(uid)
            if spec is None:
                raise BindError(f"graph {name!r} has no tensor with uid {uid} to override", fix="use a tensor's uid")
            if len(spec.dim) != len(dim):
                raise InvalidGraphError(
                    f"override of tensor {spec.name!r} has {len(dim)} dims, the tensor {len(spec.dim)}",
                    fix="an override keeps the rank",
                )
        return self.draft.infer(dict(overrides))


def _keep(held: dict[Key, Value], key: Key, made: Value) -> Value:
    """Enter a value under a new key, at most MAX_OVERRIDES of them; the value of a thread that came first stays."""
    while len(held) >= MAX_OVERRIDES:
        held.pop(next(iter(held)), None)
    return held.setdefault(key, made)
