"""One kernel cache over graphs that differ in extents: what is compiled, what is recorded, what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan import settings
from fuseplan.engines.cpu_c import engine as cpu_c
from fuseplan.engines.forms import Memo
from fuseplan.runtime import toolchain

pytestmark = pytest.mark.skipif(not toolchain.has_compiler(), reason="there is no C compiler")
CONV_SHAPES = ((2, 3, 6, 6, 4), (3, 3, 6, 6, 4), (8, 3, 6, 6, 4), (17, 3, 6, 6, 4))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Labels of what the compiler really ran for, in a cache that starts empty."""
    labels: list[str] = []
    run = toolchain._run

    def counted(command: tuple[str, ...], source: str, path: Path, label: str) -> None:
        labels.append(label)
        run(command, source, path, label)

    monkeypatch.setattr(toolchain, "_run", counted)
    monkeypatch.setattr(cpu_c.ENGINE, "_built", Memo())
    monkeypatch.setattr(cpu_c.ENGINE, "_compiled", Memo())
    here = settings.current()
    monkeypatch.setattr(settings, "_current", settings.Settings(cache_dir=tmp_path, compiler=here.compiler))
    return labels


def kernels(labels: list[str]) -> list[str]:
    """Labels of compute kernels; the dispatcher is compiled once per cache as well."""
    return [label for label in labels if label.startswith("fp_")]


def run_conv(shape: tuple[int, ...], **options: Any) -> tuple[float, Any]:
    """Build and run convolution, bias and relu; the largest error against float64, and the graph."""
    n, c, h, w, k = shape
    g = cudnn.pygraph(
        f"conv{n}", io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, device="cpu", **options
    )
    rng = np.random.default_rng(n)
    x, weight, bias = (rng.standard_normal(d).astype(np.float32) for d in ((n, c, h, w), (k, c, 3, 3), (1, k, 1, 1)))
    ports = [g.tensor(dim=a.shape, name=name) for a, name in ((x, "x"), (weight, "w"), (bias, "b"))]
    y = g.conv_fprop(image=ports[0], weight=ports[1], padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    out = g.relu(input=g.bias(input=y, bias=ports[2])).set_output(True)
    out.set_dim([n, k, h, w]).set_stride([k * h * w, h * w, w, 1])
    g.build([cudnn.heur_mode.A])
    got = np.full((n, k, h, w), np.nan, np.float32)
    workspace = np.empty(max(1, g.get_workspace_size()), np.uint8)
    g.execute({**dict(zip(ports, (x, weight, bias), strict=True)), out: got}, workspace)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((n, k, h, w))
    for r in range(3):
        for s in range(3):
            want += np.einsum(
                "nchw,kc->nkhw", padded[:, :, r : r + h, s : s + w], weight[:, :, r, s].astype(np.float64)
            )
    want = np.maximum(want + bias, 0.0)
    return float(np.abs(got - want).max() / np.abs(want).max()), g


def test_kernel_cache_compiles_once_for_four_batch_sizes(compiled: list[str]) -> None:
    cache = cudnn.create_kernel_cache()
    errors, seen, revisions = [], [], []
    for shape in CONV_SHAPES:
        error, _ = run_conv(shape, kernel_cache=cache)
        errors.append(error)
        seen.append(len(kernels(compiled)))
        revisions.append(cache.revision())
    assert max(errors) < 1e-5
    assert seen == [1, 1, 1, 1]
    assert cache.size() == 1 and len(set(revisions)) == 1


def test_dynamic_shapes_share_kernels_without_a_cache_object(compiled: list[str]) -> None:
    for shape in CONV_SHAPES[:2]:
        assert run_conv(shape, is_dynamic_shape_enabled=True)[0] < 1e-5
    assert len(kernels(compiled)) == 1


def test_fresh_process_state_finds_the_kernel_on_disk(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cudnn.create_kernel_cache()
    run_conv(CONV_SHAPES[0], kernel_cache=cache)
    monkeypatch.setattr(cpu_c.ENGINE, "_built", Memo())
    monkeypatch.setattr(cpu_c.ENGINE, "_compiled", Memo())
    again = cudnn.create_kernel_cache()
    again.deserialize(cache.serialize())
    revision = again.revision()
    assert run_conv(CONV_SHAPES[3], kernel_cache=again)[0] < 1e-5
    assert len(kernels(compiled)) == 1
    assert (again.size(), again.revision()) == (1, revision)


def test_each_structure_is_recorded_once_and_changes_the_revision(compiled: list[str]) -> None:
    cache = cudnn.create_kernel_cache()
    assert (cache.size(), cache.revision()) == (0, 0)
    found = []
    for dims, op in (([2, 3], "relu"), ([4, 5], "relu"), ([2, 3], "tanh"), ([7, 3], "tanh"), ([2, 3, 4], "relu")):
        g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, device="cpu", kernel_cache=cache)
        getattr(g, op)(input=g.tensor(dim=dims)).set_output(True)
        g.build([cudnn.heur_mode.A])
        found.append((cache.size(), cache.revision(), len(kernels(compiled))))
    assert found == [(1, 1, 1), (1, 1, 1), (2, 2, 2), (2, 2, 2), (3, 3, 3)]


def test_extent_of_one_is_a_structure_of_its_own(compiled: list[str]) -> None:
    cache = cudnn.create_kernel_cache()
    for rows in (4, 1, 9, 1):
        g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, device="cpu", kernel_cache=cache)
        x = g.tensor(dim=[rows, 8])
        out = g.abs(input=x).set_output(True)
        g.build([cudnn.heur_mode.A])
        a, got = np.linspace(-1, 1, 8 * rows, dtype=np.float32).reshape(rows, 8), np.empty((rows, 8), np.float32)
        g.execute({x: a, out: got}, np.empty(max(1, g.get_workspace_size()), np.uint8))
        np.testing.assert_array_equal(got, np.abs(a))
    assert len(kernels(compiled)) == 2


def test_counter_sees_every_compilation(compiled: list[str]) -> None:
    for rows in (4, 9):
        g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, device="cpu")
        getattr(g, "abs" if rows == 4 else "neg")(input=g.tensor(dim=[rows, 8])).set_output(True)
        g.build([cudnn.heur_mode.A])
    assert len(kernels(compiled)) == 2
