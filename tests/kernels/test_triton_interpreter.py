"""Starts the numeric tests of `triton_*interpreted.py` in processes with Triton's interpreter on.

The interpreter is chosen when Triton is imported, so it needs a process of its own.
"""

from __future__ import annotations

import pytest

from tests.kernels.interpreter_run import run_interpreted

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("torch", reason="torch is not installed; Triton's interpreter keeps its buffers in it")


def test_kernel_files_are_right_alone() -> None:
    assert run_interpreted("-x", "tests/kernels/triton_kernel_files_interpreted.py") >= 16


def test_several_matmuls_and_work_in_front_of_a_region() -> None:
    chosen = "not test_graph_is_one_region_and_right or 33"
    assert run_interpreted("-x", "-k", chosen, "tests/kernels/triton_fused_matmul_interpreted.py") > 20


@pytest.mark.full
def test_several_matmuls_and_work_in_front_of_them() -> None:
    assert run_interpreted("-x", "tests/kernels/triton_fused_matmul_interpreted.py") > 40


def test_ways_of_computing_products() -> None:
    assert run_interpreted("-x", "-k", "in_front or one_row", "tests/kernels/triton_gemm_interpreted.py") >= 16


@pytest.mark.full
def test_every_way_of_computing_products() -> None:
    assert run_interpreted("-x", "tests/kernels/triton_gemm_interpreted.py") > 40


def test_some_sums_and_gradients_of_norms_match_float64() -> None:
    chosen = "columns-half or everything or rows-in-parts or shared or 37-40 or 1-64 or held"
    assert run_interpreted("-x", "-k", chosen, "tests/kernels/triton_rows_interpreted.py") >= 8


@pytest.mark.full
def test_sums_and_gradients_of_norms_match_float64() -> None:
    assert run_interpreted("-x", "tests/kernels/triton_rows_interpreted.py") > 19


def run_part(marker: str) -> None:
    """Run one half of the interpreted tests; all must pass and some must run."""
    files = ("tests/kernels/triton_interpreted.py", "tests/kernels/triton_in_place_interpreted.py")
    assert run_interpreted("-x", "-m", marker, *files) > 50


def test_interpreted_kernels_match_float64() -> None:
    run_part("not full")


@pytest.mark.full
def test_interpreted_samples_of_all_ops_are_right() -> None:
    run_part("full")


def test_some_attention_matches_float64() -> None:
    chosen = "HALF and test_option_alone or no_key or rounding or heads_in and options1 or 0-16-1"
    assert run_interpreted("-x", "-k", chosen, "tests/kernels/triton_attention_interpreted.py") >= 17


@pytest.mark.full
def test_every_attention_matches_float64() -> None:
    assert run_interpreted("-x", "-m", "not gpu", "tests/kernels/triton_attention_interpreted.py") > 60
