"""Damaged, foreign and inconsistent plan files and structures: refused with a reason, or right; nothing is left."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan import settings
from fuseplan.errors import ArgumentError, GraphStateError, PlanFileError
from fuseplan.plan import plan_file
from fuseplan.runtime.device import cpu_device
from tests.malformed.bench import FALLBACK, Row, param, refused
from tests.malformed.file_rows import FILES, UNSUPPORTED, File, foreign, put

STEP = 37  # every so many bytes of a file are damaged


def rare(*values: Any) -> list[Any]:
    """Values whose tests belong to the full run."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> settings.Settings:
    """Settings with a cache that no other worker fills: tests here compare its files before and after."""
    return replace(settings.Settings.from_environment(), cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def private_cache(private: settings.Settings) -> None:
    settings.use(private)


@pytest.fixture(scope="module")
def files(private: settings.Settings) -> Iterator[dict[str, File]]:
    settings.use(private)
    made = {engine: File(engine) for engine in ("cpu_c", "array")}
    assert any(name.startswith("artifacts/") for name in made["cpu_c"].parts)
    yield made
    settings.use(None)


def cache_files() -> set[Path]:
    root = settings.current().cache_dir
    return {path for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
def test_whole_file_gives_the_result(files: dict[str, File], engine: str) -> None:
    g = cudnn.pygraph(device="cpu")
    g.deserialize(files[engine].data)
    np.testing.assert_array_equal(files[engine].run(g), files[engine].wanted)


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_flipped_byte_is_refused_or_harmless(files: dict[str, File], engine: str, mask: int) -> None:
    file, before = files[engine], cache_files()
    for at in range(0, len(file.data), STEP):
        damaged = bytearray(file.data)
        damaged[at] ^= mask
        file.check(bytes(damaged))
    assert cache_files() == before


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
def test_truncated_file_is_refused(files: dict[str, File], engine: str) -> None:
    file, before = files[engine], cache_files()
    size = len(file.data)
    for end in {*range(0, 64), *range(0, size, 4 * STEP), *range(size - 64, size)}:
        g = cudnn.pygraph(device="cpu")
        with pytest.raises(PlanFileError):
            g.deserialize(file.data[:end])
        assert g._plans.ranked is None
    assert cache_files() == before


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
def test_bytes_of_the_end_are_refused_or_harmless(files: dict[str, File], engine: str) -> None:
    """The zip directory at the end holds sizes and offsets: every byte of it, with several values."""
    file = files[engine]
    start = len(file.data) - 400
    for at in range(start, len(file.data)):
        for value in (0x00, 0x7F, 0xFF):
            damaged = bytearray(file.data)
            damaged[at] = value
            file.check(bytes(damaged))


@param(FILES)
def test_bad_file_is_refused_and_the_graph_stays_empty(files: dict[str, File], row: Row) -> None:
    file = files[row.id.split("-")[0]]
    data, before = row.make(file), cache_files()
    assert isinstance(data, bytes)
    g = cudnn.pygraph(name="shelf", device="cpu")
    refused(row, lambda: g.deserialize(data))
    assert g._draft.tensors == [] and g._plans.ranked is None and not g._draft.is_frozen
    assert not [path for path in cache_files() - before if path.name.startswith(".tmp") or path.stat().st_size == 0]
    g.deserialize(file.data)
    np.testing.assert_array_equal(file.run(g), file.wanted)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Path of everything in JSON data."""
    if path:
        yield path
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*path, key))


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
@pytest.mark.parametrize("value", [None, -1, 1 << 70, *rare("text", [], {}, 0.5, True)], ids=repr)
def test_any_leaf_of_the_manifest_is_refused_or_harmless(files: dict[str, File], engine: str, value: Any) -> None:
    """Every entry of the manifest replaced by a value of another kind, with the checksum made anew."""
    file = files[engine]
    for path in leaves(file.manifest):
        file.check(put(*path, value)(file))


@pytest.mark.parametrize("engine", ["cpu_c", "array"])
@pytest.mark.parametrize("step", [-1, *rare(8, 1 << 20)])
def test_any_number_of_the_manifest_that_is_another_one_is_refused_or_harmless(
    files: dict[str, File], engine: str, step: int
) -> None:
    file = files[engine]
    for path in leaves(file.manifest):
        at = file.manifest
        for key in path:
            at = at[key]
        if type(at) is int:
            file.check(put(*path, at + step)(file))


def test_other_device_is_refused_by_name(files: dict[str, File], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = replace(cpu_device(), kind="cuda", index=3, arch="sm_90")
    row = foreign("device", lambda f: f, "made for cpu, this handle is cuda:3", "this device")
    refused(row, lambda: plan_file.load(files["cpu_c"].data, gpu))
    data = put("device", {"kind": "cuda", "arch": "sm_80", "features": []})(files["cpu_c"])
    row = foreign("arch", lambda f: f, "made for sm_80, not sm_90", "this device")
    refused(row, lambda: plan_file.load(data, gpu))


# table: make(file) -> (positional, keyword arguments) of deserialize
CALLS = [
    Row("none", lambda f: ((None,), {}), TypeError, ArgumentError, "needs data", "serialize"),
    Row("no-arguments", lambda f: ((), {}), TypeError, ArgumentError, "needs data", "serialize"),
    Row("int", lambda f: ((5,), {}), TypeError, ArgumentError, "bytes or a list of ints 0..255, not int", "serialize"),
    Row("list-of-big-ints", lambda f: (([300],), {}), TypeError, ArgumentError, "0..255, not list", "serialize"),
    Row("list-of-str", lambda f: ((["a"],), {}), TypeError, ArgumentError, "0..255, not list", "serialize"),
    Row("handle-int", lambda f: ((), {"handle_": 5, "pyobj": f.data}), TypeError, ArgumentError, "not 5",
        "create_handle"),
    Row("unknown-keyword", lambda f: ((f.data,), {"z": 1}), TypeError, ArgumentError, "cannot take 'z'", "pyobj"),
    Row("too-many", lambda f: ((f.data, True, 3), {}), TypeError, ArgumentError, "too many arguments", "pyobj"),
    Row("structure-precompiled", lambda f: ((repr(f.m.g), True), {}), UNSUPPORTED, UNSUPPORTED, "no compiled kernels",
        "allow"),
    Row("text-not-json", lambda f: (("plan",), {}), ValueError, PlanFileError, "not JSON", "repr"),
    Row("text-empty-object", lambda f: (("{}",), {}), ValueError, PlanFileError, "not the structure", "repr"),
    Row("text-deep", lambda f: (("[" * 200000,), {}), ValueError, PlanFileError, "not JSON", "repr"),
    Row("text-cut", lambda f: ((repr(f.m.g)[:-40],), {}), ValueError, PlanFileError, "not JSON", "repr"),
    Row("text-op", lambda f: ((repr(f.m.g).replace('"matmul"', '"conjure"'),), {}), UNSUPPORTED, UNSUPPORTED,
        "'up' of the structure is of op 'conjure'", "release"),
]  # fmt: skip


@param(CALLS)
def test_bad_call_of_deserialize_is_refused(files: dict[str, File], row: Row) -> None:
    args, kwargs = row.make(files["array"])
    g = cudnn.pygraph(name="shelf", device="cpu")
    refused(row, lambda: g.deserialize(*args, **kwargs))
    assert g._draft.tensors == [] and g._plans.ranked is None
    g.deserialize(files["array"].data)
    np.testing.assert_array_equal(files["array"].run(g), files["array"].wanted)
    full = Row("full", lambda f: f, RuntimeError, GraphStateError, "'shelf' is not empty", "new pygraph")
    refused(full, lambda: g.deserialize(files["array"].data))


@pytest.mark.parametrize("value", [None, -1, 1 << 70, "text", [], {}, 0.5, True], ids=repr)
def test_any_leaf_of_a_structure_is_refused_or_harmless(files: dict[str, File], value: Any) -> None:
    """Every entry of a structure replaced; what still builds runs without another exception than ours."""
    file = files["array"]
    whole = json.loads(repr(file.m.g))
    for path in leaves(whole):
        data = copy.deepcopy(whole)
        at = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        g = cudnn.pygraph(device="cpu")
        try:
            g.deserialize(json.dumps(data))
            g.build([FALLBACK])
            file.run(g)
        except cudnn.FuseplanError as error:
            assert "fix:" in str(error), (path, error)


def test_loaded_graph_refuses_what_it_has_no_operations_for(files: dict[str, File]) -> None:
    g = cudnn.pygraph(name="shelf", device="cpu", is_override_shape_enabled=True)
    g.deserialize(files["array"].data)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("frozen", lambda: g.tensor([2])),
        ("has execution plans", g.create_execution_plans),
        ("one plan", lambda: g.create_execution_plan(20000)),
        ("loaded", lambda: g.execute({}, None, None, [11], [[4, 8]], [[8, 1]])),
    ]
    for name, step in steps:
        refused(Row(name, lambda f: f, RuntimeError, GraphStateError, name, "."), step)
    np.testing.assert_array_equal(files["array"].run(g), files["array"].wanted)
