"""Devices as values: names, tiers and what code may rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuseplan.errors import DeviceError, cudnnGraphNotSupportedError
from fuseplan.runtime import cuda, device
from fuseplan.runtime.device import Device

V3 = device.TIERS["x86-64-v3"]


@pytest.fixture
def no_driver() -> Iterator[None]:
    """A machine without a CUDA driver."""
    cuda.set_library("libfuseplan-no-such-driver.so")
    device.cuda_devices.cache_clear()
    yield
    cuda.set_library(None)
    device.cuda_devices.cache_clear()


def test_cpu_device_is_found_once_and_has_rates() -> None:
    here = device.cpu_device()
    assert here is device.cpu_device() is device.device_of("cpu")
    assert here.kind == str(here) == "cpu"
    assert here.sm_count >= 1 and here.memory_gbps > 0 and here.peak_gflops > 0
    assert list(here.features) == sorted(here.features)
    assert here.sm_version == 0


def test_no_driver_means_no_devices_and_a_named_error(no_driver: None) -> None:
    assert device.cuda_devices() == ()
    assert not cuda.is_available()
    with pytest.raises(DeviceError, match=r"'cuda:3'.*none"):
        device.device_of("cuda:3")
    with pytest.raises(DeviceError, match="driver"):
        cuda.load_cubin(b"", "f")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_unknown_device_name_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="there is no device named"):
        device.device_of(name)


def test_tier_is_the_highest_that_is_complete() -> None:
    assert device.tier_of(V3) == "x86-64-v3"
    assert device.tier_of((*V3, "avx512f")) == "x86-64-v3"
    assert device.tier_of(device.TIERS["x86-64-v4"]) == "x86-64-v4"
    assert device.tier_of(()) == "x86-64"


def test_arch_name_lists_what_is_beyond_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "is_x86", lambda: True)
    assert device.arch_name(V3) == "x86-64-v3"
    assert device.arch_name((*V3, "gfni", "avx_vnni")) == "x86-64-v3+avx_vnni+gfni"


@pytest.mark.parametrize("is_allowed", [True, False])
def test_tiles_count_as_a_feature_only_with_the_kernels_permission(
    monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    flags = {*V3, "amx_bf16", "amx_tile"}
    monkeypatch.setattr(device, "_read_cpuinfo", lambda: ("a CPU", flags))
    monkeypatch.setattr(device, "_may_use_tiles", lambda: is_allowed)
    found = set(device.cpu_device.__wrapped__().features)
    assert found == (flags if is_allowed else set(V3))


def test_permission_is_asked_for_only_where_the_cpu_has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(device, "_read_cpuinfo", lambda: ("a CPU", set(V3)))
    monkeypatch.setattr(device, "_may_use_tiles", lambda: asked.append(True))
    device.cpu_device.__wrapped__()
    assert not asked
    monkeypatch.undo()
    if "amx_tile" not in device._read_cpuinfo()[1]:
        assert not device._may_use_tiles()


def test_required_features_are_checked_by_name() -> None:
    laptop = Device("cpu", name="laptop", arch="x86-64-v3", features=tuple(sorted(V3)))
    device.require_features("x86-64-v3", "kernel k", laptop)
    device.require_features("x86-64-v2", "kernel k", laptop)
    with pytest.raises(cudnnGraphNotSupportedError, match=r"kernel k .*avx512bw.*avx512f"):
        device.require_features("x86-64-v4", "kernel k", laptop)
    with pytest.raises(cudnnGraphNotSupportedError, match="gfni"):
        device.require_features("x86-64-v3+gfni", "kernel k", laptop)
    with pytest.raises(cudnnGraphNotSupportedError, match="aarch64"):
        device.require_features("aarch64", "kernel k", laptop)


def test_arm_code_is_checked_on_arm() -> None:
    server = Device("cpu", name="server", arch="aarch64", features=("asimd", "bf16"))
    device.require_features("aarch64+bf16", "kernel k", server)
    with pytest.raises(cudnnGraphNotSupportedError, match="sve"):
        device.require_features("aarch64+sve", "kernel k", server)
    with pytest.raises(cudnnGraphNotSupportedError, match="x86-64-v3"):
        device.require_features("x86-64-v3", "kernel k", server)
