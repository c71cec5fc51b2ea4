"""Settings of the process: one frozen dataclass, and the only reader of environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs


def _default_cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir("fuseplan", appauthor=False))


def _count(text: str) -> int:
    """A number of threads; OpenMP's variable may list one for each level of nesting, of which the first counts."""
    first = text.split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


@dataclass(frozen=True)
class Settings:
    """What a process may set.

    Args:
        cache_dir: where compiled kernels are kept (``FUSEPLAN_CACHE_DIR``)
        cache_limit_bytes: the cache is trimmed to this size (``FUSEPLAN_CACHE_LIMIT_MB``)
        compiler: C compiler; empty means look for cc, gcc, clang (``FUSEPLAN_CC``)
        num_threads: threads of host kernels, 0: not said (``FUSEPLAN_NUM_THREADS``, else ``OMP_NUM_THREADS``)
        dispatcher: ``"native"``, ``"python"`` or ``"auto"`` (``FUSEPLAN_DISPATCHER``)
        log_level: 0 off, 1 to 9 info, 10 and above info without dumps (``CUDNN_FRONTEND_LOG_INFO``)
        log_file: ``stdout``, ``stderr`` or a path; empty: no log (``CUDNN_FRONTEND_LOG_FILE``)
        cuda_graph_retention: ``per_graph`` or ``none`` (``CUDNN_CUDA_GRAPH_RETENTION``)
        verify: check the IR's rules after every pass (``FUSEPLAN_VERIFY`` is not empty; on in the tests)
    """

    cache_dir: Path = field(default_factory=_default_cache_dir)
    cache_limit_bytes: int = 2 << 30
    compiler: str = ""
    num_threads: int = 0
    dispatcher: str = "auto"
    log_level: int = 0
    log_file: str = ""
    cuda_graph_retention: str = ""
    verify: bool = False

    @classmethod
    def from_environment(cls, env: dict[str, str] | None = None) -> Settings:
        """Settings as the environment gives them; unreadable numbers count as unset."""
        e = dict(os.environ) if env is None else env
        made: dict[str, object] = {}
        if e.get("FUSEPLAN_CACHE_DIR"):
            made["cache_dir"] = Path(e["FUSEPLAN_CACHE_DIR"]).expanduser()
        if e.get("FUSEPLAN_CACHE_LIMIT_MB", "").isdigit():
            made["cache_limit_bytes"] = int(e["FUSEPLAN_CACHE_LIMIT_MB"]) << 20
        made["compiler"] = e.get("FUSEPLAN_CC", "")
        made["num_threads"] = _count(e.get("FUSEPLAN_NUM_THREADS", "")) or _count(e.get("OMP_NUM_THREADS", ""))
        made["dispatcher"] = e.get("FUSEPLAN_DISPATCHER", "auto")
        level = e.get("CUDNN_FRONTEND_LOG_INFO", "0")
        made["log_level"] = int(level) if level.isdigit() else 0
        made["log_file"] = e.get("CUDNN_FRONTEND_LOG_FILE", "")
        made["cuda_graph_retention"] = e.get("CUDNN_CUDA_GRAPH_RETENTION", "")
        made["verify"] = bool(e.get("FUSEPLAN_VERIFY"))
        return cls(**made)  # type: ignore[arg-type]


_current: Settings | None = None


def current() -> Settings:
    """The settings in force; read from the environment once, at first use."""
    global _current
    if _current is None:
        _current = Settings.from_environment()
    return _current


def use(settings: Settings | None) -> None:
    """Put other settings in force; None reads the environment again at next use."""
    global _current
    _current = settings
