"""Find and run the C compiler; every result is an `Artifact` kept by `artifacts`."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseplan import settings
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, logs
from fuseplan.runtime.device import TIERS, arch_name, is_x86, native_features
from fuseplan.runtime.launch import Artifact

#: flags of every kernel; none of them changes a value
KERNEL_FLAGS = (
    "-O3", "-std=c11", "-fPIC", "-shared", "-pipe", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_VALUE_CHANGING = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math",
                   "-freciprocal-math", "-ffinite-math-only", "-fno-signed-zeros", "-ffp-contract=fast")  # fmt: skip
_TIMEOUT_S = 300
_NO_COMPILER_FIX = "install gcc or clang, or set FUSEPLAN_CC; without one only the array engine runs"


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
    for name in (wanted,) if wanted else ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            info = os.stat(path)
            return _identify(path, info.st_mtime_ns, info.st_size)
    asked = f"compiler '{wanted}' of the settings" if wanted else "cc, gcc or clang on PATH"
    raise ToolchainError("there is no C compiler", asked=asked, fix=_NO_COMPILER_FIX)


def has_compiler() -> bool:
    """Whether a C compiler was found and starts."""
    try:
        find_compiler()
    except ToolchainError:
        return False
    return True


def python_headers() -> str:
    """Folder with Python.h of the running Python; empty if it is not installed."""
    folder = sysconfig.get_paths()["include"]
    return folder if os.path.exists(os.path.join(folder, "Python.h")) else ""


def compile_shared(
    source: str,
    flags: tuple[str, ...] = (),
    *,
    march: str = "native",
    features: Sequence[str] | None = None,
    label: str = "kernel",
) -> Artifact:
    """Compile C source to a shared object, or take it from the cache.

    Args:
        flags: additional flags, for instance ``("-fopenmp",)``
        march: ``"native"`` or a tier such as ``"x86-64-v3"``, for code that runs elsewhere too
        features: CPU features that the code relies on, where it is more than what `march` may use
        label: for messages
    Raises:
        ToolchainError: no compiler, or it failed; the source is kept and its path is in the message
    """
    compiler, target = find_compiler(), _target_flag(march)
    arch = _arch_of(march, features)
    for flag in flags:
        if flag in _VALUE_CHANGING:
            raise ToolchainError(f"flag {flag} changes values and is not allowed", fix="leave it out")
    command = (compiler.path, *KERNEL_FLAGS, *target, *flags)
    key = _key(source, compiler.version, *command[1:], arch)

    def build(path: Path) -> None:
        _run(command, source, path, label)

    path, data = artifacts.obtain(key, ".so", build)
    logs.info(f"compiled {label}: {path}")
    return Artifact("so", key, arch, data)


def _run(command: tuple[str, ...], source: str, path: Path, label: str) -> None:
    file = path.parent / "source.c"
    file.write_text(source, encoding="utf-8")
    messages = path.parent / "messages.txt"
    # the C locale, so that messages do not depend on the user's language; a file and no pipe, so that we
    # wait for the compiler alone and not for what it started
    env = {**os.environ, "LC_ALL": "C"}
    try:
        with messages.open("wb") as out:
            done = subprocess.run(
                [*command, "-o", str(path), str(file), "-lm"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=_TIMEOUT_S,
                env=env,
                check=False,
            )
    except subprocess.TimeoutExpired as problem:
        raise _failed(command, source, label, f"it ran for more than {_TIMEOUT_S} s", "") from problem
    except OSError as problem:
        raise ToolchainError(f"{command[0]} does not start: {problem}", fix=_NO_COMPILER_FIX) from problem
    said = messages.read_text(encoding="utf-8", errors="replace")
    if done.returncode < 0:
        raise _failed(command, source, label, f"it was ended by signal {-done.returncode}", said)
    if done.returncode or not path.exists():
        raise _failed(command, source, label, f"exit status {done.returncode}", said)


def _failed(command: tuple[str, ...], source: str, label: str, how: str, stderr: str) -> ToolchainError:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    folder = settings.current().cache_dir / "failed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{digest}.c"
        kept.write_text(source, encoding="utf-8")
    except OSError:
        kept = Path(tempfile.mkdtemp(prefix="fuseplan-failed-")) / f"{digest}.c"
        kept.write_text(source, encoding="utf-8")
    head = "\n".join(stderr.strip().splitlines()[:12])
    return ToolchainError(
        f"compiling {label} failed: {how}" + (f"\n{head}" if head else ""),
        asked=" ".join((*command, str(kept), "-lm")),
        fix="the source is kept at the path above; if it is one of ours, this is a bug of fuseplan to report",
    )


def _key(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()


def _target_flag(march: str) -> tuple[str, ...]:
    if march == "native" and not is_x86():
        return ("-mcpu=native",)
    return (f"-march={march}",)


def _arch_of(march: str, features: Sequence[str] | None) -> str:
    base = native_features() if march == "native" else TIERS.get(march, ())
    return arch_name({*base, *(features or ())})


@functools.cache
def _identify(path: str, mtime_ns: int, size: int) -> Compiler:
    """Ask a compiler once per machine; an updated one, seen by time and size, is asked again."""
    key = hashlib.sha256(f"compiler {path} {mtime_ns} {size}".encode()).hexdigest()
    known = artifacts.get(key, ".version")
    if known is not None:
        return Compiler(path, known.decode())
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        raise ToolchainError(f"compiler {path} does not start: {problem}", fix=_NO_COMPILER_FIX) from problem
    version = done.stdout.split("\n", 1)[0].strip() or f"{mtime_ns}-{size}"
    artifacts.publish(key, ".version", version.encode())
    return Compiler(path, version)
