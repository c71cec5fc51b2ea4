"""Running a graph: packs, streams, overrides, binding ahead, tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fuseplan.api.handles import Handle, check_handle
from fuseplan.api.pack import from_sequence, normalise, to_overrides
from fuseplan.api.runners import Runners
from fuseplan.plan import tune

if TYPE_CHECKING:
    from fuseplan.plan.rank import Entry
    from fuseplan.plan.tune import Progress, TuneReport


class Execution(Runners):
    """Calls on a built graph. One built graph may be run from several threads with their own packs."""

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
        runner = self.ready
        if runner is None or override_uids is not None or override_shapes is not None:
            overrides = to_overrides(override_uids, override_shapes, override_strides)
            runner = self.runner_for(None, overrides)
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        runner.execute(tensor_dict, workspace, self.stream_of(handle))

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
        runner = self._runners.get(index)  # a plan that a filter bars later leaves this table
        if runner is None or override_uids is not None or override_shapes is not None:
            runner = self.runner_for(index, to_overrides(override_uids, override_shapes, override_strides))
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        runner.execute(tensor_dict, workspace, self.stream_of(handle))

    def bind(self, pack: Any, workspace: Any = None, handle: Handle | None = None) -> Callable[[], None]:
        """Check a pack once and return a call that runs the selected plan on it without checking again."""
        runner = self.ready or self.runner_for(None, ())
        bound: Callable[[], None] = runner.bind(pack, workspace, self.stream_of(handle))
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
        by_uid.update(normalise(pack, self.uids_by_name(), self.name, self.virtual_keys()))
        stream = self.stream_of(handle)
        report = tune.autotune(plans, self.make_runner, by_uid, workspace, stream, budget_s, progress, self._barred_by)
        if report.best is not None:
            self.build_index(report.best)
            self.select_index(report.best)
        return report

    def _barred_by(self, entry: Entry) -> str:
        """Why filters or the limit on workspace bar a plan that is built; empty if they do not."""
        reason = next((why for keep in self.filters if (why := keep(entry))), "")
        return reason or (self.over_workspace_limit(entry.built) if entry.built is not None else "")

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
    ) -> int:
        """Bytes of workspace that the selected plan needs. Raises GraphStateError before a build."""
        check_handle(handle, is_optional=True)
        self.need_built()
        index = self.selected
        return self.get_workspace_size_plan_at_index(index, handle, override_uids, override_shapes, override_strides)

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
        return self.sibling_plan(built, overrides)[0].workspace_bytes if overrides else built.workspace_bytes
