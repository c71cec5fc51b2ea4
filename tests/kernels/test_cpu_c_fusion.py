"""Regions of `cpu_c` with several anchors, operations in front of them, and several windows on one tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16, DOUBLE, FLOAT, HALF, INT8, INT32, DType
from fuseplan.engines.base import Config, Knob, KnobSpace
from fuseplan.engines.cpu_c.engine import ENGINE, CpuCEngine
from fuseplan.engines.cpu_c.forms.matmul import MatmulForm, MatmulSchedule
from fuseplan.engines.cpu_c.source import Source
from fuseplan.ir.region import Region, Role
from fuseplan.lowering.verify import verify_region
from fuseplan.ops.judge import judge
from fuseplan.plan.graph_json import loads
from fuseplan.testing.run import build_on, random_inputs, run_on_host
from tests.kernels.cpu_c_harness import CPU, RegionBuilder, call, interpret, near, random_array, run_region
from tests.kernels.test_cpu_c_anchor import channels_last


def check(region: Region, scale: float = 16.0) -> None:
    """Against float64; the bound is relative to the largest result."""
    verify_region(region)
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, o) for o in region.operands if o.role is not Role.OUT]
    outs = [o for o in region.operands if o.role is Role.OUT]
    for o, a, e in zip(outs, run_region(region, inputs), interpret(region, inputs, exact=True), strict=True):
        near(a, e, o.dtype, scale, floor=float(np.abs(np.asarray(e, np.float64)).max(initial=1.0)))


def swish(b: RegionBuilder, x: int) -> int:
    one = b.const(1.0, len(b.values[x].dim))
    return b.op("div", x, b.op("add", one, b.op("exp", b.op("neg", x))))


@pytest.mark.parametrize("io", [FLOAT, pytest.param(HALF, marks=pytest.mark.full), BFLOAT16], ids=str)
@pytest.mark.parametrize("strides", [(None, None), ((1, 40), None), ((1, 40), (1, 40))], ids=["kn", "mixed", "nk"])
def test_gate_and_up_share_their_operand_and_their_epilogue(
    io: DType, strides: tuple[tuple[int, int] | None, tuple[int, int] | None]
) -> None:
    b = RegionBuilder()
    x, gate, up = b.load((9, 40), io), b.load((40, 70), io, strides[0]), b.load((40, 70), io, strides[1])
    g, u = b.op("matmul", x, gate, dim=(9, 70)), b.op("matmul", x, up, dim=(9, 70))
    y = b.op("mul", swish(b, g), u, dtype=io)
    b.store(y)
    b.store(g)
    b.store(b.reduce("max", b.op("abs", y), (0, 1)))
    check(b.region())


def test_products_of_different_depths_and_batches_share_a_domain() -> None:
    b = RegionBuilder()
    one = b.op("matmul", b.load((3, 5, 7)), b.load((1, 7, 66)), dim=(3, 5, 66))
    two = b.op("matmul", b.load((1, 5, 300)), b.load((1, 300, 66), stride=(0, 1, 300)), dim=(1, 5, 66))
    three = b.op("matmul", b.load((3, 1, 2)), b.load((3, 2, 1)), dim=(3, 1, 1))
    b.store(b.op("add", b.op("mul", one, two), three))
    check(b.region())


@pytest.mark.parametrize("is_transposed", [False, True], ids=["columns", "dot"])
@pytest.mark.parametrize(
    ("io", "compute", "out"),
    [(FLOAT, FLOAT, FLOAT), (HALF, FLOAT, HALF), (DOUBLE, DOUBLE, FLOAT), (INT8, INT32, INT32)],
    ids=["float", "half", "double", "int8"],
)
def test_operations_in_front_of_both_factors(io: DType, compute: DType, out: DType, is_transposed: bool) -> None:
    b = RegionBuilder(compute)
    x, scale = b.load((2, 5, 33), io), b.load((1, 1, 33), io)
    w, bias = b.load((2, 33, 70), io, (2310, 1, 33) if is_transposed else None), b.load((2, 1, 70), io)
    left = b.op("max", b.op("mul", x, scale), b.const(0, 3, compute), dtype=io)
    right = b.op("sub", b.op("add", w, bias), b.op("index", dim=(2, 33, 70), axis=1))
    t = b.op("matmul", left, right, dim=(2, 5, 70))
    b.store(b.op("max", b.op("add", t, bias), b.const(1, 3, compute), dtype=out))
    b.store(b.reduce("add", t, (1,)))
    check(b.region())


def test_scaled_rectified_factor_then_bias_and_relu_is_one_region() -> None:
    """mul, relu, matmul, add, relu."""
    b = RegionBuilder()
    x, scale, w, bias = b.load((6, 40)), b.load((1, 40)), b.load((40, 9)), b.load((1, 9))
    left = b.op("max", b.op("mul", x, scale), b.const(0.0, 2))
    t = b.op("matmul", left, w, dim=(6, 9))
    b.store(b.op("max", b.op("add", t, bias), b.const(0.0, 2)))
    check(b.region())


def test_positions_in_front_of_a_product_count_its_own_axes() -> None:
    b = RegionBuilder()
    x, w = b.load((1, 1, 12)), b.load((4, 12, 5))
    shifted = b.op("add", b.op("add", x, b.op("index", dim=(1, 1, 12), axis=2)), b.op("index", dim=(1, 1, 12), axis=1))
    batch = b.op("mul", w, b.op("index", dim=(4, 12, 5), axis=0))
    b.store(b.op("add", b.op("matmul", shifted, batch, dim=(4, 1, 5)), b.load((4, 3, 5))))
    check(b.region())


def test_value_that_is_stored_and_multiplied_is_computed_twice() -> None:
    b = RegionBuilder()
    x, w = b.load((8, 8)), b.load((8, 8))
    y = b.op("max", x, b.const(0.0, 2))
    b.store(y)
    b.store(b.op("add", b.op("matmul", y, w, dim=(8, 8)), y))
    check(b.region())


def test_stored_factor_of_another_width_than_the_product_is_refused_by_value() -> None:
    b = RegionBuilder()
    x, w = b.load((8, 5)), b.load((5, 9))
    y = b.op("max", x, b.const(0.0, 2))
    b.store(y)
    b.store(b.op("matmul", y, w, dim=(8, 9)))
    refused = ENGINE.supports(b.region(), CPU)
    assert "has dims [8, 5], the loops walk [8, 9]" in refused.reason
    assert refused.at >= 0


def test_anchors_that_add_up_in_different_types_are_refused_by_value() -> None:
    b = RegionBuilder()
    x, w = b.load((4, 4)), b.load((4, 4))
    one = b.op("matmul", x, w, dim=(4, 4))
    two = b.op("matmul", x, w, dim=(4, 4), compute=DOUBLE)
    b.store(b.op("add", one, two))
    refused = ENGINE.supports(b.region(), CPU)
    assert "adds up in DOUBLE, another anchor in FLOAT" in refused.reason
    assert refused.at == two


@pytest.mark.parametrize("is_channels_last", [True, False], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("groups", [1, 2])
def test_padding_of_a_convolution_is_zero_behind_what_is_in_front_of_it(is_channels_last: bool, groups: int) -> None:
    """exp(0) is 1: padding that were put in front of the exponential would show."""
    dim, filters = (2, 4, 5, 6), (6, 4 // groups, 3, 2)
    b = RegionBuilder()
    x = b.load(dim, HALF, channels_last(dim) if is_channels_last else None)
    w = b.load(filters, HALF, channels_last(filters) if is_channels_last else None)
    scale, bias = b.load((1, 4, 1, 1)), b.load((1, 6, 1, 1))
    image = b.op("exp", b.op("add", b.op("mul", x, scale), b.op("index", dim=dim, axis=3)), dtype=HALF)
    window = {"pre_pad": (1, 1), "post_pad": (1, 1), "stride": (1, 2), "dilation": (1, 1), "flip": False}
    t = b.op("conv_fprop", image, b.op("mul", w, b.const(0.5, 4)), dim=(2, 6, 5, 4), dtype=FLOAT, **window)
    y = b.op("max", b.op("add", t, bias), b.const(0.0, 4))
    b.store(y, channels_last((2, 6, 5, 4)) if is_channels_last else None)
    b.store(b.reduce("add", y, (0, 2, 3)))
    check(b.region())


def test_two_convolutions_of_one_image_share_a_domain() -> None:
    b = RegionBuilder()
    x, wide, narrow = b.load((2, 3, 6, 7)), b.load((4, 3, 3, 3)), b.load((4, 3, 1, 1))
    plain = {"stride": (1, 1), "dilation": (1, 1), "flip": False}
    one = b.op("conv_fprop", x, wide, dim=(2, 4, 6, 7), pre_pad=(1, 1), post_pad=(1, 1), **plain)
    two = b.op("conv_fprop", x, narrow, dim=(2, 4, 6, 7), pre_pad=(0, 0), post_pad=(0, 0), **plain)
    b.store(b.op("mul", one, swish(b, two)))
    check(b.region())


# ---- windows on one tensor --------------------------------------------------------------------------------------


def windows(region: Region, uid: int, offsets: dict[int, int]) -> Region:
    """The region with some of its operands as windows on one tensor."""
    operands = [
        replace(o, uid=uid, offset=offsets[k]) if k in offsets else o for k, o in enumerate(region.operands)
    ]  # fmt: skip
    return replace(region, operands=tuple(operands))


def test_halves_of_one_tensor_are_two_operands_with_offsets() -> None:
    b = RegionBuilder(HALF)
    left, right = b.load((3, 4), HALF, (8, 1)), b.load((3, 4), HALF, (8, 1))
    b.store(b.op("sub", left, right))
    region = windows(b.region(), 0, {0: 0, 1: 4})
    x = np.random.default_rng(0).uniform(-1, 1, (3, 8)).astype(np.float16)
    (y,) = run_region(region, [x, x])
    np.testing.assert_array_equal(y, x[:, :4] - x[:, 4:])


def test_window_of_a_factor_starts_at_its_offset() -> None:
    b = RegionBuilder()
    x, w = b.load((3, 4), FLOAT, (10, 1)), b.load((4, 5))
    b.store(b.op("matmul", b.op("neg", x), w, dim=(3, 5)))
    region = windows(b.region(), 0, {0: 6})
    rng = np.random.default_rng(0)
    x_all, w_all = (rng.uniform(-1, 1, d).astype(np.float32) for d in ((3, 10), (4, 5)))
    (y,) = run_region(region, [x_all, w_all])
    np.testing.assert_allclose(y, -x_all[:, 6:].astype(np.float64) @ w_all, rtol=1e-5, atol=1e-5)


def test_written_tensor_is_updated_in_place_but_not_through_two_windows() -> None:
    b = RegionBuilder()
    x, y = b.load((5, 6)), b.load((5, 6))
    b.store(b.op("add", x, b.op("mul", y, y)))
    region = b.region()
    state = replace(region.operands[0], role=Role.INOUT)
    in_place = replace(region, operands=(state, region.operands[1]), stores=((region.stores[0][0], 0),))
    verify_region(in_place)
    rng = np.random.default_rng(0)
    x_in, y_in = (rng.uniform(-1, 1, (5, 6)).astype(np.float32) for _ in range(2))
    expected = x_in.astype(np.float64) + y_in.astype(np.float64) ** 2
    run_once(in_place, [x_in, y_in])
    np.testing.assert_allclose(x_in, expected, rtol=1e-6)
    shifted = replace(region.operands[2], uid=0, offset=6)
    refused = ENGINE.supports(replace(region, operands=(*region.operands[:2], shifted)), CPU)
    assert "through another window" in refused.reason


def run_once(region: Region, arrays: list[np.ndarray]) -> None:
    assert ENGINE.supports(region, CPU).is_supported
    call(ENGINE.build(region, CPU, ()), arrays)


def test_packed_combined_and_scratch_operands_are_refused() -> None:
    b = RegionBuilder()
    b.store(b.op("neg", b.load((4, 4))))
    region = b.region()
    for fields, word in (({"rows": (0, 1)}, "packed"), ({"combine": "add"}, "combined"), ({"init": 0.0}, "combined")):
        changed = replace(region, operands=(region.operands[0], replace(region.operands[1], **fields)))
        assert word in ENGINE.supports(changed, CPU).reason


def test_factor_that_is_written_in_the_same_kernel_is_refused() -> None:
    b = RegionBuilder()
    x, w = b.load((4, 4)), b.load((4, 4))
    b.store(b.op("matmul", x, w, dim=(4, 4)))
    region = b.region()
    state = replace(region.operands[0], role=Role.INOUT)
    changed = replace(region, operands=(state, region.operands[1]), stores=((region.stores[0][0], 0),))
    assert "reads operand 0, which the kernel writes" in ENGINE.supports(changed, CPU).reason


# ---- whole graphs -----------------------------------------------------------------------------------------------

GRAPHS = Path(__file__).parents[1] / "conformance"


@pytest.mark.parametrize("name", ["gate_up_swish_product", "prologue_matmul_epilogue", "scale_bias_relu_conv",
                                  "dswiglu_epilogue"])  # fmt: skip
def test_graph_is_one_region_and_right(name: str) -> None:
    graph = loads((GRAPHS / f"{name}.json").read_text(encoding="utf-8"))
    plan = build_on(graph, "cpu_c")
    assert [(a.engine.name, len(a.region.graph.nodes)) for a, _ in plan.parts] == [("cpu_c", len(graph.nodes))]
    inputs = random_inputs(graph, seed=5)
    arrays = {uid: b.view.copy() for uid, b in inputs.items()}
    verdict = judge(graph, arrays, run_on_host(plan, inputs))
    assert verdict.is_right, verdict.message


# ---- memos ------------------------------------------------------------------------------------------------------


class TwoConfigs(MatmulForm):
    """The form with a knob that is written into the source."""

    def configs(self, schedule: MatmulSchedule) -> KnobSpace:
        return KnobSpace({"VARIANT": Knob((1, 2))})

    def emit(self, schedule: MatmulSchedule, config: Config) -> Source:
        made = super().emit(schedule, config)
        return replace(made, source=f"/* variant {dict(config)['VARIANT']} */\n{made.source}")


def test_config_is_a_part_of_what_an_executable_is_remembered_by() -> None:
    b = RegionBuilder()
    b.store(b.op("matmul", b.load((4, 5)), b.load((5, 6)), dim=(4, 6)))
    engine = CpuCEngine()
    engine.forms = (TwoConfigs(),)  # type: ignore[misc]
    region = b.region()
    first, second = engine.knobs(region, CPU).configs()
    one, two = engine.build(region, CPU, first), engine.build(region, CPU, second)
    assert "/* variant 1 */" in one.source and "/* variant 2 */" in two.source
    assert engine.build(region, CPU, first) is one
