"""Shorter ways to a graph: a context manager, two decorators, and `Graph`, which takes arrays directly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fuseplan.api import enums
from fuseplan.api.handles import Handle, check_handle, default_handle, destroy_default_handle, get_default_handle
from fuseplan.api.pack import names_of
from fuseplan.api.pending import BLOCKED_ON_WRAPPER
from fuseplan.api.pygraph import pygraph
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError, BindError, GraphStateError, InvalidGraphError
from fuseplan.ops.array_facts import is_array
from fuseplan.ops.arrays import torch_dtype
from fuseplan.ops.schema import all_schemas

__all__ = ["Graph", "destroy_default_handle", "get_default_handle", "graph", "graph_cache", "jit"]

Result = TypeVar("Result")


@contextmanager
def graph(
    handle: Handle | None,
    name: str = "cudnn_graph",
    io_data_type: object = enums.data_type.HALF,
    intermediate_data_type: object = enums.data_type.FLOAT,
    compute_data_type: object = enums.data_type.FLOAT,
    **graph_kwargs: Any,
) -> Iterator[tuple[pygraph, list[Any]]]:
    """A new graph and an empty list for its tensors; nothing is built at the end.

    Args:
        graph_kwargs: further arguments of `pygraph`
    """
    yield pygraph(name, io_data_type, intermediate_data_type, compute_data_type, handle, **graph_kwargs), []


def jit(
    heur_modes: Iterable[enums.heur_mode] | enums.heur_mode = enums.heur_mode.A, **kwargs: Any
) -> Callable[[Callable[..., tuple[pygraph, list[Any]]]], Callable[..., tuple[pygraph, list[int]]]]:
    """Decorate a function that returns a graph and tensors: the graph is built, the tensors become uids."""
    del kwargs
    modes = [heur_modes] if isinstance(heur_modes, enums.heur_mode) else list(heur_modes)

    def decorate(make: Callable[..., tuple[pygraph, list[Any]]]) -> Callable[..., tuple[pygraph, list[int]]]:
        @functools.wraps(make)
        def call(*args: Any, **call_kwargs: Any) -> tuple[pygraph, list[int]]:
            made, tensors = make(*args, **call_kwargs)
            if made.get_execution_plan_count() == 0:
                made.build(modes)
            return made, [t if isinstance(t, int) else t.get_uid() for t in tensors]

        return call

    return decorate


def graph_cache(
    key_fn: Callable[..., Any], maxsize: int = 256
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a function with a memo by `key_fn` of its arguments; the oldest entry goes first. Not locked."""

    def decorate(make: Callable[..., Result]) -> Callable[..., Result]:
        held: dict[Any, Result] = {}

        @functools.wraps(make)
        def call(*args: Any, **kwargs: Any) -> Result:
            key = key_fn(*args, **kwargs)
            if key not in held:
                made = make(*args, **kwargs)
                while held and len(held) >= maxsize:
                    del held[next(iter(held))]
                held[key] = made
            return held[key]

        return call

    return decorate


class Graph:
    """A graph that is built at the end of its with block and called afterwards.

    Args:
        handle: a Handle, ``"auto"`` for this thread's default at each call, or None to pass one to each call
        inputs, outputs: names, arrays or graph tensors, for calls with positional arrays
        heuristics: modes to plan with; None is [A, FALLBACK]
        workspace_alloc: allocate the workspace at the end of the block; else each call passes one
        kwargs: further arguments of `pygraph`
    """

    def __init__(
        self,
        *,
        handle: Handle | str | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        heuristics: Sequence[enums.heur_mode] | None = None,
        workspace_alloc: bool = True,
        **kwargs: Any,
    ) -> None:
        if isinstance(handle, str) and handle != "auto":
            raise ArgumentError(f'handle must be a Handle, "auto" or None, not {handle!r}', fix='pass handle="auto"')
        self._handle: Any = handle if handle == "auto" else check_handle(handle, is_optional=True)
        self._graph = pygraph(handle=self._handle if isinstance(self._handle, Handle) else None, **kwargs)
        self._heuristics, self._workspace_alloc = heuristics, workspace_alloc
        self._io: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._wrapped: dict[int, tuple[Any, Tensor]] = {}  # id of an array, the array (kept alive) and its tensor
        self._aliases: dict[str, Tensor] = {}
        self._first_names: dict[Tensor, str] = {}  # results and what they were called at first
        self._names: set[str] = set()
        self._is_ready = False
        self._workspace: Any = None
        if inputs is not None or outputs is not None:
            self.set_io_tuples(inputs or (), outputs or ())

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, exc_type: object, exc_value: object, tb: object) -> None:
        if exc_type is not None:
            return
        self._graph.build(self._heuristics)
        num_bytes = self._graph.get_workspace_size()
        if self._workspace_alloc and num_bytes:
            import torch

            self._workspace = torch.empty(num_bytes, dtype=torch.uint8, device=str(self._graph.device))
        self._is_ready = True

    def set_io_tuples(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Fix the order of inputs and outputs for calls with positional arrays."""
        self._io = (tuple(inputs), tuple(outputs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__ is through there is no graph to ask
            raise AttributeError(f"'Graph' object has no attribute {name!r}")
        if name in BLOCKED_ON_WRAPPER:
            raise GraphStateError(
                f"Graph.{name} is done by the with block", fix="use pygraph to take the steps yourself"
            )
        found = getattr(self._graph, name)
        return self._building(found) if any(s.name == name for s in all_schemas()) else found

    def _building(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """An op method that takes arrays and remembers what they were called."""

        def call(*args: Any, **kwargs: Any) -> Any:
            name = kwargs.get("name")
            if name and name in self._names:
                raise InvalidGraphError(f"two nodes are named {name!r}", fix="give each node its own name")
            args = tuple(self._wrap(a) for a in args)
            kwargs = {key: self._wrap(a) for key, a in kwargs.items()}
            made = method(*args, **kwargs)
            node = self._graph._draft.nodes[-1]
            self._names.add(node.name)
            named = [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]
            self._aliases.update({f"{node.name}::{key}": a for key, a in named if isinstance(a, Tensor)})
            self._aliases.update({t.get_name(): t for t in node.outputs.values() if t not in self._first_names})
            self._first_names.update((t, t.get_name()) for t in node.outputs.values() if t not in self._first_names)
            return made

        return call

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, Tensor) or not is_array(value):
            return value
        if id(value) not in self._wrapped:
            made = self._graph.tensor_like(value)
            if made.get_is_pass_by_value():
                self._graph._draft.default_buffers[made] = value
            self._wrapped[id(value)] = (value, made)
        return self._wrapped[id(value)][1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph: ``g(pack)`` returns the pack with its outputs, ``g(*arrays)`` the outputs.

        Raises:
            GraphStateError: before the end of the with block, or without a handle or workspace
            InvalidGraphError: an input is missing or is no array
        """
        handle, workspace = kwargs.pop("handle", None), kwargs.pop("workspace", None)
        if kwargs:
            raise ArgumentError(f"a Graph's call takes handle= and workspace=, not {sorted(kwargs)}", fix="drop it")
        if not self._is_ready:
            raise GraphStateError("the Graph is not built", fix="call it after its with block")
        handle = self._handle if handle is None else handle
        if handle is None:
            raise GraphStateError("the Graph has no handle", fix='pass handle= to the call, or handle="auto" to Graph')
        if handle == "auto":
            handle = default_handle(self._graph.device)
        workspace = self._workspace if workspace is None else workspace
        if workspace is None and self._graph.get_workspace_size():
            raise GraphStateError("the Graph has no workspace", fix="pass workspace= to the call")
        if len(args) == 1 and isinstance(args[0], dict):
            return self._call_with_pack(args[0], handle, workspace)
        return self._call_in_order(args, handle, workspace)

    def _call_with_pack(self, pack: dict[Any, Any], handle: Handle, workspace: Any) -> dict[Any, Any]:
        by_tensor = {self._find(key): buffer for key, buffer in pack.items() if key is not None}
        for out in self._graph.get_outputs():
            if by_tensor.get(out) is None:
                made = by_tensor[out] = self._allocate(out)
                pack.update(dict.fromkeys((self._first_names[out], out.get_name()), made))
        self._run(by_tensor, handle, workspace)
        return pack

    def _call_in_order(self, args: tuple[Any, ...], handle: Handle, workspace: Any) -> Any:
        if self._io is None:
            raise GraphStateError("the order of inputs is not known", fix="call set_io_tuples, or pass a dict")
        inputs, outputs = ([self._find(key) for key in keys] for keys in self._io)
        if len(args) != len(inputs):
            raise BindError(f"the Graph takes {len(inputs)} inputs, not {len(args)}", fix="pass one array per input")
        results = [self._allocate(t) for t in outputs]
        by_tensor = dict(zip((*inputs, *outputs), (*args, *results), strict=True))
        for out in self._graph.get_outputs():
            if out not in by_tensor:
                by_tensor[out] = self._allocate(out)
        self._run(by_tensor, handle, workspace)
        return results[0] if len(results) == 1 else results

    def _run(self, by_tensor: dict[Tensor, Any], handle: Handle, workspace: Any) -> None:
        for t in self._graph.get_inputs():
            is_known = t.pass_by_value_data is not None or t in self._graph._draft.default_buffers
            if not is_known and not is_array(by_tensor.get(t)):
                raise InvalidGraphError(
                    f"input {t.get_name()!r} is missing or no array: {by_tensor.get(t)!r}", fix="pass an array for it"
                )
        self._graph.execute(by_tensor, workspace, handle)

    def _find(self, key: Any) -> Tensor:
        """The tensor that a key stands for: tensor, array, uid, ``"node::arg"`` or a name."""
        if isinstance(key, Tensor):
            if key._owner is not self._graph._draft:
                raise BindError(
                    f"a key is tensor {key.get_name()!r} of graph {key._owner.name!r}, not of this Graph",
                    fix="use a tensor that this Graph returned, or a name",
                )
            return key
        if id(key) in self._wrapped:
            return self._wrapped[id(key)][1]
        if isinstance(key, str) and key in self._aliases:
            return self._aliases[key]
        if isinstance(key, str):
            key = names_of((t.get_name(), t.get_uid()) for t in self._graph._draft.tensors).get(key, key)
        found = None if key is None or isinstance(key, str) else self._graph.find_tensor(key)
        if found is None:
            known = [t.get_name() for t in (*self._graph.get_inputs(), *self._graph.get_outputs())]
            raise BindError(
                f"the Graph has no tensor {key!r}, or several", fix=f"it has {known}, {list(self._aliases)}"
            )
        return found

    def _allocate(self, out: Tensor) -> Any:
        import torch

        spec = out._spec()
        assert spec is not None
        return torch.empty_strided(spec.dim, spec.stride, dtype=torch_dtype(spec.dtype), device=str(self._graph.device))
