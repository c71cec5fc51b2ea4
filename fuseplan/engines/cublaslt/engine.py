"""The cublaslt engine: plain products by NVIDIA's cuBLASLt, called from a few lines of C."""

from __future__ import annotations

import functools
import struct
from importlib.resources import files

from fuseplan.dtypes import FLOAT
from fuseplan.engines.base import (
    YES,
    Config,
    Executable,
    FusionLimits,
    Knob,
    KnobSpace,
    Support,
    no,
)
from fuseplan.engines.cublaslt import bindings
from fuseplan.engines.cublaslt.bindings import Algorithm, Description
from fuseplan.engines.cublaslt.translate import Product, product_of
from fuseplan.engines.forms import Memo
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.region import Region
from fuseplan.runtime import cuda, toolchain
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind

_LIMITS = FusionLimits(ops=frozenset({"matmul", "cast"}), max_nodes=2, max_operands=3)
_ALIGNMENT = 16
_LAUNCH_US, _CALL_US = (
    2.5,
    4.6,
)  # of a kernel; of the library on the host, and what it loses on short products
_HALF_GAIN, _FLOAT_SHARE = (
    10.85,
    0.8,
)  # of the float32 rate: what it reaches with halves and with float32, H200
_NOT_HIDDEN = 0.25  # of the shorter one of memory time and work


class CublasLtEngine:
    """Products of two matrices, batched or not, in float32, float16 and bfloat16 with float32 sums."""

    name = "cublaslt"
    engine_ids = range(20400, 20401)
    device_kinds = frozenset({"cuda"})
    is_general = False
    is_compiled = True

    def __init__(self) -> None:
        self._products: Memo[Product | Support] = Memo()
        self._chosen: Memo[tuple[Description, list[Algorithm]]] = Memo(256)

    def limits(self, device: Device) -> FusionLimits:
        """What may fuse."""
        return _LIMITS

    def supports(self, region: Region, device: Device) -> Support:
        if reason := _unavailable(device):
            return no(reason)
        product = self._product(region)
        if isinstance(product, Support):
            return product
        return (
            YES
            if self._choice(product, device.index, _ALIGNMENT)[1]
            else no("the library has no algorithm for it")
        )

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        found = self._choice(self._taken(region), device.index, _ALIGNMENT)[1]
        return KnobSpace({"ALGORITHM": Knob(tuple(range(max(1, len(found)))))})

    def build(
        self, region: Region, device: Device, config: Config, *, aligned: bool = True
    ) -> Executable:
        product = self._taken(region)
        alignment = (
            _ALIGNMENT
            if aligned
            else min(m.dtype.itemsize for m in (product.a, product.b, product.d))
        )
        description, found = self._choice(product, device.index, alignment)
        if not found:
            raise cudnnGraphNotSupportedError(
                "cuBLASLt has no algorithm for these addresses",
                fix="align the tensors to 16 bytes, or take another plan",
            )
        wanted = dict(config)["ALGORITHM"]
        algorithm = found[min(int(wanted), len(found) - 1)]
        library = description.library
        block = bytes(32) + struct.pack(
            "6Q8QQff", library.matmul, library.handle(device.index), description.operation.value,
            *(layout.value for layout in description.layouts), *algorithm.data, algorithm.workspace_bytes, 1.0, 0.0,
        )  # fmt: skip
        matrices = (product.a, product.b, product.d)
        patches = [
            Patch(PatchKind.POINTER, 8 * k, m.operand) for k, m in enumerate(matrices)
        ]
        if algorithm.workspace_bytes:
            patches.append(Patch(PatchKind.SCRATCH, 24))
        launch = Launch(
            LaunchKind.LIBRARY, block, tuple(patches), toolchain.compile_shared(_source(), label="cublaslt"),
            "cublaslt_run", label=f"cublaslt algorithm {wanted}", status_text=bindings.status_text, owner=description,
        )  # fmt: skip
        alignments = tuple([_ALIGNMENT] * len(region.operands)) if aligned else ()
        return Executable(
            (launch,),
            algorithm.workspace_bytes,
            alignments,
            _source(),
            scratch_alignment=256,
        )

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        """By rates reached on an H200; what the library lists first is taken for the fastest."""
        is_float = self._taken(region).a.dtype is FLOAT
        rate = device.peak_gflops * 1e3 * (_FLOAT_SHARE if is_float else _HALF_GAIN)
        cost = region.cost
        work_us, memory_us = (
            cost.flops / rate,
            (cost.read_bytes + cost.write_bytes) / (device.memory_gbps * 1e3),
        )
        both = (work_us, memory_us)
        us = _LAUNCH_US + _CALL_US + max(both) + _NOT_HIDDEN * min(both)
        return us * (1.0 + 0.01 * int(dict(config).get("ALGORITHM", 0)))

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return (
            frozenset()
            if self._taken(region).a.dtype is FLOAT
            else frozenset({"TENSOR_CORE"})
        )

    def _product(self, region: Region) -> Product | Support:
        return self._products.get(
            (region.structure, region.cost), lambda: product_of(region)
        )

    def _taken(self, region: Region) -> Product:
        product = self._product(region)
        if isinstance(product, Support):
            raise cudnnGraphNotSupportedError(
                f"the cublaslt engine cannot build this region: {product.reason}",
                fix="take another engine's plan",
            )
        return product

    def _choice(
        self, product: Product, index: int, alignment: int
    ) -> tuple[Description, list[Algorithm]]:
        def make() -> tuple[Description, list[Algorithm]]:
            library = bindings.library()
            assert library is not None
            description = Description(library, product)
            return description, description.algorithms(index, alignment)

        return self._chosen.get((product, index, alignment), make)


def _unavailable(device: Device) -> str:
    """Why the library cannot be asked about a device; empty if it can."""
    if device.kind != "cuda":
        return f"tensors are on {device}, this engine needs a CUDA device"
    if bindings.library() is None:
        return "the library libcublasLt, or a CUDA device to ask it about, is not here"
    here = _arches()
    if device.index >= len(here) or here[device.index] != device.arch:
        return f"{device} is not an {device.arch} here: the library chooses for the device that it runs on"
    return toolchain.gap()


@functools.cache
def _arches() -> tuple[str, ...]:
    return tuple(
        f"sm_{facts['major']}{facts['minor']}" for facts in cuda.list_devices()
    )


@functools.cache
def _source() -> str:
    return (
        files("fuseplan.engines.cublaslt").joinpath("run.c").read_text(encoding="utf-8")
    )


ENGINE = CublasLtEngine()
