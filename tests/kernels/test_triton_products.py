"""Ways of computing products: what their kernels take, and which launches start before others have ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuseplan.dtypes import BFLOAT16, FLOAT, HALF, DType
from fuseplan.engines.triton import compile as aot
from fuseplan.engines.triton.engine import ENGINE
from fuseplan.ir.region import Region
from fuseplan.runtime.launch import LaunchKind, PatchKind
from tests.kernels import triton_cases as made
from tests.kernels.test_triton_compile import check_parameters, resources

pytest.importorskip("triton", reason="triton is not installed")


def scaled_floor(dtype: DType) -> Region:
    """A large product, scaled, with a bias and a floor."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((4096, 4096), dtype), d.load((4096, 4096), dtype, (1, 4096)))
    y = d.op("add", d.op("mul", product, d.load((1, 1), FLOAT, scalar=True)), d.load((1, 4096), dtype))
    d.store(d.op("cast", d.op("max", y, d.const(0.0)), dtype=dtype))
    return d.region()


def long_product() -> Region:
    """A product whose tiles leave a last wave that is worth sharing."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((2048, 6144), BFLOAT16), d.load((6144, 7168), BFLOAT16, (1, 6144)))
    d.store(d.op("cast", product, dtype=BFLOAT16))
    return d.region()


def long_sums() -> Region:
    """A product of few results."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((64, 65536), BFLOAT16), d.load((65536, 256), BFLOAT16, (1, 65536)))
    d.store(d.op("cast", product, dtype=BFLOAT16))
    return d.region()


PARTS = {"SPLIT_N": 1, "PROGRAMS": 0, "SPLIT_K": 64, "SHARED_TAIL": 1, "SPECIALISTS": 0}
# table: regions and knobs, for which a kernel of its own is made
WAYS: dict[str, tuple[Callable[[], Region], dict[str, int]]] = {
    "specialists": (lambda: scaled_floor(HALF), {"num_warps": 4, "num_stages": 4, "SPECIALISTS": 1}),
    "specialists-in-turn": (
        lambda: scaled_floor(HALF),
        {"BLOCK_N": 128, "num_warps": 4, "num_stages": 6, "SPLIT_N": 4, "SPECIALISTS": 2},
    ),
    "parts-tail": (long_sums, {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 8, "num_stages": 4, **PARTS}),
    "shared-tail": (long_product, {"num_warps": 8, "num_stages": 3, "SHARED_TAIL": 1, "SPECIALISTS": 0}),
    "specialists-tail": (long_product, {"num_warps": 4, "num_stages": 4, "SHARED_TAIL": 1, "SPECIALISTS": 1}),
}
TILE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "SPLIT_N": 2, "SWAP": 0, "MAPS": 1, "PROGRAMS": 1, "SPLIT_K": 1}


@pytest.mark.parametrize("way", WAYS)
def test_way_of_computing_products_compiles_without_spills(way: str, tmp_path: Path) -> None:
    make, knobs = WAYS[way]
    (kernel,) = made.kernels(make(), tuple({**TILE, **knobs}.items()))
    assert (kernel.is_gluon, kernel.is_cooperative) == ("specialists" in way, "tail" in way)
    asm, facts = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
    used = resources(asm["cubin"], tmp_path)
    assert used["LOCAL"] == 0 and used["STACK"] == 0, used
    assert facts["shared_bytes"] <= made.device(90).shared_bytes
    assert facts["num_warps"] == (12 if "specialists" in way else 8)
    check_parameters(kernel, asm["ptx"], [aot.Box(*box) for box in facts["boxes"]])


def test_one_listed_plan_of_a_product_takes_addresses_alone() -> None:
    d = made.Draft(2)
    d.store(d.op("matmul", d.load((256, 256), BFLOAT16), d.load((256, 256), BFLOAT16), dtype=BFLOAT16))
    region, device = d.region(), made.device(90)
    found = [ENGINE.build(region, device, config).launches for config in ENGINE.knobs(region, device).configs()]
    kinds = [{p.kind for x in launches for p in x.patches} for launches in found]
    assert PatchKind.TENSOR_MAP in kinds[0]
    alone = [len(x) == 1 and k == {PatchKind.POINTER} for x, k in zip(found, kinds, strict=True)]
    assert any(alone) and found[alone.index(True)][0].kind is LaunchKind.CUDA
