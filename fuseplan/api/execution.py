"""Running a graph: packs, streams, overrides, binding ahead, tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fuseplan.api.handles import CPU_ORDINAL, Handle, check_handle, default_handle
from fuseplan.api.pack import Overrides, from_sequence, names_of, normalise, to_overrides
from fuseplan.api.plans import PlanQueries
from fuseplan.errors import BindError, GraphStateError, InvalidGraphError, cudnnGraphNotSupportedError
from fuseplan.plan import tune
from fuseplan.plan.execute import Runner
from fuseplan.plan.planner import make_plans

if TYPE_CHECKING:
    from fuseplan.plan.plan import BuiltPlan
    from fuseplan.plan.planner import PlanList
    from fuseplan.plan.tune import Progress, TuneReport

MAX_OVERRIDES = 64  # shapes kept per graph; the oldest goes first


class Execution(PlanQueries):
    """Calls on a built graph. One built graph may be run from several threads with their own packs."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._current: Runner | None = None
        self._runners: dict[int, Runner] = {}
        self._siblings: dict[Overrides, PlanList] = {}
        self._sibling_runners: dict[tuple[Overrides, str], Runner] = {}

    def execute(
        self,
        tensor_dict: Any,
        workspace: Any = None,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
        tensor_uids: list[int] | None = None,
    ) -> None:
        """Run the selected plan; an unbuilt graph is built first.

        Args:
            tensor_dict: buffer by tensor, uid or name; or a list of buffers with `tensor_uids`
            workspace: buffer or address of at least `get_workspace_size()` bytes; None if that is 0
            handle: stream to run on; None takes the graph's handle, else this thread's default
            override_uids, override_shapes, override_strides: other dims and strides for this call
        Raises:
            BindError: a buffer is missing or does not fit; nothing was written
        """
        runner = self._current
        if runner is None or override_uids is not None:
            overrides = to_overrides(override_uids, override_shapes, override_strides)
            runner = self._runner_for(None, overrides)
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        runner.execute(tensor_dict, workspace, self._stream(handle))

    def execute_plan_at_index(
        self,
        tensor_dict: Any,
        workspace: Any = None,
        index: int = 0,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
        *,
        tensor_uids: list[int] | None = None,
    ) -> None:  # table
        """Run the plan at an index, built now if needed; the selection stays. Arguments as for `execute`."""
        overrides = to_overrides(override_uids, override_shapes, override_strides)
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        self._runner_for(index, overrides).execute(tensor_dict, workspace, self._stream(handle))

    def bind(self, pack: Any, workspace: Any = None, handle: Handle | None = None) -> Callable[[], None]:
        """Check a pack once and return a call that runs the selected plan on it without checking again."""
        runner = self._current or self._runner_for(None, ())
        bound: Callable[[], None] = runner.bind(pack, workspace, self._stream(handle))
        return bound

    def autotune(
        self,
        pack: Any,
        workspace: Any = None,
        handle: Handle | None = None,
        *,
        budget_s: float = 30.0,
        progress: Progress | None = None,
    ) -> TuneReport:
        """Compare candidates with the judge, time those that are right, and select the fastest.

        Args:
            budget_s: no candidate is started after this many seconds; the best so far counts
            progress: called after each candidate with its row, how many are done, and of how many
        """
        self.build()
        plans = self.need_plans("autotune()")
        by_uid = {t._uid: buffer for t, buffer in self.default_buffers.items()}
        by_uid.update(normalise(pack, self._names(), self.name))
        report = tune.autotune(plans, self.make_runner, by_uid, workspace, self._stream(handle), budget_s, progress)
        if report.best is not None:
            self.build_index(report.best)
            self.select_index(report.best)
        return report

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
    ) -> int:
        """Bytes of workspace that the selected plan needs. Raises GraphStateError before a build."""
        check_handle(handle, is_optional=True)
        built = self.need_built()
        overrides = to_overrides(override_uids, override_shapes, override_strides)
        return self._sibling_plan(built, overrides)[0].workspace_bytes if overrides else built.workspace_bytes

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
    ) -> int:
        """Bytes of workspace that the plan at an index needs; builds it if needed."""
        check_handle(handle, is_optional=True)
        built = self.build_index(index)
        overrides = to_overrides(override_uids, override_shapes, override_strides)
        return self._sibling_plan(built, overrides)[0].workspace_bytes if overrides else built.workspace_bytes

    def select_index(self, index: int) -> None:
        super().select_index(index)
        self._current = None

    def unbuild(self, index: int) -> None:
        super().unbuild(index)
        self._runners.pop(index, None)
        self._current = None

    def _stream(self, handle: Handle | None) -> int:
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

    def _runner_for(self, index: int | None, overrides: Overrides) -> Runner:
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
            self._current = runner
        return runner

    def make_runner(self, built: BuiltPlan, plans: PlanList | None = None) -> Runner:
        """A runner whose packs may name tensors in every way that the API has."""
        names = self._names()
        keys: dict[int, tuple[object, ...]] = {}
        for slot in built.program.slots:
            tensor = self.uids.holders.get(slot.uid)
            own = () if tensor is None else (tensor,)
            keys[slot.uid] = (*own, slot.uid, slot.name) if names.get(slot.name) == slot.uid else (*own, slot.uid)
        defaults = {tensor._uid: buffer for tensor, buffer in self.default_buffers.items()}
        general = getattr(plans or self.plan_list, "general", None)
        return Runner(built, keys, defaults, lambda pack: normalise(pack, names, self.name), general)

    def _names(self) -> Mapping[str, int | None]:
        if self.loaded is not None:
            return names_of((slot.name, slot.uid) for slot in self.loaded.program.slots)
        return names_of((t._name, t._uid) for t in self.tensor_list)

    def _sibling_runner(self, built: BuiltPlan, overrides: Overrides) -> Runner:
        key = (overrides, built.name)
        runner = self._sibling_runners.get(key)
        if runner is None:
            runner = self.make_runner(*self._sibling_plan(built, overrides))
            while len(self._sibling_runners) >= MAX_OVERRIDES:
                self._sibling_runners.pop(next(iter(self._sibling_runners)), None)
            runner = self._sibling_runners.setdefault(key, runner)
        return runner

    def _sibling_plan(self, built: BuiltPlan, overrides: Overrides) -> tuple[BuiltPlan, PlanList]:
        """The plan of the same engine and knobs under other dims; without one, the first that builds."""
        plans = self._siblings.get(overrides)
        if plans is None:
            plans = make_plans(self._override_graph(overrides), self.device, ("A", "FALLBACK"))
            while len(self._siblings) >= MAX_OVERRIDES:
                self._siblings.pop(next(iter(self._siblings)), None)
            plans = self._siblings.setdefault(overrides, plans)
        order = sorted(range(len(plans.entries)), key=lambda i: (plans.entries[i].name != built.name, i))
        reasons = []
        for index in order:
            try:
                return plans.build(index), plans
            except (NotImplementedError, ImportError, cudnnGraphNotSupportedError) as error:
                reasons.append(f"{plans.entries[index].name}: {error}")
        raise cudnnGraphNotSupportedError(f"no plan of graph {self.name!r} takes these shapes: {reasons}")

    def _override_graph(self, overrides: Overrides) -> Any:
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
