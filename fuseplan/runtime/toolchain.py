"""Find and run the C compiler; every result is an `Artifact` kept by `artifacts`."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseplan import settings
from fuseplan.errors import ToolchainError, cudnnGraphNotSupportedError
from fuseplan.runtime import artifacts, folders, logs, supply
from fuseplan.runtime.device import TIERS, arch_name, is_x86, native_features
from fuseplan.runtime.launch import Artifact

#: flags of every kernel; none of them changes a value
KERNEL_FLAGS = (
    "-O3", "-std=c11", "-fPIC", "-shared", "-pipe", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_VALUE_CHANGING = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math",
                   "-freciprocal-math", "-ffinite-math-only", "-fno-signed-zeros", "-ffp-contract=fast")  # fmt: skip
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_TIMEOUT_S = 300
_TRIAL_TIMEOUT_S = 30
_NO_COMPILER_FIX = "install gcc or clang, or set FUSEPLAN_CC; without one only the array engine runs"
_TRIAL = """#include <math.h>
#include <stdint.h>
#include <string.h>
float fuseplan_trial(float x) { return sqrtf(x); }
"""
_identified: dict[tuple[str, int, int], Compiler | ToolchainError] = {}
_gaps: dict[tuple[Compiler, Path], str] = {}
_assembled: dict[tuple[Compiler, str], bool] = {}


@dataclass(frozen=True)
class Compiler:
    """A C compiler of this machine.

    Args:
        path: absolute path of the executable
        version: first line of its ``--version``
    """

    path: str
    version: str


def find_compiler() -> Compiler:
    """The compiler of the settings, else the first of cc, gcc and clang on PATH.

    Raises:
        ToolchainError: there is none, or it does not start
    """
    wanted = settings.current().compiler
    asked = f"compiler '{wanted}' of the settings" if wanted else "cc, gcc or clang on PATH"
    missing = ToolchainError("there is no C compiler", asked=asked, fix=_NO_COMPILER_FIX)
    for name in (wanted,) if wanted else ("cc", "gcc", "clang"):
        path = shutil.which(name)
        found = _identified_at(path) if path else missing
        if isinstance(found, Compiler):
            return found
        missing = found
    raise missing


def has_compiler() -> bool:
    """Whether a C compiler was found and starts, and what it compiles can be run."""
    return not gap()


def gap() -> str:
    """Why this process cannot compile C and run it; empty if it can, or if compiled files are given (`supply`).

    Tried with a small program, once per process.
    """
    if supply.is_given():
        return ""
    try:
        compiler = find_compiler()
    except ToolchainError as problem:
        reason = f"{problem.wrong} (set FUSEPLAN_CC, or put cc, gcc or clang on PATH)"
    else:
        key = (compiler, folders.cache())
        if key not in _gaps:
            _gaps[key] = _try(compiler)
        reason = _gaps[key]
    if reason:
        logs.once(f"toolchain:{reason}", f"generated C kernels cannot be used: {reason}")
    return reason


def _try(compiler: Compiler) -> str:
    try:
        made = compile_shared(_TRIAL, label="a trial program", symbol="fuseplan_trial")
        address = artifacts.symbol_address(made, "fuseplan_trial")
    except (ToolchainError, cudnnGraphNotSupportedError) as problem:
        return f"{compiler.path} does not work: {problem.wrong}"
    root = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(address)(4.0)
    return "" if root == 2.0 else f"{compiler.path} does not work: in what it compiles the root of 4 is {root}"


def assembles(instruction: str) -> bool:
    """Whether the compiler's assembler knows an instruction, which this CPU need not have. Tried once per compiler."""
    if supply.is_given():
        return True
    try:
        key = find_compiler(), instruction
    except ToolchainError:
        return False
    if key not in _assembled:  # threads that ask at the same time all try
        try:
            compile_shared(f'void fuseplan_trial(void) {{ __asm__("{instruction}"); }}\n', label="a trial program")
        except ToolchainError:
            _assembled[key] = False
        else:
            _assembled[key] = True
    return _assembled[key]


def python_headers() -> str:
    """Folder with Python.h of the running Python; empty if it is not installed."""
    folder = sysconfig.get_paths()["include"]
    return folder if os.path.exists(os.path.join(folder, "Python.h")) else ""


def compile_shared(
    source: str, flags: tuple[str, ...] = (), *, march: str = "native", features: Sequence[str] = (),
    label: str = "kernel", symbol: str = "",
) -> Artifact:  # fmt: skip
    """Compile C source to a shared object, or take it from the cache.

    Args:
        flags: additional flags, for instance ``("-fopenmp",)``
        march: ``"native"`` or a tier such as ``"x86-64-v3"``, for code that runs elsewhere too
        features: CPU features that the code relies on, where it is more than what `march` may use
        label: for messages
        symbol: a function of it; the result is loaded too, and made again if one from the cache does not load
    Raises:
        ToolchainError: no compiler, or it failed (the source is kept and its path is in the message), or what it made
            does not load
    """
    origin = supply.digest_of(_COMMENT.sub("", source), *KERNEL_FLAGS, *flags)
    given = supply.find(origin, label)
    if given is not None:
        return given
    compiler = find_compiler()
    target = "-mcpu=native" if march == "native" and not is_x86() else f"-march={march}"
    base = native_features() if march == "native" else TIERS.get(march, ())
    arch = arch_name({*base, *features})
    for flag in flags:
        if flag in _VALUE_CHANGING:
            raise ToolchainError(f"flag {flag} changes values and is not allowed", fix="leave it out")
    command = (compiler.path, *KERNEL_FLAGS, target, *flags)
    key = supply.digest_of(source, compiler.version, *command[1:], arch)

    fresh: list[Path] = []

    def build(path: Path) -> None:
        fresh.append(path)
        _run(command, source, path, label)

    while True:
        path, data = artifacts.obtain(key, ".so", build)
        made = Artifact("so", key, arch, data, origin)
        try:
            if symbol:
                artifacts.symbol_address(made, symbol)
        except ToolchainError:
            artifacts.remove(key, ".so")
            if fresh:
                raise
            logs.once(f"cache-unusable:{path}", f"cache entry {path} does not load; it is removed and built again")
        else:
            logs.info(f"compiled {label}: {path}")
            return made


def _run(command: tuple[str, ...], source: str, path: Path, label: str) -> None:
    file = path.parent / "source.c"
    limit_s = _TRIAL_TIMEOUT_S if source == _TRIAL else _TIMEOUT_S
    try:
        file.write_text(source, encoding="utf-8")
        code, said = _output_of((*command, "-o", str(path), str(file), "-lm"), path.parent, limit_s)
    except subprocess.TimeoutExpired as problem:
        raise _failed(command, source, label, f"it ran for more than {limit_s} s", "") from problem
    except OSError as problem:
        raise ToolchainError(f"{command[0]} does not start: {problem}", fix=_NO_COMPILER_FIX) from problem
    if code < 0:
        raise _failed(command, source, label, f"it was ended by signal {-code}", said)
    if code or not path.exists():
        raise _failed(command, source, label, f"exit status {code}", said)


def _output_of(command: Sequence[str], folder: Path, limit_s: float) -> tuple[int, str]:
    """Exit status and text of a command, which may write in `folder`. Raises OSError, TimeoutExpired."""
    messages = folder / "messages.txt"
    # the C locale, so that messages do not depend on the user's language; a file and no pipe, so that we
    # wait for the compiler alone and not for what it started; a session, so that all of it can be ended
    env = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    with messages.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
        )
        try:
            code = _status_of(process, limit_s)
        except BaseException:
            with contextlib.suppress(OSError, AttributeError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            raise
    return code, messages.read_text(encoding="utf-8", errors="replace")


def _status_of(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Exit status, as soon as the kernel says that it ended: `wait` with a limit sleeps up to 50 ms at a time.

    Raises TimeoutExpired.
    """
    try:
        ended = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return process.wait(limit_s)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        return process.wait(limit_s if poll.poll(limit_s * 1e3) else 0)
    finally:
        os.close(ended)


def _keep(source: str, name: str) -> str:
    """Path of the kept source; its bare name where no folder can be written."""
    for is_own in (True, False):
        with contextlib.suppress(OSError):  # not the private folder: the user reads it after the process
            folder = folders.cache() / "failed" if is_own else Path(tempfile.mkdtemp(prefix="fuseplan-failed-"))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(source, encoding="utf-8")
            return str(folder / name)
    return name


def _failed(command: tuple[str, ...], source: str, label: str, how: str, stderr: str) -> ToolchainError:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    kept = _keep(source, f"{digest}.c")
    head = "\n".join(stderr.strip().splitlines()[:12])
    return ToolchainError(
        f"compiling {label} failed: {how}" + (f"\n{head}" if head else ""),
        asked=" ".join((*command, kept, "-lm")),
        fix="the source is kept at the path above; if it is one of ours, this is a bug of fuseplan to report",
    )


def _identified_at(path: str) -> Compiler | ToolchainError:
    """The compiler at a path, asked once; an updated one, seen by time and size, is asked again."""
    info = os.stat(path)
    ident = (path, info.st_mtime_ns, info.st_size)
    if ident not in _identified:
        try:
            _identified[ident] = _identify(*ident)
        except ToolchainError as problem:
            _identified[ident] = problem
    return _identified[ident]


def _identify(path: str, mtime_ns: int, size: int) -> Compiler:
    """Ask a compiler once per machine."""
    key = hashlib.sha256(f"compiler {path} {mtime_ns} {size}".encode()).hexdigest()
    known = artifacts.get(key, ".version")
    if known is not None:
        return Compiler(path, known.decode())
    try:
        with folders.scratch("fuseplan-build-") as folder:
            code, said = _output_of((path, "--version"), folder, _TRIAL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as problem:
        raise ToolchainError(f"compiler {path} does not start: {problem}", fix=_NO_COMPILER_FIX) from problem
    if code:
        raise ToolchainError(f"compiler {path} does not start: exit status {code}", fix=_NO_COMPILER_FIX)
    version = said.split("\n", 1)[0].strip() or f"{mtime_ns}-{size}"
    with contextlib.suppress(ToolchainError):
        artifacts.publish(key, ".version", version.encode())
    return Compiler(path, version)
