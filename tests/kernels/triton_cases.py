"""Regions made by hand or from graphs, and their meaning in float64, for the tests of the triton engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import erf, prod
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np

from fuseplan.dtypes import FLOAT, DType
from fuseplan.engines.base import Config, Support
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.engines.triton.kernel import Emitted, Kernel
from fuseplan.ir.graph import Graph, packed_stride, span_elements
from fuseplan.ir.region import Cost, Operand, Region, Role, Value
from fuseplan.runtime.device import Device

Array = Any
EMPTY = Graph("by_hand", {}, ())


def device(sm: int = 90) -> Device:
    """A GPU of an architecture, as data."""
    shared = {80: 166912, 90: 232448, 100: 232448, 120: 101376}[sm]
    return Device("cuda", 0, "test", f"sm_{sm}", (), 132, shared, 50 << 20, 4200.0, 67000.0)


def emitted(region: Region, config: Config = (), sm: int = 90) -> Emitted:
    """What the engine generates for a region under its default or a given config."""
    found = ENGINE.match(region, device(sm))
    assert not isinstance(found, Support), found.reason
    form, schedule = found
    return form.emit(schedule, config)


def kernels(region: Region, config: Config = (), sm: int = 90) -> list[Kernel]:
    """Generated kernels of a region."""
    return [step for step in emitted(region, config, sm).steps if isinstance(step, Kernel)]


def form_of(region: Region) -> str:
    """Name of the form that has a region; why there is none."""
    found = ENGINE.match(region, device())
    return found.reason if isinstance(found, Support) else found[0].name


@dataclass
class Draft:
    """A region in the making; methods return value indices."""

    rank: int
    compute: DType = FLOAT
    values: list[Value] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    loads: list[tuple[int, int]] = field(default_factory=list)
    stores: list[tuple[int, Sequence[int] | None]] = field(default_factory=list)
    in_place: list[tuple[int, int]] = field(default_factory=list)

    def load(
        self, dim: Sequence[int], dtype: DType, stride: Sequence[int] | None = None, *, scalar: bool = False,
        **changes: Any,
    ) -> int:  # fmt: skip
        """A loaded value; `changes` are further fields of its operand (uid, offset, role)."""
        role = Role.SCALAR if scalar else Role.IN
        self.loads.append((len(self.values), len(self.operands)))
        made = Operand(len(self.operands), tuple(dim), tuple(stride or packed_stride(dim)), dtype, role)
        self.operands.append(replace(made, **changes))
        self.values.append(Value("load", (), tuple(dim), dtype, dtype))
        return len(self.values) - 1

    def op(self, op: str, *args: int, dtype: DType | None = None, compute: DType | None = None, **attrs: Any) -> int:
        dims = [self.values[a].dim for a in args]
        if op == "matmul":
            batch = np.broadcast_shapes(dims[0][:-2], dims[1][:-2])
            dim = (*batch, dims[0][-2], dims[1][-1])
        elif op == "reduce":
            dim = tuple(1 if i in attrs["axes"] else d for i, d in enumerate(dims[0]))
        elif op in ("const", "count"):
            dim = (1,) * self.rank
        else:
            dim = tuple(attrs.pop("dim", None) or np.broadcast_shapes(*dims))
        done = compute or self.compute
        self.values.append(Value(op, args, tuple(dim), dtype or done, done, tuple(sorted(attrs.items()))))
        return len(self.values) - 1

    def const(self, value: float) -> int:
        return self.op("const", value=value)

    def store(self, value: int, stride: Sequence[int] | None = None) -> None:
        self.stores.append((value, stride))

    def store_in_place(self, value: int, loaded: int) -> None:
        """Store to the operand that another value is loaded from."""
        self.in_place.append((value, dict(self.loads)[loaded]))

    def region(self) -> Region:
        operands, stores = list(self.operands), list(self.in_place)
        for value, stride in self.stores:
            v = self.values[value]
            stores.append((value, len(operands)))
            operands.append(Operand(len(operands), v.dim, tuple(stride or packed_stride(v.dim)), v.dtype, Role.OUT))
        return Region(EMPTY, tuple(self.values), tuple(operands), tuple(self.loads), tuple(stores), Cost(1.0, 1, 1))


def buffer_for(operand: Operand, rng: np.random.Generator, *, poison: bool) -> Array:
    """Flat memory of an operand: random, or for outputs something that must not survive."""
    size = operand.offset + span_elements(operand.dim, operand.stride)
    kind = np.dtype(operand.dtype.numpy_name)
    if poison:
        return np.full(size, np.nan if operand.dtype.is_float else 77, dtype=np.float64).astype(kind)
    if not operand.dtype.is_float:
        return rng.integers(0, 2 if operand.dtype.kind == "bool" else 7, size).astype(kind)
    return rng.standard_normal(size).astype(kind)


def buffers_for(region: Region, rng: np.random.Generator) -> list[Array]:
    """Flat memory of each operand; operands of one tensor share theirs."""
    sizes: dict[int, int] = {}
    for o in region.operands:
        sizes[o.uid] = max(sizes.get(o.uid, 0), o.offset + span_elements(o.dim, o.stride))
    made: dict[int, Array] = {}
    for o in region.operands:
        if o.uid not in made:
            whole = replace(o, dim=(sizes[o.uid],), stride=(1,), offset=0)
            made[o.uid] = buffer_for(whole, rng, poison=o.role is Role.OUT)
    return [made[o.uid] for o in region.operands]


def view_of(operand: Operand, flat: Array) -> Array:
    """Flat memory seen through offset, dims and strides."""
    steps = tuple(s * flat.itemsize for s in operand.stride)
    raw = flat.view(f"u{flat.itemsize}")[operand.offset :]  # NumPy cannot stride over every type of ml_dtypes
    return np.lib.stride_tricks.as_strided(raw, operand.dim, steps).view(flat.dtype)


def untouched(operand: Operand, flat: Array) -> Array:
    """Elements of flat memory that no index reaches."""
    reached = np.zeros(flat.size, bool)
    view_of(operand, reached)[...] = True
    return flat[~reached]


def evaluate(region: Region, buffers: Sequence[Array]) -> list[Array]:
    """Each output in float64: plain NumPy on the SSA list, without rounding of intermediates."""
    known: list[Array] = []
    with np.errstate(all="ignore"):
        for index, value in enumerate(region.values):
            known.append(_evaluate_one(region, index, value, known, buffers))
    return [np.broadcast_to(known[value], region.operands[operand].dim) for value, operand in region.stores]


def _evaluate_one(region: Region, index: int, value: Value, known: list[Array], buffers: Sequence[Array]) -> Array:
    args = [known[a] for a in value.args]
    if value.op == "load":
        operand = region.operands[region.operand_of[index]]
        return view_of(operand, buffers[region.operand_of[index]]).astype(np.float64)
    if value.op == "const":
        return np.float64(value.attr("value"))
    if value.op == "index":
        axis = value.attr("axis")
        return np.broadcast_to(
            np.arange(value.dim[axis]).reshape([-1 if i == axis else 1 for i in range(len(value.dim))]), value.dim
        ).astype(float)
    if value.op == "count":
        return np.float64(prod(region.values[value.args[0]].dim[a] for a in value.attr("axes")))
    if value.op == "reduce":
        folds = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}
        full = np.broadcast_to(args[0], region.values[value.args[0]].dim)
        return folds[value.attr("mode")](full, axis=value.attr("axes"), keepdims=True)
    result = np.asarray(FUNCTIONS[value.op](*args), dtype=np.float64)
    if value.dtype.kind in ("int", "uint"):
        return np.clip(
            np.rint(np.nan_to_num(result, nan=0.0)), np.iinfo(value.dtype.numpy_name).min, value.dtype.max_finite
        )
    return (result != 0).astype(float) if value.dtype.kind == "bool" else result


# table
FUNCTIONS: dict[str, Any] = {
    "matmul": np.matmul, "cast": lambda x: x, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log,
    "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "erf": np.vectorize(erf, otypes=[float]), "floor": np.floor, "ceil": np.ceil, "not_": lambda x: x == 0,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.fmod, "pow": np.power,
    "max": lambda a, b: np.where((a > b) | (a != a), a, b), "min": lambda a, b: np.where((a < b) | (a != a), a, b),
    "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
    "le": np.less_equal, "and_": lambda a, b: (a != 0) & (b != 0), "or_": lambda a, b: (a != 0) | (b != 0),
    "select": lambda m, a, b: np.where(m != 0, a, b),
}  # fmt: skip


def gelu(d: Draft, x: int) -> int:
    """x / 2 * (1 + erf(x / sqrt 2))."""
    inner = d.op("erf", d.op("mul", x, d.const(0.5**0.5)))
    return d.op("mul", d.op("mul", x, d.const(0.5)), d.op("add", inner, d.const(1.0)))


def pointwise_chain(dim: Sequence[int], dtype: DType) -> Region:
    """gelu(x * scale + bias) with the sum stored too."""
    d = Draft(len(dim))
    x, bias = d.load(dim, dtype), d.load((1,) * (len(dim) - 1) + (dim[-1],), dtype)
    scale = d.load((1,) * len(dim), FLOAT, scalar=True)
    total = d.op("add", d.op("mul", x, scale), bias, dtype=dtype)
    d.store(total)
    d.store(d.op("cast", gelu(d, total), dtype=dtype))
    return d.region()


def softmax(rows: int, columns: int, dtype: DType) -> Region:
    """Softmax over the last axis."""
    d = Draft(2)
    x = d.load((rows, columns), dtype)
    e = d.op("exp", d.op("sub", x, d.op("reduce", x, mode="max", axes=(1,))))
    d.store(d.op("div", e, d.op("reduce", e, mode="add", axes=(1,)), dtype=dtype))
    return d.region()


def rms_norm(rows: int, columns: int, dtype: DType) -> Region:
    """RMS norm with its inverse root mean square."""
    d = Draft(2)
    x, weight = d.load((rows, columns), dtype), d.load((1, columns), dtype)
    eps = d.load((1, 1), FLOAT, scalar=True)
    total = d.op("reduce", d.op("mul", x, x), mode="add", axes=(1,))
    mean = d.op("div", total, d.op("count", x, axes=(1,)))
    inverse = d.op("div", d.const(1.0), d.op("sqrt", d.op("add", mean, d.op("abs", eps))))
    d.store(d.op("mul", d.op("mul", x, inverse), weight, dtype=dtype))
    d.store(inverse)
    return d.region()


def add_layer_norm_gelu(rows: int, columns: int, dtype: DType) -> Region:
    """gelu(layer_norm(x + y)); stores the sum, the mean, the inverse deviation and the result."""
    d = Draft(2)
    x, y = d.load((rows, columns), dtype), d.load((rows, columns), dtype)
    scale, bias = d.load((1, columns), dtype), d.load((1, columns), dtype)
    total = d.op("add", x, y, dtype=dtype)
    count = d.op("count", total, axes=(1,))
    mean = d.op("div", d.op("reduce", total, mode="add", axes=(1,)), count)
    centred = d.op("sub", total, mean)
    variance = d.op("div", d.op("reduce", d.op("mul", centred, centred), mode="add", axes=(1,)), count)
    inverse = d.op("div", d.const(1.0), d.op("sqrt", d.op("add", variance, d.const(1e-5))))
    normal = d.op("add", d.op("mul", d.op("mul", centred, inverse), scale), bias)
    for value in (total, mean, inverse, d.op("cast", gelu(d, normal), dtype=dtype)):
        d.store(value)
    return d.region()


def norm_gradients(rows: int, columns: int, dtype: DType, *, is_layer: bool = True) -> Region:
    """The gradients of a norm by its input, scale and, of a layer norm, bias; of a gradient in two summands."""
    d = Draft(2)
    grad = d.op("add", d.load((rows, columns), dtype), d.load((rows, columns), dtype))
    x, scale, inv = d.load((rows, columns), dtype), d.load((1, columns), dtype), d.load((rows, 1), FLOAT)
    centred = d.op("sub", x, d.load((rows, 1), FLOAT)) if is_layer else x
    normed, scaled = d.op("mul", centred, inv), d.op("mul", grad, scale)

    def mean(value: int) -> int:
        return d.op("div", d.op("reduce", value, mode="add", axes=(1,)), d.op("count", value, axes=(1,)))

    dx = d.op("sub", scaled, d.op("mul", normed, mean(d.op("mul", scaled, normed))))
    if is_layer:
        dx = d.op("sub", dx, mean(scaled))
        d.store(d.op("reduce", grad, mode="add", axes=(0,), dtype=FLOAT))
    d.store(d.op("mul", dx, inv, dtype=dtype))
    d.store(d.op("reduce", d.op("mul", grad, normed), mode="add", axes=(0,), dtype=dtype))
    return d.region()


def matmul_bias_gelu(batch: int, m: int, n: int, k: int, dtype: DType) -> Region:
    """Matmul with bias and gelu; the value before gelu is stored too."""
    d = Draft(3)
    a, b, bias = d.load((batch, m, k), dtype), d.load((1, k, n), dtype), d.load((1, 1, n), dtype)
    before = d.op("add", d.op("matmul", a, b), bias, dtype=dtype)
    d.store(before)
    d.store(d.op("cast", gelu(d, before), dtype=dtype))
    return d.region()


def gated(m: int, n: int, k: int, dtype: DType) -> Region:
    """swish(x gate) * (x up): two matmuls that share their left operand."""
    d = Draft(2)
    x = d.load((m, k), dtype)
    gate, up = (d.op("matmul", x, d.load((k, n), dtype)) for _ in range(2))
    opened = d.op("div", gate, d.op("add", d.op("exp", d.op("neg", gate)), d.const(1.0)))
    d.store(d.op("mul", opened, up, dtype=dtype))
    return d.region()


def scaled_matmul(m: int, n: int, k: int, dtype: DType) -> Region:
    """relu(relu(x * scale) w + bias): pointwise work in front of a matmul and behind it."""
    d = Draft(2)
    scaled = d.op("mul", d.load((m, k), dtype), d.load((1, k), dtype), dtype=dtype)
    product = d.op("matmul", d.op("max", scaled, d.const(0.0), dtype=dtype), d.load((k, n), dtype))
    d.store(d.op("max", d.op("add", product, d.load((1, n), dtype)), d.const(0.0), dtype=dtype))
    return d.region()


def matmul_gelu_amax(batch: int, m: int, n: int, k: int, dtype: DType) -> Region:
    """gelu(scale * a b + bias) and its largest absolute value."""
    d = Draft(3)
    a, b = d.load((batch, m, k), dtype), d.load((batch, k, n), dtype)
    scale, bias = d.load((1, 1, 1), FLOAT, scalar=True), d.load((1, 1, n), dtype)
    y = d.op("cast", gelu(d, d.op("add", d.op("mul", d.op("matmul", a, b), scale), bias)), dtype=dtype)
    d.store(y)
    d.store(d.op("reduce", d.op("abs", y), mode="max", axes=(0, 1, 2)))
    return d.region()
