"""The log of the process: where the settings point it, plus the standard logger ``fuseplan``."""

from __future__ import annotations

import logging
import sys

from fuseplan import settings
from fuseplan.runtime import forks

_logger = logging.getLogger("fuseplan")
_logger.addHandler(logging.NullHandler())
_lock = forks.Lock()
_seen: set[str] = set()


def is_on() -> bool:
    """Whether `info` writes to the log file of the settings."""
    s = settings.current()
    return s.log_level > 0 and bool(s.log_file)


def info(message: str) -> None:
    """Write one line to the log; costs next to nothing when the log is off."""
    if is_on():
        _write(message)
    _logger.info(message)


def once(key: str, message: str) -> bool:
    """Report something that is wrong but survivable, once per process and `key`.

    Returns:
        whether this call reported it
    """
    with _lock:
        if key in _seen:
            return False
        _seen.add(key)
    if is_on():
        _write(message)
    _logger.warning(message)
    return True


def _write(message: str) -> None:
    target = settings.current().log_file
    line = f"[fuseplan] {message}\n"
    try:
        with _lock:
            if target in ("stdout", "stderr"):
                stream = sys.stdout if target == "stdout" else sys.stderr
                stream.write(line)
                stream.flush()
            else:
                with open(target, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(line)
    except (OSError, ValueError, AttributeError) as problem:  # also a stream that is closed or not there
        if target not in _seen:  # a log that cannot be written must not stop the work
            _seen.add(target)
            _logger.warning("log file %s cannot be written: %s", target, problem)
