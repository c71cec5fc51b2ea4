"""The C text of `cpu_c`: warnings, sanitizers, canonical names, sharing between extents, refusals."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fuseplan.codegen.c_helpers import HELPERS, prelude
from fuseplan.dtypes import BFLOAT16, BOOLEAN, DOUBLE, FLOAT, FP8_E4M3, HALF, INT8, INT32, INT64, UINT8, DType
from fuseplan.engines.base import Support
from fuseplan.engines.cpu_c import engine as engine_module
from fuseplan.engines.cpu_c import tiling
from fuseplan.engines.cpu_c.engine import ENGINE, FLAGS, CpuCEngine
from fuseplan.engines.cpu_c.source import Source
from fuseplan.ir.graph import span_elements
from fuseplan.ir.region import BINARY, UNARY, Region, Role
from fuseplan.runtime import team
from fuseplan.runtime.artifacts import symbol_address
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact, PatchKind
from fuseplan.runtime.toolchain import KERNEL_FLAGS, compile_shared, find_compiler
from tests.kernels.cpu_c_harness import CPU, TILE_OPERATIONS, RegionBuilder

STORAGE_TYPES = (FLOAT, DOUBLE, HALF, BFLOAT16, INT8, UINT8, INT32, INT64, BOOLEAN)
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def pointwise(compute: DType) -> Region:
    """All primitives of a type on two inputs, one of them broadcast, with gaps in memory."""
    b = RegionBuilder(compute)
    x, y = b.load((3, 5, 7), compute, (90, 16, 2)), b.load((1, 5, 1), compute)
    for op in sorted(UNARY | BINARY):
        b.store(b.op(op, *((x,) if op in UNARY else (x, y)), dim=(3, 5, 7)))
    b.store(b.op("select", y, x, b.op("index", x, axis=1)), (1, 3, 15))
    return b.region()


def conversions(source: DType) -> Region:
    b = RegionBuilder(source)
    x = b.load((70,), source)
    for t in STORAGE_TYPES:
        b.store(b.op("cast", x, dtype=t))
    return b.region()


def rows(dim: tuple[int, ...], axes: tuple[int, ...], io: DType = FLOAT) -> Region:
    """A softmax that also stores its row statistics."""
    b = RegionBuilder()
    x, c = b.load(dim, io), b.load((1,) * len(dim), io, role=Role.SCALAR)
    top = b.reduce("max", b.op("mul", x, c), axes)
    e = b.op("exp", b.op("sub", b.op("mul", x, c), top))
    total = b.reduce("add", e, axes)
    b.store(b.op("div", e, total, dtype=io))
    b.store(top)
    b.store(b.op("div", total, b.op("count", x, dim=(1,) * len(dim), axes=axes)))
    return b.region()


def columns(compute: DType, dim: tuple[int, ...] = (9, 4, 21), axes: tuple[int, ...] = (0, 1)) -> Region:
    b = RegionBuilder(compute)
    x = b.load(dim, compute)
    for mode in ("add", "mul", "max", "min"):
        b.store(b.reduce(mode, x, axes))
    return b.region()


def norm_backward(dim: tuple[int, int], io: DType) -> Region:
    """A value by row from the row's sum, and sums over all rows beside."""
    b = RegionBuilder()
    dy, x = b.load(dim, io), b.load(dim, io)
    along = b.reduce("add", b.op("mul", dy, x), (1,))
    b.store(b.op("sub", dy, b.op("mul", b.op("tanh", x), along), dtype=io))
    b.store(b.reduce("add", b.op("mul", dy, b.op("tanh", x)), (0,)))
    b.store(b.reduce("max", dy, (0, 1)))
    return b.region()


def matmul(io: DType, compute: DType, b_stride: tuple[int, ...] | None, m: int = 3, k: int = 33) -> Region:
    b = RegionBuilder(compute)
    x, w, bias = b.load((2, m, k), io), b.load((1, k, 70), io, b_stride), b.load((1, 1, 70), io)
    y = b.op("add", b.op("matmul", x, w, dim=(2, m, 70)), bias)
    b.store(y, (70 * m, 1, m))
    b.store(b.reduce("max", b.op("abs", y), (0, 1, 2)))
    b.store(b.reduce("add", y, (1,)))
    return b.region()


def conv(is_channels_last: bool, io: DType, compute: DType) -> Region:
    b = RegionBuilder(compute)
    x = b.load((2, 6, 7, 9), io, (378, 1, 54, 6) if is_channels_last else None)
    w = b.load((4, 3, 3, 2), io, (18, 1, 6, 3) if is_channels_last else None)
    y = b.op("conv_fprop", x, w, dim=(2, 4, 6, 9), pre_pad=(4, 1), post_pad=(4, 1), stride=(2, 1), dilation=(2, 2),
             flip=True)  # fmt: skip
    b.store(b.op("max", y, b.const(0.0, 4)), (216, 1, 36, 4) if is_channels_last else None)
    b.store(b.reduce("add", y, (0, 2, 3)))
    return b.region()


REGIONS = {
    **{f"pointwise-{t}": pointwise(t) for t in (FLOAT, DOUBLE, HALF, BFLOAT16, INT32, INT64, INT8, BOOLEAN)},
    **{f"conversions-{t}": conversions(t) for t in STORAGE_TYPES},
    "softmax": rows((3, 4, 33), (2,)),
    "softmax-bf16-two-axes": rows((3, 4, 5), (0, 2), BFLOAT16),
    "softmax-all": rows((3, 4, 5), (0, 1, 2), HALF),
    **{f"columns-{t}": columns(t) for t in (FLOAT, DOUBLE, BFLOAT16, INT32, INT64)},
    "softmax-long": rows((3, 1100), (1,), BFLOAT16),
    "softmax-long-half": rows((2, 515), (1,), HALF),
    "norm-backward": norm_backward((35, 530), FLOAT),
    "norm-backward-bf16": norm_backward((35, 33), BFLOAT16),
    "columns-grouped": columns(FLOAT, (20, 7, 21), (1,)),
    "one-sum": columns(FLOAT, (1, 1, 5000), (2,)),
    "matmul": matmul(FLOAT, FLOAT, None),
    "matmul-dot-half": matmul(HALF, FLOAT, (0, 1, 33)),
    "matmul-int8": matmul(INT8, INT32, None),
    "matmul-tiles": matmul(BFLOAT16, FLOAT, None, 50, 32),
    "matmul-tiles-deep": matmul(BFLOAT16, FLOAT, (0, 1, 1100), 21, 1100),
    "conv-nhwc": conv(True, FLOAT, FLOAT),
    "conv-nchw": conv(False, FLOAT, FLOAT),
    "conv-nhwc-int8": conv(True, INT8, INT32),
    "conv-nchw-bf16": conv(False, BFLOAT16, FLOAT),
}
TILES = Device("cpu", features=("amx_bf16", "amx_tile"))
DEVICES = dict.fromkeys(("matmul-tiles", "matmul-tiles-deep"), TILES)  # of kernels that use what not every CPU has


def emit(region: Region, device: Device = CPU) -> Source:
    """The source that the region's form writes."""
    found = ENGINE.match(region, device)
    assert not isinstance(found, Support), found.reason
    form, schedule = found
    return form.emit(schedule, ())


def kernel_of(name: str) -> Source:
    region = REGIONS[name]
    device = DEVICES.get(name, CPU)
    answer = ENGINE.supports(region, device)
    assert answer.is_supported, answer.reason
    return emit(region, device)


def compile_with(flags: tuple[str, ...], files: list[Path], out: Path) -> None:
    done = subprocess.run(
        [find_compiler().path, "-std=c11", *FLAGS, *flags, *map(str, files), "-o", str(out), "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("name", list(REGIONS))
def test_source_compiles_alone_without_a_warning(name: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.c"
    file.write_text(kernel_of(name).source)
    compile_with(("-O2", "-c", *WARNINGS), [file], tmp_path / "kernel.o")


def divided(name: str) -> Source:
    """The same source with a block that asks for as many tasks as there can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "tasks_worth", lambda work_us: 64)
        found = CpuCEngine().match(REGIONS[name], DEVICES.get(name, CPU))
    assert not isinstance(found, Support), found.reason
    source = found[0].emit(found[1], ())
    assert source.source == kernel_of(name).source
    return source


# ---- sanitizers -------------------------------------------------------------------------------------------------

_MAIN = (
    f"{team.header()}\n#include <stdlib.h>\n#include <string.h>\n"
    + """\
static uint32_t state = 12345;
static unsigned char *filled(size_t size) { /* exactly sized, so that a step past the end is seen */
  unsigned char *p = malloc(size);
  for (size_t i = 0; i < size; ++i) p[i] = (unsigned char)((state = state * 1664525u + 1013904223u) >> 24);
  return p;
}
"""
)


def _caller(name: str, kernel: Source) -> str:
    """C code that calls the kernel twice on random bytes in exactly sized memory."""
    lines = [
        f"extern int {kernel.symbol}(const void *, const struct fp_task *);",
        f"static void run_{kernel.symbol}(void) {{ /* {name} */",
    ]
    data = ",".join(str(v) for v in kernel.template)
    lines += [f"  static const unsigned char template_[] = {{{data}}};"]
    lines += ["  unsigned char *block = malloc(sizeof template_);", "  memcpy(block, template_, sizeof template_);"]
    for k, o in enumerate(REGIONS[name].operands):
        lines.append(f"  unsigned char *b{k} = filled({span_elements(o.dim, o.stride) * o.dtype.itemsize});")
    lines.append(f"  unsigned char *scratch = filled({max(1, kernel.scratch_bytes)});")
    lines.append(f"  unsigned char *own = aligned_alloc(64, {-(-max(1, kernel.thread_bytes) // 64) * 64});")
    for k, p in enumerate(kernel.patches):
        if p.kind is PatchKind.SCALAR:
            lines.append(f"  memcpy(block + {p.offset}, b{p.slot}, {p.size});")
        else:
            base = "scratch" if p.kind is PatchKind.SCRATCH else f"b{p.slot}"
            lines.append(f"  unsigned char *p{k} = {base} + {p.addend}; memcpy(block + {p.offset}, &p{k}, 8);")
    for k in range(2):
        lines.append(f"  struct fp_counters counters{k} = {{0}};")
        lines.append(f"  const struct fp_task task{k} = {{{kernel.num_tasks}, 0, 1, own, &counters{k}}};")
        lines.append(f"  if ({kernel.symbol}(block, &task{k})) abort();")
    frees = [f"free(b{k});" for k in range(len(REGIONS[name].operands))]
    lines += ["  " + " ".join([*frees, "free(block); free(scratch); free(own);"]), "}"]
    return "\n".join(lines) + "\n"


SANITIZED = (
    "pointwise-FLOAT", "pointwise-HALF", "pointwise-INT32", "pointwise-INT64", "conversions-DOUBLE",
    "conversions-INT64", "conversions-HALF", "softmax", "softmax-bf16-two-axes", "columns-FLOAT", "columns-INT32",
    "softmax-long", "softmax-long-half", "norm-backward", "norm-backward-bf16", "columns-grouped", "one-sum",
    "matmul", "matmul-dot-half", "matmul-int8", "conv-nhwc", "conv-nchw", "conv-nhwc-int8", "matmul-tiles",
    "matmul-tiles-deep",
)  # fmt: skip


@pytest.mark.parametrize("half", ["own", pytest.param("compiler", marks=pytest.mark.full)])
def test_kernels_run_clean_under_sanitizers(half: str, tmp_path: Path) -> None:
    flags = ("-include", TILE_OPERATIONS, *(("-U__FLT16_MANT_DIG__",) if half == "own" else ()))
    files, main, calls = [], _MAIN, ""
    for name in SANITIZED if half == "own" else SANITIZED[1::5]:
        kernel = divided(name)
        files.append(tmp_path / f"{kernel.symbol}.c")
        files[-1].write_text(kernel.source)
        main += _caller(name, kernel)
        calls += f"  run_{kernel.symbol}();\n"
    (tmp_path / "main.c").write_text(f"{main}int main(void) {{\n{calls}  return 0;\n}}\n")
    sanitize = ("-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    compile_with((*sanitize, *flags, *WARNINGS), [*files, tmp_path / "main.c"], tmp_path / "main")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def test_sanitized_program_notices_a_buffer_that_is_too_small(tmp_path: Path) -> None:
    """The check above can fail: with one input byte less the address sanitizer must stop the program."""
    kernel = divided("softmax")
    (tmp_path / "kernel.c").write_text(kernel.source)
    main = _MAIN + _caller("softmax", kernel).replace("b0 = filled(1584)", "b0 = filled(1583)")
    assert "filled(1583)" in main
    (tmp_path / "main.c").write_text(f"{main}int main(void) {{\n  run_{kernel.symbol}();\n  return 0;\n}}\n")
    compile_with(("-g", "-fsanitize=address"), [tmp_path / "kernel.c", tmp_path / "main.c"], tmp_path / "main")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


# ---- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(REGIONS))
def test_every_line_is_short_and_carries_only_needed_helpers(name: str) -> None:
    source = kernel_of(name).source
    helpers = prelude(source.split("struct args {")[1])
    assert source.startswith(helpers)
    for helper, text in HELPERS.items():
        if text and text in source:
            assert (
                len(re.findall(rf"\b{helper}\b", source)) > len(re.findall(rf"\b{helper}\b", text))
                or helper == "bits_of"
            )
    assert max(map(len, source.splitlines())) <= 160


def test_text_and_name_do_not_depend_on_extents_or_uids() -> None:
    one, other = rows((3, 4, 33), (2,)), rows((30, 7, 129), (2,))
    assert emit(one).source == emit(other).source
    assert emit(one).template != emit(other).template
    assert emit(matmul(FLOAT, FLOAT, None)).symbol == emit(matmul(FLOAT, FLOAT, None)).symbol
    assert emit(one).symbol.startswith("fp_norm_")
    assert emit(columns(FLOAT)).symbol.startswith("fp_reduction_")
    assert emit(conv(True, FLOAT, FLOAT)).symbol.startswith("fp_conv_")


def test_equal_regions_are_built_once_and_equal_texts_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def fake(source: str, flags: tuple[str, ...], *, features: tuple[str, ...], label: str, symbol: str) -> Artifact:
        compiled.append(label)
        return Artifact("so", label, "", b"")

    monkeypatch.setattr(engine_module, "compile_shared", fake)
    engine = CpuCEngine()
    first = engine.build(rows((3, 4, 33), (2,)), CPU, ())
    assert engine.build(rows((3, 4, 33), (2,)), CPU, ()) is first
    larger = engine.build(rows((6, 5, 40), (2,)), CPU, ())
    assert larger is not first
    assert larger.launches[0].artifact is first.launches[0].artifact
    assert len(compiled) == 1


def test_shown_source_has_a_header_and_node_comments() -> None:
    source = ENGINE.build(rows((3, 4, 33), (2,)), CPU, ()).source
    assert "v2 = mul(v0, v1): FLOAT [3, 4, 33]  (node 0)" in source
    assert "x0: in FLOAT dim [3, 4, 33]" in source
    assert "/* node 1: reduce */" in source


def test_flags_change_no_value() -> None:
    assert "-ffp-contract=off" in KERNEL_FLAGS
    assert FLAGS[0] == "-fopenmp-simd"
    distribution = {"-fno-tree-loop-distribution", "-fno-tree-loop-distribute-patterns"}
    assert set(FLAGS) <= {"-fopenmp-simd", "-mprefer-vector-width=512"} | distribution


def test_own_half_conversions_agree_with_numpy_for_every_pattern() -> None:
    text = prelude("half_to_float half_from_float")
    loop = "{ for (int i = 0; i < n; ++i)"
    text += f"void widen(const uint16_t *h, float *x, int n) {loop} x[i] = half_to_float(h[i]); }}\n"
    text += f"void narrow(const float *x, uint16_t *h, int n) {loop} h[i] = half_from_float(x[i]); }}\n"
    artifact = compile_shared(text, ("-U__FLT16_MANT_DIG__",))
    bits = np.arange(65536, dtype=np.uint16)
    wide = np.empty(65536, np.float32)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    widen, narrow = (kind(symbol_address(artifact, name)) for name in ("widen", "narrow"))
    widen(bits.ctypes.data, wide.ctypes.data, bits.size)
    np.testing.assert_array_equal(wide, bits.view(np.float16).astype(np.float32))
    finite = wide[np.isfinite(wide)]
    ties = (finite[:-1] + finite[1:]) / np.float32(2)
    around = [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    extreme = np.array([65519.99, 65520, 1e30, -1e30, np.inf, np.nan, 1e-45, 2**-25, -(2**-25), 2.99e-8], np.float32)
    x = np.concatenate([wide, *around, extreme])
    made = np.empty(x.size, np.uint16)
    narrow(x.ctypes.data, made.ctypes.data, x.size)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    number = ~np.isnan(expected)
    assert np.isnan(made.view(np.float16)[~number]).all()
    np.testing.assert_array_equal(made[number], expected.view(np.uint16)[number])


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_unsupported_types_ops_and_devices_are_refused_by_name() -> None:
    b = RegionBuilder()
    b.store(b.op("neg", b.load((4,), FP8_E4M3)))
    assert "operand 0 (tensor 0) has type FP8_E4M3" in ENGINE.supports(b.region(), CPU).reason
    b = RegionBuilder()
    b.store(b.op("neg", b.load((4,)), dtype=FP8_E4M3))
    assert "FP8_E4M3" in ENGINE.supports(b.region(), CPU).reason
    b = RegionBuilder()
    x = b.load((1, 1, 4, 4))
    b.store(b.op("conv_dgrad", x, x))
    assert "conv_dgrad" in ENGINE.supports(b.region(), CPU).reason
    b = RegionBuilder()
    b.store(b.op("neg", b.load((4,))))
    assert "cuda:1" in ENGINE.supports(b.region(), Device("cuda", 1)).reason
    assert ENGINE.supports(b.region(), CPU).is_supported


def test_estimate_grows_with_work_and_needs_no_device() -> None:
    from dataclasses import replace

    from fuseplan.ir.region import Cost

    region = matmul(FLOAT, FLOAT, None)
    small, large = replace(region, cost=Cost(1e6, 1000, 1000)), replace(region, cost=Cost(1e9, 1000, 1000))
    assert 0 < ENGINE.estimate_us(small, CPU, ()) < ENGINE.estimate_us(large, CPU, ())
