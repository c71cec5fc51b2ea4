"""Setup of the GPU tests: they carry the marker `gpu` and are skipped by name where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from fuseplan.runtime.device import cuda_devices


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [i for i in items if "/gpu/" in str(i.path)]
    missing = "" if cuda_devices() else "no CUDA device"
    if not missing:
        try:
            import torch
        except ImportError:
            missing = "PyTorch is not installed"
        else:
            missing = "" if torch.cuda.is_available() else "PyTorch has no CUDA"
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def handle() -> Any:
    import fuseplan

    made = fuseplan.create_handle()
    yield made
    fuseplan.destroy_handle(made)
