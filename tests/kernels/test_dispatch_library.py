"""Calls of a library in both dispatchers: block, stream, status with the library's text, owner."""

from __future__ import annotations

import ctypes
import gc
import struct
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.errors import ArgumentError, BindError, DeviceError
from fuseplan.runtime import artifacts, toolchain
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind, Program
from tests.kernels.dispatch_harness import Guarded, N, dispatcher_of, pointer, scaled_program, slot

pytestmark = pytest.mark.usefixtures("kind")
LIBRARY = """
#include <stdint.h>
/* y = a * factor + stream, or the status of a negative factor */
int scale(const void *block, void *stream) {
  const struct { const float *a; float *y; int64_t n; float factor; } *p = block;
  if (p->factor < 0) return 7;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->a[i] * p->factor + (float)(uintptr_t)stream;
  return 0;
}
int busy(const void *block, void *stream) { (void)block; (void)stream; return -3; }
"""


class Owner:
    """What a library gives out: a handle that must outlive its calls."""


def text(status: int) -> str:
    return {7: "TOY_NEGATIVE_FACTOR: the factor is below zero"}.get(status, "unknown")


@pytest.fixture(scope="module")
def library() -> Any:
    return toolchain.compile_shared(LIBRARY, label="a library")


def program(library: Any, factor: float = 2.0, **changes: Any) -> Program:
    block = bytes(16) + struct.pack("qf", N, factor)
    launch = Launch(LaunchKind.LIBRARY, block, (pointer(0, 0), pointer(8, 1)), library, "scale", label="toy")
    slots = (slot(1, "a"), slot(3, "y", is_output=True))
    return Program(slots, (replace(launch, **{"status_text": text, **changes}),), 0, "cpu")


@pytest.mark.parametrize("by_address", [False, True])
def test_library_gets_the_block_and_the_stream(library: Any, by_address: bool) -> None:
    changes: dict[str, Any] = {}
    if by_address:
        changes = {"function": artifacts.symbol_address(library, "scale"), "artifact": None, "symbol": ""}
    g, d = Guarded(), dispatcher_of(program(library, **changes))
    d.execute({"a": g.a, "y": g.y}, None, 3)
    np.testing.assert_array_equal(g.y, g.a * np.float32(2) + np.float32(3))
    bound = d.bind({"a": g.a, "y": g.y}, None, 0)
    bound.set_stream(5)
    bound()
    np.testing.assert_array_equal(g.y, g.a * np.float32(2) + np.float32(5))


def test_status_is_an_error_with_the_text_of_the_library(library: Any) -> None:
    g, d = Guarded(), dispatcher_of(program(library, -1.0))
    with pytest.raises(
        DeviceError, match="launch 'toy' failed with status 7: TOY_NEGATIVE_FACTOR: the factor is below"
    ):
        d.execute({"a": g.a, "y": g.y}, None, 0)
    with pytest.raises(DeviceError, match="status 7"):
        d.bind({"a": g.a, "y": g.y}, None, 0)()
    assert g.is_untouched()
    d = dispatcher_of(program(library, symbol="busy", status_text=None))
    with pytest.raises(DeviceError, match="launch 'toy' failed with status -3$"):
        d.execute({"a": g.a, "y": g.y}, None, 0)


def test_no_launch_follows_one_that_failed(library: Any) -> None:
    g, made = Guarded(), program(library)
    failing = replace(made.launches[0], symbol="busy")
    d = dispatcher_of(replace(made, launches=(failing, made.launches[0])))
    with pytest.raises(DeviceError, match="status -3: unknown"):
        d.execute({"a": g.a, "y": g.y}, None, 0)
    assert g.is_untouched()


def test_error_in_the_text_of_a_status_is_raised(library: Any) -> None:
    g = Guarded()
    d = dispatcher_of(program(library, -1.0, status_text=lambda status: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        d.execute({"a": g.a, "y": g.y}, None, 0)


def test_owner_lives_as_long_as_the_dispatcher_and_what_it_bound(library: Any) -> None:
    g, owner = Guarded(), Owner()
    alive = weakref.ref(owner)
    d: Any = dispatcher_of(program(library, owner=owner))
    bound: Any = d.bind({"a": g.a, "y": g.y}, None, 0)
    del owner
    gc.collect()
    assert alive() is not None
    del d
    gc.collect()
    assert alive() is not None
    bound()
    np.testing.assert_array_equal(g.y, g.a * np.float32(2))
    del bound
    gc.collect()
    assert alive() is None


def test_address_is_for_calls_of_a_library_only(library: Any) -> None:
    (launch,) = program(library).launches
    for kind in (LaunchKind.HOST, LaunchKind.MEMSET):
        with pytest.raises(ArgumentError, match="only a call of a library has an address"):
            dispatcher_of(replace(program(library), launches=(replace(launch, kind=kind, function=5),)))
    with pytest.raises(ArgumentError, match="no artifact"):
        dispatcher_of(program(library, artifact=None))


@pytest.mark.parametrize("shift", [0, 4, 16, 64, 124])
def test_slack_at_the_start_of_the_workspace_reaches_its_alignment(kernels: Any, shift: int) -> None:
    g, made = Guarded(), scaled_program(kernels)
    memory = np.full(512, 7, np.uint8)
    start = -memory.ctypes.data % 128 + shift
    need = 4 * N + 124
    workspace, begin = memory[start : start + need], -(memory.ctypes.data + start) % 128
    d = dispatcher_of(replace(made, workspace_bytes=need, workspace_alignment=128, workspace_slack=124))
    for work in (workspace, workspace.ctypes.data):
        memory[:] = 7
        d.execute(g.pack(), work, 0)
        assert g.is_right()
        np.testing.assert_array_equal(workspace[begin : begin + 4 * N].view(np.float32), g.b)
        assert (np.delete(memory, np.s_[start + begin : start + begin + 4 * N]) == 7).all()
    if begin:
        d = dispatcher_of(replace(made, workspace_bytes=need, workspace_alignment=128, workspace_slack=begin - 1))
        with pytest.raises(BindError, match="not a multiple of 128"):
            d.execute(g.pack(), workspace, 0)


def test_scratch_patch_of_a_library_call(library: Any) -> None:
    made = program(library)
    (launch,) = made.launches
    patches = (pointer(0, 0), Patch(PatchKind.SCRATCH, 8, addend=8))
    d = dispatcher_of(replace(made, launches=(replace(launch, patches=patches),), workspace_bytes=4 * N + 8))
    g, work = Guarded(), (ctypes.c_float * (N + 2))()
    d.execute({"a": g.a, "y": g.y}, ctypes.addressof(work), 0)
    np.testing.assert_array_equal(np.frombuffer(work, np.float32)[2:], g.a * np.float32(2))
