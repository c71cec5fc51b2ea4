"""Settings of the process: one frozen dataclass, and the only reader of environment variables."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

#: the cache folder of a user without a home: nothing can be written below it, so a private folder takes its place
NO_HOME = Path(os.devnull, "no-home-folder")


def _default_cache_dir() -> Path:
    try:
        found = Path(platformdirs.user_cache_dir("fuseplan", appauthor=False))
    except (KeyError, OSError, RuntimeError):  # no HOME and no entry in the list of users
        return NO_HOME
    return found if found.is_absolute() else NO_HOME


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
        """Settings as the environment gives them; a value that cannot be read is reported and counts as unset."""
        e = os.environ if env is None else env
        made: dict[str, object] = {}
        unread: list[str] = []
        for variable, (name, parse) in _VARIABLES.items():
            text = e.get(variable, "")
            if text:
                try:
                    made[name] = parse(text)
                except (ValueError, RuntimeError):
                    unread.append(f"{variable}={text[:40]!r}")
        if unread:
            _logger.warning("the environment has settings that cannot be read and are ignored: %s", ", ".join(unread))
        return cls(**made)  # type: ignore[arg-type]


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text.strip()):
        raise ValueError(text)
    return int(text)


def _word(text: str, *known: str) -> str:
    if text.lower() not in known:
        raise ValueError(text)
    return text.lower()


#: environment variable -> field of `Settings`, and what reads its text
_VARIABLES: dict[str, tuple[str, Callable[[str], object]]] = {
    "FUSEPLAN_CACHE_DIR": ("cache_dir", lambda text: Path(text).expanduser()),
    "FUSEPLAN_CACHE_LIMIT_MB": ("cache_limit_bytes", lambda text: _number(text) << 20),
    "FUSEPLAN_CC": ("compiler", str),
    "OMP_NUM_THREADS": ("num_threads", lambda text: _number(text.split(",")[0])),  # one for each level of nesting
    "FUSEPLAN_NUM_THREADS": ("num_threads", _number),  # after the other, so it counts
    "FUSEPLAN_DISPATCHER": ("dispatcher", lambda text: _word(text, "auto", "native", "python")),
    "CUDNN_FRONTEND_LOG_INFO": ("log_level", _number),
    "CUDNN_FRONTEND_LOG_FILE": ("log_file", str),
    "CUDNN_CUDA_GRAPH_RETENTION": ("cuda_graph_retention", lambda text: _word(text, "per_graph", "none")),
    "FUSEPLAN_VERIFY": ("verify", bool),
}
_logger = logging.getLogger("fuseplan")
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
