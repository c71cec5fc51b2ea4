"""The graph object of the API: a flat table of short methods over a draft, its plans, and their runners."""

# table
from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fuseplan.api import enums, saving
from fuseplan.api.datatypes import to_dtype, to_enum, to_int, to_member
from fuseplan.api.draft import GraphDraft, Options
from fuseplan.api.execution import RunnerCache
from fuseplan.api.handles import Handle, check_handle
from fuseplan.api.kernel_cache import device_properties, kernel_cache
from fuseplan.api.knobs import Filter, bar_names, by_notes, by_type, knob
from fuseplan.api.methods import OpMethods
from fuseplan.api.node import GraphContext, Node
from fuseplan.api.pack import from_sequence, to_overrides
from fuseplan.api.pending import missing
from fuseplan.api.planning import LIBRARY_IDS, PlanSet
from fuseplan.api.tensor import Tensor
from fuseplan.api.version import __version__
from fuseplan.errors import InvalidGraphError
from fuseplan.ir import keys
from fuseplan.plan import graph_json, plan_file
from fuseplan.plan.rank import Entry
from fuseplan.plan.tune import Progress, TuneReport
from fuseplan.plan.tune import show as show_progress
from fuseplan.runtime.device import Device
from fuseplan.settings import current

NOT_SET = enums.data_type.NOT_SET


class pygraph(OpMethods):  # noqa: N801 - the API's own name  # table
    """A graph of tensors and operations, and the ranked plans that run it.

    Args:
        name: shown in messages and sources
        io_data_type: type of tensors that are not virtual
        intermediate_data_type: type of virtual tensors; unset: the io type, else FLOAT
        compute_data_type: type that nodes compute in; unset: the io type, else FLOAT
        handle: device and stream
        sm_count, sm_version: take the place of the device's own values in planning
        kernel_cache: giving one turns dynamic shapes on
        device_property: facts of a device to plan for, where the device is not
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` for a graph without a handle
    """

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: object = NOT_SET,
        intermediate_data_type: object = NOT_SET,
        compute_data_type: object = NOT_SET,
        handle: Handle | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: kernel_cache | None = None,
        device_property: device_properties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: enums.cuda_graph_retention | None = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        device: str | None = None,
    ) -> None:  # table
        del is_cuda_graph_replay_expected  # every plan can be replayed
        options = Options(
            name=name,
            io_dtype=to_dtype(io_data_type, "io_data_type"),
            intermediate_dtype=to_dtype(intermediate_data_type, "intermediate_data_type"),
            compute_dtype=to_dtype(compute_data_type, "compute_data_type"),
            handle=check_handle(handle, is_optional=True),
            device=device,
            sm_count=None if sm_count is None else to_int(sm_count, "sm_count"),
            sm_version=None if sm_version is None else to_int(sm_version, "sm_version"),
            kernel_cache=kernel_cache,
            device_property=device_property,
            is_dynamic=bool(is_dynamic_shape_enabled) or kernel_cache is not None,
            can_override=bool(is_override_shape_enabled),
            retention=to_enum(cuda_graph_retention, enums.cuda_graph_retention, "cuda_graph_retention"),
        )
        self._draft = GraphDraft(options)
        self._plans = PlanSet(self._draft)
        self._runners = RunnerCache(self._draft, self._plans)
        self._file = b""  # what a loaded plan came from

    # What the graph is

    @property
    def name(self) -> str:
        return self._draft.name

    @property
    def handle(self) -> Handle | None:
        return self._draft.handle

    @property
    def device(self) -> Device:
        """The handle's device, else that of `device=`, else the first usable GPU, else the CPU."""
        return self._draft.device

    def get_cuda_graph_retention(self) -> enums.cuda_graph_retention:
        """Whether native CUDA graph objects are kept: the constructor's choice, else the settings', else PER_GRAPH."""
        chosen = self._draft.options.retention or current().cuda_graph_retention.upper()
        return enums.cuda_graph_retention.__members__.get(chosen, enums.cuda_graph_retention.PER_GRAPH)

    @property
    def context(self) -> GraphContext:
        """Name and type defaults."""
        draft = self._draft
        types = (draft.io_dtype, draft.intermediate_dtype, draft.compute_dtype)
        return GraphContext(draft.name, *map(to_member, types))

    @property
    def nodes(self) -> list[Node]:
        return list(self._draft.nodes)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name; a name that several share gets ``#<uid>`` appended."""
        found: dict[str, Tensor] = {}
        for tensor in self._draft.tensors:
            name = tensor.get_name()
            found[name if name not in found else f"{name}#{tensor.get_uid()}"] = tensor
        return found

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None:
        """The first tensor with this name, or the tensor with this uid."""
        if isinstance(name_or_uid, str):
            return next((t for t in self._draft.tensors if t.get_name() == name_or_uid), None)
        return self._draft.uids.holders.get(name_or_uid)

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor with this uid. Raises InvalidGraphError if there is none."""
        if uid not in self._draft.uids.holders:
            raise InvalidGraphError(f"graph {self.name!r} has no tensor with uid {uid}", fix="use a tensor's get_uid()")
        return self._draft.uids.holders[uid]

    def get_node(self, name: str) -> Node | None:
        return next((n for n in self._draft.nodes if n.name == name), None)

    def get_inputs(self) -> list[Tensor]:
        """Tensors that nodes read and no node makes, in order of first use."""
        made = {t for n in self._draft.nodes for t in n.outputs.values()}
        return list(dict.fromkeys(t for n in self._draft.nodes for t in n.inputs.values() if t not in made))

    def get_outputs(self) -> list[Tensor]:
        """Results that are stored, in node order."""
        return [t for n in self._draft.nodes for t in n.outputs.values() if not t.get_is_virtual()]

    def inspect(self) -> dict[str, Any]:
        """The graph's state as plain data."""
        built = self._plans.current
        return {
            "name": self.name,
            "state": self._state(),
            "device": str(self.device),
            "nodes": [n._as_dict() for n in self._draft.nodes],
            "tensors": {name: t._as_dict() for name, t in self.tensors.items()},
            "plans": [entry.name for entry in self.plans],
            "selected_plan": built.name if built else None,
            "workspace_bytes": built.workspace_bytes if built else None,
        }

    def _state(self) -> str:
        if self._plans.current is not None:
            return "built"
        if self._plans.ranked is not None:
            return "planned"
        draft = self._draft
        return "frozen" if draft.is_frozen else "validated" if draft.graph is not None else "open"

    def explain(self) -> str:
        """Regions, ranking, refusals and keys as text; validates and plans nothing that is not there yet."""
        plans, built = self._plans, self._plans.current
        if plans.ranked is None:
            steps = "call create_execution_plans() or build() to see regions and plans"
            return f"graph {self.name!r} ({self._state()}): {len(self._draft.nodes)} nodes; {steps}"
        chosen = f"selected: plan {plans.selected} {built.name}" if built else "selected: none is built"
        return f"{plans.ranked.explain()}\n{chosen}"

    def __repr__(self) -> str:
        return saving.structure_of(self._draft)

    def key(self) -> int:
        """Hash of the structure with uids and names; dynamic shapes leave dims and strides out."""
        graph = self._draft.validated()
        if self._draft.options.is_dynamic:
            return int(keys.structure_key(graph)[:15], 16)
        return int(sha256(graph_json.dumps(graph).encode()).hexdigest()[:15], 16)

    @property
    def canonical_key(self) -> str:
        """Hex digest free of uids and names, for caches and files."""
        return keys.canonical_key(self._draft.validated())

    # Declaring

    def tensor(
        self,
        dim: Iterable[int],
        stride: Iterable[int] | None = None,
        data_type: object = NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: enums.tensor_reordering = enums.tensor_reordering.NONE,
        name: str = "",
        uid: int | None = -1,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> Tensor:  # table
        """Declare a tensor; strides default to row-major packed, the uid (-1 or None) to an automatic one."""
        with self._draft.whole():
            made = self._draft.new_tensor(name).set_dim(dim).set_is_virtual(is_virtual)
            made.set_is_pass_by_value(is_pass_by_value)
            dtype = to_dtype(data_type, f"data_type of tensor {made.get_name()!r}")
            made._draft.dtype = dtype or (self._draft.intermediate_dtype if is_virtual else None)
            if stride is not None:
                made.set_stride(stride)
            if uid is not None and uid != -1:
                made.set_uid(uid)
            if reordering_type is not enums.tensor_reordering.NONE:
                made.set_reordering_type(reordering_type)
            made.set_ragged_offset(ragged_offset).set_ragged_offset_multiplier(ragged_offset_multiplier)
            made.set_alignment_value(alignment_value)
        return made

    def tensor_like(
        self, template: Any = None, name: str = "", is_virtual: bool = False, *, input: Any = None
    ) -> Tensor:
        """Declare a tensor like another, or like an array; one element in host memory is a pass-by-value scalar."""
        return self._draft.tensor_like(input if template is None else template, name, is_virtual)

    def tensor_scalar(self, value: Any, scalar_type: enums.scalar_type, name: str = "") -> Tensor:
        """Declare a scalar whose value the graph owns; it is never in a pack.

        Args:
            value: a float is FLOAT, an int INT32 or INT64, a bool BOOLEAN; text is read as one of these
        """
        return self._draft.scalar(value, scalar_type, name)

    # The five steps

    def validate(self) -> None:
        """Infer what is unset and check every node and tensor; repeatable. Raises InvalidGraphError."""
        self._draft.validated()

    def build_operation_graph(self) -> None:
        """Validate if needed, and freeze the graph: from here on it cannot be changed."""
        self._draft.freeze()

    def create_execution_plans(self, heuristics: Iterable[enums.heur_mode] | None = None) -> None:
        """Ask every engine and make one ranked list of plans, once; raises with every refusal if there are none.

        Args:
            heuristics: modes, in order; None is [A, FALLBACK]
        """
        self._plans.create(heuristics)

    def check_support(self) -> None:
        """Confirm that some listed plan is not barred. Raises cudnnGraphNotSupportedError."""
        self._plans.check_support()

    def build_plans(
        self, policy: enums.build_plan_policy = enums.build_plan_policy.HEURISTICS_CHOICE, *, ctx: Any = None
    ) -> None:
        """Build the first plan that works from the selected one on, or all. Raises cudnnGraphNotSupportedError."""
        del ctx
        wanted = to_enum(policy, enums.build_plan_policy, "policy of build_plans()")
        if self._plans.ranked is None:
            self.create_execution_plans()
        self._plans.build_some(is_all=wanted == "ALL")

    def build(self, heuristics: Iterable[enums.heur_mode] | None = None, ctx: Any = None) -> None:
        """All five steps, skipping those that are done."""
        del ctx
        if self._plans.current is None:
            if self._plans.ranked is None:
                self.create_execution_plans(heuristics)
            self.check_support()
            self.build_plans()

    # Plans by index

    @property
    def plans(self) -> list[Entry]:
        """The ranked entries; empty before planning."""
        return self._plans.entries

    @property
    def selected_engine(self) -> str | None:
        """Name of the engine that the last build chose."""
        return self._plans.current.engine_name if self._plans.current else None

    def create_execution_plan(self, engine_id: int, knobs: dict[Any, int] | None = None) -> pygraph:
        """Append exactly this plan (replay of a choice), of an engine by its id or its position in this graph."""
        self._plans.append(engine_id, knobs)
        return self

    def build_plan_at_index(self, index: int) -> pygraph:
        """Build this plan and select it."""
        self._plans.build(index)
        self._plans.select(index)
        return self

    def select_plan(self, index: int) -> pygraph:
        """Pin this plan: if it does not build, build_plans() raises instead of trying the next."""
        self._plans.need_list("select_plan()")
        self._plans.entry(index)
        self._plans.select(index)
        self._plans.is_pinned = True
        return self

    def get_execution_plan_count(self) -> int:
        return len(self._plans.entries)

    def get_plan_name_at_index(self, index: int) -> str:
        """The plan's name: engine, and knobs in brackets; stable across releases."""
        return self._plans.entry(index).name

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[enums.knob_type | str, int]]:
        """What `create_execution_plan` needs to make the same plan again."""
        entry = self._plans.entry(index)
        return entry.engine_id, by_type(entry.knobs)

    def get_engine_count(self) -> int:
        """Number of engines that have a plan for this graph; from build_operation_graph() on."""
        return len(self._plans.engine_ids)

    def get_knobs_for_engine(self, engine: int) -> list[knob]:
        """Knobs and their ranges of an engine, by its id or its position among the engines of this graph."""
        return self._plans.knobs_of(engine)

    def backend_plan_entries(self) -> list[Entry]:
        """The entries that belong to libcudnn."""
        return [entry for entry in self._plans.entries if entry.engine_id in LIBRARY_IDS]

    def get_behavior_notes(self) -> list[enums.behavior_note]:
        """Notes of the selected plan. Raises GraphStateError before a build."""
        self._plans.need_built()
        return self.get_behavior_notes_for_plan_at_index(self._plans.selected)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[enums.behavior_note]:
        return [enums.behavior_note[name] for name in self._plans.entry(index).behavior_notes]

    def deselect_engines(self, engine_names: Iterable[str]) -> pygraph:
        """Bar plans whose name contains any of these strings."""
        return self._filter(bar_names(engine_names))

    def deselect_workspace_greater_than(self, workspace_limit: int) -> pygraph:
        """Bar plans that need more workspace than this, in bytes."""
        self._plans.limit_workspace(workspace_limit)
        return self

    def deselect_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> pygraph:
        """Bar plans that have any of these notes."""
        return self._filter(by_notes("behavior_notes", notes, wanted=False))

    def deselect_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> pygraph:
        """Bar plans that have any of these notes."""
        return self._filter(by_notes("numeric_notes", notes, wanted=False))

    def select_behavior_notes(self, notes: Iterable[enums.behavior_note]) -> pygraph:
        """Bar plans that lack any of these notes."""
        return self._filter(by_notes("behavior_notes", notes, wanted=True))

    def select_numeric_notes(self, notes: Iterable[enums.numerical_note]) -> pygraph:
        """Bar plans that lack any of these notes."""
        return self._filter(by_notes("numeric_notes", notes, wanted=True))

    def _filter(self, keep: Filter) -> pygraph:
        self._plans.add_filter(keep)
        return self

    # Running

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
        """Run the selected plan, built first if needed; threads may share a built graph, each with its own packs.

        Args:
            tensor_dict: buffer by tensor, uid or name; or a list of buffers with `tensor_uids`
            workspace: buffer or address of at least `get_workspace_size()` bytes; None if that is 0
            handle: stream to run on; None takes the graph's handle, else this thread's default
            override_uids, override_shapes, override_strides: other dims and strides for this call
        Raises:
            BindError: a buffer is missing or does not fit; nothing was written
        """
        runner = self._runners.ready
        if runner is None or override_uids is not None or override_shapes is not None:
            overrides = to_overrides(override_uids, override_shapes, override_strides)
            self.build()
            runner = self._runners.selected(overrides)
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        runner.execute(tensor_dict, workspace, self._runners.stream(handle))

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
    ) -> None:
        """Run the plan at an index, built now if needed; the selection stays. Arguments as for `execute`."""
        runner = self._runners.by_index.get(index)  # a plan that a filter bars later leaves this table
        if runner is None or override_uids is not None or override_shapes is not None:
            runner = self._runners.at(index, to_overrides(override_uids, override_shapes, override_strides))
        if tensor_uids is not None:
            tensor_dict = from_sequence(tensor_dict, tensor_uids)
        runner.execute(tensor_dict, workspace, self._runners.stream(handle))

    def bind(self, pack: Any, workspace: Any = None, handle: Handle | None = None) -> Callable[[], None]:
        """Check a pack once and return a call that runs the selected plan on it without checking again."""
        self.build()
        bound: Callable[[], None] = self._runners.selected(()).bind(pack, workspace, self._runners.stream(handle))
        return bound

    def autotune(
        self,
        pack: Any,
        workspace: Any = None,
        handle: Handle | None = None,
        *,
        budget_s: float = 30.0,
        progress: Progress | bool | None = None,
    ) -> TuneReport:
        """Compare candidates with the judge, time those that are right, and select the fastest.

        Args:
            budget_s: no candidate is started after this many seconds; the best so far counts
            progress: called after each candidate with its row, how many are done, and of how many; True prints that
        """
        self.build()
        shown = show_progress if progress is True else progress or None
        return self._runners.autotune(pack, workspace, handle, budget_s, shown)

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: list[int] | None = None,
        override_shapes: list[list[int]] | None = None,
        override_strides: list[list[int]] | None = None,
    ) -> int:
        """Bytes of workspace that the selected plan needs. Raises GraphStateError before a build."""
        check_handle(handle, is_optional=True)
        self._plans.need_built()
        index = self._plans.selected
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
        built = self._plans.build(index)
        overrides = to_overrides(override_uids, override_shapes, override_strides)
        return (self._runners.sibling_plan(built, overrides)[0] if overrides else built).workspace_bytes

    # Saving

    def serialize(self, *, as_bytes: bool = False, include_kernels: bool = True) -> list[int] | bytes:
        """The selected plan as a plan file, a list of ints or bytes; compiled kernels are always in it.

        Raises:
            GraphStateError: the graph is not built; `repr(graph)` gives its structure
        """
        del include_kernels
        built = self._plans.need_built()
        data = self._file or plan_file.dump(built, __version__)
        return data if as_bytes else list(data)

    def deserialize(self, *args: Any, **kwargs: Any) -> None:
        """Load a plan (bytes or list of ints) or a structure (JSON text) into an empty graph.

        Call forms: ``deserialize(pyobj, enforce_precompiled=False)`` and
        ``deserialize(handle_, pyobj, enforce_precompiled=False)``. After a plan the graph counts as built
        and runs with uids; after a structure the five steps follow. Raises PlanFileError for damaged data.
        """
        handle, data, precompiled = saving.deserialize_arguments(args, kwargs)
        self._file = saving.load(data, self._draft, self._plans, handle, precompiled)

    if not TYPE_CHECKING:  # a type checker knows all names that there are, and shall report any other

        def __getattr__(self, name: str) -> Any:
            raise missing("pygraph", name)
