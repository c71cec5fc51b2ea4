"""Launches of the second form on a device: tensor maps, launch attributes, scratch between launches."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuseplan import dtypes, settings
from fuseplan.errors import DeviceError
from fuseplan.runtime.dispatch import Dispatcher, make_dispatcher
from fuseplan.runtime.launch import Artifact, Attribute, Launch, LaunchKind, Patch, PatchKind, Program, Slot, TensorMap
from tests.kernels.launch_ptx import COPY, COPY_PAIR, SUM, TILE

ROWS, COLS = 200, 136  # neither is a multiple of the box
MAP = TensorMap(dtypes.FLOAT, (COLS, ROWS), (4 * COLS,), (TILE, TILE))
PAIR = replace(MAP, dims=(COLS, ROWS, 2), strides=(4 * COLS,), box=(TILE, TILE, 1), second=(1, 0), swap_offset=256)
STACK = replace(MAP, dims=(COLS, ROWS, 2), strides=(4 * COLS, 4 * COLS * ROWS), box=(TILE, TILE, 1))
GRID = (-(-COLS // TILE), -(-ROWS // TILE), 1)


@pytest.fixture(params=["native", "python"], autouse=True)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The dispatcher in force."""
    settings.use(replace(settings.Settings.from_environment(), dispatcher=request.param))
    yield request.param
    settings.use(None)


def kernel(text: str, symbol: str, **parts: Any) -> Launch:
    artifact = Artifact("cubin", symbol.ljust(16, "_"), "sm_90", text.encode())
    return Launch(LaunchKind.CUDA, artifact=artifact, symbol=symbol, label=symbol, **parts)


def made(slots: tuple[Slot, ...], *launches: Launch, scratch: int = 0) -> Dispatcher:
    program = Program(slots, launches, scratch, "cuda", workspace_alignment=128 if scratch else 1)
    return make_dispatcher(program, [(s.uid,) for s in slots], [None] * len(slots), dict)  # type: ignore[arg-type]


def matrix(uid: int, copies: int = 1, **facts: Any) -> Slot:
    return Slot(uid, f"t{uid}", dtypes.FLOAT, 4 * ROWS * COLS * copies, "cuda", alignment=16, **facts)


def copy_dispatcher() -> Dispatcher:
    patches = (Patch(PatchKind.TENSOR_MAP, 0, 0, map=MAP), Patch(PatchKind.TENSOR_MAP, 128, 1, map=MAP))
    launch = kernel(
        COPY, "copy_tiles", template=bytes(256), patches=patches, param_offsets=(0, 128), grid=GRID, block=(32, 1, 1)
    )
    return made((matrix(1), matrix(2, is_output=True)), launch)


def stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def random_matrices(count: int) -> list[Any]:
    import torch

    return [torch.randn(ROWS, COLS, device="cuda") for _ in range(count)]


def test_copy_through_tensor_maps_encodes_them_again_on_change_only() -> None:
    import torch

    d, (x, y) = copy_dispatcher(), random_matrices(2)
    out = torch.full_like(x, 7.0)
    wanted = 0
    for source, changes in ((x, 2), (x, 0), (y, 1), (y, 0), (x, 1)):
        out.fill_(7.0)
        d.execute({1: source, 2: out}, None, stream())
        wanted += changes
        assert torch.equal(out, source) and d.num_encodes == wanted


def test_bound_copy_encodes_its_maps_once() -> None:
    import torch

    d, (x, out) = copy_dispatcher(), random_matrices(2)
    bound = d.bind({1: x, 2: out}, None, stream())
    for k in range(3):
        x.fill_(float(k))
        bound()
        torch.cuda.synchronize()
        assert torch.equal(out, x)
    assert d.num_encodes == 2


def test_copy_is_captured_and_replayed() -> None:
    import torch

    d, (x, out) = copy_dispatcher(), random_matrices(2)
    bound = d.bind({1: x, 2: out}, None, stream())
    bound()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.set_stream(stream())
        bound()
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x)


def test_threads_copy_other_buffers_through_one_dispatcher() -> None:
    import torch

    d, sources = copy_dispatcher(), random_matrices(4)
    targets = [torch.zeros_like(x) for x in sources]
    torch.cuda.synchronize()

    def work(k: int) -> None:
        side = torch.cuda.Stream()
        for _ in range(50):
            d.execute({1: sources[k], 2: targets[k]}, None, side.cuda_stream)
        side.synchronize()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(x, y) for x, y in zip(sources, targets, strict=True))


def test_two_buffers_are_one_map_in_either_order() -> None:
    import torch

    patches = (Patch(PatchKind.TENSOR_MAP, 0, 0, map=PAIR), Patch(PatchKind.TENSOR_MAP, 128, 2, map=STACK))
    launch = kernel(
        COPY_PAIR, "copy_pair", template=bytes(260), patches=patches, param_offsets=(0, 128, 256),
        grid=(*GRID[:2], 2), block=(32, 1, 1),
    )  # fmt: skip
    d = made((matrix(1), matrix(2), matrix(3, copies=2, is_output=True)), launch)
    a, b = random_matrices(2)
    for x, y in ((a, b), (b, a)):
        out = torch.full((2, ROWS, COLS), 7.0, device="cuda")
        d.execute({1: x, 2: y, 3: out}, None, stream())
        torch.cuda.synchronize()
        assert torch.equal(out[0], x) and torch.equal(out[1], y)


N, PARTS = 1 << 20, 1024


def sum_dispatcher(*attributes: tuple[Attribute, tuple[int, ...]]) -> Dispatcher:
    """Partial sums into scratch, then their sum."""
    scratch, offsets = Patch(PatchKind.SCRATCH, 8, addend=128), (0, 8, 16, 20)
    first = kernel(
        SUM, "sum_parts", template=bytes(16) + struct.pack("II", N // PARTS, PARTS), param_offsets=offsets,
        patches=(Patch(PatchKind.POINTER, 0, 0), scratch), grid=(8, 1, 1), block=(128, 1, 1), attributes=attributes,
    )  # fmt: skip
    second = kernel(
        SUM, "sum_parts", template=bytes(16) + struct.pack("II", PARTS, 1), param_offsets=offsets,
        patches=(replace(scratch, offset=0), Patch(PatchKind.POINTER, 8, 1)), attributes=attributes[:1],
    )  # fmt: skip
    slots = (Slot(1, "x", dtypes.FLOAT, 4 * N, "cuda"), Slot(2, "s", dtypes.FLOAT, 4, "cuda", is_output=True))
    return made(slots, first, second, scratch=128 + 4 * PARTS)


ATTRIBUTES: dict[str, tuple[tuple[Attribute, tuple[int, ...]], ...]] = {
    "plain": (),
    "overlapped": ((Attribute.PROGRAMMATIC_SERIALIZATION, (1,)),),
    "overlapped clusters": ((Attribute.PROGRAMMATIC_SERIALIZATION, (1,)), (Attribute.CLUSTER, (2, 1, 1))),
    "cooperative": ((Attribute.COOPERATIVE, (1,)),),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_split_sum_in_two_launches_is_exact(name: str) -> None:
    import torch

    d = sum_dispatcher(*ATTRIBUTES[name])
    work = torch.full((128 + 4 * PARTS,), 255, dtype=torch.uint8, device="cuda")
    for seed in range(3):  # whole numbers: every order of the additions gives the exact sum
        torch.manual_seed(seed)
        x = torch.randint(-8, 8, (N,), device="cuda").float()
        total = torch.full((1,), 7.0, device="cuda")
        d.execute({1: x, 2: total}, work, stream())
        torch.cuda.synchronize()
        assert total.item() == np.sum(x.cpu().numpy().astype(np.float64))


def test_cluster_that_does_not_divide_the_grid_is_refused_by_the_driver() -> None:
    import torch

    x, total = torch.ones(N, device="cuda"), torch.zeros(1, device="cuda")
    work = torch.zeros(128 + 4 * PARTS, dtype=torch.uint8, device="cuda")
    with pytest.raises(DeviceError, match="launch 'sum_parts' failed with CUDA error"):
        sum_dispatcher((Attribute.CLUSTER, (3, 1, 1))).execute({1: x, 2: total}, work, stream())
