"""Both dispatchers on CUDA programs, against a driver of our own that writes down what it is asked."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.errors import ArgumentError, BindError, DeviceError
from fuseplan.runtime import cuda, device
from fuseplan.runtime.dispatch import Dispatcher, make_dispatcher
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program, Slot
from tests.kernels.fake_driver import Fake

pytestmark = pytest.mark.usefixtures("kind")


def cubin(text: bytes = b"cubin one") -> Artifact:
    return Artifact("cubin", text.hex().ljust(16, "0"), "sm_90", text)


def program(index: int = 0, shared_bytes: int = 0) -> Program:
    """y is zeroed, then kernel(x, scratch + 64, s) runs."""
    slots = (
        Slot(1, "x", dtypes.FLOAT, 64, "cuda", index),
        Slot(2, "y", dtypes.FLOAT, 64, "cuda", index, is_output=True),
        Slot(3, "s", dtypes.FLOAT, 4, "host"),
    )
    patches = (
        Patch(PatchKind.POINTER, 0, 0, addend=8),
        Patch(PatchKind.SCRATCH, 64, addend=64),
        Patch(PatchKind.SCALAR, 12, 2, size=4),
    )
    kernel = Launch(
        LaunchKind.CUDA,
        bytes(72),
        patches,
        cubin(),
        "kernel",
        param_offsets=(0, 64, 12),
        grid=(3, 4, 5),
        block=(128, 1, 2),
        shared_bytes=shared_bytes,
        label="k",
    )
    clear = Launch(LaunchKind.MEMSET, patches=(Patch(PatchKind.POINTER, 0, 1),), memset_value=-1, memset_words=16)
    return Program(slots, (clear, kernel), 256, "cuda", index)


def dispatcher_of(made: Program) -> Dispatcher:
    return make_dispatcher(made, [(s.uid,) for s in made.slots], [None] * len(made.slots), dict)  # type: ignore[arg-type]


PACK: dict[object, Any] = {1: 0x10000, 2: 0x20000, 3: 1.5}


def test_devices_are_described(fake: Fake) -> None:
    first, second = device.cuda_devices()
    assert (first.name, first.arch, first.sm_count, first.sm_version) == ("NVIDIA H200", "sm_90", 132, 90)
    assert (first.shared_bytes, first.l2_bytes, first.memory_gbps) == (232448, 60 << 20, 4200.0)
    assert str(second) == "cuda:1" and second.sm_version == 120
    assert second.memory_gbps == pytest.approx(0.8 * 64.0)
    assert second.peak_gflops == pytest.approx(0.8 * 2 * 128 * 10 * 1.5)
    assert device.device_of("cuda") == first and device.device_of("cuda:1") == second
    with pytest.raises(DeviceError, match=r"'cuda:2'.*cuda:1 \(Unheard Of\)"):
        device.device_of("cuda:2")


@pytest.mark.parametrize("form", ["execute", "bind"])
def test_launches_reach_the_driver_as_described(fake: Fake, form: str) -> None:
    d = dispatcher_of(program(shared_bytes=1000))
    if form == "execute":
        d.execute(PACK, 0x30000, 99)
    else:
        d.bind(PACK, 0x30000, 99)()
    clear, kernel = fake.calls
    assert (clear.kind, clear.a, clear.b, clear.words, clear.stream) == (2, 0x20000, 0xFFFFFFFF, 16, 99)
    assert (kernel.kind, kernel.a, kernel.b, kernel.s) == (1, 0x10008, 0x30040, 1.5)
    assert (list(kernel.grid), list(kernel.block), kernel.shared) == ([3, 4, 5], [128, 1, 2], 1000)
    assert (kernel.stream, kernel.context, kernel.function) == (99, 1000, 8000)


def test_bound_call_reads_scalars_again_and_changes_stream(fake: Fake) -> None:
    s = ctypes.c_float(1.0)
    bound = dispatcher_of(program()).bind({**PACK, 3: ctypes.addressof(s)}, 0x30000, 1)
    bound()
    s.value = 2.0
    bound.set_stream(2)
    bound()
    assert [(c.s, c.stream) for c in fake.calls if c.kind == 1] == [(1.0, 1), (2.0, 2)]


def test_context_of_the_device_is_current_for_the_launch_and_the_former_one_comes_back(fake: Fake) -> None:
    d = dispatcher_of(program(index=1))
    fake.context = 555
    d.execute(PACK, 0x30000, 0)
    assert {c.context for c in fake.calls} == {1001}
    assert fake.context == 555
    fake.context = 1001
    fake.set("num_switches", 0)
    d.execute(PACK, 0x30000, 0)
    assert fake.get("num_switches") == 0  # already right: nothing to do
    assert fake.get("num_retains") == 1


def test_cubin_is_loaded_once_per_device_and_shared_memory_is_asked_for(fake: Fake) -> None:
    dispatcher_of(program())
    dispatcher_of(program())
    assert fake.get("num_loads") == 1
    dispatcher_of(program(index=1))
    assert fake.get("num_loads") == 2
    limit = ctypes.c_uint64.in_dll(fake.library, "shared_limit")
    limit.value = 0
    dispatcher_of(program(shared_bytes=48 << 10))
    assert limit.value == 0
    dispatcher_of(program(shared_bytes=200_000))
    dispatcher_of(program(shared_bytes=100_000))
    assert limit.value == 200_000


def test_cubin_that_cannot_be_loaded_is_an_error_with_advice(fake: Fake) -> None:
    with pytest.raises(DeviceError, match=r"cuLibraryLoadData failed with CUDA error 200: CUDA_ERROR_SOME: in words"):
        cuda.load_cubin(b"garbage", "kernel")
    with pytest.raises(DeviceError, match="cuLibraryGetKernel"):
        cuda.load_cubin(b"cubin two", "no_such_kernel")
    assert fake.get("num_unloads") == 1
    with pytest.raises(DeviceError, match="cuFuncSetAttribute failed with CUDA error 1"):
        cuda.load_cubin(b"cubin three", "kernel", 300_000)
    with pytest.raises(DeviceError, match="700: CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        cuda.synchronize(13)
    assert "compute-sanitizer" in caught.value.fix


def test_launch_that_fails_names_the_launch_and_the_context_comes_back(fake: Fake) -> None:
    d = dispatcher_of(program())
    fake.context = 555
    fake.set("fail_next", 701)
    with pytest.raises(
        DeviceError, match=r"launch 'k' failed with CUDA error 701: CUDA_ERROR_SOME: in words"
    ) as caught:
        d.execute(PACK, 0x30000, 0)
    assert "smaller tile" in caught.value.fix
    assert fake.context == 555
    d.execute(PACK, 0x30000, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: 0}, r"'x' \(uid 1\) has a null address"),
        ({1: memoryview(bytes(64))}, r"'x' \(uid 1\) must be on cuda:0, its buffer is on cpu"),
        ({2: None}, r"'y' \(uid 2\) has no buffer"),
        ({3: 7}, "which would be read as an address"),
    ],
    ids=["null", "host memory", "missing", "small integer"],
)
def test_refused_pack_launches_nothing(fake: Fake, change: dict[object, Any], message: str) -> None:
    d = dispatcher_of(program())
    with pytest.raises(BindError, match=message):
        d.execute({**PACK, **change}, 0x30000, 0)
    with pytest.raises(BindError, match="workspace is on cpu, this plan runs on cuda:0"):
        d.execute(PACK, bytearray(256), 0)
    assert fake.calls == []


class OnDevice:
    """A tensor of a CUDA device without memory of its own."""

    def __init__(self, index: int, nbytes: int) -> None:
        self.shape, self.dtype, self.device = (nbytes // 4,), "torch.float32", OnDevice.Place(index)

    class Place:
        """A device of torch."""

        type = "cuda"

        def __init__(self, index: int) -> None:
            self.index = index

    def data_ptr(self) -> int:
        return 0x10000

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def element_size(self) -> int:
        return 4


def test_tensor_of_another_device_or_too_small_is_refused(fake: Fake) -> None:
    d = dispatcher_of(program(index=1))
    d.execute({**PACK, 1: OnDevice(1, 64)}, OnDevice(1, 256), 0)
    assert fake.calls[1].a == 0x10008
    for buffer, message in (
        (OnDevice(0, 64), "must be on cuda:1, its buffer is on cuda:0"),
        (OnDevice(1, 60), "has 60"),
    ):
        with pytest.raises(BindError, match=message):
            d.execute({**PACK, 1: buffer}, 0x30000, 0)
    with pytest.raises(BindError, match="workspace is on cuda:0, this plan runs on cuda:1"):
        d.execute(PACK, OnDevice(0, 256), 0)
    assert len(fake.calls) == 2


def test_address_of_a_host_scalar_is_refused_for_a_kernel(fake: Fake) -> None:
    made = program()
    kernel = replace(made.launches[1], patches=(Patch(PatchKind.POINTER, 0, 2),))
    with pytest.raises(ArgumentError, match="'s' is on the host"):
        dispatcher_of(replace(made, launches=(kernel,)))


def test_value_of_the_graph_is_copied_into_the_block(fake: Fake) -> None:
    made = program()
    fixed = replace(made.slots[2], value=struct.pack("f", 4.0))
    d = dispatcher_of(replace(made, slots=(*made.slots[:2], fixed)))
    d.execute({1: 0x10000, 2: 0x20000}, 0x30000, 0)
    d.bind({1: 0x10000, 2: 0x20000}, 0x30000, 0)()
    assert [c.s for c in fake.calls if c.kind == 1] == [4.0, 4.0]


def test_program_without_a_driver_is_refused_when_its_dispatcher_is_made(kind: str) -> None:
    cuda.set_library("libfuseplan-no-such-driver.so")
    try:
        with pytest.raises(DeviceError, match="driver cannot be loaded"):
            dispatcher_of(program())
    finally:
        cuda.set_library(None)
