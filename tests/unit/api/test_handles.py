"""Handles, default handles of threads, the device of a graph, kernel caches, device properties, versions."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import fuseplan as cudnn
from fuseplan.api import handles
from fuseplan.runtime.device import Device, cpu_device

GPU = Device("cuda", 0, "Test GPU", "sm_90", (), 132, 228 << 10, 50 << 20)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A machine with one GPU, as far as handles can see."""
    found = {"cpu": cpu_device(), "cuda": GPU, "cuda:0": GPU}
    monkeypatch.setattr(handles, "cuda_devices", lambda: (GPU,))
    monkeypatch.setattr(handles, "device_of", found.__getitem__)
    monkeypatch.setattr(handles, "_can_use_cuda", lambda: True)
    return GPU


def test_cpu_handle_has_stream_zero_and_facts() -> None:
    handle = cudnn.create_handle("cpu")
    assert isinstance(handle, cudnn.Handle) and isinstance(handle.backend_handle, int) and handle.stream == 0
    info = handle.device
    assert (info.compute_capability, info.sm_version) == ((0, 0), 0)
    assert info.sm_count >= 1 and info.device_name and "cpu" in repr(handle) and "cpu" in repr(info)


def test_stream_is_set_and_read_by_keyword_too() -> None:
    handle = cudnn.create_handle("cpu")
    cudnn.set_stream(handle=handle, stream=0x1000)
    assert cudnn.get_stream(handle=handle) == handle.stream == 0x1000
    with pytest.raises(TypeError, match="stream"):
        cudnn.set_stream(handle, "0")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 0, 12345, "handle"])
def test_wrong_handle_raises_type_error(wrong: object) -> None:
    for call in (cudnn.destroy_handle, cudnn.get_stream, lambda h: cudnn.set_stream(h, 0)):
        with pytest.raises(TypeError, match="create_handle"):
            call(wrong)  # type: ignore[arg-type]
    if wrong is not None:
        with pytest.raises(TypeError):
            cudnn.pygraph(handle=wrong)  # type: ignore[arg-type]


def test_destroying_twice_is_harmless_and_use_after_it_is_an_error() -> None:
    handle = cudnn.create_handle("cpu")
    cudnn.destroy_handle(handle)
    cudnn.destroy_handle(handle)
    assert handle.backend_handle is None
    with pytest.raises(RuntimeError, match="destroyed"):
        cudnn.pygraph(handle=handle)


def test_unknown_device_is_named() -> None:
    with pytest.raises(RuntimeError, match="'tpu'"):
        cudnn.create_handle("tpu")
    with pytest.raises(TypeError):
        cudnn.create_handle(0)  # type: ignore[arg-type]


def test_default_handles_are_one_per_thread() -> None:
    mine = cudnn.wrapper.get_default_handle()
    assert cudnn.wrapper.get_default_handle(stream=64) is mine and mine.stream == 64
    other: list[cudnn.Handle] = []
    thread = threading.Thread(target=lambda: other.append(cudnn.wrapper.get_default_handle()))
    thread.start()
    thread.join()
    assert other[0] is not mine
    cudnn.wrapper.destroy_default_handle()
    assert mine.backend_handle is None
    assert cudnn.wrapper.get_default_handle() is not mine


def test_device_of_a_graph_is_the_handles_then_the_named_then_the_gpu(gpu: Device) -> None:
    assert cudnn.create_handle().ordinal == 0
    assert cudnn.pygraph(handle=cudnn.create_handle("cpu"), device="cuda").device.kind == "cpu"
    assert cudnn.pygraph(device="cpu").device.kind == "cpu"
    assert cudnn.pygraph(device="cuda").device is gpu
    assert cudnn.pygraph().device is gpu


def test_device_of_a_graph_without_a_gpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "_can_use_cuda", lambda: False)
    assert cudnn.pygraph().device == cpu_device() and cudnn.create_handle().ordinal == -1


def test_sm_count_and_version_take_the_place_of_the_devices(gpu: Device) -> None:
    device = cudnn.pygraph(sm_count=8, sm_version=80).device
    assert (device.sm_count, device.arch, device.name) == (8, "sm_80", "Test GPU")


def test_device_properties_round_trip_and_plan_for_an_absent_device() -> None:
    here = cudnn.create_device_properties(-1)
    text = here.serialize()
    again = cudnn.create_device_properties(text)
    assert again.serialize() == text and again.device == cpu_device()
    gpu_text = json.dumps({**json.loads(text), "kind": "cuda", "arch": "sm_90", "features": []})
    assert cudnn.pygraph(device_property=cudnn.create_device_properties(gpu_text)).device.arch == "sm_90"
    with pytest.raises(ValueError, match="device properties"):
        cudnn.create_device_properties("{}")
    with pytest.raises(TypeError):
        cudnn.create_device_properties(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cudnn.pygraph(device_property="x")  # type: ignore[arg-type]


def test_kernel_cache_turns_dynamic_shapes_on_and_counts_structures() -> None:
    cache = cudnn.create_kernel_cache()

    def build(dim: int, rank: int = 2) -> None:
        g = cudnn.pygraph(f"g{dim}", io_data_type=cudnn.data_type.FLOAT, kernel_cache=cache, device="cpu")
        assert g._draft.options.is_dynamic
        g.relu(g.tensor([dim] * rank, name=f"x{dim}", uid=100 + dim)).set_output(True)
        g.build_operation_graph()

    build(2)
    before = cache.revision()
    build(5)
    assert (cache.size(), cache.revision()) == (1, before)
    build(5, rank=3)
    assert cache.size() == 2 and cache.revision() != before
    fresh = cudnn.create_kernel_cache()
    fresh.deserialize(cache.serialize())
    assert fresh.size() == 2 and fresh.serialize() == cache.serialize()
    with pytest.raises(RuntimeError, match="in use"):
        cache.deserialize(fresh.serialize())
    for damaged in ("", "{}", '{"format": "fuseplan-kernel-cache", "version": 1, "structures": [1]}'):
        with pytest.raises(ValueError):
            cudnn.create_kernel_cache().deserialize(damaged)
    with pytest.raises(TypeError):
        cudnn.pygraph(kernel_cache="x")  # type: ignore[arg-type]


def test_cuda_graph_retention_is_the_constructors_else_per_graph() -> None:
    retention = cudnn.cuda_graph_retention
    assert cudnn.pygraph(device="cpu").get_cuda_graph_retention() is retention.PER_GRAPH
    chosen = cudnn.pygraph(device="cpu", cuda_graph_retention=retention.NONE)
    assert chosen.get_cuda_graph_retention() is retention.NONE
    with pytest.raises(TypeError):
        cudnn.pygraph(device="cpu", cuda_graph_retention=1)  # type: ignore[arg-type]


def test_versions_are_numbers_that_programs_compare() -> None:
    assert cudnn.backend_version() == 91900 and cudnn.backend_version_string() == "9.19.0"
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{cudnn.__version__}"\n' in project
    assert isinstance(cudnn.sdpa_capabilities(), frozenset)
    with pytest.raises(RuntimeError, match="no native library"):
        cudnn.get_last_error_string()


def test_frontend_knobs_start_at_a_thousand() -> None:
    assert cudnn.FRONTEND_KNOB_TYPE_BASE == 1000
    assert cudnn.is_frontend_knob_type(cudnn.knob_type.SPLIT_KV)
    assert not cudnn.is_frontend_knob_type(cudnn.knob_type.TILE_M)


def test_threads_of_a_handle_go_into_its_plans() -> None:
    handle = cudnn.create_handle(device="cpu", num_threads=3)
    assert handle.num_threads == handle.target.num_threads == 3
    unset = cudnn.create_handle("cpu")
    assert unset.target.num_threads == 0 and unset.num_threads >= 1


@pytest.mark.parametrize("wrong", [0, -1, 257, 1.5, True, "2"], ids=str)
def test_wrong_number_of_threads_is_an_argument_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="num_threads must be an int from 1 to 256"):
        cudnn.create_handle("cpu", num_threads=wrong)  # type: ignore[arg-type]


def test_threads_are_for_the_cpu(gpu: Device) -> None:
    with pytest.raises(TypeError, match="num_threads=2 is for the CPU"):
        cudnn.create_handle("cuda", num_threads=2)
    assert cudnn.create_handle("cuda").num_threads == 1
