"""The real compiler: kernels compile, load, are shared by processes, and compute in the stated arithmetic."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, device, toolchain
from fuseplan.runtime.dispatch import native

SOURCE = "#include <math.h>\nvoid f(double *y, double a, double b, double c) { y[0] = a * b + c; y[1] = sqrt(a); }\n"
_PROCESS = """
import sys
from pathlib import Path
from fuseplan import settings
from fuseplan.runtime import artifacts, toolchain
settings.use(settings.Settings(cache_dir=Path(sys.argv[1])))
artifact = toolchain.compile_shared(sys.argv[2])
print(artifact.key, bool(artifacts.symbol_address(artifact, "f")))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    """A cache folder of the test's own."""
    settings.use(replace(settings.Settings.from_environment(), cache_dir=tmp_path / "cache"))
    yield
    settings.use(None)


def call(artifact_source: str, march: str, a: float, b: float, c: float) -> list[float]:
    """Compile, load and call f."""
    library = artifacts.load_shared(toolchain.compile_shared(artifact_source, march=march))
    y = (ctypes.c_double * 2)()
    library.f.argtypes = [ctypes.c_void_p] + [ctypes.c_double] * 3
    library.f(y, a, b, c)
    return list(y)


def test_instructions_that_the_assembler_knows_are_found_by_trying_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.assembles("nop")
    assert not toolchain.assembles("no such instruction")
    monkeypatch.setattr(toolchain, "compile_shared", None)
    assert toolchain.assembles("nop")
    assert not toolchain.assembles("no such instruction")


def test_threads_that_ask_for_an_instruction_at_the_same_time_get_one_answer() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(toolchain.assembles, ["nop; nop"] * 4)) == [True] * 4


@pytest.mark.parametrize("march", ["native", "x86-64-v2"])
def test_kernel_does_not_contract_and_computes_sqrt(march: str) -> None:
    if march != "native" and not device.is_x86():
        pytest.skip("needs an x86 CPU")
    a = 1 + 2.0**-30
    assert call(SOURCE, march, a, a, -1.0) == [np.float64(a) * np.float64(a) - 1.0, np.sqrt(np.float64(a))]


def test_two_processes_compile_the_same_kernel_at_once(tmp_path: Path) -> None:
    args = [sys.executable, "-c", _PROCESS, str(tmp_path / "shared"), SOURCE]
    root = Path(__file__).parents[2]
    both = [subprocess.Popen(args, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]
    said = [p.communicate(timeout=60)[0] for p in both]
    assert said[0] == said[1] and said[0].endswith("True\n")
    assert len([f for f in (tmp_path / "shared").rglob("*.so") if f.is_file()]) == 1


def test_cached_kernel_needs_no_compiler_run(monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.compile_shared(SOURCE)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert toolchain.compile_shared(SOURCE) == first


def test_damaged_kernel_is_compiled_again() -> None:
    first = toolchain.compile_shared(SOURCE)
    path = artifacts.path_of(first.key, ".so")
    path.write_bytes(path.read_bytes()[:500])
    again = toolchain.compile_shared(SOURCE)
    assert again.key == first.key
    assert artifacts.get(first.key, ".so") == again.data


def test_error_of_the_compiler_is_shown() -> None:
    with pytest.raises(ToolchainError, match="undeclared_thing"):
        toolchain.compile_shared("int f(void) { return undeclared_thing; }")


def test_symbol_that_is_missing_is_named() -> None:
    artifact = toolchain.compile_shared(SOURCE)
    assert artifacts.symbol_address(artifact, "f")
    with pytest.raises(ToolchainError, match="no function 'g'"):
        artifacts.symbol_address(artifact, "g")


def test_file_that_is_no_library_is_refused() -> None:
    artifact = replace(toolchain.compile_shared(SOURCE), data=b"not an ELF file", key="0" * 64)
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        artifacts.load_shared(artifact)


def test_dispatcher_compiles_without_a_warning() -> None:
    headers = toolchain.python_headers()
    if not headers:
        pytest.skip("needs Python's headers")
    flags = (f"-I{headers}", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")
    assert toolchain.compile_shared(native.source(), flags, label="the dispatcher").data


@pytest.mark.parametrize("unit", native.UNITS)
def test_each_unit_of_the_dispatcher_compiles_alone(unit: str) -> None:
    headers = toolchain.python_headers()
    if not headers:
        pytest.skip("needs Python's headers")
    folder = Path(native.__file__).parent
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    command = [toolchain.find_compiler().path, *flags, f"-I{headers}", str(folder / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '#include "dispatch.h"\n' in (folder / unit).read_text(encoding="utf-8")


def test_units_of_the_dispatcher_are_all_files_of_its_folder() -> None:
    folder = Path(native.__file__).parent
    assert sorted(native.UNITS) == sorted(p.name for p in folder.glob("*.c"))
    assert all(f'#line 1 "{name}"\n' in native.source() for name in (native.HEADER, *native.UNITS))
