"""The main loops of `cpu_c` as they stand in their files: each compiles alone and computes what its defaults say."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseplan.dtypes import BFLOAT16
from fuseplan.engines.cpu_c.engine import FLAGS
from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.casts import narrow
from fuseplan.runtime.toolchain import find_compiler
from tests.kernels.cpu_c_harness import TILE_OPERATIONS, run_team

KERNELS = Path(__file__).parents[2] / "fuseplan" / "engines" / "cpu_c" / "kernels"
Array = np.ndarray[Any, Any]


def load(name: str, symbol: str, folder: Path, *macros: str) -> Callable[[Any, Any], int]:
    """The function of a main loop, compiled from its file with warnings as errors."""
    made = folder / f"{name}.so"
    flags = ("-O2", "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *FLAGS, *macros)
    subprocess.run([find_compiler().path, *flags, str(KERNELS / f"{name}.c"), "-o", str(made), "-lm"], check=True)
    function = getattr(ctypes.CDLL(str(made)), symbol)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return function  # type: ignore[no-any-return]


def run(
    function: Callable[[Any, Any], int], arrays: list[Array], numbers: list[int], num_tasks: int, thread_bytes: int = 0
) -> None:
    data = struct.pack(f"<{len(arrays)}Q{len(numbers)}q", *(a.ctypes.data for a in arrays), *numbers)
    run_team(function, ctypes.create_string_buffer(data, len(data)), num_tasks, 2, thread_bytes)


def random(*dim: int) -> Array:
    return np.random.default_rng(sum(dim)).uniform(-2, 2, dim).astype(np.float32)


def test_every_main_loop_has_a_test_here() -> None:
    assert sorted(p.stem for p in KERNELS.glob("*.c")) == [
        "attention", "attention_backward", "columns", "conv", "matmul", "matmul_bf16", "rows",
    ]  # fmt: skip


@pytest.mark.parametrize("num_tasks", [1, 3, 7])
def test_rows_alone_is_a_softmax(tmp_path: Path, num_tasks: int) -> None:
    x, y = random(7, 33), np.full((7, 33), np.nan, np.float32)
    run(load("rows", "softmax_rows", tmp_path), [x, y], [7, num_tasks, 33], num_tasks)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_columns_alone_is_a_sum_of_each_column(tmp_path: Path, num_tasks: int) -> None:
    x, y, r = random(9, 70), np.full(70, np.nan, np.float32), np.full((num_tasks, 70), np.nan)
    run(load("columns", "column_sums", tmp_path), [x, y, r], [9, num_tasks, 70], num_tasks)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(axis=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_narrow", [0, 1])
@pytest.mark.parametrize("depth_block", [304, 112])
@pytest.mark.parametrize(("row_tasks", "column_tasks"), [(1, 1), (2, 3), (5, 1)])
def test_matmul_alone_is_a_product(
    tmp_path: Path, row_tasks: int, column_tasks: int, depth_block: int, is_narrow: int
) -> None:
    a, b, c = random(5, 300), random(300, 150), np.full((5, 150), np.nan, np.float32)
    function = load("matmul", "matmul", tmp_path, f"-DIS_NARROW={is_narrow}")
    numbers = [5, row_tasks, 150, column_tasks, 300, 128, depth_block, 960 * 128]
    run(function, [a, b, c], numbers, row_tasks * column_tasks, thread_bytes=1 << 20)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("a_form", "b_form"), [(3, 2), (2, 3), (1, 1), (0, 0)])
def test_matmul_bf16_alone_is_a_product(tmp_path: Path, a_form: int, b_form: int) -> None:
    """Factors lie along K or not, and are read where they are or one by one; what lies around them is NaN."""
    macros = (f"-DA_FORM={a_form}", f"-DB_FORM={b_form}", "-include", TILE_OPERATIONS)
    function = load("matmul_bf16", "matmul_bf16", tmp_path, *macros)
    for m, k, depth_block in ((70, 96, 64), (19, 45, 64), (530, 33, 32)):
        n, num_tasks = 75, 3
        a, a_rows = bfloats(m, k, is_along_columns=not a_form & 1)
        b, b_rows = bfloats(k, n, is_along_columns=bool(b_form & 1))
        c = np.full((m, n), np.nan, np.float32)
        numbers = [m, num_tasks, n, 1, k, 64, depth_block, 512, 512 * 64, *a_rows, *b_rows]
        run(function, [a, b, c], numbers, num_tasks, thread_bytes=1 << 20)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-4)


def bfloats(rows: int, columns: int, is_along_columns: bool) -> tuple[Array, tuple[int, int]]:
    """A matrix in the middle of NaN, and its strides in elements."""
    around = np.full((rows + 2, columns + 2), np.nan, np.float32)
    around[1:-1, 1:-1] = random(rows, columns)
    whole = narrow(numpy_namespace(), np.asfortranarray(around) if is_along_columns else around, BFLOAT16)
    whole = np.asfortranarray(whole) if is_along_columns else np.ascontiguousarray(whole)
    return whole[1:-1, 1:-1], (whole.strides[0] // 2, whole.strides[1] // 2)


@pytest.mark.parametrize("block_is_channels", [1, 0])
@pytest.mark.parametrize(("row_tasks", "column_tasks"), [(1, 1), (3, 2)])
def test_conv_alone_is_a_convolution(tmp_path: Path, row_tasks: int, column_tasks: int, block_is_channels: int) -> None:
    n, h, w, c, k, r, s, pad = 2, 5, 80, 3, 70, 3, 2, 1
    x, weights = random(n, h, w, c), random(k, r, s, c)
    y = np.full((n, h + 2 * pad - r + 1, w + 2 * pad - s + 1, k), np.nan, np.float32)
    function = load("conv", "conv", tmp_path, f"-DBLOCK_IS_CHANNELS={block_is_channels}")
    numbers = [n, h, w, c, k, r, s, pad, row_tasks, column_tasks]
    run(function, [x, weights, y], numbers, row_tasks * column_tasks)
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (r, s), axis=(1, 2))
    np.testing.assert_allclose(y, np.einsum("nhwcrs,krsc->nhwk", windows, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "depth"), [(5, 64), (150, 40)])
def test_attention_alone_is_causal(tmp_path: Path, rows: int, depth: int) -> None:
    heads = 2
    q, k, v = (random(heads, rows, depth + i)[:, :, :depth].copy() for i in range(3))
    o, stats = np.full_like(q, np.nan), np.full((heads, rows), np.nan, np.float32)
    function = load("attention", "attention", tmp_path, f"-DDEPTH={depth}")
    num_tasks = heads * -(-rows // 64)
    data = struct.pack("<5Q2qd", *(a.ctypes.data for a in (q, k, v, o, stats)), heads, rows, depth**-0.5)
    run_team(function, ctypes.create_string_buffer(data, len(data)), num_tasks, 2, 1 << 20)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * depth**-0.5
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    e = np.exp(scores)
    np.testing.assert_allclose(o, e @ v / e.sum(axis=2, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stats, np.log(e.sum(axis=2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "depth"), [(5, 64), (150, 40)])
def test_attention_backward_alone_is_causal(tmp_path: Path, rows: int, depth: int) -> None:
    heads = 2
    q, k, v, do = (random(heads, rows, depth + i)[:, :, :depth].copy() for i in range(4))
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * depth**-0.5
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    e = np.exp(scores)
    total = e.sum(axis=2, keepdims=True)
    o, stats = (e / total @ v).astype(np.float32), np.log(total).astype(np.float32)
    p = np.exp(scores - stats)
    ds = p * (do.astype(np.float64) @ v.transpose(0, 2, 1) - (do * o).sum(axis=2, keepdims=True)) * depth**-0.5
    made = [np.full_like(q, np.nan) for _ in range(3)]
    function = load("attention_backward", "attention_backward", tmp_path, f"-DDEPTH={depth}")
    arrays = [q, k, v, o, do, stats, *made]
    data = struct.pack("<9Q2qd", *(a.ctypes.data for a in arrays), heads, rows, depth**-0.5)
    run_team(function, ctypes.create_string_buffer(data, len(data)), heads, 2, 4 << 20)
    turned = (ds.transpose(0, 2, 1), p.transpose(0, 2, 1))
    for found, expected in zip(made, (ds @ k, turned[0] @ q, turned[1] @ do), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
