"""Plan files: a zip with a JSON manifest and compiled artifacts, each with its SHA-256. Never pickle.

A file refuses to load where device, version or checksum do not match, and says why. What runs is built again from
the graph by the engines, with the file's artifacts in the place of a compiler; the launches that stand in the file
are only compared (docs/design/0007-plan-files-are-built-again.md).
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from fuseplan.errors import (
    ArgumentError,
    FuseplanError,
    InvalidGraphError,
    PlanFileError,
    ToolchainError,
    cudnnGraphNotSupportedError,
)
from fuseplan.ir.graph import Graph
from fuseplan.ir.keys import canonical_key
from fuseplan.plan.assign import Assignment
from fuseplan.plan.graph_json import graph_from_json, graph_to_json, typed
from fuseplan.plan.plan import Builder, BuiltPlan
from fuseplan.plan.plan_check import FIX, check_graph, check_program, program_to_json
from fuseplan.plan.plan_regions import region_to_json, regions_from_json
from fuseplan.runtime import supply, team
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact

FORMAT = "fuseplan-plan"
VERSION = 2
MANIFEST = "manifest.json"
MAGIC = b"PK\x03\x04"
MAX_FILE_BYTES = 1 << 30
MAX_RATIO = 256  # unpacked to packed; compiled code and JSON stay far below
#: what reading a damaged zip file or JSON text raises, and building from it
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, KeyError, IndexError, TypeError, AttributeError,
    ValueError, ArithmeticError, AssertionError, RuntimeError,
)  # fmt: skip


def dump(plan: BuiltPlan, release: str) -> bytes:
    """The plan as the bytes of a plan file."""
    artifacts = {x.artifact.key: x.artifact for x in plan.program.launches if x.artifact is not None}
    manifest = {
        "format": FORMAT, "version": VERSION, "release": release,
        "device": _device_to_json(plan.device),
        "plan": {"name": plan.name, "engine": plan.engine_name, "engine_id": plan.engine_id, "knobs": plan.knobs},
        "canonical_key": canonical_key(plan.graph),
        "graph": graph_to_json(plan.graph),
        "regions": [region_to_json(a, e, plan.graph) for a, e in plan.parts],
        **program_to_json(plan.program),
        "artifacts": [
            {"kind": a.kind, "key": a.key, "arch": a.arch, "origin": a.origin, "facts": a.facts}
            for a in artifacts.values()
        ],
        "files": {_file_name(a): sha256(a.data).hexdigest() for a in artifacts.values()},
    }  # fmt: skip
    body = json.dumps(manifest, separators=(",", ":")).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        _write(z, MANIFEST, body)
        _write(z, MANIFEST + ".sha256", sha256(body).hexdigest().encode())
        for a in artifacts.values():
            _write(z, _file_name(a), a.data)
    return out.getvalue()


def _device_to_json(device: Device) -> dict[str, Any]:
    """What a plan may depend on; an engine that builds it again elsewhere sees this device."""
    made = asdict(replace(device, num_threads=team.number(device.num_threads)))
    return {name: value for name, value in made.items() if name not in ("index", "name")}


def _write(z: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # no clock: the same plan gives the same bytes
    z.writestr(info, data, zipfile.ZIP_DEFLATED)


def _file_name(a: Artifact) -> str:
    return f"artifacts/{a.key}.{a.kind}"


def is_plan_file(data: bytes) -> bool:
    """Whether the bytes begin like a plan file."""
    return data[:4] == MAGIC


def read_manifest(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Manifest and artifact bytes, checksums verified.

    Raises:
        PlanFileError: not a plan file or damaged; says which part
        cudnnGraphNotSupportedError: of another format version
    """
    if not is_plan_file(data):
        raise PlanFileError("the data is not a fuseplan plan file", fix=FIX)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            return _read_parts(z, min(MAX_FILE_BYTES, (1 << 20) + MAX_RATIO * len(data)))
    except _DAMAGE as e:
        if isinstance(e, FuseplanError):
            raise
        raise PlanFileError(f"the plan file is damaged: {type(e).__name__} {e}", fix=FIX) from e


def _read_parts(z: zipfile.ZipFile, limit: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    names = z.namelist()
    if sum(i.file_size for i in z.infolist()) > limit or len(set(names)) != len(names):
        raise PlanFileError(f"the plan file unpacks to more than {limit} bytes, or has a part twice", fix=FIX)
    body = z.read(MANIFEST)
    if sha256(body).hexdigest() != z.read(MANIFEST + ".sha256").decode(errors="replace"):
        raise PlanFileError("the plan file is damaged: the checksum of its manifest does not match", fix=FIX)
    manifest = json.loads(body)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PlanFileError("the zip file is not a fuseplan plan file", fix=FIX)
    if manifest.get("version") != VERSION:
        raise cudnnGraphNotSupportedError(f"plan file version {manifest.get('version')!r} is not {VERSION}", fix=FIX)
    files = {}
    for name, digest in typed(manifest["files"], dict).items():
        if name not in names:
            raise PlanFileError(f"the plan file is incomplete: {name} is missing", fix=FIX)
        files[name] = z.read(name)
        if sha256(files[name]).hexdigest() != digest:
            raise PlanFileError(f"the plan file is damaged: the checksum of {name} does not match", fix=FIX)
    return manifest, files


def load(data: bytes, device: Device, *, enforce_precompiled: bool = False) -> BuiltPlan:
    """The plan of a file, ready to run: built again from its graph, its regions and its compiled files.

    Raises:
        PlanFileError: the file is damaged, or its parts do not fit together
        cudnnGraphNotSupportedError: it was made for another device, by a release whose kernels differ, or needs an
            engine that is not here
    """
    manifest, files = read_manifest(data)
    try:
        made_for = _device_from_json(manifest["device"], device)
        return _plan_from_json(manifest, files, made_for, device, enforce_precompiled)
    except _DAMAGE as e:
        if isinstance(e, FuseplanError) and not isinstance(e, InvalidGraphError):
            raise
        raise PlanFileError(f"the plan file's manifest is damaged: {type(e).__name__} {e}", fix=FIX) from e


def _plan_from_json(
    manifest: dict[str, Any], files: dict[str, bytes], made_for: Device, device: Device, precompiled: bool
) -> BuiltPlan:
    graph = graph_from_json(manifest["graph"])
    check_graph(graph)
    if manifest["canonical_key"] != canonical_key(graph):
        raise PlanFileError("the plan file is damaged: its graph does not have its key", fix=FIX)
    plan = manifest["plan"]
    name, engine = typed(plan["name"], str), (typed(plan["engine"], str), _number(plan["engine_id"]))
    knobs = {k: typed(v, int) for k, v in typed(plan["knobs"], dict).items()}
    artifacts = [_artifact_from_json(a, files) for a in typed(manifest["artifacts"], list)]
    with supply.only({a.origin: a for a in artifacts}):
        assignments = regions_from_json(manifest["regions"], graph, made_for, precompiled=precompiled)
        built = _build(graph, made_for, name, engine, knobs, assignments)
    check_program(manifest, built.program)
    return replace(built, device=device, program=replace(built.program, num_threads=device.num_threads))


def _build(
    graph: Graph, device: Device, name: str, engine: tuple[str, int], knobs: dict[str, int], parts: list[Assignment]
) -> BuiltPlan:
    try:
        return Builder(graph, device).build(name, engine, knobs, parts)
    except (ArgumentError, ToolchainError) as e:
        raise PlanFileError(f"the plan file's regions cannot be built: {e.wrong}", fix=FIX) from e


def _artifact_from_json(a: dict[str, Any], files: dict[str, bytes]) -> Artifact:
    kind, key, arch, origin, facts = (typed(a[part], str) for part in ("kind", "key", "arch", "origin", "facts"))
    return Artifact(kind, key, arch, files[f"artifacts/{key}.{kind}"], origin, facts)


def _number(value: Any) -> int:
    """An int that fits the dispatcher's 64 bits. Raises TypeError, OverflowError."""
    if abs(typed(value, int)) >= 1 << 63:
        raise OverflowError(f"{value} does not fit 64 bits")
    return int(value)


def _device_from_json(made_for: dict[str, Any], device: Device) -> Device:
    """The device that a plan was made for, with the place of this one, which can run it."""
    fix = "build and serialize the graph on this device"
    if typed(made_for["kind"], str) != device.kind:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['kind']}, this handle is {device}", fix=fix)
    if device.kind == "cuda" and made_for["arch"] != device.arch:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['arch']}, not {device.arch}", fix=fix)
    features = tuple(typed(f, str) for f in typed(made_for["features"], list))
    missing = sorted(set(features) - set(device.features)) if device.kind == "cpu" else []
    if missing:
        raise cudnnGraphNotSupportedError(f"the plan needs CPU features {missing}, which are not here", fix=fix)
    sm_count, shared_bytes, l2_bytes, num_threads = (
        _number(made_for[part]) for part in ("sm_count", "shared_bytes", "l2_bytes", "num_threads")
    )
    gbps, gflops = typed(made_for["memory_gbps"], float), typed(made_for["peak_gflops"], float)
    return Device(
        device.kind, device.index, device.name, typed(made_for["arch"], str), features, sm_count, shared_bytes,
        l2_bytes, gbps, gflops, num_threads,
    )  # fmt: skip
