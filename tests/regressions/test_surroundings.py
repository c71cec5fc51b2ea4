"""Missing folders, broken compilers, swapped cache entries, forks: the graph runs on what is left, and says so once."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, logs, toolchain

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(not toolchain.has_compiler(), reason="there is no C compiler")

#: builds exp, neg and sqrt; prints what the plan is, its results, and the notices
PROGRAM = """
import logging, sys
notices = []
class Keep(logging.Handler):
    def emit(self, record): notices.append(record.getMessage())
logging.getLogger("fuseplan").addHandler(Keep())
import numpy as np
import fuseplan
def run(op, n=4):
    g = fuseplan.pygraph(handle=fuseplan.create_handle(device="cpu"), io_data_type=fuseplan.data_type.FLOAT)
    x = g.tensor(dim=[n])
    y = getattr(g, op)(x).set_output(True)
    g.build()
    name = g.get_plan_name_at_index(0)
    g.check_support()
    o = np.full(n, 7, np.float32)
    g.execute({x: np.zeros(n, np.float32), y: o}, np.empty(64, np.uint8))
    return name, float(abs(o).sum())
"""
RUN = (
    PROGRAM
    + """
found = [run(op) for op in ("exp", "neg", "sqrt")]
assert [value for _, value in found] == [4.0, 0.0, 0.0], found
print(found[0][0], len(notices))
print("; ".join(notices))
"""
)


def python(code: str, env: dict[str, str | None], prelude: str = "") -> list[str]:
    """Lines that a fresh process prints; it must end well."""
    full = {k: v for k, v in {**os.environ, **env}.items() if v is not None}
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], env=full, capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def script(folder: Path, body: str) -> str:
    """A compiler that is a shell script."""
    path = folder / "cc"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def libraries(folder: Path) -> list[Path]:
    """Compiled libraries in a cache folder."""
    return sorted(folder.rglob("*.so"))


NO_TEMP = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc']\n"
NO_USER = "import pwd\ndef nobody(*_): raise KeyError('uid not found')\npwd.getpwuid = nobody\n"


def test_neither_temp_nor_cache_folder_leaves_the_general_engine() -> None:
    said = python(RUN, {"FUSEPLAN_CACHE_DIR": "/proc/nowhere"}, NO_TEMP)
    assert said[0].split()[0] == "array" and "no folder to write" in said[1]


@needs_compiler
def test_cache_folder_alone_is_enough(tmp_path: Path) -> None:
    said = python(RUN, {"FUSEPLAN_CACHE_DIR": str(tmp_path)}, NO_TEMP)
    assert said[0] == "cpu_c 0" and libraries(tmp_path)
    assert list(tmp_path.glob(".tmp-*")) == []  # what was built in is gone


@needs_compiler
@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/x"])
def test_temp_folder_alone_is_enough(folder: str, tmp_path: Path) -> None:
    said = python(RUN, {"FUSEPLAN_CACHE_DIR": folder, "TMPDIR": str(tmp_path)})
    assert said[0] == "cpu_c 1" and "cannot be written" in said[1]
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_user_without_home_and_entry_gets_a_private_folder(tmp_path: Path) -> None:
    env = {"HOME": None, "XDG_CACHE_HOME": None, "FUSEPLAN_CACHE_DIR": None, "TMPDIR": str(tmp_path)}
    said = python(RUN, env, NO_USER)
    assert said[0] == "cpu_c 1" and "no-home-folder" in said[1]
    assert list(tmp_path.iterdir()) == [] and not (ROOT / "~").exists()


NOT_EXECUTABLE = """
import ctypes, os
real = ctypes.CDLL
class Refusing(real):
    def __init__(self, name, *args, **kwargs):
        if name and any(str(name).startswith(p) for p in os.environ["NOEXEC"].split(":")):
            raise OSError(f"{name}: failed to map segment from shared object")
        super().__init__(name, *args, **kwargs)
ctypes.CDLL = Refusing
"""


@needs_compiler
def test_cache_folder_that_allows_no_execution_is_still_used(tmp_path: Path) -> None:
    env: dict[str, str | None] = {"FUSEPLAN_CACHE_DIR": str(tmp_path), "NOEXEC": str(tmp_path)}
    said = python(RUN, env, NOT_EXECUTABLE)
    assert said[0] == "cpu_c 1" and "nothing can be executed" in said[1]
    kept = libraries(tmp_path)
    assert kept and python(RUN, env, NOT_EXECUTABLE)[0] == "cpu_c 1"
    assert libraries(tmp_path) == kept


@needs_compiler
def test_no_folder_that_allows_execution_leaves_the_general_engine(tmp_path: Path) -> None:
    env: dict[str, str | None] = {"FUSEPLAN_CACHE_DIR": str(tmp_path / "c"), "TMPDIR": str(tmp_path)}
    said = python(RUN, {**env, "NOEXEC": str(tmp_path)}, NOT_EXECUTABLE)
    assert said[0].split()[0] == "array" and "failed to map segment" in said[1]


#: the first lines of compilers that answer --version and then do something else than compile
ANSWER = 'if [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi\n'
TARGET = 'while [ "$1" != -o ]; do shift; done\n'
BROKEN = {
    "writes garbage": f'{ANSWER}{TARGET}echo garbage > "$2"; exit 0\n',
    "writes garbage as its version too": 'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo garbage > "$2"; shift; done\n',
    "writes nothing": f"{ANSWER}exit 0\n",
    "writes an empty file": f'{ANSWER}{TARGET}: > "$2"\n',
    "lacks headers": f'{ANSWER}echo "math.h: No such file or directory" >&2\nexit 1\n',
    "is killed": f"{ANSWER}kill -9 $$\n",
    "has no version": "exit 1\n",
    "writes a library without the function": f'{ANSWER}{TARGET}o="$2"; echo "int other;" > "$o.c"; '
    'exec cc -shared -fPIC -o "$o" "$o.c"\n',
}


@needs_compiler
@pytest.mark.parametrize("what", BROKEN)
def test_broken_compiler_leaves_the_general_engine_and_nothing_in_the_cache(what: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env: dict[str, str | None] = {"FUSEPLAN_CC": script(tmp_path, BROKEN[what]), "FUSEPLAN_CACHE_DIR": str(cache)}
    said = python(RUN, env)
    assert said[0] == "array 2" and "generated C kernels cannot be used" in said[1]  # and the slower dispatcher
    assert libraries(cache) == []


@pytest.mark.parametrize("body", ["echo started; exec sleep 60\n", f"{ANSWER}echo started; sleep 60 & sleep 60\n"])
def test_compiler_that_prints_and_hangs_is_given_up_once(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_TRIAL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(logs, "_seen", set())
    calls = tmp_path / "calls"
    settings.use(settings.Settings(cache_dir=tmp_path, compiler=script(tmp_path, f'echo x >> "{calls}"\n{body}')))
    try:
        assert "0.3 s" in toolchain.gap() or "timed out" in toolchain.gap()
        asked = calls.read_text()
        assert toolchain.gap() and calls.read_text() == asked
    finally:
        settings.use(None)


@needs_compiler
def test_compiler_that_breaks_later_declines_in_build_and_not_in_execute(tmp_path: Path) -> None:
    real = shutil.which("cc") or shutil.which("gcc") or ""
    body = f'if grep -q fuseplan_trial "$(for x; do case "$x" in *source.c) echo "$x";; esac; done)"; then\n' \
           f'  exec {real} "$@"\nfi\n{TARGET}echo garbage > "$2"\n'  # fmt: skip
    cache = tmp_path / "cache"
    env: dict[str, str | None] = {
        "FUSEPLAN_CC": script(tmp_path, ANSWER + body), "FUSEPLAN_CACHE_DIR": str(cache),
        "FUSEPLAN_DISPATCHER": "python",
    }  # fmt: skip
    code = (
        PROGRAM
        + """
g = fuseplan.pygraph(device="cpu", io_data_type=fuseplan.data_type.FLOAT)
x = g.tensor(dim=[4])
y = g.exp(x).set_output(True)
g.build()
print([g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())], run("exp")[1])
"""
    )
    said = python(code, env)
    assert said == ["['cpu_c', 'array'] 4.0"]
    assert len(libraries(cache)) == 1  # the trial's


@needs_compiler
def test_swapped_cache_entries_are_noticed_and_made_again(tmp_path: Path) -> None:
    env: dict[str, str | None] = {"FUSEPLAN_CACHE_DIR": str(tmp_path)}
    assert python(RUN, env)[0] == "cpu_c 0"
    files = libraries(tmp_path)
    good = [f.read_bytes() for f in files]
    assert len(files) >= 4
    for target, data in zip(files, [*good[1:], good[0]], strict=True):
        target.write_bytes(data)
    said = python(RUN, env)
    assert said[0] == f"cpu_c {len(files)}" and said[1].count("damaged") == len(files)
    assert libraries(tmp_path) == files and python(RUN, env)[0] == "cpu_c 0"


@needs_compiler
def test_entry_that_does_not_load_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_seen", set())
    settings.use(settings.Settings(cache_dir=tmp_path))
    try:
        source = "int only_here(void) { return 3; }"
        key = toolchain.compile_shared(source).key
        artifacts.publish(key, ".so", b"whole and under its own key, but no library")
        made = toolchain.compile_shared(source, symbol="only_here")
        assert made.key == key and artifacts.get(key, ".so") == made.data
        assert artifacts.load_shared(made).only_here() == 3
        with pytest.raises(ToolchainError, match="no function"):
            toolchain.compile_shared(source, symbol="another")
        assert artifacts.get(key, ".so") is None
    finally:
        settings.use(None)


FORKED = (
    PROGRAM
    + """
import os, signal, threading, time
busy = threading.Thread(target=run, args=("exp", 2))
busy.start()
time.sleep(DELAY)
child = os.fork()
if child == 0:
    signal.alarm(60)
    ok = run("exp", 1001)[1] == 1001.0
    os._exit(0 if ok else 1)
status = os.waitpid(child, 0)[1]
busy.join()
print(status)
"""
)


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("delay", [0.01, 0.05, 0.1, 0.2, 0.3, 0.45])
def test_child_forked_while_another_thread_builds_can_build(delay: float, tmp_path: Path) -> None:
    assert python(f"DELAY = {delay}\n" + FORKED, {"FUSEPLAN_CACHE_DIR": str(tmp_path)}) == ["0"]


def test_list_of_plans_says_what_is_missing_before_anything_is_built() -> None:
    code = (
        PROGRAM
        + """
g = fuseplan.pygraph(device="cpu", io_data_type=fuseplan.data_type.FLOAT)
g.exp(g.tensor(dim=[4])).set_output(True)
g.build_operation_graph()
g.create_execution_plans()
g.check_support()
print([g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())])
print(g.explain().replace(chr(10), " "))
"""
    )
    said = python(code, {"FUSEPLAN_CACHE_DIR": "/proc/nowhere"}, NO_TEMP)
    assert said[0] == "['array']" and "no folder to write" in said[1]
