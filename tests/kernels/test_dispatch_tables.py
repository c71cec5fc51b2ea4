"""Numbers that are known when a plan is made, in memory of the device: both dispatchers against a driver of our own."""

from __future__ import annotations

import ctypes
import gc
import struct
from typing import Any

import pytest

from fuseplan import dtypes
from fuseplan.engines.triton.kernel import Kernel, ParamList
from fuseplan.engines.triton.launches import parameter_block
from fuseplan.errors import ArgumentError, DeviceError
from tests.kernels.fake_driver import Fake
from tests.kernels.test_dispatch_maps import dispatcher_of, pack, program
from tests.kernels.triton_cases import softmax

pytestmark = pytest.mark.usefixtures("kind")
NUMBERS = struct.pack("<3i", 5, -7, 9)


def tables(*data: bytes, at: int = 128) -> Any:
    """A program whose kernel gets an address of a table where `y` was."""
    made = program()
    kept = tuple(p for p in made.launches[0].patches if p.offset != 128)
    return dispatcher_of(program(patches=kept, tables=tuple((at, d) for d in data)))


class Counts:
    """Allocations and frees since the last look; what earlier tests left is freed before."""

    def __init__(self, fake: Fake) -> None:
        gc.collect()
        self._last = tables(NUMBERS)
        self._fake, self._seen = fake, (0, 0)
        self.new()

    def new(self) -> tuple[int, int]:
        gc.collect()
        last, self._seen = self._seen, (self._fake.get("num_allocations"), self._fake.get("num_frees"))
        return self._seen[0] - last[0], self._seen[1] - last[1]


def address(fake: Fake) -> int:
    return ctypes.c_uint64.in_dll(fake.library, "mapped_pointer").value


def test_kernel_gets_the_address_of_memory_that_holds_the_numbers(fake: Fake) -> None:
    counts = Counts(fake)
    d = tables(NUMBERS)
    d.execute(pack(), 0x40000, 0)
    bound = d.bind(pack(), 0x40000, 0)
    assert ctypes.string_at(address(fake), 12) == NUMBERS
    bound()
    assert counts.new() == (1, 0)


def test_memory_of_a_program_that_is_gone_is_freed_when_the_next_table_is_made(fake: Fake) -> None:
    """Not at once: a collection of garbage may come while a stream is captured."""
    counts = Counts(fake)
    first, second = tables(NUMBERS), tables(NUMBERS)
    assert counts.new() == (2, 0)
    del first
    assert counts.new() == (0, 0)
    third = tables(NUMBERS)
    assert counts.new() == (1, 1)
    for d in (second, third):
        d.execute(pack(), 0x40000, 0)
        assert ctypes.string_at(address(fake), 12) == NUMBERS


@pytest.mark.parametrize(("data", "at"), [(NUMBERS, 140), (NUMBERS, -1), (b"", 128)])
def test_table_that_does_not_fit_is_refused_before_memory_is_taken(fake: Fake, data: bytes, at: int) -> None:
    counts = Counts(fake)
    with pytest.raises(ArgumentError, match="table that is empty, or outside"):
        tables(data, at=at)
    assert counts.new() == (0, 0)


def test_failed_allocation_says_so_and_frees_nothing(fake: Fake) -> None:
    counts = Counts(fake)
    with pytest.raises(DeviceError, match="cuMemAlloc"):
        tables(NUMBERS, bytes(2 << 20))
    assert counts.new() == (1, 0)


def test_parameter_of_a_kernel_as_table() -> None:
    params = ParamList(softmax(2, 8, dtypes.FLOAT))
    assert params.table("tiles", [1, 2, -3]) == "tiles"
    kernel = Kernel("f", "", params.in_order(), (), 1, 4)
    template, offsets, patches, found = parameter_block(kernel)
    assert (offsets[0], patches, found) == (0, (), ((0, struct.pack("<3i", 1, 2, -3)),))
    assert template[:8] == bytes(8)
