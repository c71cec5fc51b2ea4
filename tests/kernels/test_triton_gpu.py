"""Numbers of the triton engine's executables on a CUDA device, every listed config, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.dtypes import BFLOAT16, FLOAT, FP8_E4M3, FP8_E5M2, HALF, DType
from fuseplan.engines.base import Config, Engine, Executable
from fuseplan.engines.triton.engine import ENGINE, TritonEngine
from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import Region, Role
from fuseplan.plan.assign import Assigner
from fuseplan.runtime.device import cuda_devices
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.runtime.launch import Program, Slot
from tests.kernels import dynamic_graphs as graphs
from tests.kernels import triton_cases as made
from tests.kernels.gpu_run import run_and_judge

pytest.importorskip("triton", reason="triton is not installed")
torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not cuda_devices(), reason="no CUDA device")]

Array = Any


def closing(mode: str) -> Region:
    d = made.Draft(3)
    product = d.op("matmul", d.load((2, 190, 72), BFLOAT16), d.load((1, 72, 350), BFLOAT16))
    result = d.op("reduce", product, mode=mode, axes=(0, 1, 2))
    d.store(d.op("div", result, d.op("count", product, axes=(0, 1, 2))) if mode == "add" else result)
    return d.region()


def column_sums(rows: int, columns: int) -> Region:
    d = made.Draft(2)
    d.store(d.op("reduce", d.load((rows, columns), BFLOAT16), mode="add", axes=(0,)))
    return d.region()


def bias_gradient() -> Region:
    d = made.Draft(2)
    product = d.op("matmul", d.load((700, 72), BFLOAT16), d.load((72, 350), BFLOAT16))
    d.store(d.op("cast", product, dtype=BFLOAT16))
    d.store(d.op("reduce", product, mode="add", axes=(0,)))
    return d.region()


def eight_bit_matmul() -> Region:
    d = made.Draft(2)
    product = d.op("matmul", d.load((130, 72), FP8_E4M3), d.load((72, 96), FP8_E5M2))
    d.store(d.op("mul", product, d.const(0.3), dtype=FP8_E4M3))
    d.store(d.op("mul", product, d.const(0.1), dtype=FP8_E5M2))
    d.store(d.op("reduce", d.op("abs", product), mode="max", axes=(0, 1)))
    return d.region()


def average(rows: int, columns: int) -> Region:
    d = made.Draft(2)
    x = d.load((rows, columns), FLOAT)
    d.store(d.op("div", d.op("reduce", x, mode="add", axes=(0, 1)), d.op("count", x, axes=(0, 1))))
    d.store(d.op("reduce", d.op("abs", x), mode="max", axes=(0, 1)))
    return d.region()


def transposed_matmul() -> Region:
    d = made.Draft(3)
    a, b = d.load((3, 130, 70), HALF, (9100, 1, 130)), d.load((1, 70, 190), HALF, (0, 1, 70))
    d.store(d.op("cast", made.gelu(d, d.op("matmul", a, b)), dtype=HALF), (30000, 1, 140))
    return d.region()


# table
REGIONS: dict[str, Callable[[], Region]] = {
    "pointwise-chain": lambda: made.pointwise_chain((7, 33, 130), BFLOAT16),
    "softmax": lambda: made.softmax(300, 1000, BFLOAT16),
    "softmax-long": lambda: made.softmax(5, 40000, FLOAT),
    "rms-norm": lambda: made.rms_norm(300, 5120, BFLOAT16),
    "layer-norm": lambda: made.add_layer_norm_gelu(70, 4096, HALF),
    "column-sums": lambda: column_sums(500, 96),
    "column-sums-split": lambda: column_sums(9000, 770),
    "layer-norm-gradients": lambda: made.norm_gradients(3001, 5120, BFLOAT16),
    "rms-norm-gradients": lambda: made.norm_gradients(777, 1283, HALF, is_layer=False),
    "long-norm-gradients": lambda: made.norm_gradients(60, 20000, FLOAT),
    "average-of-all": lambda: average(300, 1000),
    "matmul-even": lambda: made.matmul_bias_gelu(1, 512, 1024, 256, HALF),
    "matmul-odd": lambda: made.matmul_bias_gelu(3, 130, 257, 65, BFLOAT16),
    "matmul-float": lambda: made.matmul_bias_gelu(1, 100, 130, 70, FLOAT),
    "matmul-transposed": transposed_matmul,
    "matmul-amax": lambda: made.matmul_gelu_amax(16, 512, 1024, 512, BFLOAT16),
    "matmul-eight-bit": eight_bit_matmul,
    "gated": lambda: made.gated(512, 1024, 256, BFLOAT16),
    "gated-odd": lambda: made.gated(130, 257, 65, HALF),
    "scaled-matmul": lambda: made.scaled_matmul(512, 1024, 256, HALF),
    "scaled-matmul-odd": lambda: made.scaled_matmul(130, 257, 65, BFLOAT16),
    "bias-gradient": bias_gradient,
    "closing-average": lambda: closing("add"),
    "closing-max": lambda: closing("max"),
    "closing-min": lambda: closing("min"),
}


def program_of(region: Region, built: Executable) -> Program:
    """The executable alone, with the region's operands as slots."""
    slots = []
    for index, operand in enumerate(region.operands):
        span = span_elements(operand.dim, operand.stride) * operand.dtype.itemsize
        place = "host" if operand.role is Role.SCALAR else "cuda"
        alignment = built.alignments[index] if built.alignments else 1
        slots.append(
            Slot(index, f"operand{index}", operand.dtype, span, place, 0, operand.role is Role.OUT, alignment=alignment)
        )
    return Program(tuple(slots), built.launches, built.scratch_bytes, "cuda", 0)


def to_torch(flat: Array) -> Any:
    if flat.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
    if flat.dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        return torch.from_numpy(flat.view(np.uint8)).view(getattr(torch, flat.dtype.name))
    return torch.from_numpy(flat)


def from_torch(tensor: Any, dtype: DType) -> Array:
    if dtype in (FP8_E4M3, FP8_E5M2):
        return tensor.cpu().view(torch.uint8).numpy().view(dtype.numpy_name)
    if dtype is BFLOAT16:
        return tensor.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def run_checked(
    region: Region, config: Config, *, shift: int = 0, aligned: bool = True, engine: Engine | None = None
) -> None:
    """Run twice on poisoned outputs; with a shift, on buffers that start off by so many elements."""
    built = (engine or TritonEngine()).build(region, cuda_devices()[0], config, aligned=aligned)
    program = program_of(region, built)
    dispatcher = make_dispatcher(program, [(i,) for i in range(len(program.slots))], [None] * len(program.slots), dict)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    host = [made.buffer_for(o, rng, poison=o.role is Role.OUT) for o in region.operands]
    want = made.evaluate(region, host)
    pack = {}
    for index, (operand, flat) in enumerate(zip(region.operands, host, strict=True)):
        tensor = to_torch(flat)
        if operand.role is not Role.SCALAR:
            longer = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device="cuda")
            longer[shift:] = tensor.cuda()
            tensor = longer[shift:]
        pack[index] = tensor
    workspace = torch.full((max(1, program.workspace_bytes),), 255, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        dispatcher.execute(pack, workspace, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        for (value, number), expected in zip(region.stores, want, strict=True):
            operand = region.operands[number]
            got = made.view_of(operand, from_torch(pack[number], operand.dtype).copy())
            check_close(got.astype(np.float64), expected, region, value)


def check_close(got: Array, want: Array, region: Region, stored: int) -> None:
    """Within the rounding of the output and of the results it comes from, and the length of its sums."""
    rounded = [v for i, v in enumerate(region.values) if v.op != "load" and (region.users[i] or i == stored)]
    epsilon = 2.0 ** -min(v.dtype.mantissa_bits for v in rounded if v.dtype.is_float)
    longest = max((region.values[v.args[0]].dim[-1] for v in region.values if v.op == "matmul"), default=64)
    scale = float(np.abs(want).max())
    fine = 2.0**-24 * longest**0.5 * 8
    np.testing.assert_allclose(got, want, rtol=4 * epsilon, atol=(2 * epsilon + fine) * max(scale, 1e-6))


@pytest.mark.parametrize("name", REGIONS)
def test_every_config_matches_float64(name: str) -> None:
    region = REGIONS[name]()
    for config in TritonEngine().knobs(region, cuda_devices()[0]).configs():
        run_checked(region, config)


@pytest.mark.parametrize("dtype", [cudnn.data_type.BFLOAT16, cudnn.data_type.HALF])
@pytest.mark.parametrize("shape", [(512, 1024, 256), (130, 257, 65), (1, 7, 1), (16, 4096, 1024)])
@pytest.mark.parametrize("make", [graphs.gated, graphs.scaled_matmul])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_fused_matmuls_are_one_kernel_and_right(
    make: Callable[..., Any], shape: graphs.Shape, dtype: Any, is_dynamic: bool
) -> None:
    handle, token = cudnn.create_handle(), graphs.DEVICE.set("cuda")
    try:
        g = make(shape, dtype, is_dynamic_shape_enabled=is_dynamic)
        g.build([cudnn.heur_mode.A])
        assert g._plans.need_built().name.startswith("triton")
        verdict = run_and_judge(g, handle)
        assert verdict.is_right, verdict.message
        assert len(Assigner(g._draft.graph, cuda_devices()[0]).assign(ENGINE)) == 1
    finally:
        graphs.DEVICE.reset(token)
        cudnn.destroy_handle(handle)


@pytest.mark.parametrize("name", ["pointwise-chain", "softmax", "matmul-odd", "matmul-even", "closing-max"])
def test_buffers_at_any_address(name: str) -> None:
    run_checked(REGIONS[name](), (), shift=1, aligned=False)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_nan_sticks_in_closing_reductions(mode: str) -> None:
    region = closing(mode)
    built = TritonEngine().build(region, cuda_devices()[0], ())
    program = program_of(region, built)
    dispatcher = make_dispatcher(program, [(i,) for i in range(3)], [None] * 3, dict)  # type: ignore[arg-type]
    a, b, out = (torch.randn(span_elements(o.dim, o.stride), device="cuda") for o in region.operands)
    a[5] = float("nan")
    workspace = torch.empty(max(1, program.workspace_bytes), dtype=torch.uint8, device="cuda")
    dispatcher.execute({0: a.bfloat16(), 1: b.bfloat16(), 2: out}, workspace, 0)
    torch.cuda.synchronize()
    assert bool(torch.isnan(out).all())
