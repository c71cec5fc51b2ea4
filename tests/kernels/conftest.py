"""Fixtures of the dispatcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fuseplan import settings
from fuseplan.runtime import toolchain
from fuseplan.runtime.launch import Artifact
from tests.kernels.dispatch_harness import SOURCE
from tests.kernels.fake_driver import Fake, fake_driver


@pytest.fixture(params=["native", "python"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The dispatcher in force."""
    base = settings.Settings.from_environment()
    settings.use(replace(base, dispatcher=request.param))
    yield request.param
    settings.use(None)


@pytest.fixture(scope="module")
def kernels() -> Artifact:
    """The compiled functions of the harness's SOURCE."""
    return toolchain.compile_shared(SOURCE)


@pytest.fixture
def fake(kind: str) -> Iterator[Fake]:
    """The fake CUDA driver, in force."""
    yield from fake_driver()
