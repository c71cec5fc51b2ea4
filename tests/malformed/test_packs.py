"""Bad packs, workspaces, handles and overrides: one error that names the tensor, and nothing written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fuseplan as cudnn
from fuseplan.errors import (
    ArgumentError,
    BindError,
    DeviceError,
    GraphStateError,
    InvalidGraphError,
    PlanIndexError,
    UnknownNameError,
)
from tests.malformed.bench import DT, Mlp, Row, filled, param, refused

UNSUPPORTED = cudnn.cudnnGraphNotSupportedError


@pytest.fixture(scope="module", params=["native", "python"])
def mlp(request: pytest.FixtureRequest) -> Iterator[Mlp]:
    """The graph on one dispatcher; the first call makes the runners of both plans."""
    made = Mlp(request.param)
    made.check_good()
    made.g.execute_plan_at_index(made.pack(), None, 1)
    kinds = {type(r._dispatcher).__module__ for r in made.g._runners.by_index.values()}
    assert kinds == {"fuseplan.runtime.dispatch" if request.param == "native" else "fuseplan.runtime.dispatch.twin"}
    return made


class OnGpu:
    """Says that its memory is on a GPU."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return {**self.array.__array_interface__, "version": 3}


class BadExport:
    """Refuses to give its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **unused: object) -> object:
        raise BufferError("not today")


class OnlyDlpack:
    """A tensor of which nothing but the protocol shows."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)


def readonly(array: Any) -> Any:
    made = array.view()
    made.flags.writeable = False
    return made


def swapped(array: Any) -> Any:
    return array.astype(array.dtype.newbyteorder())


def negated() -> torch.Tensor:
    return torch.zeros(4, 8, dtype=torch.complex64).conj().imag


def bind_row(id: str, make: Callable[[Mlp], Any], name: str, advice: str) -> Row:
    return Row(id, make, ValueError, BindError, name, advice)


def type_row(id: str, make: Callable[[Mlp], Any], name: str, advice: str) -> Row:
    return Row(id, make, TypeError, ArgumentError, name, advice)


INNER = "relu.0::OUT_0"  # a virtual tensor of Mlp
# table: make(mlp) -> pack; for every way to call and every plan
PACKS = [
    bind_row("input-missing", lambda m: m.pack(b=...), r"'b' \(uid 12\) has no buffer", "add an entry 12"),
    bind_row("input-none", lambda m: m.pack(c=None), r"'c' \(uid 13\) has no buffer", "add an entry 13"),
    bind_row("output-missing", lambda m: m.pack(y=...), r"'y' \(uid 16\) has no buffer", "add an entry 16"),
    bind_row("scalar-missing", lambda m: m.pack(s=...), r"'s' \(uid 15\) has no buffer", "add an entry 15"),
    bind_row("empty", lambda m: {}, r"'a' \(uid 11\)", "add an entry 11"),
    bind_row("only-unknown-uids", lambda m: {77: m.out.array}, r"'a' \(uid 11\)", "add an entry 11"),
    bind_row("name-ambiguous", lambda m: m.pack(twin=m.out.array), "'mlp' are named 'twin'", "tensor or its uid"),
    Row("name-unknown", lambda m: m.pack(z=m.out.array), KeyError, UnknownNameError, "'mlp' has no tensor named 'z'",
        "it has 'a', 'b'"),
    bind_row("virtual-name", lambda m: m.pack(**{INNER: filled(4, 5)}), "'relu.0::OUT_0' .*is virtual", "set_output"),
    bind_row("virtual-tensor", lambda m: {**m.pack(), m.g.find_tensor(INNER): filled(4, 5)}, "'relu.0::O.*virtual",
        "set_output"),
    bind_row("two-buffers-name-uid", lambda m: {**m.pack(), 12: filled(8, 5)}, "two buffers for uid 12", "one buffer"),
    bind_row("two-buffers-tensor", lambda m: {m.y: filled(4, 3), **m.pack()}, "two buffers for uid 16", "one buffer"),
    type_row("key-tuple", lambda m: {(1,): m.out.array}, r"not \(1,\)", "use the tensor"),
    type_row("no-pack", lambda m: None, "'mlp' must be a dict, not NoneType", "buffer}"),
    type_row("list-without-uids", lambda m: list(m.pack().values()), "'mlp' must be a dict, not list", "tensor_uids"),
    bind_row("type-double", lambda m: m.pack(a=np.zeros((4, 8))), "'a' .*FLOAT, its buffer has DOUBLE", "convert"),
    bind_row("type-int32", lambda m: m.pack(b=np.zeros((8, 5), np.int32)), "'b' .*has INT32",
        "convert the buffer to FLOAT"),
    bind_row("type-half-output", lambda m: m.pack(y=filled(8, 3, dtype=np.float16)), "'y' .*has HALF", "convert"),
    bind_row("type-bf16-torch", lambda m: m.pack(a=torch.zeros(9, 9, dtype=torch.bfloat16)), "'a' .*BFLOAT16",
        "convert"),
    bind_row("type-bf16-numpy", lambda m: m.pack(a=np.zeros((9, 9), ml_dtypes.bfloat16)), "'a' .*BFLOAT16", "convert"),
    bind_row("type-complex", lambda m: m.pack(a=np.zeros((4, 8), np.complex64)), "'a' .*complex64", "convert"),
    bind_row("type-complex-torch", lambda m: m.pack(a=torch.zeros(4, 8, dtype=torch.complex64)), "'a' .*complex",
        "conv"),
    bind_row("type-swapped-bytes", lambda m: m.pack(c=swapped(m.inputs["c"].array)), "'c' .*>f4", "convert"),
    bind_row("type-bytes-as-float", lambda m: m.pack(d=np.zeros(60, np.uint8)), "'d' .*UINT8", "convert"),
    bind_row("span-input", lambda m: m.pack(a=m.inputs["a"].array[:3]), "'a' .*spans 128 bytes.*has 96", "larger"),
    bind_row("span-output", lambda m: m.pack(y=m.out.array[:, :2]), "'y' .*spans 48 bytes.*has 44", "larger"),
    bind_row("span-empty", lambda m: m.pack(b=np.zeros((0, 5), np.float32)), "'b' .*spans 160 bytes.*has 0", "larger"),
    bind_row("span-torch", lambda m: m.pack(a=torch.zeros(31)), "'a' .*spans 128 bytes.*has 124", "larger"),
    bind_row("span-bytes", lambda m: m.pack(a=bytes(127)), "'a' .*spans 128 bytes.*has 127", "larger"),
    bind_row("stride-negative", lambda m: m.pack(c=m.inputs["c"].array[:, ::-1]), "'c' .*spans 20 bytes", "larger"),
    bind_row("gaps-input", lambda m: m.pack(a=np.zeros((4, 16), np.float32)[:, ::2]), "'a' .*128 bytes.*gap after 4",
        "contiguous buffer"),
    bind_row("gaps-output", lambda m: m.pack(y=filled(4, 5)[:, :3]), "'y' .*48 bytes.*gap after 12", "strides"),
    bind_row("gaps-torch", lambda m: m.pack(a=torch.zeros(9, 8)[::2]), "'a' .*128 bytes.*gap after 32", "contiguous"),
    bind_row("gaps-torch-columns", lambda m: m.pack(y=torch.zeros(3, 8)[:, :4].T), "'y' .*gap after 16", "contiguous"),
    bind_row("gaps-dlpack", lambda m: m.pack(a=OnlyDlpack(torch.zeros(9, 8)[::2])), "'a' .*gap after 32", "contig"),
    bind_row("address-null", lambda m: m.pack(a=0), "'a' .*null address", "has memory"),
    bind_row("address-null-output", lambda m: m.pack(y=0), "'y' .*null address", "has memory"),
    bind_row("address-number", lambda m: m.pack(a=7), "'a' .*the integer 7, which is no address", "pass a buffer"),
    bind_row("address-negative", lambda m: m.pack(a=-4096), "'a' .*-4096 is not an address", "unsigned address"),
    bind_row("address-beyond", lambda m: m.pack(a=1 << 64), "'a' .*is not an address", "unsigned address"),
    bind_row("address-upper-half", lambda m: m.pack(y=(1 << 64) - 64), "'y' .*which is no address", "pass a buffer"),
    bind_row("buffer-bool", lambda m: m.pack(a=True), "'a' .*bool is not a buffer", "pass a tensor"),
    bind_row("buffer-float", lambda m: m.pack(a=1.5), "'a' .*float is not a buffer", "pass a tensor"),
    bind_row("buffer-str", lambda m: m.pack(y="y"), "'y' .*str is not a buffer", "pass a tensor"),
    bind_row("buffer-list", lambda m: m.pack(a=[1.0] * 32), "'a' .*list is not a buffer", "pass a tensor"),
    bind_row("buffer-numpy-scalar", lambda m: m.pack(a=np.float32(1)), "'a' .*float32 is not a buffer",
        "pass a tensor"),
    bind_row("buffer-graph-tensor", lambda m: m.pack(a=m.b), "'a' .*Tensor is not a buffer", "pass a tensor"),
    bind_row("buffer-object-array", lambda m: m.pack(a=np.full((4, 8), None)), "'a' .*object", "convert"),
    bind_row("readonly-output", lambda m: m.pack(y=readonly(m.out.array)), "'y' .*read-only", "writable"),
    bind_row("readonly-output-bytes", lambda m: m.pack(y=bytes(48)), "'y' .*read-only", "writable"),
    bind_row("device-meta", lambda m: m.pack(a=torch.zeros(4, 8, device="meta")), "'a' .*meta", "tensor with data"),
    bind_row("device-cuda", lambda m: m.pack(a=OnGpu(m.inputs["a"].array)), "'a' .*must be on cpu", "move the buffer"),
    bind_row("device-cuda-output", lambda m: m.pack(y=OnGpu(m.out.array)), "'y' .*must be on cpu", "move the buffer"),
    bind_row("device-cuda-scalar", lambda m: m.pack(s=OnGpu(np.ones(1, np.float32))), "'s' .*host scalar", "move"),
    bind_row("torch-sparse", lambda m: m.pack(a=torch.zeros(4, 8).to_sparse()), "'a' .*sparse", "dense tensor"),
    bind_row("torch-negated", lambda m: m.pack(a=negated()), "'a' .*negated view", "resolve_neg"),
    bind_row("dlpack-refuses", lambda m: m.pack(a=BadExport()), "'a' .*not today", "integer address"),
    bind_row("memoryview-gaps", lambda m: m.pack(a=memoryview(bytes(512))[::2]), "'a' .*gaps", "contiguous"),
    bind_row("scalar-int", lambda m: m.pack(s=2), "'s' .*the integer 2", "pass 2.0"),
    bind_row("scalar-type", lambda m: m.pack(s=np.ones(1)), "'s' .*FLOAT, its buffer has DOUBLE", "convert"),
    bind_row("scalar-empty", lambda m: m.pack(s=np.ones(0, np.float32)), "'s' .*spans 4 bytes", "larger"),
    bind_row("scalar-complex", lambda m: m.pack(s=np.complex64(1)), "'s' .*not a real number", "array of one element"),
    bind_row("scalar-str", lambda m: m.pack(s="1.0"), "'s' .*str is not a buffer", "pass a tensor"),
    bind_row("scalar-null", lambda m: m.pack(s=0), "'s' .*null address", "has memory"),
    bind_row("foreign-tensor", lambda m: {cudnn.pygraph(device="cpu").tensor([1]): m.out.array}, r"'a' \(uid 11\)",
        "add an entry 11"),
]  # fmt: skip


def run_refused(m: Mlp, row: Row, call: Callable[[], object]) -> None:
    """The call is refused as the row says, writes nothing, and a good call is right afterwards."""
    before = m.snapshot()
    refused(row, call)
    assert m.snapshot() == before
    m.check_good()


@param(PACKS)
@pytest.mark.parametrize("how", ["execute", "at index", "at index of array", "bind"])
def test_bad_pack_is_refused_and_nothing_is_written(mlp: Mlp, row: Row, how: str) -> None:
    pack = row.make(mlp)
    if how == "at index of array":
        run_refused(mlp, row, lambda: mlp.g.execute_plan_at_index(pack, None, 1))
    else:
        run_refused(mlp, row, lambda: mlp.calls()[how](pack, mlp.work.array, None))


def strided_workspace(m: Mlp) -> Any:
    return np.zeros((300, 2), np.uint8)[:, 0]


# table: make(mlp) -> workspace
WORKSPACES = [
    bind_row("none", lambda m: None, "plan needs a workspace of 256 bytes", "get_workspace_size"),
    bind_row("small", lambda m: m.work.array[:255], "workspace has 255 bytes, this plan needs 256", "256 bytes"),
    bind_row("small-torch", lambda m: torch.zeros(255, dtype=torch.uint8), "workspace has 255 bytes", "256 bytes"),
    bind_row("small-bytearray", lambda m: bytearray(16), "workspace has 16 bytes", "256 bytes"),
    bind_row("gaps", strided_workspace, "workspace is not contiguous", "contiguous buffer"),
    bind_row("gaps-torch", lambda m: torch.zeros(300, 2, dtype=torch.uint8)[:, 0], "not contiguous", "contiguous"),
    bind_row("readonly", lambda m: bytes(300), "workspace is read-only", "contiguous buffer"),
    bind_row("null", lambda m: 0, "workspace has a null address", "256 bytes"),
    bind_row("number", lambda m: 256, "workspace is the integer 256, which is no address", "256 bytes"),
    bind_row("negative", lambda m: -1, "workspace: -1 is not an address", "256 bytes"),
    bind_row("str", lambda m: "ws", "workspace: an object of type str", "256 bytes"),
    bind_row("meta", lambda m: torch.zeros(300, device="meta"), "workspace: .*meta", "256 bytes"),
    bind_row("cuda", lambda m: OnGpu(m.work.array), "workspace is on cuda", "256 bytes on cpu"),
]  # fmt: skip


@param(WORKSPACES)
@pytest.mark.parametrize("how", ["execute", "at index", "bind"])
def test_bad_workspace_is_refused_and_nothing_is_written(mlp: Mlp, row: Row, how: str) -> None:
    workspace = row.make(mlp)
    run_refused(mlp, row, lambda: mlp.calls()[how](mlp.pack(), workspace, None))


def dead_handle(m: Mlp) -> cudnn.Handle:
    handle = cudnn.create_handle("cpu")
    cudnn.destroy_handle(handle)
    return handle


# table: make(mlp) -> handle
HANDLES = [
    type_row("int", lambda m: 5, r"Handle is needed, not 5", "create_handle"),
    type_row("str", lambda m: "cpu", r"Handle is needed, not 'cpu'", "create_handle"),
    Row("destroyed", dead_handle, RuntimeError, DeviceError, "handle was destroyed", "create_handle"),
    bind_row("of-another-device", lambda m: cudnn.Handle(1, 3), "'mlp' is for cpu, but .*cuda:3", "graph's device"),
]  # fmt: skip


@param(HANDLES)
@pytest.mark.parametrize("how", ["execute", "at index", "bind"])
def test_bad_handle_is_refused_and_nothing_is_written(mlp: Mlp, row: Row, how: str) -> None:
    handle = row.make(mlp)
    run_refused(mlp, row, lambda: mlp.calls()[how](mlp.pack(), mlp.work.array, handle))


def in_order(m: Mlp) -> list[Any]:
    return [m.pack()[k] for k in "abcdsy"]


# table: make(mlp) -> (pack, keywords)
ORDERED = [
    bind_row("uids-too-few", lambda m: (in_order(m), {"tensor_uids": [11, 12]}), "6 buffers but 2 tensor_uids",
        "per buffer"),
    bind_row("uids-twice", lambda m: (in_order(m), {"tensor_uids": [11, 12, 13, 14, 15, 15]}), "names a tensor twice",
        "once"),
    bind_row("uids-unknown", lambda m: (in_order(m), {"tensor_uids": [11, 12, 13, 14, 15, 99]}), r"'y' \(uid 16\)",
        "16"),
    type_row("uids-float", lambda m: (in_order(m), {"tensor_uids": [1.5] * 6}), "tensor_uids must be an int, not 1.5",
        "int"),
    type_row("uids-no-list", lambda m: (in_order(m), {"tensor_uids": 11}), "tensor_uids must be a list, not 11",
        "list"),
    type_row("uids-str", lambda m: (in_order(m), {"tensor_uids": "abcdsy"}), "tensor_uids must be a list", "list"),
    type_row("uids-with-dict", lambda m: (m.pack(), {"tensor_uids": [11]}), "list of buffers, not dict", "pass a list"),
    Row("override-without-option", lambda m: (m.pack(), ov([11], [[4, 8]], [[8, 1]])), RuntimeError, GraphStateError,
        "'mlp' was not made for other shapes", "is_override_shape_enabled"),
    bind_row("override-uids-only", lambda m: (m.pack(), {"override_uids": [11]}), "override_shapes .*go together",
        "dims"),
    bind_row("override-lengths", lambda m: (m.pack(), ov([11], [[4, 8]], [])), "have 1, 1 and 0 entries", "every"),
    bind_row("override-strides-count", lambda m: (m.pack(), ov([11], [[4, 8]], [[1]])), "uid 11: 2 dims but 1",
        "per dim"),
    bind_row("override-twice", lambda m: (m.pack(), ov([11, 11], [[4, 8]] * 2, [[8, 1]] * 2)), "uid 11 twice", "once"),
    type_row("override-no-list", lambda m: (m.pack(), ov(11, [[4, 8]], [[8, 1]])), "override_uids must be a list",
        "list"),
    type_row("override-uid-str", lambda m: (m.pack(), ov(["a"], [[4, 8]], [[8, 1]])), "override_uids must be an int",
        "int"),
    type_row("override-dim-float", lambda m: (m.pack(), ov([11], [[4.5, 8]], [[8, 1]])), "override shape of uid 11",
        "list"),
    type_row("override-dim-none", lambda m: (m.pack(), ov([11], [None], [[8, 1]])), "override shape of uid 11", "list"),
]  # fmt: skip


def ov(uids: Any, shapes: Any, strides: Any) -> dict[str, Any]:
    return {"override_uids": uids, "override_shapes": shapes, "override_strides": strides}


@param(ORDERED)
@pytest.mark.parametrize("how", ["execute", "at index"])
def test_bad_order_or_override_is_refused_and_nothing_is_written(mlp: Mlp, row: Row, how: str) -> None:
    pack, keywords = row.make(mlp)
    run_refused(mlp, row, lambda: mlp.calls()[how](pack, mlp.work.array, None, **keywords))


class Sum:
    """y = a + b on a graph that takes overrides."""

    def __init__(self) -> None:
        g = self.g = cudnn.pygraph(name="sum", io_data_type=DT.FLOAT, device="cpu", is_override_shape_enabled=True)
        a, b = g.tensor([2, 3], name="a", uid=11), g.tensor([2, 3], name="b", uid=12)
        g.add(a, b, name="plus").set_output(True).set_name("y").set_uid(13)
        g.build([cudnn.heur_mode.FALLBACK])

    def run(self, rows: int, uids: Any = None, shapes: Any = None, strides: Any = None) -> Any:
        a = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        y = filled(rows, 3)
        try:
            self.g.execute({11: a, 12: a, 13: y}, None, None, uids, shapes, strides)
        except Exception:
            np.testing.assert_array_equal(y, filled(rows, 3))
            raise
        np.testing.assert_array_equal(y, 2 * a.astype(np.float64))


# table: make(sum) -> overrides of uids, shapes and strides
OVERRIDES = [
    Row("rank", lambda s: ([11], [[6]], [[1]]), ValueError, InvalidGraphError, "'a' has 1 dims, the tensor 2", "rank"),
    Row("zero", lambda s: ([11, 12], [[0, 3]] * 2, [[3, 1]] * 2), ValueError, InvalidGraphError, "'a'.*0, 3",
        "least 1"),
    Row("negative-stride", lambda s: ([11, 12, 13], [[2, 3]] * 3, [[-3, 1]] * 3), ValueError, InvalidGraphError,
        "'a'", "neg"),
    Row("broadcast", lambda s: ([11], [[5, 3]], [[3, 1]]), ValueError, InvalidGraphError, "'plus'.*do not broadcast",
        "1"),
    Row("huge", lambda s: ([11, 12], [[1 << 62, 3]] * 2, [[3, 1]] * 2), ValueError, InvalidGraphError, "'a'.*memory",
        "dims"),
    Row("overlap", lambda s: ([11, 12, 13], [[2, 3]] * 3, [[3, 1], [3, 1], [0, 1]]), ValueError, InvalidGraphError,
        "'y' of node 'plus' has overlapping", "own address"),
    bind_row("unknown-uid", lambda s: ([99], [[2, 3]], [[3, 1]]), "'sum' has no tensor with uid 99", "tensor's uid"),
    bind_row("buffers-too-small", lambda s: ([11, 12, 13], [[9, 3]] * 3, [[3, 1]] * 3), "'a'.*spans 108", "larger"),
]  # fmt: skip


@param(OVERRIDES)
def test_bad_override_is_refused_and_others_still_work(row: Row) -> None:
    case = Sum()
    refused(row, lambda: case.run(2, *row.make(case)))
    case.run(2)
    case.run(5, [11, 12, 13], [[5, 3]] * 3, [[3, 1]] * 3)
    case.run(2)


# table: make(graph) -> plan index
INDICES = [
    Row("beyond", lambda g: g.get_execution_plan_count(), IndexError, PlanIndexError, "index 2 .*'mlp'", "0 to 1"),
    Row("negative", lambda g: -1, IndexError, PlanIndexError, "index -1 .*'mlp'", "0 to 1"),
    type_row("str", lambda g: "0", "plan index of graph 'mlp' must be an int, not '0'", "0 to 1"),
    type_row("float", lambda g: 0.5, "plan index of graph 'mlp' must be an int, not 0.5", "0 to 1"),
]  # fmt: skip


@param(INDICES)
def test_bad_plan_index_is_refused_and_nothing_is_written(mlp: Mlp, row: Row) -> None:
    g, index = mlp.g, row.make(mlp.g)
    run_refused(mlp, row, lambda: g.execute_plan_at_index(mlp.pack(), mlp.work.array, index))
    for ask in (
        g.build_plan_at_index,
        g.select_plan,
        g.get_plan_name_at_index,
        g.get_engine_and_knobs_at_index,
        g.get_workspace_size_plan_at_index,
        g.get_behavior_notes_for_plan_at_index,
    ):
        run_refused(mlp, row, lambda ask=ask: ask(index))


def test_barred_plan_is_refused_by_name_and_the_other_runs() -> None:
    m = Mlp()
    m.check_good()
    m.g.deselect_engines(["array"])
    row = Row("barred", lambda m: 1, ValueError, InvalidGraphError, r"plan 1 \(array\) of graph 'mlp'", "another index")
    run_refused(m, row, lambda: m.g.execute_plan_at_index(m.pack(), m.work.array, 1))


def test_destroyed_handle_of_the_graph_is_refused() -> None:
    m = Mlp()
    m.check_good()
    cudnn.destroy_handle(m.handle)
    row = Row("dead", lambda m: None, RuntimeError, DeviceError, "handle was destroyed", "create_handle")
    before = m.snapshot()
    for call in m.calls().values():
        refused(row, lambda call=call: call(m.pack(), m.work.array, None))
    assert m.snapshot() == before
    m.g.execute(m.pack(), m.work.array, cudnn.create_handle("cpu"))


def test_bound_call_takes_no_arguments(mlp: Mlp) -> None:
    call: Any = mlp.g.bind(mlp.pack(), mlp.work.array)
    before = mlp.snapshot()
    with pytest.raises(TypeError):
        call(mlp.pack())
    assert mlp.snapshot() == before
    call()
    mlp.check_good()
