"""Puts the settings back that a test of bad input changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuseplan import settings


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """Read the settings again afterwards."""
    yield
    settings.use(None)
