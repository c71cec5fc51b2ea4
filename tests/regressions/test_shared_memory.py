"""Buffers that overlap, have other strides, are known to autograd, or hold eight booleans a byte: right or refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan import settings
from fuseplan.errors import BindError
from fuseplan.runtime import toolchain

FLOAT, BOOLEAN = cudnn.data_type.FLOAT, cudnn.data_type.BOOLEAN
WORK = np.empty(1 << 16, np.uint8)
Array = Any


@pytest.fixture(autouse=True, params=["native", "python"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both dispatchers."""
    if request.param == "native" and not (toolchain.has_compiler() and toolchain.python_headers()):
        pytest.skip("needs a C compiler and Python's headers")
    settings.use(replace(settings.Settings.from_environment(), dispatcher=request.param))
    yield request.param
    settings.use(None)


def unary(dim: list[int], stride: list[int], out_stride: list[int] | None = None) -> tuple[Any, Any, Any]:
    """A built graph y = -x."""
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT)
    x = g.tensor(dim=dim, stride=stride)
    y = g.neg(x).set_output(True).set_dim(dim).set_stride(out_stride or stride)
    g.build()
    return g, x, y


def calls(g: Any) -> list[Callable[[Any], object]]:
    """`execute`, and `bind` with one call of what it gives."""
    return [lambda pack: g.execute(pack, WORK), lambda pack: g.bind(pack, WORK)()]


def test_output_that_overlaps_an_input_partly_is_refused_at_every_distance() -> None:
    g, x, y = unary([16], [1])
    memory = np.arange(64, dtype=np.float32)
    for shift, call in itertools.product(range(-20, 21), calls(g)):
        before = memory.copy()
        a, b = memory[24:40], memory[24 + shift : 40 + shift]
        if shift == 0 or abs(shift) >= 16:
            want = -a
            call({x: a, y: b})
            assert (b == want).all()
        else:
            with pytest.raises(BindError, match="output 'neg.0::OUT_0'.* overlaps that of input 'tensor_0'"):
                call({x: a, y: b})
            assert (memory == before).all()


def test_interleaved_buffers_without_a_common_element_are_right() -> None:
    g, x, y = unary([4, 3], [8, 1])
    memory = np.zeros((4, 8), np.float32)
    for first, second in itertools.permutations([0, 3, 5], 2):
        for call in calls(g):
            memory[:] = np.arange(32).reshape(4, 8)
            want = -memory[:, first : first + 3]
            call_it = lambda c=call, a=first, b=second: c({x: memory[:, a : a + 3], y: memory[:, b : b + 3]})  # noqa: E731
            if abs(first - second) < 3:
                with pytest.raises(BindError, match="overlaps"):
                    call_it()
            else:
                for _ in range(2):
                    call_it()
                    assert (memory[:, second : second + 3] == want).all()


def test_output_in_the_place_of_an_input_needs_its_elements_in_place() -> None:
    memory = np.arange(16, dtype=np.float32)
    g, x, y = unary([4, 4], [4, 1])
    for call in calls(g):
        want = -memory
        call({x: memory, y: memory})
        assert (memory == want).all()
    g, x, y = unary([4, 4], [4, 1], [1, 4])
    for call in calls(g):
        before = memory.copy()
        with pytest.raises(BindError, match="not element by element"):
            call({x: memory, y: memory})
        assert (memory == before).all()


def test_two_outputs_in_one_buffer_and_a_broadcast_input_inside_of_an_output_are_refused() -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT)
    x, row = g.tensor(dim=[4, 8]), g.tensor(dim=[1, 8])
    first, second = g.add(x, row).set_output(True), g.neg(x).set_output(True)
    g.build()
    memory, a, b = np.zeros(64, np.float32), np.ones(32, np.float32), np.ones(8, np.float32)
    for call in calls(g):
        for pack in (
            {x: a, row: b, first: memory[:32], second: memory[:32]},
            {x: a, row: b, first: memory[:32], second: memory[8:40]},
            {x: a, row: memory[8:16], first: memory[:32], second: memory[32:]},
            {x: a, row: memory[:8], first: memory[:32], second: memory[32:]},
        ):
            with pytest.raises(BindError, match="overlaps"):
                call(pack)
            assert not memory.any()
        call({x: a, row: b, first: memory[:32], second: memory[32:]})
        assert (memory[:32] == 2).all() and (memory[32:] == -1).all()
        memory[:] = 0


def test_workspace_that_is_part_of_a_buffer_is_refused() -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT)
    x = g.tensor(dim=[1, 8, 8])
    y = g.matmul(g.matmul(x, x), x).set_output(True)
    g.build()
    need = g.get_workspace_size()
    assert need > 0
    memory = np.zeros(need + 256, np.uint8)
    a = np.ones((1, 8, 8), np.float32)
    with pytest.raises(BindError, match="workspace overlaps"):
        g.execute({x: a, y: memory[need - 4 : need + 252].view(np.float32)}, memory)
    with pytest.raises(BindError, match="workspace overlaps"):
        g.bind({x: a, y: memory[:256].view(np.float32)}, memory)
    g.execute({x: a, y: memory[need:].view(np.float32)}, memory[:need])
    assert (memory[need:].view(np.float32) == 64).all()


LAYOUTS = [
    ([2, 3, 4, 5], [60, 1, 15, 3]),
    ([2, 3, 4, 5], [60, 20, 5, 1]),
    ([4, 4], [1, 4]),
    ([1, 3, 4], [7, 1, 3]),
    ([3, 1, 4], [4, 9, 1]),
    ([3, 4], [0, 1]),
]


@pytest.mark.parametrize(("dim", "stride"), LAYOUTS, ids=str)
@pytest.mark.parametrize("library", ["numpy", "torch", "dlpack"])
def test_declared_dims_with_other_strides_are_refused(dim: list[int], stride: list[int], library: str) -> None:
    torch = pytest.importorskip("torch") if library == "torch" else None
    g, x, y = unary(dim, stride, _packed(dim))
    rng = np.random.default_rng(3)
    axes = range(len(dim))
    made = 0
    for order in itertools.permutations(axes):
        source = rng.random([dim[k] for k in order], dtype=np.float32).transpose(np.argsort(order))
        agrees = all(d == 1 or s // 4 == t for d, s, t in zip(dim, source.strides, stride, strict=True))
        given: Any = torch.from_numpy(source) if torch else source if library == "numpy" else OnlyDlpack(source)
        for call in calls(g):
            out = np.full(dim, 7, np.float32)
            if agrees:
                call({x: given, y: out})
                assert (out == -source).all()
                made += 1
            else:
                with pytest.raises(BindError, match=r"has strides .*, its buffer of the same dims"):
                    call({x: given, y: out})
                assert (out == 7).all()
    assert made or 0 in stride


class OnlyDlpack:
    """An array that tells its memory through DLPack only."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def _packed(dim: list[int]) -> list[int]:
    return [int(np.prod(dim[i + 1 :])) for i in range(len(dim))]


def test_equal_span_under_other_dims_is_accepted() -> None:
    g, x, y = unary([2, 3, 4, 5], [60, 1, 15, 3])
    a = np.random.default_rng(4).random(120, dtype=np.float32)
    for call in calls(g):
        for dim in ([120], [2, 60], [2, 4, 5, 3]):
            out = np.zeros(dim, np.float32)
            call({x: a.reshape(dim), y: out})
            assert (out.ravel() == -a).all()


SAVED: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "result of an operation": lambda torch: _product(torch.full((16,), 3.0, requires_grad=True) * 1),
    "leaf": lambda torch: _product(torch.full((16,), 3.0, requires_grad=True)),
    "parameter": lambda torch: _product(torch.nn.Parameter(torch.full((16,), 3.0))),
    "constant factor": lambda torch: _factor(torch, torch.full((16,), 3.0)),
    "view of a constant factor": lambda torch: _viewed(torch, torch.full((16,), 3.0)),
}


def _product(s: Any) -> tuple[Any, Any]:
    return s, (s * s).sum()


def _factor(torch: Any, s: Any) -> tuple[Any, Any]:
    return s, (s * torch.ones(16, requires_grad=True)).sum()


def _viewed(torch: Any, s: Any) -> tuple[Any, Any]:
    return s.view(4, 4), (s * torch.ones(16, requires_grad=True)).sum()


@pytest.mark.parametrize("case", SAVED)
def test_write_into_what_autograd_saved_is_noticed_or_refused(case: str) -> None:
    torch = pytest.importorskip("torch")
    g, x, y = unary([16], [1])
    for call in calls(g):
        written, loss = SAVED[case](torch)
        before = written.detach().clone()
        try:
            call({x: torch.ones(16), y: written})
        except BindError as refusal:
            assert "requires a gradient" in str(refusal) and torch.equal(written, before)
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_reading_what_autograd_saved_leaves_the_gradient_alone() -> None:
    torch = pytest.importorskip("torch")
    g, x, y = unary([16], [1])
    for call in calls(g):
        w = torch.full((16,), 3.0, requires_grad=True)
        loss = (w * w).sum()
        call({x: w, y: torch.zeros(16)})
        loss.backward()
        assert (w.grad == 6).all()


def test_every_execute_counts_one_write_to_each_output_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT, compute_data_type=FLOAT)
    x = g.tensor(dim=[16])
    outputs = [g.neg(x).set_output(True), g.abs(x).set_output(True), g.exp(x).set_output(True)]
    g.build()
    given, first, second, host = torch.ones(16), torch.zeros(16), torch.zeros(16), np.zeros(16, np.float32)
    for count in range(1, 4):
        g.execute(dict(zip([x, *outputs], [given, first, host, second], strict=True)), WORK)
        assert (given._version, first._version - 1, second._version - 1) == (0, count - 1, count - 1)
    assert (first == -1).all() and (host == 1).all()


BITS = [([4, 16], [16, 1]), ([8], [1]), ([2, 8, 3], [24, 1, 8]), ([2, 16, 2, 3], [96, 1, 48, 16])]


@pytest.mark.parametrize(("dim", "stride"), BITS, ids=str)
def test_packed_booleans_are_read_and_written_lowest_bit_first(dim: list[int], stride: list[int]) -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT, compute_data_type=FLOAT)
    x, a = g.tensor(dim=dim, stride=stride), g.tensor(dim=dim, stride=stride, data_type=BOOLEAN)
    zero = g.tensor(dim=[1] * len(dim), is_pass_by_value=True)
    more = g.cmp_gt(x, zero).set_output(True).set_data_type(BOOLEAN)
    both = g.logical_and(more, a).set_output(True).set_data_type(BOOLEAN)
    for tensor in (more, both):
        tensor.set_dim(dim).set_stride(stride)
    g.build()
    size = int(np.prod(dim))
    rng = np.random.default_rng(5)
    for call in calls(g):
        values = rng.standard_normal(size, dtype=np.float32)
        mask = rng.random(size) > 0.5
        plain = [np.zeros(size, bool), np.zeros(size, bool)]
        call({x: values, zero: 0.0, a: mask, more: plain[0], both: plain[1]})
        assert (plain[0] == (values > 0)).all() and (plain[1] == ((values > 0) & mask)).all()
        guarded = [np.full(size // 8 + 2, 0xA5, np.uint8) for _ in range(2)]
        bits = [b[1:-1] for b in guarded]
        call({x: values, zero: 0.0, a: np.packbits(mask, bitorder="little"), more: bits[0], both: bits[1]})
        for got, want, whole in zip(bits, plain, guarded, strict=True):
            assert (got == np.packbits(want, bitorder="little")).all()
            assert whole[0] == whole[-1] == 0xA5
        mixed = np.zeros(size, np.uint8)
        call({x: values, zero: 0.0, a: mask.view(np.uint8), more: mixed, both: bits[1]})  # one a byte, as many bytes
        assert (mixed == plain[0]).all()


def test_bound_call_reads_packed_booleans_again_and_refuses_shared_outputs() -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=BOOLEAN, compute_data_type=BOOLEAN)
    a = g.tensor(dim=[16])
    no, same = g.logical_not(a).set_output(True), g.identity(a).set_output(True)
    g.build()
    source, out, kept = np.zeros(2, np.uint8), np.zeros(2, np.uint8), np.zeros(2, np.uint8)
    bound = g.bind({a: source, no: out, same: kept}, WORK)
    for value in (0, 0x81, 0xFF):
        source[:] = value
        bound()
        assert (out == 255 - value).all() and (kept == value).all()
    for call in calls(g):
        with pytest.raises(BindError, match="overlap"):
            call({a: source, no: out, same: out})


@pytest.mark.parametrize(("dim", "size"), [([4, 12], 6), ([4, 12], 8), ([4, 16], 7), ([4, 16], 9), ([12], 1)], ids=str)
def test_bytes_that_are_no_whole_rows_of_booleans_are_refused(dim: list[int], size: int) -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=BOOLEAN, compute_data_type=BOOLEAN)
    a = g.tensor(dim=dim)
    y = g.logical_not(a).set_output(True)
    g.build()
    out = np.zeros(size, np.uint8)
    for call in calls(g):
        with pytest.raises(BindError, match=rf"spans {np.prod(dim)} bytes .* its buffer has {size}"):
            call({a: np.zeros(dim, bool), y: out})
    assert not out.any()


def in_place_graphs() -> Iterator[tuple[str, Any, Any, Any, dict[Any, Array], Any]]:
    """Name, graph, input and output of one buffer, the other buffers, and the result (None: to be refused)."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((1, 24, 24)).astype(np.float32)

    def new() -> tuple[Any, Any, Any]:
        g = cudnn.pygraph(device="cpu", io_data_type=FLOAT)
        return g, g.tensor(dim=[1, 24, 24], name="x"), g.tensor(dim=[1, 24, 24], name="w")

    g, x, w = new()
    yield "factor and residual", g, w, g.add(g.matmul(x, w), w), {x: a}, None
    g, x, w = new()
    yield "factor through a prologue", g, w, g.matmul(x, g.relu(w)), {x: a}, None
    g, x, w = new()
    yield "left factor", g, x, g.matmul(x, w), {w: a}, None
    g, x, w = new()
    z = g.tensor(dim=[1, 24, 24], name="z")
    yield "residual", g, z, g.add(g.matmul(x, w), z), {x: a, w: a}, lambda b: a @ a + b
    g, x, w = new()
    yield "two operands", g, w, g.add(x, w), {x: a}, lambda b: a + b
    g, x, _ = new()
    soft = lambda b: np.exp(b) / np.exp(b).sum(-1, keepdims=True)  # noqa: E731
    total = g.reduction(g.exp(x), mode=cudnn.reduction_mode.ADD).set_dim([1, 24, 1]).set_stride([24, 1, 1])
    yield "row", g, x, g.div(g.exp(x), total), {}, soft


@pytest.mark.parametrize("name", [entry[0] for entry in in_place_graphs()])
def test_output_in_the_place_of_an_input_that_is_read_elsewhere_is_refused(name: str) -> None:
    g, placed, y, others, want = next(entry[1:] for entry in in_place_graphs() if entry[0] == name)
    y.set_output(True).set_data_type(FLOAT)
    g.deselect_engines(["array"] if toolchain.has_compiler() else ["cpu_c"]).build()
    value = np.random.default_rng(6).standard_normal((1, 24, 24)).astype(np.float32)
    for call in calls(g):
        buffer = value.copy()
        if want is not None:
            for _ in range(2):
                expected = want(buffer)
                call({**others, placed: buffer, y: buffer})
                np.testing.assert_allclose(buffer, expected, rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(BindError, match="still reads at other places"):
                call({**others, placed: buffer, y: buffer})
            assert (buffer == value).all()


def test_output_in_the_place_of_an_input_that_a_later_kernel_reads_is_refused() -> None:
    g = cudnn.pygraph(device="cpu", io_data_type=FLOAT)
    x, w = g.tensor(dim=[1, 24, 24], name="x"), g.tensor(dim=[1, 24, 24], name="w")
    early = g.relu(x).set_output(True)
    late = g.add(g.matmul(g.matmul(x, w), w), x).set_output(True)
    g.build()
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((1, 24, 24)).astype(np.float32) for _ in range(2))
    work, other = np.empty(max(1, g.get_workspace_size()), np.uint8), np.empty_like(a)
    buffer = a.copy()
    if toolchain.has_compiler():
        with pytest.raises(BindError, match="output 'relu.0::OUT_0'.* input 'x' .*still reads"):
            g.execute({x: buffer, w: b, early: buffer, late: other}, work)
        assert (buffer == a).all()
    g.execute({x: buffer, w: b, early: other, late: buffer}, work)
    np.testing.assert_allclose(buffer, a @ b @ b + a, rtol=1e-4, atol=1e-3)
    assert (other == np.maximum(a, 0)).all()
