"""Kernels compiled in processes side by side: Triton compiles one at a time in a process, and its knobs are global."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from fuseplan import settings
from fuseplan.engines.triton.compile import Compilation, compile_kernel
from fuseplan.runtime import artifacts

_LEAST = 3  # compilations; fewer are done before a process has started
_MOST_PROCESSES = 32


def compile_all(wanted: Sequence[Compilation], until: float) -> None:
    """Put cubins into the cache. What fails or is not done by `until` (of `time.monotonic`) is left to its build."""
    missing = [w for w in dict.fromkeys(wanted) if artifacts.get(w.key, ".cubin") is None]
    if len(missing) < _LEAST:
        return
    count = min(len(missing), os.cpu_count() or 1, _MOST_PROCESSES)
    started = [_start(missing[k::count]) for k in range(count)]
    for process in started:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(share: Sequence[Compilation]) -> subprocess.Popen[str]:
    environment = {
        **os.environ, "FUSEPLAN_CACHE_DIR": str(settings.current().cache_dir), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it could not start: builds will say why
        process.stdin.write(json.dumps([asdict(w) for w in share]))
        process.stdin.close()
    return process


def _from_json(data: dict[str, object]) -> Compilation:
    pairs = {name: tuple(map(tuple, value)) for name, value in data.items() if isinstance(value, list)}
    return Compilation(**{**data, **pairs})  # type: ignore[arg-type]


def main() -> None:
    """Compile what standard input names."""
    for data in json.load(sys.stdin):
        with contextlib.suppress(Exception):  # the build in the process that asked says what is wrong
            compile_kernel(_from_json(data))


if __name__ == "__main__":
    main()
