"""Every test here has a cache folder and settings of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseplan import settings
from fuseplan.runtime import logs


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[settings.Settings]:
    """Settings with a fresh cache folder; nothing was reported before."""
    made = settings.Settings(cache_dir=tmp_path / "cache")
    monkeypatch.setattr(logs, "_seen", set())
    settings.use(made)
    yield made
    settings.use(None)
