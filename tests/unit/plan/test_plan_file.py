"""Plan files: round trip, determinism, and refusal with a reason where something does not match."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan.errors import PlanFileError, cudnnGraphNotSupportedError
from fuseplan.plan import plan_file
from fuseplan.runtime import toolchain
from fuseplan.runtime.device import Device, cpu_device
from fuseplan.testing.random_graphs import smooth_graph
from fuseplan.testing.run import build_on, random_inputs, run_on_host


@pytest.fixture(scope="module")
def saved() -> bytes:
    return plan_file.dump(build_on(smooth_graph(3), "cpu_c"), "0.1.0")


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
@pytest.mark.parametrize("seed", [3, 5, 7, 11])
def test_reloaded_plan_gives_the_same_bytes_without_compiling(
    engine: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = smooth_graph(seed)
    plan = build_on(graph, engine)
    data = plan_file.dump(plan, "0.1.0")
    inputs = random_inputs(graph, seed)
    expected = run_on_host(plan, inputs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a reload must not compile a kernel")

    monkeypatch.setattr(toolchain, "compile_shared", refuse)
    loaded = plan_file.load(data, cpu_device())
    got = run_on_host(loaded, inputs)
    assert loaded.workspace_bytes == plan.workspace_bytes and loaded.name == plan.name
    for uid, a in expected.items():
        np.testing.assert_array_equal(got[uid].view(np.uint8), a.view(np.uint8))


def test_same_plan_gives_the_same_file(saved: bytes) -> None:
    assert plan_file.dump(build_on(smooth_graph(3), "cpu_c"), "0.1.0") == saved


def edit(data: bytes, change: Any) -> bytes:
    """The file with its manifest changed and its checksum made right again."""
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        files = {n: z.read(n) for n in z.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    files["manifest.json"] = json.dumps(manifest).encode()
    from hashlib import sha256

    files["manifest.json.sha256"] = sha256(files["manifest.json"]).hexdigest().encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, body in files.items():
            z.writestr(name, body)
    return out.getvalue()


def test_other_kind_of_device_is_refused_by_name(saved: bytes) -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match=r"made for cpu, this handle is cuda:0"):
        plan_file.load(saved, Device("cuda", arch="sm_90"))


def test_missing_cpu_feature_is_named(saved: bytes) -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match="avx2|sse4_2"):
        plan_file.load(saved, replace(cpu_device(), features=()))


def test_other_version_is_refused(saved: bytes) -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match="version 99 is not 2"):
        plan_file.load(edit(saved, lambda m: m.update(version=99)), cpu_device())


def test_changed_manifest_is_refused_by_its_checksum(saved: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(saved)) as z:
        files = {n: z.read(n) for n in z.namelist()}
    files["manifest.json"] = files["manifest.json"].replace(b"cpu_c", b"cpu_d")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, body in files.items():
            z.writestr(name, body)
    with pytest.raises(PlanFileError, match="checksum of its manifest"):
        plan_file.load(out.getvalue(), cpu_device())


@pytest.mark.parametrize("data", [b"", b"PK", b"not a plan", b"PK\x03\x04 cut off"], ids=str)
def test_other_data_is_not_a_plan_file(data: bytes) -> None:
    with pytest.raises(PlanFileError):
        plan_file.load(data, cpu_device())


def test_artifact_of_another_origin_is_not_taken_from_memory_or_cache(saved: bytes) -> None:
    """What this process has compiled does not stand in for what is missing in a file."""
    gone = edit(saved, lambda m: [a.update(origin="0" * 64) for a in m["artifacts"]])
    with pytest.raises(cudnnGraphNotSupportedError, match="no compiled file for .* as this release writes it"):
        plan_file.load(gone, cpu_device())


def test_loaded_file_leaves_nothing_behind_for_later_builds(saved: bytes) -> None:
    """An artifact of a file is used by its plan alone."""
    before = build_on(smooth_graph(3), "cpu_c")
    loaded = plan_file.load(edit(saved, lambda m: [a.update(facts="noted") for a in m["artifacts"]]), cpu_device())
    assert {x.artifact.facts for x in loaded.program.launches if x.artifact} == {"noted"}
    after = build_on(smooth_graph(3), "cpu_c")
    assert after.program == before.program
    assert {x.artifact.facts for x in after.program.launches if x.artifact} == {""}


def test_loaded_plan_is_saved_again_and_has_its_source(saved: bytes) -> None:
    loaded = plan_file.load(saved, cpu_device())
    assert plan_file.dump(loaded, "0.1.0") == saved
    assert loaded.source == build_on(smooth_graph(3), "cpu_c").source


def test_plan_of_a_machine_with_more_cores_is_built_for_that_machine(saved: bytes) -> None:
    """Kernels may depend on the device that they were made for; a loaded plan has those, with this one's threads."""
    other = replace(cpu_device(), sm_count=512, l2_bytes=1 << 30, num_threads=1)
    data = plan_file.dump(build_on(smooth_graph(3), "cpu_c", device=other), "0.1.0")
    loaded = plan_file.load(data, cpu_device())
    assert loaded.device == cpu_device() and loaded.program.num_threads == cpu_device().num_threads
    inputs = random_inputs(smooth_graph(3), 1)
    expected = run_on_host(build_on(smooth_graph(3), "cpu_c"), inputs)
    for uid, a in run_on_host(loaded, inputs).items():
        np.testing.assert_array_equal(a.view(np.uint8), expected[uid].view(np.uint8))
