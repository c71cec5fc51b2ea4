"""Hand-made regions, a NumPy interpreter of them, and a caller of the kernels that `cpu_c` builds."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, HALF, INT32, DType
from fuseplan.engines.base import Executable
from fuseplan.engines.cpu_c import tiling
from fuseplan.engines.cpu_c.engine import ENGINE, CpuCEngine
from fuseplan.ir.graph import AttrValue, Graph, packed_stride, span_elements
from fuseplan.ir.region import Cost, Operand, Region, Role, Value
from fuseplan.ops.arrays import numpy_dtype, numpy_namespace
from fuseplan.ops.casts import narrow
from fuseplan.runtime.artifacts import symbol_address
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact, Patch, PatchKind

CPU = Device("cpu")
TILE_OPERATIONS = str(Path(__file__).with_name("tile_operations.h"))  # for kernels on CPUs without them
Array = np.ndarray[Any, Any]
_erf = np.frompyfunc(math.erf, 1, 1)


class RegionBuilder:
    """Writes a region value by value; dims follow by broadcasting unless given."""

    def __init__(self, compute: DType = FLOAT) -> None:
        self.compute = compute
        self.values: list[Value] = []
        self.inputs: list[Operand] = []
        self.loads: list[tuple[int, int]] = []
        self.outputs: list[tuple[int, tuple[int, ...], DType]] = []

    def load(self, dim: Sequence[int], dtype: DType = FLOAT, stride: Sequence[int] | None = None,
             role: Role = Role.IN) -> int:  # fmt: skip
        dim = tuple(dim)
        self.loads.append((len(self.values), len(self.inputs)))
        self.inputs.append(Operand(len(self.inputs), dim, tuple(stride or packed_stride(dim)), dtype, role))
        self.values.append(Value("load", (), dim, dtype, dtype))
        return len(self.values) - 1

    def op(self, op: str, *args: int, dtype: DType | None = None, compute: DType | None = None,
           dim: Sequence[int] | None = None, **attrs: AttrValue) -> int:  # fmt: skip
        if dim is None:
            dim = np.broadcast_shapes(*[self.values[a].dim for a in args])
        done = compute or self.compute
        node = len(self.values)
        self.values.append(Value(op, args, tuple(dim), dtype or done, done, tuple(sorted(attrs.items())), node))
        return len(self.values) - 1

    def const(self, value: float, rank: int, dtype: DType | None = None) -> int:
        return self.op("const", dim=(1,) * rank, dtype=dtype, compute=dtype, value=value)

    def reduce(self, mode: str, x: int, axes: Sequence[int], dtype: DType | None = None) -> int:
        dim = [1 if a in axes else d for a, d in enumerate(self.values[x].dim)]
        return self.op("reduce", x, dim=dim, dtype=dtype, mode=mode, axes=tuple(axes))

    def store(self, value: int, stride: Sequence[int] | None = None) -> None:
        self.outputs.append((value, tuple(stride or packed_stride(self.values[value].dim)), self.values[value].dtype))

    def region(self) -> Region:
        first = len(self.inputs)
        outs = [Operand(first + k, self.values[v].dim, s, t, Role.OUT) for k, (v, s, t) in enumerate(self.outputs)]
        stores = tuple((v, first + k) for k, (v, _, _) in enumerate(self.outputs))
        return Region(
            Graph("hand", {}, ()), tuple(self.values), (*self.inputs, *outs), tuple(self.loads), stores, Cost()
        )


def random_array(rng: np.random.Generator, operand: Operand, low: float = -2.0, high: float = 2.0) -> Array:
    """A strided array for an input; its memory holds nothing but its elements and gaps."""
    target = empty_array(operand, fill=0)
    if operand.dtype.is_float:
        target[...] = narrow(numpy_namespace(), rng.uniform(low, high, operand.dim), operand.dtype)
    elif operand.dtype is BOOLEAN:
        target[...] = rng.integers(0, 2, operand.dim).astype(np.bool_)
    else:
        lowest = 0 if operand.dtype.kind == "uint" else -9
        target[...] = rng.integers(lowest, 10, operand.dim).astype(target.dtype)
    return target


def empty_array(operand: Operand, fill: int = 0xFF) -> Array:
    """Memory for an operand, filled with bytes that read as NaN."""
    kind = numpy_dtype(operand.dtype)
    raw = np.full(span_elements(operand.dim, operand.stride) * kind.itemsize, fill, np.uint8).view(kind)
    return np.lib.stride_tricks.as_strided(raw, operand.dim, tuple(s * kind.itemsize for s in operand.stride))


class _Counters(ctypes.Structure):
    """``struct fp_counters`` of task.h."""

    _fields_ = [("numbers", ctypes.c_int64 * 9)]


class _Task(ctypes.Structure):
    """``struct fp_task`` of task.h."""

    _fields_ = [
        ("num_tasks", ctypes.c_int64), ("thread", ctypes.c_int32), ("num_threads", ctypes.c_int32),
        ("scratch", ctypes.c_void_p), ("counters", ctypes.POINTER(_Counters)),
    ]  # fmt: skip


@cache
def _function(artifact: Artifact, symbol: str) -> Callable[[Any, Any], int]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Task))
    return kind(symbol_address(artifact, symbol))


def call(built: Executable, arrays: Sequence[Array], num_threads: int = 1) -> None:
    """Patch the blocks and run the launches of an executable, with poisoned scratch."""
    scratch = np.full(max(built.scratch_bytes, 1) + 64, 0xFF, np.uint8)
    scratch_at = -(-scratch.ctypes.data // 64) * 64
    for launch in built.launches:
        block = bytearray(launch.template)
        for p in launch.patches:
            block[p.offset : p.offset + p.size] = _patched(p, arrays, scratch_at)
        assert launch.artifact is not None
        memory = (ctypes.c_char * len(block)).from_buffer(block)
        run_team(
            _function(launch.artifact, launch.symbol),
            memory,
            launch.tasks.count,
            num_threads,
            launch.tasks.thread_bytes,
        )


def run_team(
    function: Callable[[Any, Any], int], block: Any, num_tasks: int, num_threads: int, thread_bytes: int = 0
) -> None:
    """Call a kernel once on each of some threads, which share its tasks; the memory of each is poisoned."""
    counters = _Counters()
    memory = [np.full(thread_bytes + 64, 0xFF, np.uint8) for _ in range(num_threads)]
    starts = [-(-m.ctypes.data // 64) * 64 if thread_bytes else None for m in memory]
    tasks = [_Task(num_tasks, k, num_threads, starts[k], ctypes.pointer(counters)) for k in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        called = [pool.submit(function, ctypes.addressof(block), ctypes.byref(task)) for task in tasks]
    assert [one.result() for one in called] == [0] * num_threads
    assert counters.numbers[0] == num_tasks + num_threads  # all drawn, and each thread saw that none is left


def _patched(p: Patch, arrays: Sequence[Array], scratch_at: int) -> bytes:
    if p.kind is PatchKind.SCALAR:
        return arrays[p.slot].tobytes()[: p.size]
    base = scratch_at if p.kind is PatchKind.SCRATCH else arrays[p.slot].__array_interface__["data"][0]
    return struct.pack("<Q", base + p.addend)


def run_region(region: Region, inputs: Sequence[Array], floor: float = 0.0) -> list[Array]:
    """Outputs of the kernel that `cpu_c` builds, run twice into the same memory that starts as NaN.

    The same kernel in many small tasks on two threads must agree but for the order of sums.

    Args:
        floor: what smaller values count as there, for sums of floats whose terms cancel out
    """
    answer = ENGINE.supports(region, CPU)
    assert answer.is_supported, answer.reason
    outputs = [empty_array(o) for o in region.operands if o.role is Role.OUT]
    many = [empty_array(o) for o in region.operands if o.role is Role.OUT]
    built, divided = ENGINE.build(region, CPU, ENGINE.knobs(region, CPU).default), build_divided(region)
    assert divided.launches[0].artifact is built.launches[0].artifact
    for _ in range(2):
        call(built, [*inputs, *outputs])
        call(divided, [*inputs, *many], num_threads=2)
    for a, b in zip(outputs, many, strict=True):
        tolerance = 4 * np.finfo(a.dtype).eps if a.dtype.kind == "f" else 0
        np.testing.assert_allclose(
            np.asarray(b, np.float64), np.asarray(a, np.float64), rtol=tolerance, atol=tolerance * floor
        )
    return outputs


def build_divided(region: Region) -> Executable:
    """The executable of a region with as many tasks as its rows and columns allow."""
    engine = CpuCEngine()
    engine._compiled = ENGINE._compiled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "tasks_worth", lambda work_us: 64)
        return engine.build(region, CPU, ())


# ---- the interpreter: what `ir.region` says, in NumPy ----------------------------------------------------------


def interpret(region: Region, inputs: Sequence[Array], exact: bool = False) -> list[Array]:
    """Outputs by NumPy; `exact`: float64 arithmetic, every value still rounded to its own type."""
    xp = numpy_namespace()
    found: list[Array] = []
    with np.errstate(all="ignore"):
        for i, v in enumerate(region.values):
            if v.op == "load":
                found.append(np.array(inputs[region.operand_of[i]]))
                continue
            kind = numpy_dtype(DOUBLE if exact and v.compute.is_float else _evaluated_in(v.compute))
            args = [_converted(found[a], v.compute, kind) for a in v.args]
            made = np.asarray(_evaluate(region, v, args)).astype(kind)
            if v.compute in (HALF, BFLOAT16):
                made = narrow(xp, made, v.compute).astype(kind)
            found.append(narrow(xp, np.broadcast_to(made, v.dim), v.dtype))
    return [narrow(xp, found[v], region.operands[o].dtype) for v, o in region.stores]


def _evaluated_in(compute: DType) -> DType:
    """Half types run in float, small integers and truth values in 32 bits; each result is rounded afterwards."""
    if compute in (HALF, BFLOAT16):
        return FLOAT
    return INT32 if compute.bits == 8 else compute


def _converted(x: Array, compute: DType, kind: Any) -> Array:
    return narrow(numpy_namespace(), x, compute).astype(kind)


def _evaluate(region: Region, v: Value, args: list[Array]) -> Any:
    if v.op in _TABLE:
        return _TABLE[v.op](*args)
    if v.op == "const":
        return v.attr("value")
    if v.op == "index":
        axis = int(v.attr("axis"))  # type: ignore[arg-type]
        return np.arange(v.dim[axis]).reshape([-1 if a == axis else 1 for a in range(len(v.dim))])
    axes = dict(v.attrs).get("axes", ())
    if v.op == "count":
        return math.prod(region.values[v.args[0]].dim[a] for a in axes)  # type: ignore[union-attr]
    if v.op == "reduce":
        table: dict[str, Any] = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}
        x = args[0].astype(np.float64) if args[0].dtype.kind == "f" else args[0]
        return table[str(v.attr("mode"))](x, axis=axes, keepdims=True)
    return _convolution(v, *args)


def _convolution(v: Value, x: Array, w: Array) -> Array:
    """A plain sum over filter positions."""
    pre, post, step, dilation = (v.attr(n) for n in ("pre_pad", "post_pad", "stride", "dilation"))
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pre, post, strict=True)])  # type: ignore[arg-type]
    groups, per_group = x.shape[1] // w.shape[1], w.shape[0] * w.shape[1] // x.shape[1]
    y = np.zeros(v.dim)
    for k in range(w.shape[0]):
        g = k // per_group
        part = x[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(n - 1 - t for n, t in zip(w.shape[2:], tap, strict=True)) if v.attr("flip") else tap
            window = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilation, v.dim[2:], step, strict=True)  # type: ignore[arg-type]
            )
            weight = w[(k, slice(None), *at)].astype(np.float64).reshape(1, -1, *(1,) * len(window))
            y[:, k] += (part[(slice(None), slice(None), *window)] * weight).sum(axis=1)
    assert groups * w.shape[1] == x.shape[1]
    return y


def _whole_div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)
    return np.where(b == 0, 0, quotient)


def _whole_mod(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def _matmul(a: Array, b: Array) -> Array:
    return a.astype(np.float64) @ b.astype(np.float64) if a.dtype.kind == "f" else a @ b


_TABLE: dict[str, Callable[..., Any]] = {
    "cast": lambda x: x, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "erf": lambda x: _erf(x.astype(np.float64)).astype(np.float64), "floor": np.floor, "ceil": np.ceil,
    "not_": lambda x: x == 0, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _whole_div,
    "max": lambda a, b: np.where((a > b) | (a != a), a, b), "min": lambda a, b: np.where((a < b) | (a != a), a, b),
    "mod": _whole_mod, "pow": lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)),
    "eq": np.equal, "ne": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "and_": lambda a, b: (a != 0) & (b != 0),
    "or_": lambda a, b: (a != 0) | (b != 0), "select": lambda m, a, b: np.where(m != 0, a, b), "matmul": _matmul,
}  # fmt: skip


def near(actual: Array, expected: Array, dtype: DType, scale: float = 4.0, floor: float = 0.0) -> None:
    """Compare with the float64 result: a few ulp of `dtype`, relative to the larger of the value and `floor`."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if not dtype.is_float:
        np.testing.assert_array_equal(a, e)
        return
    unit = 2.0 ** -(dtype.mantissa_bits + 1)
    smallest = 2.0 ** {"HALF": -24, "FLOAT": -149, "BFLOAT16": -133}.get(dtype.name, -1074)
    with np.errstate(all="ignore"):
        bound = scale * unit * np.maximum(np.abs(e), floor) + smallest
        bad = ~((np.abs(a - e) <= bound) | (a == e) | (np.isnan(a) & np.isnan(e)))
    assert not bad.any(), f"{bad.sum()} of {bad.size} wrong, first: {a[bad][0]!r} for {e[bad][0]!r}"
