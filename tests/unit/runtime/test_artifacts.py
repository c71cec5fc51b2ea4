"""The cache of compiled files: damage, concurrency, killed builders, folders that cannot be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.runtime import artifacts
from fuseplan.runtime.launch import Artifact

KEY = "0123456789abcdef"
_BUILDER = """
import sys, time
from pathlib import Path
from fuseplan import settings
from fuseplan.runtime import artifacts

settings.use(settings.Settings(cache_dir=Path(sys.argv[1])))

def build(path):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    path.write_bytes(b"half")
    time.sleep(float(sys.argv[3]))
    path.write_bytes(b"whole")

print(artifacts.obtain(sys.argv[4], ".bin", build)[0].read_bytes()[:5].decode())
"""


def writes(data: bytes, calls: list[int] | None = None) -> Callable[[Path], None]:
    """A build function that writes `data` and counts its calls."""

    def build(path: Path) -> None:
        if calls is not None:
            calls.append(1)
        path.write_bytes(data)

    return build


def start_builder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that builds KEY and needs `seconds` for it."""
    args = [sys.executable, "-c", _BUILDER, str(folder / "cache"), str(folder / "log"), str(seconds), KEY]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.005)
    raise TimeoutError(str(path))


def test_publish_then_get_returns_data() -> None:
    path = artifacts.publish(KEY, ".bin", b"data")
    assert path == artifacts.path_of(KEY, ".bin")
    assert artifacts.get(KEY, ".bin") == b"data"
    assert artifacts.get(KEY, ".so") is None
    assert artifacts.get("f" * 16, ".bin") is None


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append"])
def test_damaged_entry_is_reported_once_and_built_again(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = artifacts.publish(KEY, ".bin", b"some data of an entry")
    raw = path.read_bytes()
    flipped = bytes([raw[0] ^ 1]) + raw[1:]
    path.write_bytes({"flip": flipped, "truncate": raw[: len(raw) // 2], "empty": b"", "append": raw + b"x"}[damage])
    assert artifacts.get(KEY, ".bin") is None
    assert not path.exists()
    path.write_bytes(flipped)
    calls: list[int] = []
    assert artifacts.obtain(KEY, ".bin", writes(b"new", calls))[0] == path
    assert artifacts.get(KEY, ".bin") == b"new"
    assert len(calls) == 1
    assert sum("damaged" in record.message for record in caplog.records) == 1


def test_obtain_builds_once_in_one_process() -> None:
    calls: list[int] = []
    first = artifacts.obtain(KEY, ".bin", writes(b"a", calls))
    assert artifacts.obtain(KEY, ".bin", writes(b"b", calls)) == first
    assert artifacts.get(KEY, ".bin") == b"a"
    assert len(calls) == 1


def test_build_that_fails_leaves_nothing_and_the_next_one_works() -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        artifacts.obtain(KEY, ".bin", fail)
    assert artifacts.get(KEY, ".bin") is None
    assert artifacts.obtain(KEY, ".bin", writes(b"good"))[0].exists()
    assert artifacts.get(KEY, ".bin") == b"good"


def test_two_processes_build_the_same_key_once_and_both_get_it(tmp_path: Path) -> None:
    both = [start_builder(tmp_path, 0.3) for _ in range(2)]
    assert [p.communicate(timeout=30)[0].strip() for p in both] == ["whole", "whole"]
    assert (tmp_path / "log").read_text() == "built\n"


def test_process_killed_while_building_does_not_block_the_next(tmp_path: Path) -> None:
    victim = start_builder(tmp_path, 60)
    wait_for(tmp_path / "log")
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=30)
    assert artifacts.get(KEY, ".bin") is None
    started = time.monotonic()
    artifacts.obtain(KEY, ".bin", writes(b"good"))
    assert artifacts.get(KEY, ".bin") == b"good"
    assert time.monotonic() - started < 5


def test_cache_folder_that_cannot_exist_falls_back_to_a_private_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    settings.use(settings.Settings(cache_dir=tmp_path / "file" / "cache"))
    calls: list[int] = []
    first = artifacts.obtain(KEY, ".bin", writes(b"a", calls))
    assert artifacts.obtain(KEY, ".bin", writes(b"b", calls)) == first
    assert artifacts.obtain("fedcba9876543210", ".bin", writes(b"c"))[0].read_bytes().startswith(b"c")
    assert len(calls) == 1
    assert artifacts.get(KEY, ".bin") == b"a"
    assert sum("cannot be written" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("function", ["replace", "chmod"])
def test_full_disk_falls_back_to_a_private_folder(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = settings.current().cache_dir
    real = getattr(os, function)

    def full(first: str, *rest: object) -> object:
        if str(first).startswith(str(cache)):
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(first, *rest)

    monkeypatch.setattr(os, function, full)
    path = artifacts.publish(KEY, ".bin", b"data")
    assert not path.is_relative_to(cache)
    assert artifacts.get(KEY, ".bin") == b"data"
    assert [f for f in cache.rglob("*") if f.is_file()] == []  # no half-written file is left


def test_cache_is_trimmed_to_its_limit_oldest_use_first(own_settings: settings.Settings) -> None:
    settings.use(replace(own_settings, cache_limit_bytes=3500))
    for i in range(3):
        path = artifacts.publish(f"{i}" * 16, ".bin", bytes(1000))
        os.utime(path, (i, i))
    assert artifacts.get("0" * 16, ".bin") is not None  # used now, so not the oldest any more
    artifacts.publish("3" * 16, ".bin", bytes(1000))
    assert [artifacts.get(f"{i}" * 16, ".bin") is not None for i in range(4)] == [True, False, True, True]
    assert artifacts.stats().bytes <= 3500


def test_entry_over_the_limit_is_kept_until_the_next(own_settings: settings.Settings) -> None:
    settings.use(replace(own_settings, cache_limit_bytes=10))
    artifacts.publish(KEY, ".bin", bytes(1000))
    assert artifacts.get(KEY, ".bin") == bytes(1000)


def test_stats_and_clear() -> None:
    artifacts.publish(KEY, ".bin", b"12345")
    before = artifacts.stats()
    assert before.entries == 1 and before.bytes > 5
    artifacts.get(KEY, ".bin")
    assert artifacts.stats().hits == before.hits + 1
    artifacts.clear()
    assert artifacts.stats().entries == 0
    assert artifacts.get(KEY, ".bin") is None


@pytest.mark.parametrize("key", ["", "short", "../../etc/passwd", "a" * 300, "white space"])
def test_key_that_is_no_digest_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        artifacts.path_of(key, ".so")


def test_foreign_artifact_does_not_replace_what_a_key_means() -> None:
    artifacts.publish(KEY, ".so", b"mine")
    path = artifacts.shared_path(Artifact("so", KEY, "", b"theirs"))
    assert path != artifacts.path_of(KEY, ".so")
    assert path.read_bytes().startswith(b"theirs")
    assert artifacts.get(KEY, ".so") == b"mine"
    assert artifacts.shared_path(Artifact("so", KEY, "", b"mine")) == artifacts.path_of(KEY, ".so")


@pytest.mark.parametrize("arch", ["x86-64+avx9000", "sparc64"])
def test_library_for_missing_cpu_feature_is_refused_by_name(arch: str) -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match=arch.split("+")[-1]):
        artifacts.load_shared(Artifact("so", KEY, arch, b"never loaded"))
