"""Triton kernels compiled ahead of time, without a GPU: parameters, resources, instructions, caches."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseplan import settings
from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, FP8_E4M3, FP8_E5M2, HALF, INT8, INT32, INT64, UINT8, DType
from fuseplan.engines.base import Config
from fuseplan.engines.triton import compile as aot
from fuseplan.engines.triton.engine import LIMITS, TritonEngine
from fuseplan.engines.triton.kernel import Kernel, ParamKind
from fuseplan.engines.triton.launches import parameter_block
from fuseplan.errors import ToolchainError
from fuseplan.ir.region import Region, Role
from fuseplan.lowering.pipeline import lower
from fuseplan.runtime.launch import LaunchKind, PatchKind
from tests.attention_cases import attention_graph
from tests.kernels import triton_cases as made
from tests.kernels.uniform_registers import read_before_written

triton = pytest.importorskip("triton", reason="triton is not installed")


def bias_gradient() -> Region:
    """A product in a half type, and its sums over the rows."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((4096, 1024), BFLOAT16), d.load((1024, 4096), BFLOAT16))
    d.store(d.op("cast", product, dtype=BFLOAT16))
    d.store(d.op("reduce", product, mode="add", axes=(0,)))
    return d.region()


def sums(dim: tuple[int, int], axes: tuple[int, ...], dtype: DType) -> Region:
    d = made.Draft(2)
    d.store(d.op("reduce", d.load(dim, dtype), mode="add", axes=axes))
    return d.region()


def attention(options: Sequence[str], dims: tuple[int, ...], io: str = "BFLOAT16") -> Region:
    (piece,) = lower(attention_graph(options, dims, io), LIMITS)
    return piece.region


# table
REGIONS: dict[str, Callable[[], Region]] = {
    "pointwise-chain": lambda: made.pointwise_chain((64, 96, 256), BFLOAT16),
    "softmax": lambda: made.softmax(512, 4096, BFLOAT16),
    "rms-norm": lambda: made.rms_norm(512, 5120, BFLOAT16),
    "layer-norm": lambda: made.add_layer_norm_gelu(512, 4096, HALF),
    "layer-norm-gradients": lambda: made.norm_gradients(2048, 5120, BFLOAT16),
    "rms-norm-gradients": lambda: made.norm_gradients(2048, 8192, FLOAT, is_layer=False),
    "column-sums": lambda: sums((8192, 4096), (0,), BFLOAT16),
    "sum-of-all": lambda: sums((8192, 4096), (0, 1), FLOAT),
    "long-softmax": lambda: made.softmax(64, 65536, BFLOAT16),
    "matmul-bias-gelu": lambda: made.matmul_bias_gelu(1, 4096, 4096, 1024, HALF),
    "matmul-gelu-amax": lambda: made.matmul_gelu_amax(16, 512, 1024, 512, BFLOAT16),
    "gated": lambda: made.gated(4096, 4096, 1024, BFLOAT16),
    "scaled-matmul": lambda: made.scaled_matmul(4096, 4096, 1024, HALF),
    "matmul-bias-gradient": bias_gradient,
    "attention": lambda: attention(("causal",), (2, 16, 1024, 1024, 128, 128)),
    "attention-odd": lambda: attention(("padding", "bias"), (2, 16, 333, 1025, 72, 40)),
    "attention-decode": lambda: attention(("grouped",), (8, 16, 1, 4096, 128, 128)),
    "attention-float": lambda: attention(("window",), (2, 4, 512, 512, 64, 64), "FLOAT"),
    "attention-float-narrow-values": lambda: attention(("causal",), (2, 4, 300, 133, 40, 24), "FLOAT"),
}
MAP = 128  # bytes of a tensor map
QUICK = {(name, 90) for name in REGIONS}
ALL = [(name, sm) for name in REGIONS for sm in (80, 90, 100)]
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.full, id=f"{case[0]}-sm{case[1]}") for case in ALL
]


def kernels(region: Region, sm: int, config: Config = ()) -> list[Kernel]:
    """Generated kernels of a region under its default or a given config."""
    return made.kernels(region, config, sm)


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers, stack and local memory of the kernel in a cubin."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-res-usage", path], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", text)}


def ptx_parameters(ptx: str) -> list[int]:
    """Size in bytes of each parameter of the entry point, in order."""
    head = ptx[ptx.index(".visible .entry") :]
    head = head[: head.index("{")]
    found = re.findall(r"\.param (?:\.align \d+ )?\.[a-z](\d+)[^,\[\n)]*(?:\[(\d+)\])?", head)
    return [int(bits) // 8 * int(count or 1) for bits, count in found]


def template_sizes(kernel: Kernel) -> list[int]:
    """Sizes of the parameters as the launch's template has them."""
    sizes = {"i32": 4, "i64": 8, "fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "i8": 1, "u8": 1}
    found: list[int] = []
    for p in kernel.params:
        rank = len(p.view.dims) if p.view else 0
        found += [MAP, *[4] * rank, *[8] * rank] if p.view else [8 if p.is_address else sizes[p.type]]
    return [*found, 8, 8]


def check_parameters(kernel: Kernel, ptx: str, boxes: Sequence[aot.Box] = ()) -> None:
    sizes = ptx_parameters(ptx)
    assert sizes == template_sizes(kernel)
    template, offsets, patches, _ = parameter_block(kernel, boxes)
    expected, end = [], 0
    for size in sizes:  # natural alignment, as the CUDA driver lays parameters out; of a map 64
        align = 64 if size == MAP else size
        end = -(-end // align) * align
        expected.append(end)
        end += size
    assert list(offsets) == expected
    assert len(template) == end
    assert template[offsets[-2] :] == bytes(16)
    operands = [p for p in kernel.params if p.kind in (ParamKind.POINTER, ParamKind.SCALAR, ParamKind.MAP)]
    assert [p.slot for p in patches if p.kind is not PatchKind.SCRATCH] == [p.operand for p in operands]


@pytest.mark.parametrize(("name", "sm"), CASES)
def test_default_config_compiles_without_spills(name: str, sm: int, tmp_path: Path) -> None:
    region = REGIONS[name]()
    for kernel in kernels(region, sm):
        asm, facts = aot.compile_fresh(aot.compilation(kernel, sm, aligned=True))
        used = resources(asm["cubin"], tmp_path)
        assert used["LOCAL"] == 0 and used["STACK"] == 0, used
        assert read_before_written(asm["cubin"], tmp_path) == []
        assert facts["shared_bytes"] <= made.device(sm).shared_bytes
        assert 32 * facts["num_warps"] * used["REG"] <= 65536
        check_parameters(kernel, asm["ptx"], [aot.Box(*box) for box in facts["boxes"]])
        assert str(aot.source_path(kernel.source)).encode() not in asm["cubin"]
        if kernel.function in ("gemm", "parts") or kernel.is_gluon:
            wanted = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}[sm]
            assert wanted in asm["ptx"] and "cp.async" in asm["ptx"]
            assert ("cp.async.bulk.tensor" in asm["ptx"]) == (sm == 90)
        elif any(region.operands[p.operand].role is Role.IN for p in kernel.params if p.operand >= 0):
            vectors = r"ld\.global\S*\.v4\.b32|cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10"
            assert re.search(vectors, asm["ptx"]), "rows of 16-byte multiples load as vectors"
        assert ".approx" not in "".join(line for line in asm["ptx"].splitlines() if "div" in line or "sqrt" in line)


# table: entry of a kernel file that compiles alone: its signature, its constants, and an instruction that it has
ALONE: dict[str, tuple[str, dict[str, int], str]] = {
    "pointwise": ("*fp32 *fp32 i32", {"BLOCK": 1024, "MERGED": 0}, "ld.global"),
    "rows": ("*fp32 *fp32 i32 i32", {"ROWS": 2, "BLOCK": 512, "STAGES": 3, "ROWS_FIRST": 0}, "div.full.f32"),
    "whole_rows": ("*fp32 *fp32 *fp32 i32", {"ROWS": 8, "STAGES": 2}, "cp.async"),
    "gemm": (
        "*fp16 *fp16 *fp16 i32 i32 i32",
        {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "SPLIT_N": 2}, "wgmma.mma_async",
    ),
    "join": ("*fp32 *fp16 i32 i32", {"BLOCK_M": 4, "BLOCK_N": 64, "SPLIT_K": 8}, "ld.global"),
    "finish": ("*fp32 *fp32", {}, "sqrt.approx"),
    "attention": (
        "*fp32 *fp32 *fp32 *fp32 i32 i32 i32",
        {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_D": 64, "BLOCK_E": 64, "GROUP": 1, "CUTS": 4, "PARTS": 1}, "ex2.approx",
    ),
    "attention_join": (
        "*fp32 *fp32 *fp32 *fp32 i32 i32", {"BLOCK_M": 4, "BLOCK_E": 64, "GROUP": 1, "PARTS": 8}, "ex2.approx"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_kernel_file_compiles_alone(name: str) -> None:
    types, constants, instruction = ALONE[name]
    module = importlib.import_module(f"fuseplan.engines.triton.kernels.{name}")
    constants = {**constants, "INDEX_BITS": 32}
    types_in_order = [*types.split(), *("constexpr" for _ in constants)]
    signature = tuple(zip(getattr(module, name).arg_names, types_in_order, strict=True))
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    asm, _ = aot.compile_fresh(aot.Compilation(text, name, signature, tuple(constants.items()), (), 8, 3, 90))
    assert instruction in asm["ptx"] and asm["cubin"][:4] == b"\x7fELF"


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "matmul-bias-gelu",
        "matmul-gelu-amax",
        "gated",
        "scaled-matmul",
        "softmax",
        "layer-norm",
        "layer-norm-gradients",
        "column-sums",
        "long-softmax",
        "attention",
        "attention-decode",
    ],
)
def test_every_listed_config_compiles_and_fits(name: str) -> None:
    region, device = REGIONS[name](), made.device(90)
    for config in TritonEngine().knobs(region, device).configs():
        for kernel in kernels(region, 90, config):
            _, facts = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
            assert facts["shared_bytes"] <= device.shared_bytes, config


def all_types() -> Region:
    """One load, one host scalar and one store of every type, and casts between all of them."""
    types = (FLOAT, DOUBLE, HALF, BFLOAT16, INT8, UINT8, INT32, INT64, BOOLEAN)
    d = made.Draft(2)
    for source in types:
        x, s = d.load((3, 50), source), d.load((1, 1), source, scalar=True)
        for target in types:
            y = d.op("add", d.op("cast", x, dtype=target, compute=source), s, dtype=target, compute=FLOAT)
            if source is target or target is FLOAT:
                d.store(y)
    return d.region()


def all_primitives() -> Region:
    """Every primitive in every type that it is computed in."""
    d = made.Draft(2)
    total = d.load((3, 50), FLOAT)
    other = d.load((3, 1), FLOAT)
    unary = "neg abs exp log log1p sqrt sin cos tan tanh erf floor ceil not_".split()
    binary = "add sub mul div max min mod pow eq ne gt ge lt le and_ or_".split()
    floats = dict.fromkeys(unary, 1) | dict.fromkeys(binary, 2)
    rest = set(floats) - {"exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "erf", "pow"}
    for compute in (FLOAT, DOUBLE, BFLOAT16, INT32, BOOLEAN):
        for op in floats if compute.is_float else sorted(rest):
            y = d.op(op, *(total, other)[: floats[op]], dtype=FLOAT, compute=compute)
            total = d.op("add", total, y)
        total = d.op("select", d.op("gt", total, other), total, d.op("index", other, axis=1, dim=(1, 50), dtype=INT32))
    d.store(total)
    return d.region()


def eight_bit_matmul() -> Region:
    """Products of both 8-bit types, stored in both."""
    d = made.Draft(2)
    product = d.op("matmul", d.load((65, 33), FP8_E4M3), d.load((33, 97), FP8_E5M2))
    d.store(d.op("mul", product, d.const(0.5), dtype=FP8_E4M3))
    d.store(d.op("mul", product, d.const(0.5), dtype=FP8_E5M2))
    return d.region()


def test_eight_bit_floats_saturate_and_need_their_architecture() -> None:
    region = eight_bit_matmul()
    (kernel,) = kernels(region, 90)
    ptx = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))[0]["ptx"]
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx and "cvt.rn.satfinite.e5m2x2.f32" in ptx
    support = TritonEngine().supports(region, made.device(80))
    assert not support.is_supported and "sm_89" in support.reason


@pytest.mark.parametrize("make", [all_types, all_primitives])
def test_types_and_primitives_compile(make: Callable[[], Region]) -> None:
    for kernel in kernels(make(), 90):
        asm, _ = aot.compile_fresh(aot.compilation(kernel, 90, aligned=False))
        check_parameters(kernel, asm["ptx"])
        flushing = re.findall(r"\b(?:add|sub|mul|fma|div|sqrt|cvt)\.\S*ftz\S*", asm["ptx"])
        assert not flushing, "subnormal numbers are kept"


def test_build_gives_launches_with_patches_of_every_operand() -> None:
    region = made.matmul_gelu_amax(2, 64, 64, 64, BFLOAT16)
    built = TritonEngine().build(region, made.device(90), ())
    fill, main = built.launches
    assert fill.kind is LaunchKind.MEMSET and fill.memset_words == 1 and fill.memset_value == 0
    assert fill.patches[0].slot == 5
    assert main.kind is LaunchKind.CUDA and main.artifact is not None and main.artifact.kind == "cubin"
    assert main.artifact.arch == "sm_90" and main.artifact.data[:4] == b"\x7fELF"
    assert [p.slot for p in main.patches] == [0, 1, 2, 3, 4, 5]
    moved, address = PatchKind.TENSOR_MAP, PatchKind.POINTER
    assert [p.kind for p in main.patches] == [moved, moved, PatchKind.SCALAR, address, address, address]
    loose = TritonEngine().build(region, made.device(90), (), aligned=False)
    assert [p.kind for p in loose.launches[1].patches] == [address] * 2 + [PatchKind.SCALAR] + [address] * 3
    assert built.alignments == (16, 16, 1, 16, 16, 16)
    assert main.symbol.encode() in main.artifact.data


def test_closing_average_gets_scratch_and_a_finishing_kernel() -> None:
    d = made.Draft(2)
    product = d.op("matmul", d.load((64, 64), HALF), d.load((64, 64), HALF))
    d.store(d.op("div", d.op("reduce", product, mode="add", axes=(0, 1)), d.op("count", product, axes=(0, 1))))
    built = TritonEngine().build(d.region(), made.device(90), ())
    assert [x.kind for x in built.launches] == [LaunchKind.MEMSET, LaunchKind.CUDA, LaunchKind.CUDA]
    assert built.scratch_bytes == 4
    assert built.launches[0].patches[0].kind is PatchKind.SCRATCH
    assert PatchKind.SCRATCH in {p.kind for p in built.launches[1].patches}
    assert PatchKind.SCRATCH in {p.kind for p in built.launches[2].patches}


def test_config_without_alignment_promises_nothing_about_addresses() -> None:
    region = made.softmax(64, 1024, FLOAT)
    built = TritonEngine().build(region, made.device(90), (), aligned=False)
    assert built.alignments == ()
    (kernel,) = kernels(region, 90)
    loose, tight = (aot.compilation(kernel, 90, aligned=a) for a in (False, True))
    assert loose.key != tight.key
    ptx = aot.compile_fresh(loose)[0]["ptx"]
    assert not re.search(r"ld\.global\S*\.v4\.b32", ptx)


def test_equal_forms_of_other_extents_share_one_cubin() -> None:
    engine, device = TritonEngine(), made.device(90)
    config = (("BLOCK_K", 32), ("BLOCK_M", 64), ("BLOCK_N", 64), ("num_stages", 3), ("num_warps", 4))
    one, two = (engine.build(made.matmul_bias_gelu(2, m, 256, 128, HALF), device, config) for m in (128, 192))
    assert one.launches[0].artifact == two.launches[0].artifact
    assert one.launches[0].template != two.launches[0].template
    assert one.launches[0].grid != two.launches[0].grid


def test_second_build_comes_from_memory_then_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "_current", settings.Settings(cache_dir=tmp_path))
    region, device = made.softmax(8, 64, FLOAT), made.device(90)
    first_engine = TritonEngine()
    first = first_engine.build(region, device, ())
    assert first_engine.build(region, device, ()) is first

    def never(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(aot, "compile_fresh", never)
    assert TritonEngine().build(region, device, ()).launches == first.launches
    for path in tmp_path.glob("artifacts/*/*.cubin"):
        path.write_bytes(b"damaged" + path.read_bytes()[7:])
    with pytest.raises(AssertionError, match="compiled again"):  # a damaged entry is a miss
        TritonEngine().build(region, device, ())


def test_compiling_leaves_the_environment_and_knobs_alone() -> None:
    from triton import knobs

    before = dict(os.environ), dict(knobs.compilation.__dict__), dict(knobs.cache.__dict__)
    (kernel,) = kernels(made.softmax(8, 32, FLOAT), 90)
    aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
    assert (dict(os.environ), dict(knobs.compilation.__dict__), dict(knobs.cache.__dict__)) == before


def test_compiler_failure_names_the_kept_source() -> None:
    (kernel,) = kernels(made.softmax(8, 32, FLOAT), 90)
    broken = dataclasses.replace(kernel, source=kernel.source.replace("tl.load(", "tl.no_such_function(", 1))
    with pytest.raises(ToolchainError, match="the source is kept in") as caught:
        aot.compile_fresh(aot.compilation(broken, 90, aligned=True))
    path = Path(str(caught.value).rsplit("kept in ", 1)[1])
    assert "no_such_function" in path.read_text()


def test_kept_sources_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "_current", settings.Settings(cache_dir=tmp_path))
    monkeypatch.setattr(aot, "_MAX_SOURCES", 4)
    for number in range(12):
        module = aot.load_source(f"VALUE = {number}\n")
        assert module.VALUE == number and Path(str(module.__file__)).exists()
    assert 0 < len(list(tmp_path.glob("triton-src/*.py"))) <= 4


def test_huge_operand_uses_64_bit_offsets() -> None:
    d = made.Draft(2)
    x = d.load((2, 64), FLOAT, stride=(2**31, 1))
    d.store(d.op("neg", x))
    (kernel,) = kernels(d.region(), 90)
    assert {p.type for p in kernel.params if p.kind is ParamKind.NUMBER} == {"i64"}
    asm, _ = aot.compile_fresh(aot.compilation(kernel, 90, aligned=True))
    check_parameters(kernel, asm["ptx"])


def test_operands_of_a_region_keep_their_order_in_every_kernel() -> None:
    for make in REGIONS.values():
        region = make()
        for kernel in kernels(region, 90):
            order = [p.operand for p in kernel.params if p.operand >= 0]
            assert order == sorted(order)
            roles = {p.operand: p.kind for p in kernel.params if p.operand >= 0}
            assert all((region.operands[i].role is Role.SCALAR) == (k is ParamKind.SCALAR) for i, k in roles.items())
