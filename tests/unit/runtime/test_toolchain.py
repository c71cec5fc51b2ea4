"""The tool-chain with compilers that fail, hang, die or are missing (shell scripts, no real compiler)."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, toolchain

_HEAD = '#!/bin/sh\nif [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi\n'
#: finds the file after -o and writes it
_WRITE = 'while [ "$1" != -o ]; do shift; done\nprintf compiled > "$2"\n'


def use_compiler(folder: Path, body: str, name: str = "fakecc") -> Path:
    """Put a shell script in force as the compiler."""
    path = folder / name
    path.write_text(_HEAD + body)
    path.chmod(0o755)
    settings.use(replace(settings.current(), compiler=str(path)))
    return path


def test_compiled_file_comes_from_the_cache_next_time(tmp_path: Path) -> None:
    use_compiler(tmp_path, f'echo run >> "{tmp_path}/runs"\n{_WRITE}')
    first = toolchain.compile_shared("int x;")
    assert toolchain.compile_shared("int x;") == first
    assert (first.kind, first.data) == ("so", b"compiled")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_key_depends_on_source_flags_target_and_compiler(tmp_path: Path) -> None:
    use_compiler(tmp_path, _WRITE)
    keys = [
        toolchain.compile_shared("int x;").key,
        toolchain.compile_shared("int y;").key,
        toolchain.compile_shared("int x;", ("-DA",)).key,
        toolchain.compile_shared("int x;", march="x86-64-v2").key,
        toolchain.compile_shared("int x;", features=("amx_tile",)).key,
    ]
    other = use_compiler(tmp_path, "", "other")
    other.write_text(_HEAD.replace("1.0", "2.0") + _WRITE)
    keys.append(toolchain.compile_shared("int x;").key)
    assert len(set(keys)) == len(keys)


def test_failure_keeps_the_source_and_shows_what_the_compiler_said(tmp_path: Path) -> None:
    use_compiler(tmp_path, 'echo "line 1: bad thing" >&2\nexit 3\n')
    with pytest.raises(ToolchainError, match=r"compiling my_kernel failed: exit status 3\nline 1: bad thing") as caught:
        toolchain.compile_shared("int bad;", label="my_kernel")
    kept = [word for word in caught.value.asked.split() if word.endswith(".c")]
    assert Path(kept[0]).read_text() == "int bad;"
    assert not list(artifacts.stats().folder.rglob("*.so"))


def test_failure_is_told_when_the_cache_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings.use(settings.Settings(cache_dir=tmp_path / "file" / "cache"))
    use_compiler(tmp_path, "exit 1\n")
    with pytest.raises(ToolchainError) as caught:
        toolchain.compile_shared("int bad;")
    kept = next(Path(word) for word in caught.value.asked.split() if word.endswith(".c"))
    assert kept.read_text() == "int bad;"
    kept.unlink()
    kept.parent.rmdir()


def test_killed_compiler_is_an_error_and_the_next_try_works(tmp_path: Path) -> None:
    use_compiler(
        tmp_path, f'{_WRITE}echo $$ > "{tmp_path}/pid.new"; mv "{tmp_path}/pid.new" "{tmp_path}/pid"\nexec sleep 60\n'
    )
    problems: list[Exception] = []

    def work() -> None:
        try:
            toolchain.compile_shared("int x;")
        except ToolchainError as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(2000):
        if (tmp_path / "pid").exists():
            break
        time.sleep(0.005)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    thread.join(timeout=30)
    assert len(problems) == 1 and "ended by signal 9" in str(problems[0])
    assert not list(artifacts.stats().folder.rglob("*.so"))
    use_compiler(tmp_path, _WRITE)
    assert toolchain.compile_shared("int x;").data == b"compiled"


def test_no_compiler_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not toolchain.has_compiler()
    with pytest.raises(ToolchainError, match="no C compiler"):
        toolchain.compile_shared("int x;")
    settings.use(replace(settings.current(), compiler="no-such-cc"))
    with pytest.raises(ToolchainError, match="no-such-cc"):
        toolchain.find_compiler()


def test_compiler_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    path = use_compiler(tmp_path, "")
    path.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ToolchainError, match="does not start"):
        toolchain.find_compiler()


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast"])
def test_flag_that_changes_values_is_refused(flag: str, tmp_path: Path) -> None:
    use_compiler(tmp_path, _WRITE)
    with pytest.raises(ToolchainError, match="changes values"):
        toolchain.compile_shared("int x;", (flag,))
