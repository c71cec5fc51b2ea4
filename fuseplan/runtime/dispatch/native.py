"""The native dispatcher: C on CPython's API, compiled at first use with the user's compiler."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.resources
import importlib.util
import sys
import sysconfig
from typing import Any

from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, buffers, cuda, device, forks, team, toolchain
from fuseplan.runtime.dispatch.binding import Binder
from fuseplan.runtime.dispatch.layout import Frame, Step, map_numbers, thread_stride
from fuseplan.runtime.dispatch.twin import fail, fail_host, fail_map
from fuseplan.runtime.launch import Patch, PatchKind, TensorMap

HEADER = "dispatch.h"
UNITS = ("buffers.c", "launch.c", "calls.c", "dispatch.c")
_NAME = "fuseplan_dispatch"
_PLACES = {"cpu": 0, "cuda": 1, "host": 2}
_lock = forks.Lock()
_modules: list[Any] = []


def _struct(*groups: tuple[Any, str]) -> Any:
    """A structure of dispatch.h: each type with the names of the fields in a row that have it."""
    fields = [(field, kind) for kind, names in groups for field in names.split()]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


_OBJECT, _ADDRESS, _INT, _INT64 = ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_UINT32, _UINT64 = ctypes.c_uint32, ctypes.c_uint64
_MAX_RANK, _MAP_RANK, _NUM_APART = 12, 5, 8
_Slot = _struct(
    (_OBJECT, "keys fallback"), (ctypes.c_char_p, "value"),
    (_INT, "place device_index is_output num_types ndim"), (_UINT32 * 4, "types"),
    (_INT64, "itemsize span alignment"), (_INT64 * _MAX_RANK, "dim stride"),
)  # fmt: skip
_Patch = _struct((_INT, "kind slot map"), (_INT64, "offset size addend"))
_TensorMap = _struct(
    (_OBJECT, "label"), (_INT, "rank slot second is_encoded"), (_INT * 5, "numbers"),
    (_INT64, "addend second_addend swap_offset"), (_UINT64 * _MAP_RANK, "dims strides"),
    (_UINT32 * _MAP_RANK, "box steps"), (_UINT64, "address other"), (ctypes.c_char * 128, "bytes"),
)  # fmt: skip
_Step = _struct(
    (_OBJECT, "label call"), (_ADDRESS, "function"),
    (_INT64, "block memset_words num_tasks scratch_at thread_bytes"),
    (_INT, "kind first_patch num_patches first_param num_params first_attribute num_attributes num_threads is_quick"),
    (_UINT32 * 7, "config"), (_UINT32, "memset_value"),
)  # fmt: skip
_Dispatcher = _struct(
    (_OBJECT, "collect resolve resolve_workspace fail fail_host fail_map overlap tell_autograd known"),
    (_ADDRESS, "launch memset32 get_context set_context context encode run_team"),
    (_INT64, "workspace_bytes workspace_alignment workspace_slack frame_bytes"),
    (_INT, "num_slots num_steps most_params device_index on_gpu uses_driver rereads follows_torch"),
    (_ADDRESS, "slots steps patches params maps attributes image"),
    (_INT64, "num_encodes next_apart"), (_INT64 * 3 * _NUM_APART, "apart"),
)  # fmt: skip
_STRUCTS = (_Dispatcher, _Slot, _Step, _Patch, _TensorMap, cuda.LaunchAttribute)


def source() -> str:
    """C source of the dispatcher: the header once, then each unit, as one translation unit.

    One run of the compiler on one file takes half the time of a run on five, and functions are inlined across units.
    """
    folder = importlib.resources.files("fuseplan.runtime.dispatch")
    included = {"../team/team.h": team.headers(), HEADER: ""}
    return "#define FUSEPLAN_JOINED\n" + team.join(folder, (HEADER, *UNITS), included)


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
    spec = importlib.machinery.ModuleSpec(_NAME, loader, origin=path)
    try:
        with forks.loading:
            made = importlib.util.module_from_spec(spec)
            loader.exec_module(made)
    except ImportError as problem:
        raise ToolchainError(f"the dispatcher cannot be loaded: {problem}") from problem
    if made.sizes != tuple(map(ctypes.sizeof, _STRUCTS)):
        raise ToolchainError(f"the dispatcher's structures have {made.sizes} bytes, not as written in native.py")
    return made


def make(binder: Binder, frame: Frame) -> Any:
    """A native dispatcher for the program of `binder`."""
    p, writes, made = binder.program, binder.writes, module()
    slots = [_slot(binder, index) for index in range(len(binder.slots))]
    patches, params, maps, attributes = list[Any](), list[int](), list[Any](), list[Any]()
    steps = []
    for step in frame.steps:
        launch = step.launch
        steps.append(_step(step, len(patches), len(params), len(attributes)))
        for patch in launch.patches:
            patches.append(_patch(patch, step.block, len(maps)))
            if patch.map is not None:
                maps.append(_map(patch.map, patch, step))
        params += [step.block + offset for offset in launch.param_offsets]
        attributes += [cuda.LaunchAttribute(int(number), 0, values) for number, values in launch.attributes]
    hooks = (binder.collect, binder.resolve, binder.resolve_workspace, fail, fail_host, fail_map,
             *((writes.overlap, writes.tell_autograd) if writes else (None, None)), binder.known_keys)  # fmt: skip
    driver = _driver_addresses(p.device_index, bool(maps)) if frame.uses_driver else (0,) * 6
    uses_team = any(step.num_threads > 1 for step in frame.steps)
    arrays = zip((_Slot, _Step, _Patch, _INT64, _TensorMap, cuda.LaunchAttribute),
                 (slots, steps, patches, params, maps, attributes), strict=True)  # fmt: skip
    memory = [*(bytearray((kind * len(items))(*items)) for kind, items in arrays), bytearray(frame.image)]
    program = _Dispatcher(
        *hooks, *driver, team.address() if uses_team else 0, p.workspace_bytes, p.workspace_alignment,
        p.workspace_slack, len(frame.image), len(slots), len(steps),
        max((len(step.launch.param_offsets) for step in frame.steps), default=0), p.device_index,
        p.device_kind == "cuda", frame.uses_driver, frame.rereads, frame.follows_torch,
        *(ctypes.addressof((ctypes.c_char * 0).from_buffer(block)) for block in memory),
    )  # fmt: skip
    objects = (hooks, frame.tables, binder.keys, binder.defaults, *(slot.value for slot in binder.slots),
               *((step.label, step.call) for step in frame.steps))  # fmt: skip
    return made.Dispatcher(bytearray(program), (*memory, *objects))


def _slot(binder: Binder, index: int) -> Any:
    slot, accepted, layout = binder.slots[index], binder.accepted[index], binder.layouts[index]
    types = tuple(code | bits << 8 for code, bits in (buffers.DL_TYPES[n] for n in accepted if n in buffers.DL_TYPES))
    dim, stride = layout if layout is not None and 0 < len(layout[0]) <= _MAX_RANK else ((), ())
    return _Slot(
        keys=binder.keys[index], fallback=binder.defaults[index], value=slot.value,
        place=_PLACES[slot.place], device_index=slot.device_index, is_output=slot.is_output, num_types=len(types),
        ndim=len(dim) or -1, types=types, itemsize=slot.dtype.itemsize, span=slot.span_bytes,
        alignment=slot.alignment, dim=dim, stride=stride,
    )  # fmt: skip


def _step(step: Step, first_patch: int, first_param: int, first_attribute: int) -> Any:
    launch, tasks = step.launch, step.launch.tasks
    return _Step(
        label=step.label, call=step.call, function=step.function, block=step.block,
        memset_words=launch.memset_words, num_tasks=tasks.count, scratch_at=tasks.scratch_at,
        thread_bytes=thread_stride(tasks), kind=launch.kind, first_patch=first_patch, num_patches=len(launch.patches),
        first_param=first_param, num_params=len(launch.param_offsets), first_attribute=first_attribute,
        num_attributes=len(launch.attributes), num_threads=step.num_threads, is_quick=step.is_quick,
        config=(*launch.grid, *launch.block, launch.shared_bytes), memset_value=launch.memset_value & 0xFFFFFFFF,
    )  # fmt: skip


def _patch(patch: Patch, block: int, num_maps: int) -> Any:
    slot = -1 if patch.kind == PatchKind.SCRATCH else patch.slot
    return _Patch(patch.kind, slot, num_maps, block + patch.offset, patch.size, patch.addend)


def _map(m: TensorMap, patch: Patch, step: Step) -> Any:
    second, second_addend = m.second or (-2, 0)
    return _TensorMap(
        label=step.label, rank=len(m.dims), slot=patch.slot, second=second, numbers=map_numbers(m),
        addend=patch.addend, second_addend=second_addend,
        swap_offset=step.block + m.swap_offset if m.swap_offset >= 0 else -1, dims=m.dims, strides=m.strides,
        box=m.box, steps=m.steps or (1,) * len(m.dims),
    )  # fmt: skip


def _driver_addresses(index: int, has_maps: bool) -> tuple[int, ...]:
    """What ``Driver`` of dispatch.h holds."""
    d = cuda.driver()
    names = ("cuLaunchKernelEx", "cuMemsetD32Async", "cuCtxGetCurrent", "cuCtxSetCurrent")
    encode = d.address("cuTensorMapEncodeTiled") if has_maps else 0  # older drivers lack it
    return (*(d.address(name) for name in names), cuda.primary_context(index), encode)
