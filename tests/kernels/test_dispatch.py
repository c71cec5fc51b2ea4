"""Both dispatchers: what is accepted and what is refused; they must behave alike."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from fuseplan.errors import BindError, MisalignedError
from fuseplan.runtime.dispatch import make_dispatcher, twin
from fuseplan.runtime.launch import Artifact
from tests.kernels.dispatch_harness import Guarded, N, by_uid, dispatcher_of, scaled_program

pytestmark = pytest.mark.usefixtures("kind")


def test_kind_of_dispatcher_is_the_one_asked_for(kernels: Artifact, kind: str) -> None:
    assert isinstance(dispatcher_of(scaled_program(kernels)), twin.Dispatcher) == (kind == "python")


@pytest.mark.parametrize("form", ["numpy", "torch", "parameter", "address", "memory", "uid", "dlpack"])
def test_execute_computes_with_each_kind_of_buffer(kernels: Artifact, form: str) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    pack, work = g.pack(), g.work
    if form in ("torch", "parameter"):
        torch = pytest.importorskip("torch")
        pack = {k: torch.from_numpy(v) if k != "s" else v for k, v in pack.items()}
        if form == "parameter":
            pack["a"] = torch.nn.Parameter(pack["a"])
        work = torch.from_numpy(g.work)
    elif form == "address":
        pack = {k: v.ctypes.data if k != "s" else v for k, v in pack.items()}
        work = g.work.ctypes.data
    elif form == "memory":
        pack.update(a=array.array("f", g.a), b=g.b.tobytes(), y=memoryview(g.y))
        work = bytearray(4 * N)
    elif form == "uid":
        pack = by_uid(pack)
        pack.update({99: object(), None: 1})  # unknown uids and None are ignored
    elif form == "dlpack":
        pack["a"] = type("Other", (), {"__dlpack__": g.a.__dlpack__, "__dlpack_device__": g.a.__dlpack_device__})()
    for _ in range(2):
        d.execute(pack, work, 0)
        assert g.is_right()


def test_defaults_are_used_where_the_pack_has_nothing(kernels: Artifact) -> None:
    g = Guarded()
    d = dispatcher_of(scaled_program(kernels), [None, g.b, None, None])
    pack = g.pack()
    del pack["b"]
    d.execute(pack, g.work, 0)
    assert g.is_right()
    d.execute({"a": g.a, "y": g.y, "s": 2.5, "b": np.zeros(N, np.float32)}, g.work, 0)
    np.testing.assert_array_equal(g.y, g.a * np.float32(2.5))


def test_tensor_objects_are_keys_and_two_buffers_of_one_are_for_normalise_to_judge(kernels: Artifact) -> None:
    g, program, tensor = Guarded(), scaled_program(kernels), object()
    keys: list[tuple[object, ...]] = [(tensor, 1, "a"), (2, "b"), (3, "y"), (4, "s")]
    asked: list[object] = []

    def normalise(pack: object) -> dict[int, object]:
        asked.append(pack)
        return {1: g.a, 2: g.b, 3: g.y, 4: 2.5}

    d = make_dispatcher(program, keys, [None] * 4, normalise)
    d.execute({tensor: g.a, 2: g.b, 3: g.y, 4: 2.5, 99: None}, g.work, 0)
    assert g.is_right() and not asked
    d.execute({tensor: g.a, 1: np.zeros(N, np.float32), 2: g.b, 3: g.y, 4: 2.5}, g.work, 0)
    assert g.is_right() and len(asked) == 1


REFUSALS: dict[str, tuple[Any, str]] = {
    "missing": (lambda g: {k: v for k, v in g.pack().items() if k != "b"}, r"tensor 'b' \(uid 2\) has no buffer"),
    "none": (lambda g: g.pack(b=None), r"tensor 'b' \(uid 2\) has no buffer"),
    "list": (lambda g: [g.a, g.b, g.y], "not a dict"),
    "unknown name": (lambda g: g.pack(z=g.a), "unknown name z"),
    "type": (lambda g: g.pack(b=g.b.astype(np.float64)), r"'b' \(uid 2\) has type FLOAT, its buffer has DOUBLE"),
    "byte order": (lambda g: g.pack(b=g.b.astype(">f4")), "its buffer has >f4"),
    "short": (lambda g: g.pack(y=g.y[:-1]), r"'y' \(uid 3\) spans 32 bytes .* has 28"),
    "strided short": (lambda g: g.pack(b=g.b[::-1]), r"'b' \(uid 2\) spans 32 bytes"),
    "null": (lambda g: g.pack(b=0), r"'b' \(uid 2\) has a null address"),
    "no buffer": (lambda g: g.pack(b="text"), r"'b' \(uid 2\): an object of type str is not a buffer"),
    "float": (lambda g: g.pack(b=1.0), r"'b' \(uid 2\): an object of type float is not a buffer"),
    "read-only": (lambda g: g.pack(y=bytes(4 * N)), r"'y' \(uid 3\) is an output, its buffer is read-only"),
    "scalar type": (lambda g: g.pack(s=np.ones(1)), r"'s' \(uid 4\) has type FLOAT, its buffer has DOUBLE"),
    "scalar integer": (lambda g: g.pack(s=2), r"'s' \(uid 4\) got the integer 2, which would be read as an address"),
    "scalar empty": (lambda g: g.pack(s=np.ones(0, np.float32)), r"'s' \(uid 4\)"),
    "negative address": (lambda g: g.pack(b=-5), r"'b' \(uid 2\)"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_pack_is_refused_before_anything_is_written(kernels: Artifact, case: str) -> None:
    make, message = REFUSALS[case]
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    for call in (d.execute, d.bind):
        with pytest.raises(BindError, match=message):
            call(make(g), g.work, 0)
        assert g.is_untouched()


def test_torch_refusals_name_the_fault(kernels: Artifact) -> None:
    torch = pytest.importorskip("torch")
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    negated = torch.zeros(N, dtype=torch.cfloat).conj().imag
    for tensor, message in (
        (torch.zeros(N, dtype=torch.half), "its buffer has HALF"),
        (torch.zeros(N, device="meta"), "meta device"),
        (negated, "negated"),
        (torch.zeros(N - 1), "its buffer has 28"),
        (torch.zeros(1).expand(N), "its buffer has 4"),
        (torch.zeros(N, N).to_sparse(), "sparse"),
    ):
        with pytest.raises(BindError, match=message):
            d.execute(g.pack(b=tensor), g.work, 0)
        assert g.is_untouched()


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (None, "needs a workspace of 32 bytes, there is none"),
        (np.zeros(N - 1, np.float32), "has 28 bytes, this plan needs 32"),
        (np.zeros((N, 2), np.float32)[:, 0], "not contiguous"),
        (0, "null address"),
        ("text", "workspace: an object of type str is not a buffer"),
        (bytes(4 * N), "read-only"),
    ],
    ids=repr,
)
def test_bad_workspace_is_refused_before_anything_is_written(kernels: Artifact, work: Any, message: str) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    with pytest.raises(BindError, match=message):
        d.execute(g.pack(), work, 0)
    assert g.is_untouched()


def test_larger_buffers_and_other_dims_are_accepted(kernels: Artifact) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels))
    d.execute(g.pack(a=g.a.reshape(2, 4), b=np.concatenate([g.b, g.b])), np.zeros(99, np.int8), 0)
    assert g.is_right()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_buffer_with_gaps_is_refused_only_where_the_tensor_has_values_in_them(kernels: Artifact, library: str) -> None:
    g, program = Guarded(), scaled_program(kernels)
    keys, wide = [(s.uid, s.name) for s in program.slots], np.random.default_rng(1).random((N, 4), np.float32)
    array: Any = wide if library == "numpy" else pytest.importorskip("torch").from_numpy(wide)
    packed = make_dispatcher(program, keys, [None] * 4, by_uid, [4 * N, 4 * N, 4 * N, 4])
    for view, run in ((array[:, 1], 4), (array[:, :2], 8), (array[::2], 16), (array.T[:3], 12)):
        with pytest.raises(BindError, match=rf"'a' \(uid 1\) has {4 * N} bytes in a row.*a gap after {run}"):
            packed.execute(g.pack(a=view), g.work, 0)
        assert g.is_untouched()
    g.a = wide.ravel()[:N].copy()  # what the kernel reads, whatever the view's axes
    in_pairs = make_dispatcher(program, keys, [None] * 4, by_uid, [8, 4 * N, 4 * N, 4])
    for dispatcher, view in ((packed, array.T), (packed, array[: N // 2]), (in_pairs, array[:, :2])):
        dispatcher.execute(g.pack(a=view), g.work, 0)
        assert g.is_right()


def test_misaligned_address_has_its_own_error(kernels: Artifact) -> None:
    g, d = Guarded(), dispatcher_of(scaled_program(kernels, alignment=64))
    memory = np.zeros(N + 32, np.float32)
    start = -(memory.ctypes.data // 4) % 16
    d.execute(g.pack(y=memory[start : start + N]), g.work, 0)
    g.work[:] = 7
    for bad in (memory[start + 1 : start + 1 + N], memory.ctypes.data + 4 * (start + 1)):
        with pytest.raises(MisalignedError, match="'y'.*not a multiple of 64"):
            d.execute(g.pack(y=bad), g.work, 0)
    assert g.is_untouched()
