"""The kernels of the device tests assemble for the architecture that they are written for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kernels import launch_ptx


@pytest.mark.parametrize("name", ["COPY", "COPY_PAIR", "SUM"])
def test_kernel_of_the_device_tests_assembles(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton brings the assembler")
    from triton.backends.nvidia.compiler import get_ptxas

    source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(getattr(launch_ptx, name))
    command = [get_ptxas(90).path, "-arch=sm_90", str(source), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert cubin.read_bytes()[:4] == b"\x7fELF"
