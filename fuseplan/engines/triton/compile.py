"""Generated Triton source to a cubin, ahead of time: needs no GPU, no driver and no framework."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import gcd
from pathlib import Path
from types import ModuleType
from typing import Any

from fuseplan import settings
from fuseplan.engines.triton.kernel import Kernel
from fuseplan.errors import ToolchainError
from fuseplan.runtime import artifacts, folders, forks, supply
from fuseplan.runtime.launch import Artifact

_FORMAT = 2  # of what is cached; goes into the key
_MAX_SOURCES = 2048
_MAP_TYPE = re.compile(r"tensordesc<(\w+)\[([^]]*)\]>")
_lock = forks.Lock()  # Triton's knobs are global
_modules: dict[str, ModuleType] = {}


@dataclass(frozen=True, slots=True)
class Box:
    """What one copy of a tensor map moves, as the compiler cuts its tile; slow to fast."""

    sides: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class Compiled:
    """A cubin and what a launch needs to know about it.

    Args:
        symbol: name of the entry point
        num_warps: warps per block
        shared_bytes: dynamic shared memory
        boxes: of the kernel's tensor maps in order
    """

    artifact: Artifact
    symbol: str
    num_warps: int
    shared_bytes: int
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Compilation:
    """Everything that goes into a cubin; its digest is the cache key.

    Args:
        promises: (position, power of two) of parameters that are multiples of it
    """

    source: str
    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    promises: tuple[tuple[int, int], ...]
    num_warps: int
    num_stages: int
    sm: int
    is_gluon: bool = False

    @forks.cached_property
    def origin(self) -> str:
        """Digest of the compilation alone."""
        return supply.digest_of(json.dumps([_FORMAT, asdict(self)], sort_keys=True))

    @forks.cached_property
    def key(self) -> str:
        """Digest of the compilation and of the tools that run it."""
        text = json.dumps([_FORMAT, asdict(self), *tool_versions(self.sm)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def tool_versions(sm: int) -> tuple[str, str]:
    """Versions of Triton and of the assembler that it uses for an architecture."""
    with forks.loading:
        import triton
        from triton.backends.nvidia.compiler import get_ptxas
    try:
        return str(triton.__version__), str(get_ptxas(sm).version)
    except Exception as problem:  # the assembler is missing or does not start
        raise ToolchainError(f"Triton's assembler for sm_{sm} cannot be used: {problem}") from problem


def compilation(kernel: Kernel, sm: int, *, aligned: bool) -> Compilation:
    """What to compile for a kernel on an architecture; `aligned` promises 16-byte addresses of tensors."""
    promises = []
    for position, param in enumerate(kernel.params):
        multiple = gcd(16, param.value) if param.is_address and aligned else param.multiple
        if multiple > 1:
            promises.append((position, multiple))
    signature = tuple((p.name, p.type) for p in kernel.params) + tuple((c, "constexpr") for c, _ in kernel.constants)
    return Compilation(
        kernel.source,
        kernel.function,
        signature,
        kernel.constants,
        tuple(promises),
        kernel.num_warps,
        kernel.num_stages,
        sm,
        kernel.is_gluon,
    )


def compile_kernel(wanted: Compilation) -> Compiled:
    """The cubin from the cache, else compiled. Raises ToolchainError; its message has the source's path."""
    given = supply.find(wanted.origin, f"kernel '{wanted.function}'")
    if given is not None:
        return _compiled(given)
    described, cubin = artifacts.get(wanted.key, ".json"), artifacts.get(wanted.key, ".cubin")
    if described is None or cubin is None:
        asm, facts = compile_fresh(wanted)
        cubin, described = asm["cubin"], json.dumps(facts, sort_keys=True).encode()
        artifacts.publish(wanted.key, ".cubin", cubin)
        artifacts.publish(wanted.key, ".json", described)
    return _compiled(Artifact("cubin", wanted.key, f"sm_{wanted.sm}", cubin, wanted.origin, described.decode()))


def _compiled(artifact: Artifact) -> Compiled:
    facts = json.loads(artifact.facts)
    boxes = tuple([Box(tuple(sides), swizzle) for sides, swizzle in facts["boxes"]])
    return Compiled(artifact, facts["symbol"], facts["num_warps"], facts["shared_bytes"], boxes)


def compile_fresh(wanted: Compilation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run Triton: all its stages by name (``ttir`` to ``cubin``), and the facts of the launch."""
    import triton
    from triton.backends.compiler import GPUTarget

    module = load_source(wanted.source)
    constants = dict(wanted.constants)
    attributes = {(position,): [["tt.divisibility", multiple]] for position, multiple in wanted.promises}
    with _lock, folders.scratch("fuseplan-triton-") as folder, _quiet_knobs(str(folder)):
        source = _ast_source(wanted, getattr(module, wanted.function), constants, attributes)
        options = {
            "num_warps": wanted.num_warps,
            "num_stages": wanted.num_stages,
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
        }
        try:
            built = triton.compile(source, target=GPUTarget("cuda", wanted.sm, 32), options=options)
        except Exception as problem:  # the compiler raises whatever its passes raise
            raise ToolchainError(
                f"Triton could not compile kernel '{wanted.function}' for sm_{wanted.sm}: {problem}",
                fix=f"the source is kept in {module.__file__}",
            ) from problem
        meta = built.metadata
        _check_launch(wanted, meta, str(module.__file__))
        boxes = [(m["block_size"], m["swizzle"]) for m in meta.tensordesc_meta or ()]
        facts = {"symbol": meta.name, "num_warps": meta.num_warps, "shared_bytes": meta.shared, "boxes": boxes}
        return dict(built.asm), facts


def _ast_source(wanted: Compilation, function: Any, constants: dict[str, int], attributes: dict[Any, Any]) -> Any:
    """What Triton compiles; in Gluon the type of a tensor map says how its tiles lie in shared memory."""
    if not wanted.is_gluon:
        from triton.compiler import ASTSource

        return ASTSource(function, dict(wanted.signature), constants, attributes)
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    types = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}
    signature = {}
    for name, kind in wanted.signature:
        if (found := _MAP_TYPE.fullmatch(kind)) is not None:
            tile = [int(side) for side in found[2].split(",")]
            kind = f"{kind[:-1]},{gl.NVMMASharedLayout.get_default_for(tile, types[found[1]])!r}>"
        signature[name] = kind
    return GluonASTSource(function, signature, constants, attributes)


def _check_launch(wanted: Compilation, meta: Any, path: str) -> None:
    """Refuse what a launch of ours does not provide."""
    if meta.global_scratch_size or meta.profile_scratch_size or meta.num_ctas != 1:
        raise ToolchainError(
            f"kernel '{wanted.function}' asks for compiler scratch or clusters, which its launch does not provide",
            fix=f"the source is kept in {path}",
        )


@contextlib.contextmanager
def _quiet_knobs(folder: str) -> Iterator[None]:
    """Triton's knobs as we compile: no source paths in the cubin, its own cache in a folder that goes away."""
    from triton import knobs

    # through __dict__: setting a knob the usual way also sets its environment variable
    changes = ((knobs.compilation, "disable_line_info", True), (knobs.cache, "dir", folder))
    saved = [dict(group.__dict__) for group, _, _ in changes]
    for group, name, value in changes:
        group.__dict__[name] = value
    try:
        yield
    finally:
        for (group, _, _), before in zip(changes, saved, strict=True):
            group.__dict__.clear()
            group.__dict__.update(before)


def source_path(source: str) -> Path:
    """Where generated source lies; a Triton function must come from a real file."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    return settings.current().cache_dir / "triton-src" / f"k{digest}.py"


def load_source(source: str) -> ModuleType:
    """Import generated source from its file, writing the file if needed; once per process."""
    path = source_path(source)
    name = f"fuseplan_triton_{path.stem}"
    with _lock:
        if name not in _modules:
            path = _write(path, source)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            _modules[name] = module
        return _modules[name]


def _write(path: Path, source: str) -> Path:
    """Publish by rename; a file that is there but differs is replaced. A private folder if ours is read-only."""
    try:
        if path.read_text(encoding="utf-8") == source:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    try:
        return _publish(path, source)
    except OSError:
        private = folders.private() / path.name
    try:
        return _publish(private, source)
    except OSError as problem:
        raise ToolchainError(f"the source of a kernel cannot be written: {problem}", fix="free space") from problem


def _publish(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(source)
    os.replace(temporary, path)
    _trim(path.parent)
    return path


def _trim(folder: Path) -> None:
    """Keep the newest sources; a cubin in the cache does not need its source again."""
    files = list(folder.glob("k*.py"))
    if len(files) > _MAX_SOURCES:
        by_age = sorted(files, key=lambda file: (_modified(file), file.name))
        for file in by_age[: _MAX_SOURCES // 2]:
            file.unlink(missing_ok=True)


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # another process trimmed it
        return 0.0
