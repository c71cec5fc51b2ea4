"""The native dispatcher: C on CPython's API, compiled at first use with the user's compiler."""

from __future__ import annotations

import importlib.machinery
import importlib.resources
import importlib.util
import sys
import sysconfig
from typing import Any

from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, buffers, cuda, device, forks, team, toolchain
from fuseplan.runtime.dispatch.binding import Binder
from fuseplan.runtime.dispatch.failures import fail, fail_host, fail_map
from fuseplan.runtime.dispatch.layout import Frame
from fuseplan.runtime.launch import Slot

HEADER = "dispatch.h"
UNITS = ("buffers.c", "maps.c", "launch.c", "writes.c", "calls.c", "dispatch.c", "module.c")
_NAME = "fuseplan_dispatch"
_PLACES = {"cpu": 0, "cuda": 1, "host": 2}
_FORMATS = {"FLOAT": "f", "DOUBLE": "d", "HALF": "e", "INT8": "b", "UINT8": "B", "INT32": "i", "INT64": "lq",
            "BOOLEAN": "?"}  # fmt: skip
_lock = forks.Lock()
_modules: list[Any] = []


def source() -> str:
    """C source of the dispatcher: the header once, then each unit, as one translation unit.

    One run of the compiler on one file takes half the time of a run on five, and functions are inlined across units.
    """
    folder = importlib.resources.files("fuseplan.runtime.dispatch")
    parts = ["#define FUSEPLAN_JOINED"]
    for name in (HEADER, *UNITS):
        text = folder.joinpath(name).read_text(encoding="utf-8")
        text = text.replace('#include "../team/team.h"\n', team.headers()).replace(f'#include "{HEADER}"\n', "\n")
        parts.append(f'#line 1 "{name}"\n{text}')
    return "\n".join(parts)


def module() -> Any:
    """The compiled extension module, loaded once per process.

    Raises:
        ToolchainError: no compiler, no Python headers, or the compiler failed
    """
    with _lock:
        if not _modules:
            _modules.append(_load())
        return _modules[0]


def _load() -> Any:
    if reason := toolchain.gap():
        raise ToolchainError(reason, fix="see `fuseplan doctor`")
    headers = toolchain.python_headers()
    if not headers:
        raise ToolchainError(
            "the headers of Python are not installed",
            asked=f"Python.h in {sysconfig.get_paths()['include']}",
            fix="install the python3-dev package, or set FUSEPLAN_DISPATCHER=python",
        )
    # nothing of this CPU, which would gain nothing; -O1 runs as fast as -O3 and compiles in half the time
    artifact = toolchain.compile_shared(
        source(),
        (f"-I{headers}", f"-DFUSEPLAN_ABI={sysconfig.get_config_var('SOABI') or sys.hexversion}", "-std=gnu11", "-O1"),
        march="x86-64-v2" if device.is_x86() else "native",
        label="the dispatcher",
        symbol=f"PyInit_{_NAME}",
    )
    path = artifacts.load_shared(artifact)._name
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ToolchainError(f"{path} is not an extension module")
    try:
        with forks.loading:
            made = importlib.util.module_from_spec(spec)
            loader.exec_module(made)
    except ImportError as problem:
        raise ToolchainError(f"the dispatcher cannot be loaded: {problem}") from problem
    return made


def make(binder: Binder, frame: Frame) -> Any:
    """A native dispatcher for the program of `binder`."""
    p = binder.program
    mappings = binder.writes.mappings if binder.writes is not None else range(len(binder.slots))
    layouts = [(m, *(known or ((), ()))) for m, known in zip(mappings, binder.layouts, strict=True)]
    slots = tuple(map(_slot, binder.slots, binder.keys, binder.defaults, binder.accepted, layouts))
    driver = _driver_addresses(p.device_index, bool(frame.maps)) if frame.uses_driver else None
    hooks = (binder.collect, binder.resolve, binder.resolve_workspace, fail, fail_host, fail_map,
             *((w.overlap, w.tell_autograd) if (w := binder.writes) else (None, None)))  # fmt: skip
    return module().Dispatcher(
        slots, frame.steps, frame.maps, frame.image,
        (p.workspace_bytes, p.workspace_alignment, p.workspace_slack), p.device_kind == "cuda", p.device_index,
        bool(frame.rereads), driver, hooks, binder.known_keys,
        (team.address() if frame.uses_team else 0, frame.follows_torch),
    )  # fmt: skip


def _slot(slot: Slot, keys: tuple[object, ...], default: object, accepted: tuple[str, ...],
          layout: tuple[object, ...]) -> tuple[object, ...]:  # fmt: skip
    types = tuple(code | bits << 8 for code, bits in (buffers.DL_TYPES[n] for n in accepted if n in buffers.DL_TYPES))
    formats = "".join(_FORMATS.get(name, "") for name in accepted)
    return (
        keys, default, slot.value, types, formats, slot.dtype.itemsize, slot.span_bytes, _PLACES[slot.place],
        slot.device_index, slot.is_output, slot.alignment, layout,
    )  # fmt: skip


def _driver_addresses(index: int, has_maps: bool) -> tuple[int, ...]:
    d = cuda.driver()
    names = ("cuLaunchKernelEx", "cuMemsetD32Async", "cuCtxGetCurrent", "cuCtxSetCurrent")
    encode = d.address("cuTensorMapEncodeTiled") if has_maps else 0  # older drivers lack it
    return (*(d.address(name) for name in names), cuda.primary_context(index), encode)
