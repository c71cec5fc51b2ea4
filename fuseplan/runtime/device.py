"""Facts about a device as a value; found once, passed everywhere as an argument."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def sm_version(self) -> int:
        """Compute capability times ten (90 for sm_90); 0 on a CPU."""
        return int(self.arch[3:]) if self.kind == "cuda" else 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"
