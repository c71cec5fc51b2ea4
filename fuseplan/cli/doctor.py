"""`fuseplan doctor`: what is there, and what is lost where something is missing."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util

from rich.console import Console
from rich.table import Table

import fuseplan
from fuseplan import settings
from fuseplan.engines.registry import all_engines, engines_for
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, cuda, toolchain
from fuseplan.runtime.device import cpu_device, cuda_devices
from fuseplan.runtime.dispatch import native

REQUIRED = ("numpy", "ml_dtypes", "array-api-compat", "platformdirs", "rich")
TRITON = "triton"  # not an engine: the package


@dataclass(frozen=True)
class Finding:
    """One line of the report; `lost` says what does not work, empty if nothing is missing."""

    subject: str
    found: str
    lost: str = ""


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _packages() -> Iterator[Finding]:
    version = ".".join(str(v) for v in sys.version_info[:3])
    yield Finding("Python", f"{platform.python_implementation()} {version}, {platform.machine()}")
    yield Finding("fuseplan", fuseplan.__version__)
    for name in REQUIRED:
        found = _version(name)
        yield Finding(name, found or "missing", "" if found else "fuseplan itself: reinstall it with its dependencies")
    torch, triton = _version("torch"), _version(TRITON)
    yield Finding(
        "torch", torch or "not installed",
        "" if torch else "PyTorch tensors as buffers; the general engine on GPUs; timing beside PyTorch",
    )  # fmt: skip
    can_generate = bool(triton) and util.find_spec(TRITON) is not None
    yield Finding(TRITON, triton or "not installed", "" if can_generate else "generated kernels on GPUs")


def _toolchain() -> Iterator[Finding]:
    if reason := toolchain.gap():
        yield Finding("C compiler", reason, "generated C kernels (slow general engine only) and the C dispatcher")
    else:
        compiler = toolchain.find_compiler()
        yield Finding("C compiler", f"{compiler.path}: {compiler.version}")
    headers = toolchain.python_headers()
    yield Finding(
        "Python headers", headers or "missing", "" if headers else "the C dispatcher: calls cost more host time"
    )
    slower = "low host time per call; everything still runs"
    if settings.current().dispatcher == "python":
        yield Finding("dispatcher", "Python, as the settings say", slower)
        return
    try:
        native.module()
        yield Finding("dispatcher", "native")
    except ToolchainError as missing:
        yield Finding("dispatcher", f"Python: {missing.wrong}", slower)


def _cache() -> Iterator[Finding]:
    held, limit = artifacts.stats(), settings.current().cache_limit_bytes
    size = f"{held.entries} files, {held.bytes / 2**20:.1f} MiB of at most {limit / 2**20:.0f} MiB"
    yield Finding("kernel cache", f"{held.folder}: {size}")


def _devices() -> Iterator[Finding]:
    cpu = cpu_device()
    yield Finding("CPU", f"{cpu.name}, {cpu.sm_count} cores, {cpu.arch}")
    gpus = cuda_devices()
    for gpu in gpus:
        yield Finding(str(gpu), f"{gpu.name}, {gpu.arch}, {gpu.sm_count} multiprocessors")
    if not gpus:
        reason = "the driver reports no device" if cuda.is_available() else "no CUDA driver"
        yield Finding("GPU", reason, "everything on GPUs; graphs run on the CPU")
    for kind in ("cpu", "cuda") if gpus else ("cpu",):
        names = ", ".join(e.name for e in engines_for(kind))
        yield Finding(f"engines for {kind}", names or "none", "" if names else f"any plan on {kind}")
    yield Finding("engines known", ", ".join(e.name for e in all_engines()))


def findings() -> list[Finding]:
    """Everything the report says."""
    return [*_packages(), *_toolchain(), *_cache(), *_devices()]


def doctor(args: argparse.Namespace) -> int:
    """Show what fuseplan finds on this machine, and what is lost where something is missing."""
    table = Table(title="fuseplan doctor")
    for column in ("subject", "found", "what is lost"):
        table.add_column(column, overflow="fold")
    for one in findings():
        table.add_row(one.subject, one.found, one.lost or "-")
    Console().print(table)
    return 0
