"""Plan files: a zip with a JSON manifest and compiled artifacts, each with its SHA-256. Never pickle.

A file refuses to load where device, version or checksum do not match, and says why.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from dataclasses import astuple, replace
from hashlib import sha256
from typing import Any

from fuseplan.dtypes import dtype_of
from fuseplan.engines.registry import engine_named
from fuseplan.errors import FuseplanError, InvalidGraphError, PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.serialize import canonical_key, graph_from_json, graph_to_json, typed
from fuseplan.lowering.fuse import whole_region
from fuseplan.plan.assign import Assignment
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.plan_check import FIX, check_graph, check_operands, check_part, check_program
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program, Slot, Tasks

FORMAT = "fuseplan-plan"
VERSION = 2
MANIFEST = "manifest.json"
MAGIC = b"PK\x03\x04"
MAX_FILE_BYTES = 1 << 30
MAX_RATIO = 256  # unpacked to packed; compiled code and JSON stay far below
#: what reading a damaged zip file or JSON text raises
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, KeyError, IndexError, TypeError, AttributeError,
    ValueError, OverflowError, RuntimeError,
)  # fmt: skip


def dump(plan: BuiltPlan, release: str) -> bytes:
    """The plan as the bytes of a plan file."""
    artifacts: dict[str, Artifact] = {}
    owners = [a for a, e in plan.parts for _ in e.launches]
    launches = [_launch_to_json(x, a, artifacts) for x, a in zip(plan.program.launches, owners, strict=True)]
    manifest = {
        "format": FORMAT, "version": VERSION, "release": release,
        "device": {"kind": plan.device.kind, "arch": plan.device.arch, "features": list(plan.device.features)},
        "plan": {"name": plan.name, "engine": plan.engine_name, "engine_id": plan.engine_id, "knobs": plan.knobs},
        "canonical_key": canonical_key(plan.graph),
        "graph": graph_to_json(plan.graph),
        "workspace_bytes": plan.program.workspace_bytes,
        "workspace_alignment": plan.program.workspace_alignment,
        "slots": [_slot_to_json(s) for s in plan.program.slots],
        "launches": launches,
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


def _write(z: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # no clock: the same plan gives the same bytes
    z.writestr(info, data, zipfile.ZIP_DEFLATED)


def _file_name(a: Artifact) -> str:
    return f"artifacts/{a.key}.{a.kind}"


def _slot_to_json(s: Slot) -> dict[str, Any]:
    return {
        "uid": s.uid, "name": s.name, "dtype": s.dtype.name, "span_bytes": s.span_bytes, "place": s.place,
        "is_output": s.is_output, "value": None if s.value is None else s.value.hex(), "alignment": s.alignment,
    }  # fmt: skip


def _launch_to_json(x: Launch, owner: Assignment, artifacts: dict[str, Artifact]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": x.kind.name, "label": x.label,
        "patches": [[p.kind.name, p.offset, p.slot, p.addend, p.size] for p in x.patches],
    }  # fmt: skip
    if x.kind is LaunchKind.PYTHON:
        made["engine"] = owner.engine.name
        made["graph"] = graph_to_json(owner.region.graph)
        made["operands"] = [o.uid for o in owner.region.operands]
        return made
    made.update(template=x.template.hex(), grid=x.grid, block=x.block, shared_bytes=x.shared_bytes, symbol=x.symbol)
    made.update(param_offsets=x.param_offsets, memset=[x.memset_value, x.memset_words], tasks=astuple(x.tasks))
    if x.artifact is not None:
        artifacts[x.artifact.key] = x.artifact
        made["artifact"] = {"kind": x.artifact.kind, "key": x.artifact.key, "arch": x.artifact.arch}
    return made


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
    """The plan of a file, ready to run; nothing is compiled.

    Raises:
        PlanFileError: the file is damaged, or its parts do not fit together
        cudnnGraphNotSupportedError: it was made for another device, or needs an engine that is not here
    """
    manifest, files = read_manifest(data)
    try:
        _check_device(manifest["device"], device)
        return _plan_from_json(manifest, files, device, enforce_precompiled)
    except _DAMAGE as e:
        if isinstance(e, FuseplanError) and not isinstance(e, InvalidGraphError):
            raise
        raise PlanFileError(f"the plan file's manifest is damaged: {type(e).__name__} {e}", fix=FIX) from e


def _plan_from_json(manifest: dict[str, Any], files: dict[str, bytes], device: Device, precompiled: bool) -> BuiltPlan:
    graph = graph_from_json(manifest["graph"])
    check_graph(graph)
    if manifest["canonical_key"] != canonical_key(graph):
        raise PlanFileError("the plan file is damaged: its graph does not have its key", fix=FIX)
    slots = tuple(_slot_from_json(s, device) for s in manifest["slots"])
    need = _number(manifest["workspace_bytes"])
    launches = []
    for x in typed(manifest["launches"], list):
        if x["kind"] == LaunchKind.PYTHON.name:
            part = graph_from_json(x["graph"])
            check_part(part, graph)
            launches.append(_python_launch_from_json(x, part, slots, need, device, precompiled))
        else:
            launches.append(_launch_from_json(x, files))
    alignment = _number(manifest["workspace_alignment"])
    program = Program(slots, tuple(launches), need, device.kind, device.index, alignment, device.num_threads)
    check_program(graph, program, device)
    plan = manifest["plan"]
    name, engine = typed(plan["name"], str), typed(plan["engine"], str)
    knobs = {k: typed(v, int) for k, v in typed(plan["knobs"], dict).items()}
    return BuiltPlan(name, engine, typed(plan["engine_id"], int), knobs, graph, device, program)


def _number(value: Any) -> int:
    """An int that fits the dispatcher's 64 bits. Raises TypeError, OverflowError."""
    if abs(typed(value, int)) >= 1 << 63:
        raise OverflowError(f"{value} does not fit 64 bits")
    return int(value)


def _check_device(made_for: dict[str, Any], device: Device) -> None:
    fix = "build and serialize the graph on this device"
    if typed(made_for["kind"], str) != device.kind:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['kind']}, this handle is {device}", fix=fix)
    if device.kind == "cuda" and made_for["arch"] != device.arch:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['arch']}, not {device.arch}", fix=fix)
    if device.kind == "cpu":
        missing = sorted(set(typed(made_for["features"], list)) - set(device.features))
        if missing:
            raise cudnnGraphNotSupportedError(f"the plan needs CPU features {missing}, which are not here", fix=fix)


def _slot_from_json(s: dict[str, Any], device: Device) -> Slot:
    value = None if s["value"] is None else bytes.fromhex(s["value"])
    return Slot(
        typed(s["uid"], int), typed(s["name"], str), dtype_of(s["dtype"]), _number(s["span_bytes"]),
        typed(s["place"], str), device.index, typed(s["is_output"], bool), value, _number(s["alignment"]),
    )  # fmt: skip


def _patches(x: dict[str, Any]) -> tuple[Patch, ...]:
    read = [(PatchKind[kind], map(_number, numbers)) for kind, *numbers in x["patches"]]
    return tuple(Patch(kind, offset, slot, addend, size) for kind, (offset, slot, addend, size) in read)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(map(_number, typed(values, list)))


def _launch_from_json(x: dict[str, Any], files: dict[str, bytes]) -> Launch:
    artifact = None
    if "artifact" in x:
        a = x["artifact"]
        artifact = Artifact(
            typed(a["kind"], str), typed(a["key"], str), typed(a["arch"], str),
            files[f"artifacts/{a['key']}.{a['kind']}"],
        )  # fmt: skip
    gx, gy, gz = _ints(x["grid"])
    bx, by, bz = _ints(x["block"])
    value, words = _ints(x["memset"])
    return Launch(
        LaunchKind[x["kind"]], bytes.fromhex(x["template"]), _patches(x), artifact, typed(x["symbol"], str),
        _ints(x["param_offsets"]), (gx, gy, gz), (bx, by, bz), _number(x["shared_bytes"]), value, words, None,
        typed(x["label"], str), _tasks_from_json(typed(x["tasks"], list)),
    )  # fmt: skip


def _tasks_from_json(numbers: list[Any]) -> Tasks:
    count, work_us, *rest = numbers
    return Tasks(_number(count), typed(work_us, float), *map(_number, rest))


def _python_launch_from_json(
    x: dict[str, Any], graph: Graph, slots: tuple[Slot, ...], workspace_bytes: int, device: Device, precompiled: bool
) -> Launch:
    name = typed(x["engine"], str)
    try:
        engine = engine_named(name)
    except KeyError as e:
        raise cudnnGraphNotSupportedError(
            f"the plan needs engine {name!r}, which is not installed here", fix="install the package that has it"
        ) from e
    if precompiled and engine.is_compiled:
        raise cudnnGraphNotSupportedError(
            f"engine {name!r} would have to build a part of the plan again", fix="allow compiling, or write a new file"
        )
    region = whole_region(graph)
    by_uid = {o.uid: o for o in region.operands}
    ordered = replace(region, operands=tuple(by_uid[uid] for uid in typed(x["operands"], list)))
    (launch,) = engine.build(ordered, device, ()).launches
    launch = replace(launch, patches=_patches(x))
    check_operands([graph.tensors[o.uid] for o in ordered.operands], launch, slots, workspace_bytes)
    return launch
