"""Graphs of these tests run without a compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuseplan import settings


@pytest.fixture
def no_compiler() -> Iterator[None]:
    """Use the dispatcher in Python."""
    settings.use(settings.Settings(dispatcher="python"))
    yield
    settings.use(None)
