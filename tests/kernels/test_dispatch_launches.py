"""Both dispatchers: host scalars, bound calls, order of launches, threads, lifetimes."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import weakref
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuseplan import dtypes, settings
from fuseplan.errors import ArgumentError, BindError
from fuseplan.runtime import logs, toolchain
from fuseplan.runtime.dispatch import make_dispatcher, native, twin
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program
from tests.kernels.dispatch_harness import Guarded, N, by_uid, dispatcher_of, pointer, scaled_program, slot

pytestmark = pytest.mark.usefixtures("kind")


@pytest.mark.parametrize("form", ["array", "torch", "address", "numpy scalar", "bool", "0-d", "numpy double"])
def test_host_scalar_comes_in_each_form(kernels: Artifact, form: str) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    cell = np.array([3.5], np.float32)
    value: Any = {
        "array": cell, "address": cell.ctypes.data, "numpy scalar": np.float32(3.5), "bool": True,
        "0-d": cell.reshape(()), "numpy double": np.float64(3.5), "torch": None,
    }[form]  # fmt: skip
    if form == "torch":
        value = pytest.importorskip("torch").tensor(3.5)
    d.execute(g.pack(s=value), g.work, 0)
    assert g.is_right(1.0 if form == "bool" else 3.5)


@pytest.mark.parametrize("name", ["HALF", "BFLOAT16", "DOUBLE", "INT32", "FP8_E4M3", "INT64"])
def test_python_float_is_converted_to_the_type_of_its_tensor(kernels: Artifact, name: str) -> None:
    t = dtypes.dtype_of(name)
    slots = (slot(1, "y", dtype=dtypes.INT64, span_bytes=8), slot(2, "s", dtype=t, place="host", span_bytes=t.itemsize))
    patches = (pointer(0, 0), Patch(PatchKind.SCALAR, 8, 1, size=t.itemsize))
    d = dispatcher_of(Program(slots, (Launch(LaunchKind.HOST, bytes(16), patches, kernels, "copy8"),), 0, "cpu"))
    y = np.full(1, -1, np.int64)
    number = 3.0 if name[:3] == "INT" else 3.0 + 2.0**-3
    d.execute({1: y, 2: number}, None, 0)
    dtype = np.dtype(t.numpy_name) if hasattr(np, t.numpy_name) else np.dtype(getattr(ml_dtypes, t.numpy_name))
    stored = y.tobytes()
    assert float(np.frombuffer(stored[: t.itemsize], dtype)[0]) == (3.0 if name == "FP8_E4M3" else number)
    assert stored[t.itemsize :] == bytes(8 - t.itemsize)


def test_bound_call_reads_host_scalars_again_and_keeps_buffers_alive(kernels: Artifact) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    s = np.array([1.0], np.float32)
    owner = g.a.copy()
    watch = weakref.ref(owner)
    bound = d.bind(g.pack(a=owner, s=s), g.work, 0)
    del owner
    gc.collect()
    assert watch() is not None
    for value in (1.0, -4.0):
        s[0] = value
        bound()
        assert g.is_right(value)
    bound.set_stream(5)
    bound()
    assert g.is_right(-4.0)
    with pytest.raises(TypeError):
        bound(1)  # type: ignore[call-arg]
    del bound
    gc.collect()
    assert watch() is None


def test_bytearray_cannot_move_while_it_is_bound(kernels: Artifact) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    raw = bytearray(g.a.tobytes())
    bound = d.bind(g.pack(a=raw), g.work, 0)
    with pytest.raises(BufferError):
        raw.extend(bytes(1000))
    bound()
    assert g.is_right()


def test_value_of_the_graph_is_never_taken_from_the_pack(kernels: Artifact) -> None:
    program = scaled_program(kernels)
    program = replace(program, slots=(*program.slots[:3], replace(program.slots[3], value=struct.pack("f", 6.0))))
    g, d = Guarded(), dispatcher_of(program)
    d.execute(g.pack(), g.work, 0)
    assert g.is_right(6.0)
    bound = d.bind(g.pack(), g.work, 0)
    g.y[:] = 7
    bound()
    assert g.is_right(6.0)


def test_memset_and_python_launches_run_in_order(kernels: Artifact) -> None:
    seen: list[Any] = []
    y = np.zeros(N, np.int32)

    def call(operands: tuple[int, ...], stream: int, workspace: int) -> None:
        seen.append((operands, stream, workspace, y.copy().tolist()))

    work = np.zeros(64, np.uint8)
    slots = (slot(1, "y", dtype=dtypes.INT32), slot(2, "s", place="host", span_bytes=4))
    launches = (
        Launch(LaunchKind.MEMSET, patches=(pointer(0, 0, 4),), memset_value=-2, memset_words=N - 2),
        Launch(
            LaunchKind.PYTHON,
            patches=(pointer(0, 0), Patch(PatchKind.SCRATCH, 0, addend=16), pointer(0, 0, 8)),
            call=call,
        ),
        Launch(LaunchKind.MEMSET, patches=(pointer(0, 0),), memset_value=9, memset_words=1),
    )
    d = dispatcher_of(Program(slots, launches, 64, "cpu"))
    d.execute({1: y, 2: 1.0}, work, 77)
    base = y.ctypes.data
    assert seen == [((base, work.ctypes.data + 16, base + 8), 77, work.ctypes.data, [0] + [-2] * (N - 2) + [0])]
    assert y.tolist() == [9] + [-2] * (N - 2) + [0]


def test_python_launch_gets_the_address_of_a_host_scalar_and_its_error_passes() -> None:
    def call(operands: tuple[int, ...], stream: int, workspace: int) -> None:
        raise ZeroDivisionError(ctypes.c_float.from_address(operands[0]).value)

    program = Program(
        (slot(1, "s", place="host", span_bytes=4),),
        (Launch(LaunchKind.PYTHON, patches=(pointer(0, 0),), call=call),),
        0,
        "cpu",
    )
    d = dispatcher_of(program)
    for value in (2.5, np.float16(2.5), np.array([2.5], np.float32)):
        with pytest.raises(ZeroDivisionError, match=r"2\.5"):
            d.execute({1: value}, None, 0)


def test_two_threads_run_host_functions_at_the_same_time(kernels: Artifact) -> None:
    program = Program(
        (slot(1, "cell", dtype=dtypes.INT32, span_bytes=4),),
        (Launch(LaunchKind.HOST, bytes(8), (pointer(0, 0),), kernels, "meet"),),
        0,
        "cpu",
    )
    d, cell = dispatcher_of(program), np.zeros(1, np.int32)
    threads = [threading.Thread(target=d.execute, args=({1: cell}, None, 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert cell[0] == 2 and not any(t.is_alive() for t in threads)


def test_one_dispatcher_serves_several_threads(kernels: Artifact) -> None:
    d = dispatcher_of(scaled_program(kernels))
    shared = Guarded()
    s = np.array([2.5], np.float32)
    bound = d.bind(shared.pack(s=s), shared.work, 0)
    wrong: list[int] = []

    def work(seed: int) -> None:
        g = Guarded()
        for i in range(200):
            value = float(seed * 1000 + i)
            d.execute(g.pack(s=value), g.work, 0)
            if not g.is_right(value):
                wrong.append(seed)
            bound()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert shared.is_right(2.5)


def test_large_frames_and_many_launches_work(kernels: Artifact) -> None:
    slots = tuple(slot(i, f"t{i}", dtype=dtypes.INT64, span_bytes=8) for i in range(300))
    template = bytes(8) + (123).to_bytes(8, "little") + bytes(200)
    launches = tuple(Launch(LaunchKind.HOST, template, (pointer(0, i),), kernels, "copy8") for i in range(300))
    d = dispatcher_of(Program(slots, launches, 0, "cpu"))
    y = np.zeros(300, np.int64)
    pack = {i: y[i : i + 1] for i in range(300)}
    d.execute(pack, None, 0)
    assert (y == 123).all()
    y[:] = 0
    d.bind(pack, None, 0)()
    assert (y == 123).all()


def test_buffers_and_dispatcher_are_not_leaked(kernels: Artifact) -> None:
    class Key:
        """A tensor object that owns its dispatcher, as a graph does."""

    g, key = Guarded(), Key()
    d = make_dispatcher(scaled_program(kernels), [(key,), (2, "b"), (3, "y"), (4, "s")], [None] * 4, by_uid)
    key.dispatcher = d  # type: ignore[attr-defined]
    pack = g.pack(s=2.5)
    pack[key] = g.a
    before = [sys.getrefcount(x) for x in (g.a, g.b, g.y, g.work)]
    for _ in range(50):
        d.execute(pack, g.work, 0)
        d.bind(pack, g.work, 0)()
        with pytest.raises(BindError):
            d.execute({**pack, "b": 0}, g.work, 0)
    gc.collect()
    assert [sys.getrefcount(x) for x in (g.a, g.b, g.y, g.work)] == before
    watch = weakref.ref(key)
    del key, d, pack
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (pointer(44, 0), "outside of the block"),
        (pointer(0, 9), "there is no slot 9"),
        (Patch(PatchKind.SCALAR, 0, 3, size=8), "cannot copy 8 bytes from tensor 's'"),
        (Patch(PatchKind.SCRATCH, 0, addend=99), "outside of the workspace"),
    ],
)
def test_patch_that_does_not_fit_is_refused_when_the_dispatcher_is_made(
    kernels: Artifact, patch: Patch, message: str
) -> None:
    program = scaled_program(kernels)
    launch = replace(program.launches[0], patches=(patch,))
    with pytest.raises(ArgumentError, match=message):
        dispatcher_of(replace(program, launches=(launch,)))


def test_auto_falls_back_to_python_without_headers(
    kernels: Artifact, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "_modules", [])
    monkeypatch.setattr(toolchain, "python_headers", lambda: "")
    monkeypatch.setattr(logs, "_seen", set())
    settings.use(replace(settings.current(), dispatcher="auto"))
    g = Guarded()
    for _ in range(2):
        d = dispatcher_of(scaled_program(kernels))
        assert isinstance(d, twin.Dispatcher)
    d.execute(g.pack(), g.work, 0)
    assert g.is_right()
    assert sum("slower Python dispatcher" in r.message for r in caplog.records) == 1


def test_wrong_number_of_arguments_is_a_type_error(kernels: Artifact) -> None:
    d = dispatcher_of(scaled_program(kernels))
    with pytest.raises(TypeError):
        d.execute({}, None)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        d.execute({1: 1}, None, "stream")  # type: ignore[arg-type]
