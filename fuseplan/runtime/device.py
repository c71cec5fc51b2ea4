"""Facts about a device as a value; found once, passed everywhere as an argument."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from fuseplan.errors import DeviceError, cudnnGraphNotSupportedError
from fuseplan.runtime import cuda


@dataclass(frozen=True)
class Device:
    """One CPU or GPU.

    Args:
        kind: ``"cpu"`` or ``"cuda"``
        index: ordinal of a GPU, 0 for the CPU
        name: marketing name
        arch: CPU feature tier (``"x86-64-v4"``) or ``"sm_90"``
        features: CPU features that compiled code may rely on, sorted; empty on GPUs
        sm_count: multiprocessors, or cores of a CPU
        shared_bytes: shared memory a block may opt in to; 0 on CPUs
        l2_bytes: last-level cache
        memory_gbps: rough bandwidth of main memory, GB/s, for ranking
        peak_gflops: rough float32 rate, for ranking
        num_threads: threads that plans for a CPU may use; 0: as many as `team.number` says
    """

    kind: str
    index: int = 0
    name: str = ""
    arch: str = ""
    features: tuple[str, ...] = ()
    sm_count: int = 1
    shared_bytes: int = 0
    l2_bytes: int = 0
    memory_gbps: float = 20.0
    peak_gflops: float = 50.0
    num_threads: int = 0

    @property
    def sm_version(self) -> int:
        """Compute capability times ten (90 for sm_90); 0 on a CPU."""
        return int(self.arch[3:]) if self.kind == "cuda" else 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


# table: features that a compiler may use for each tier, in the kernel's spelling
_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
TIERS: dict[str, tuple[str, ...]] = {"x86-64": (), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
_BEYOND_TIERS = (
    "avx512_bf16", "avx512_bitalg", "avx512_fp16", "avx512_vbmi2", "avx512_vnni", "avx512_vpopcntdq",
    "avx512ifma", "avx512vbmi", "avx_vnni", "fma4", "gfni", "sse4a", "xop",
)  # fmt: skip
#: used by a compiler only where the source asks for them, so not part of what every build relies on
_ON_REQUEST = _TILES = ("amx_bf16", "amx_int8", "amx_tile")
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18  # numbers of Linux
_ARM = ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "fphp", "i8mm", "sve", "sve2", "svebf16", "svei8mm")
_KNOWN = frozenset((*_V4, *_BEYOND_TIERS, *_ON_REQUEST, *_ARM))

# table: GB/s of a copy and GFLOP/s in float32, by a part of the GPU's name; first match wins
_GPU_RATES: tuple[tuple[str, float, float], ...] = (
    ("B200", 7000.0, 75000.0), ("GH200", 3600.0, 60000.0), ("H200", 4200.0, 60000.0), ("H100", 3000.0, 60000.0),
    ("A100", 1500.0, 19000.0), ("L40", 800.0, 80000.0), ("L4", 280.0, 28000.0), ("T4", 270.0, 8000.0),
    ("V100", 800.0, 15000.0),
)  # fmt: skip


@functools.cache
def cpu_device() -> Device:
    """This machine's CPU."""
    model, flags = _read_cpuinfo()
    lacking = () if "amx_tile" in flags and _may_use_tiles() else _TILES
    features = tuple(sorted(_KNOWN.intersection(flags).difference(lacking)))
    arch = tier_of(features) if is_x86() else platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    lanes = 16 if "avx512f" in features else 8 if "avx2" in features else 4
    return Device(
        kind="cpu", name=model or platform.processor() or platform.machine(), arch=arch, features=features,
        sm_count=cores, l2_bytes=_last_level_cache(), memory_gbps=min(12.0 * cores, 300.0),
        peak_gflops=cores * 2.5 * lanes * 4,  # two FMA units at 2.5 GHz
    )  # fmt: skip


@functools.cache
def cuda_devices() -> tuple[Device, ...]:
    """All CUDA devices that the driver sees; empty without driver or device, never an error."""
    try:
        return tuple(_cuda_device(facts) for facts in cuda.list_devices())
    except DeviceError:
        return ()


def device_of(name: str) -> Device:
    """The device with this name: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        DeviceError: no such name, or no such device on this machine
    """
    if name == "cpu":
        return cpu_device()
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if not match:
        raise DeviceError(f"there is no device named '{name}'", fix='use "cpu", "cuda" or "cuda:1"')
    devices, index = cuda_devices(), int(match[1] or 0)
    if index >= len(devices):
        seen = ", ".join(f"{d} ({d.name})" for d in devices) or "none"
        raise DeviceError(
            f"device '{name}' is not on this machine; CUDA devices found: {seen}",
            fix='use device="cpu", or check the driver with nvidia-smi and CUDA_VISIBLE_DEVICES',
        )
    return devices[index]


def tier_of(features: Iterable[str]) -> str:
    """The highest x86-64 tier whose features are all there."""
    have = set(features)
    return [tier for tier, needs in TIERS.items() if have.issuperset(needs)][-1]


def arch_name(features: Iterable[str]) -> str:
    """Name of a CPU target with exactly these features: its tier, then what is beyond it.

    For instance ``"x86-64-v4+avx512_bf16"``; on other machines the machine's name takes the tier's place.
    """
    base = tier_of(features) if is_x86() else platform.machine()
    extra = sorted(set(features) - set(TIERS.get(base, ())))
    return "+".join((base, *extra))


def require_features(arch: str, what: str, device: Device | None = None) -> None:
    """Check that code built for `arch` can run on this CPU; running it otherwise would end the process.

    Raises:
        cudnnGraphNotSupportedError: naming the features that are missing
    """
    here = device or cpu_device()
    base, *extra = arch.split("+")
    fix = "build the plan on this machine, or build it for a lower tier such as x86-64-v3"
    if base not in TIERS or not here.arch.startswith("x86-64"):
        if base != here.arch:
            raise cudnnGraphNotSupportedError(f"{what} was built for {base}; this CPU is {here.arch}", fix=fix)
    missing = sorted({*TIERS.get(base, ()), *extra} - set(here.features))
    if missing:
        raise cudnnGraphNotSupportedError(
            f"{what} needs the CPU features {', '.join(missing)}, which this CPU lacks",
            asked=f"code for {arch} on {here.name} ({here.arch})",
            fix=fix,
        )


def native_features() -> tuple[str, ...]:
    """Features of this CPU that a compiler may use on its own when it targets this machine."""
    return tuple(f for f in cpu_device().features if f not in _ON_REQUEST)


def is_x86() -> bool:
    """Whether this machine is a 64-bit x86."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _cuda_device(facts: dict[str, int | str]) -> Device:
    name, clock_ghz = str(facts["name"]), int(facts["clock_khz"]) / 1e6
    computed = (
        0.8 * 2 * int(facts["memory_clock_khz"]) * int(facts["bus_bits"]) / 8 / 1e6,
        0.8 * 2 * 128 * int(facts["sm_count"]) * clock_ghz,
    )
    rates = next(((bw, gflops) for part, bw, gflops in _GPU_RATES if part in name), computed)
    return Device(
        kind="cuda",
        index=int(facts["index"]),
        name=name,
        arch=f"sm_{facts['major']}{facts['minor']}",
        sm_count=int(facts["sm_count"]),
        shared_bytes=int(facts["shared_bytes"]),
        l2_bytes=int(facts["l2_bytes"]),
        memory_gbps=rates[0] or 100.0,
        peak_gflops=rates[1] or 1000.0,
    )


def _read_cpuinfo() -> tuple[str, set[str]]:
    """Model name and feature flags as the kernel lists them; empty where it does not."""
    model, flags = "", set[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                label, _, text = line.partition(":")
                if label.strip() == "model name" and not model:
                    model = text.strip()
                elif label.strip() in ("flags", "Features"):
                    return model, set(text.split())
    except OSError:
        pass
    return model, flags


def _may_use_tiles() -> bool:
    """Ask the kernel to let this process, all its threads and what it forks use tile registers; whether it does."""
    if not (is_x86() and sys.platform == "linux"):
        return False
    request = ctypes.CDLL(None, use_errno=True).syscall
    return bool(request(*map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))) == 0)


def _last_level_cache() -> int:
    best = 0
    for index in range(5):
        try:
            with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size", encoding="ascii") as file:
                text = file.read().strip()
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
            best = max(best, int(text.rstrip("KMG")) * unit)
        except (OSError, ValueError):
            continue
    return best
