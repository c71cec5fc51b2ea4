"""Shorter ways to a graph: a context manager, two decorators, and `Graph`, which takes arrays directly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fuseplan.api import enums
from fuseplan.api.handles import Handle, current_ordinal, default_handle, destroy_default_handles, set_stream
from fuseplan.api.handles import create_handle as _create_handle
from fuseplan.api.pygraph import pygraph
from fuseplan.api.wrapper_graph import Graph

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
    made = pygraph(
        name=name,
        io_data_type=io_data_type,
        intermediate_data_type=intermediate_data_type,
        compute_data_type=compute_data_type,
        handle=handle,
        **graph_kwargs,
    )
    yield made, []


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


def get_default_handle(stream: Any = None) -> Handle:
    """This thread's handle for the current device, on a stream if one is given (an address or a torch stream)."""
    handle = default_handle(_create_handle("cpu" if current_ordinal() < 0 else f"cuda:{current_ordinal()}").target)
    if stream is not None:
        set_stream(handle, getattr(stream, "cuda_stream", stream))
    return handle


def destroy_default_handle() -> None:
    """Destroy this thread's default handles."""
    destroy_default_handles()
