"""Run generated kernels on the CPU in Triton's interpreter, for tests.

The process must have been started with ``TRITON_INTERPRET=1``. PyTorch holds the buffers. The
interpreter has no libdevice; NumPy's functions stand in. It computes bfloat16 wrongly: use float16
and float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from fuseplan.codegen.triton_expr import FP8_TYPES
from fuseplan.dtypes import BOOLEAN, DType
from fuseplan.engines.triton.compile import load_source
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamKind
from fuseplan.ir.region import Region

Array = Any


def run_interpreted(region: Region, emitted: Emitted, buffers: Sequence[Array]) -> None:
    """Run the steps of a region once, writing into the buffers of its outputs.

    Args:
        buffers: one flat NumPy array per operand, as it lies in memory; host scalars have one element
    """
    import torch

    held = [_to_torch(b, o.dtype) for b, o in zip(buffers, region.operands, strict=True)]
    scratch = torch.zeros(max(1, -(-emitted.scratch_bytes // 4)), dtype=torch.int32)
    for step in emitted.steps:
        if isinstance(step, Fill):
            target = scratch if step.operand < 0 else held[step.operand].view(torch.int32)
            first = step.offset_bytes // 4
            target[first : first + step.words] = int(np.array([step.word], np.uint32).view(np.int32)[0])
        else:
            _run_kernel(step, held, scratch)


def _to_torch(array: Array, dtype: DType) -> Any:
    """A tensor over the same memory; BOOLEAN as bytes."""
    import torch

    if dtype is BOOLEAN:
        return torch.from_numpy(array.view(np.uint8))
    if dtype in FP8_TYPES:
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, dtype.numpy_name))
    return torch.from_numpy(array)


def _run_kernel(kernel: Kernel, held: Sequence[Any], scratch: Any) -> None:
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    views = {"*i32": torch.int32, "*fp32": torch.float32}
    arguments: dict[str, Any] = dict(kernel.constants)
    for param in kernel.params:
        if param.view is not None:
            tensor = held[param.operand]
            base, view = tensor[param.value // tensor.element_size() :], param.view
            arguments[param.name] = TensorDescriptor(base, [*view.dims], [*view.strides], [*view.tile])
        elif param.kind is ParamKind.POINTER:
            tensor = held[param.operand]
            tensor = tensor[param.value // tensor.element_size() :]
            arguments[param.name] = tensor.view(views[param.type]) if param.type in views else tensor
        elif param.kind is ParamKind.SCALAR:
            arguments[param.name] = held[param.operand].reshape(-1)[0].item()
        elif param.kind is ParamKind.SCRATCH:
            arguments[param.name] = scratch[param.value // 4 :].view(views[param.type])
        elif param.kind is ParamKind.TABLE:
            arguments[param.name] = torch.tensor(param.numbers, dtype=torch.int32)
        else:
            arguments[param.name] = param.value
    module = load_source(kernel.source)
    stand_in(module)
    with np.errstate(all="ignore"):
        getattr(module, kernel.function)[(kernel.grid,)](**arguments)


class _Libdevice:
    """NumPy's functions under libdevice's names, on the interpreter's tensors."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        from triton.language import core
        from triton.runtime.interpreter import TensorHandle

        function = self._functions[name]

        def call(*args: Any) -> Any:
            arrays = np.broadcast_arrays(*(a.handle.data for a in args))
            result = np.asarray(function(*arrays), dtype=arrays[0].dtype)
            scalar = args[0].type.scalar
            type_ = core.block_type(scalar, list(result.shape)) if result.ndim and _is_block(args) else scalar
            return core.tensor(TensorHandle(result, scalar), type_)

        return call


def _is_block(args: Sequence[Any]) -> bool:
    return any(a.type.is_block() for a in args)


@functools.cache
def _mend_splat() -> None:
    """Let a scalar comparison stay one when it is broadcast; the interpreter gives it its operands' type."""
    from triton.language import core
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_splat

    def create_splat(self: Any, type_: Any, arg: Any) -> Any:
        if arg.data.dtype == np.bool_:
            return interpreter.TensorHandle(np.full(type_.shape, arg.data.reshape(-1)[0]), core.int1)
        return original(self, type_, arg)

    interpreter.InterpreterBuilder.create_splat = create_splat


@functools.cache
def _mend_dot() -> None:
    """Let products of bfloat16 tiles widen them; the interpreter multiplies their bits."""
    from triton.language import core
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def widened(x: Any) -> Any:
        bits = x.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), core.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype == core.bfloat16:
            a, b = widened(a), widened(b)
        return original(self, a, b, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


def stand_in(module: ModuleType) -> None:
    """NumPy in place of libdevice, and of machine instructions, in a module of generated or kernel source."""
    from triton import language

    _mend_splat()
    _mend_dot()
    names = ("exp", "log", "log1p", "sin", "cos", "tan", "tanh", "rint", "fmod")
    functions: dict[str, Any] = {name: getattr(np, name) for name in names}
    functions["pow"] = np.power
    functions["erf"] = np.vectorize(math.erf, otypes=[np.float64])
    module.libdevice = _Libdevice(functions)  # type: ignore[attr-defined]
    for name, fold in (("fold_max", np.max), ("fold_min", np.min)):  # the interpreter folds element by element
        if module.__name__.endswith(".helpers") is False and hasattr(module, name):
            setattr(module, name, functools.partial(_fold, fold))
    for name in ("exp2_near", "reciprocal_near"):
        if hasattr(module, name):
            setattr(module, name, getattr(_Libdevice({"exp2_near": np.exp2, "reciprocal_near": np.reciprocal}), name))
    if hasattr(module, "again"):
        module.again = lambda x, _: x  # type: ignore[attr-defined]
    if hasattr(module, "rounded_pairs"):
        module.rounded_pairs = lambda x: x.to(language.bfloat16)  # type: ignore[attr-defined]


def _fold(function: Any, x: Any, axis: Any) -> Any:
    """A tile folded along an axis (None: all), kept as an axis."""
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    axis = getattr(axis, "value", axis)
    result = np.asarray(function(x.handle.data, axis=axis, keepdims=True), dtype=x.handle.data.dtype)
    return core.tensor(TensorHandle(result, x.type.scalar), core.block_type(x.type.scalar, list(result.shape)))
