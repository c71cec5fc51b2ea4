"""Tensor maps and launch attributes in both dispatchers, against a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import replace
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.errors import ArgumentError, DeviceError, MisalignedError
from fuseplan.runtime.dispatch import Dispatcher, make_dispatcher
from fuseplan.runtime.launch import Attribute, Launch, LaunchKind, Patch, PatchKind, Program, Slot, TensorMap
from tests.kernels.fake_driver import Fake
from tests.kernels.test_dispatch_cuda import cubin

pytestmark = pytest.mark.usefixtures("kind")
MAP = TensorMap(dtypes.HALF, (16, 8), (48,), (16, 4), swizzle=1, promotion=2, fill=1)
SPAN = 2 * 16 + 7 * 48


def program(
    tensor_map: TensorMap = MAP, slot: int = 0, addend: int = 0, span: int = SPAN, **changes: Any
) -> Program:  # fmt: skip
    """mapped(map of x, y, int) with two inputs, an output and a host scalar."""
    slots = (
        Slot(1, "x", dtypes.HALF, span, "cuda", alignment=16),
        Slot(2, "w", dtypes.HALF, span, "cuda", alignment=16),
        Slot(3, "y", dtypes.HALF, SPAN, "cuda", is_output=True),
        Slot(4, "s", dtypes.INT32, 4, "host"),
    )
    patches = (
        Patch(PatchKind.TENSOR_MAP, 0, slot, addend, map=tensor_map),
        Patch(PatchKind.POINTER, 128, 2),
        Patch(PatchKind.SCALAR, 136, 3, size=4),
    )
    launch = Launch(LaunchKind.CUDA, bytes(144), patches, cubin(), "mapped", param_offsets=(0, 128, 136), label="m")
    return Program(slots, (replace(launch, **changes),), 1024, "cuda", workspace_alignment=16)


def dispatcher_of(made: Program) -> Any:
    keys = [(s.uid,) for s in made.slots]
    d: Dispatcher = make_dispatcher(made, keys, [None] * len(keys), dict)  # type: ignore[arg-type]
    return d


def pack(x: int = 0x10000, w: int = 0x20000, s: int = 5) -> dict[object, Any]:
    return {1: x, 2: w, 3: 0x30000, 4: memoryview(struct.pack("i", s)).cast("i")}


def test_map_is_encoded_as_described_and_lies_where_the_driver_wants_it(fake: Fake) -> None:
    d = dispatcher_of(program(addend=32, span=SPAN + 32))
    d.execute(pack(), 0x40000, 0)
    (m,) = fake.maps
    assert (m.address, m.rank, m.type) == (0x10020, 2, 6)
    assert (list(m.dims)[:2], list(m.strides)[:1]) == ([16, 8], [48])
    assert (list(m.box)[:2], list(m.steps)[:2]) == ([16, 4], [1, 1])
    assert (m.interleave, m.swizzle, m.promotion, m.fill) == (0, 1, 2, 1)
    assert ctypes.c_uint64.in_dll(fake.library, "mapped_pointer").value == 0x30000


def test_map_is_encoded_again_for_another_address_only(fake: Fake) -> None:
    d = dispatcher_of(program())
    for x in (0x10000, 0x10000, 0x50000, 0x50000, 0x10000):
        d.execute(pack(x), 0x40000, 0)
    assert [m.address for m in fake.maps] == [0x10000, 0x10000, 0x50000, 0x50000, 0x10000]
    assert d.num_encodes == fake.get("num_encodes") == 3


def test_bound_calls_keep_their_maps_and_read_scalars_again(fake: Fake) -> None:
    d = dispatcher_of(program())
    s = ctypes.c_int(1)
    bound = [d.bind({**pack(x), 4: ctypes.addressof(s)}, 0x40000, 0) for x in (0x10000, 0x50000)]
    for s.value in (1, 2):
        for call in bound:
            call()
    assert [m.address for m in fake.maps] == [0x10000, 0x50000] * 2
    assert list((ctypes.c_int * 4).in_dll(fake.library, "mapped_int")) == [1, 1, 2, 2]
    assert d.num_encodes == fake.get("num_encodes") == 2


def test_map_is_encoded_with_the_context_of_the_device_and_the_former_one_comes_back(fake: Fake) -> None:
    fake.context = 555
    d = dispatcher_of(program())
    d.bind(pack(), 0x40000, 0)
    assert d.num_encodes == 1 and fake.context == 555


TWO = replace(MAP, dims=(16, 8, 2), box=(16, 4, 2), second=(1, 16), swap_offset=140)


@pytest.mark.parametrize(("x", "w", "swapped"), [(0x10000, 0x20000, 0), (0x20000, 0x10000, 1)])
def test_two_buffers_are_one_map_whose_outer_stride_is_their_distance(fake: Fake, x: int, w: int, swapped: int) -> None:
    d = dispatcher_of(program(TWO, addend=16, span=SPAN + 16, param_offsets=(0, 128, 140)))
    for _ in range(2):
        d.execute(pack(x, w), 0x40000, 0)
    m = fake.maps[1]
    assert (m.address, m.rank, list(m.dims), list(m.strides)) == (0x10010, 3, [16, 8, 2], [48, 0x10000])
    assert list((ctypes.c_int * 2).in_dll(fake.library, "mapped_int")) == [swapped, swapped]
    assert d.num_encodes == 1
    d.execute(pack(x, w + 0x100), 0x40000, 0)
    assert d.num_encodes == 2


@pytest.mark.parametrize("w", [0x10008, 0x10000, 0x10000 + (1 << 40)], ids=["odd", "same", "far"])
def test_two_buffers_that_are_no_axis_take_the_program_for_any_address(fake: Fake, w: int) -> None:
    made = program(replace(TWO, second=(1, 0)))
    slots = (*(replace(s, alignment=8) for s in made.slots[:2]), *made.slots[2:])
    d = dispatcher_of(replace(made, slots=slots))
    with pytest.raises(MisalignedError, match="launch 'm': two buffers .* bytes apart"):
        d.execute(pack(0x10000, w), 0x40000, 0)
    with pytest.raises(MisalignedError):
        d.bind(pack(0x10000, w), 0x40000, 0)
    assert fake.maps == [] and d.num_encodes == 0


def test_map_of_the_workspace(fake: Fake) -> None:
    d = dispatcher_of(program(slot=-1, addend=256))
    d.execute(pack(), 0x40000, 0)
    assert fake.maps[0].address == 0x40100


def test_map_that_the_driver_refuses_is_an_error_before_any_launch(fake: Fake) -> None:
    d = dispatcher_of(program())
    fake.set("fail_encode", 1)
    with pytest.raises(DeviceError, match=r"launch 'm' failed with CUDA error 1: .* \(a tensor map\)"):
        d.execute(pack(), 0x40000, 0)
    fake.set("fail_encode", 0)
    d.execute(pack(), 0x40000, 0)
    assert len(fake.maps) == 1 and d.num_encodes == 1


def test_threads_with_other_buffers_have_maps_of_their_own(fake: Fake) -> None:
    d = dispatcher_of(program())
    at = [0x100000 * (k + 1) for k in range(4)]

    def work(x: int) -> None:
        for _ in range(15):
            d.execute({**pack(x), 3: x + 0x80000}, 0x40000, 0)

    threads = [threading.Thread(target=work, args=(x,)) for x in at]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    written = list((ctypes.c_uint64 * 60).in_dll(fake.library, "mapped_pointer"))
    pairs = [(m.address, y) for m, y in zip(fake.maps, written, strict=True)]
    assert sorted(pairs) == sorted([(x, x + 0x80000) for x in at] * 15)
    assert d.num_encodes >= 4


BAD_MAPS: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"tensor_map": replace(MAP, dims=(1,) * 6, strides=(16,) * 5, box=(1,) * 6)}, "6 dims"),
    "strides": ({"tensor_map": replace(MAP, strides=())}, "0 strides"),
    "box": ({"tensor_map": replace(MAP, box=(16,))}, "a box of 1"),
    "zero": ({"tensor_map": replace(MAP, dims=(16, 0))}, r"dims \(16, 0\)"),
    "span": ({"tensor_map": replace(MAP, dims=(16, 9))}, "do not fit a buffer of 368"),
    "addend": ({"addend": 16}, "368 bytes from 16 on"),
    "addend below": ({"addend": -16}, "from -16 on"),
    "no slot": ({"slot": 9}, "no slot 9"),
    "host scalar": ({"slot": 3}, "no slot 3 in the device's memory"),
    "second": ({"tensor_map": replace(TWO, second=(3, 0))}, "no slot 3"),
    "three": ({"tensor_map": replace(TWO, dims=(16, 4, 3))}, "3 entries along the axis of its two buffers"),
    "swap": ({"tensor_map": replace(TWO, second=(1, 0), swap_offset=142)}, "swap_offset"),
    "block": ({"template": bytes(120)}, "outside of the block"),
    "host": ({"kind": LaunchKind.HOST}, "of a CUDA launch"),
}


@pytest.mark.parametrize("case", BAD_MAPS)
def test_map_that_does_not_fit_is_refused_when_the_dispatcher_is_made(fake: Fake, case: str) -> None:
    changes, message = BAD_MAPS[case]
    with pytest.raises(ArgumentError, match=message):
        dispatcher_of(program(**changes))


def test_map_at_an_odd_place_of_the_block_is_refused(fake: Fake) -> None:
    (launch,) = program().launches
    moved = replace(launch, patches=(replace(launch.patches[0], offset=8),))
    with pytest.raises(ArgumentError, match="not at a multiple of 64"):
        dispatcher_of(replace(program(), launches=(moved,)))


def test_attributes_reach_the_driver(fake: Fake) -> None:
    pairs = (
        (Attribute.CLUSTER, (2, 1, 3)),
        (Attribute.PROGRAMMATIC_SERIALIZATION, (1,)),
        (Attribute.COOPERATIVE, (1,)),
    )
    dispatcher_of(program(attributes=pairs)).execute(pack(), 0x40000, 0)
    assert fake.attributes == [(4, (2, 1, 3)), (6, (1, 0, 0)), (2, (1, 0, 0))]
    dispatcher_of(program()).execute(pack(), 0x40000, 0)
    assert fake.attributes == []


@pytest.mark.parametrize("values", [(), (1, 2, 3, 4), (-1,)])
def test_attribute_with_other_than_three_numbers_is_refused(fake: Fake, values: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="attribute CLUSTER"):
        dispatcher_of(program(attributes=((Attribute.CLUSTER, values),)))
