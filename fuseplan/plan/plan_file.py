"""Plan files: a zip with a JSON manifest and compiled artifacts, each with its SHA-256. Never pickle.

A file refuses to load where device, version or checksum do not match, and says why.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import replace
from hashlib import sha256
from typing import Any

from fuseplan.dtypes import dtype_of
from fuseplan.engines.registry import GENERAL, engine_named
from fuseplan.errors import FuseplanError, PlanFileError, cudnnGraphNotSupportedError
from fuseplan.ir.graph import Graph
from fuseplan.ir.serialize import canonical_key, graph_from_json, graph_to_json
from fuseplan.plan.assign import Assignment, whole_region
from fuseplan.plan.plan import BuiltPlan
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Artifact, Launch, LaunchKind, Patch, PatchKind, Program, Slot

FORMAT = "fuseplan-plan"
VERSION = 1
MANIFEST = "manifest.json"
MAGIC = b"PK\x03\x04"
MAX_FILE_BYTES = 1 << 30


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
    made.update(param_offsets=x.param_offsets, memset=[x.memset_value, x.memset_words])
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
        PlanFileError: not a plan file, damaged, or of another format version; says which part
    """
    fix = "write the file again with graph.serialize()"
    if not is_plan_file(data):
        raise PlanFileError("the data is not a fuseplan plan file", fix=fix)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            if sum(i.file_size for i in z.infolist()) > MAX_FILE_BYTES:
                raise PlanFileError("the plan file unpacks to more than 1 GiB", fix=fix)
            body = z.read(MANIFEST)
            if sha256(body).hexdigest() != z.read(MANIFEST + ".sha256").decode(errors="replace"):
                raise PlanFileError("the plan file is damaged: the checksum of its manifest does not match", fix=fix)
            manifest = json.loads(body)
            if manifest.get("format") != FORMAT:
                raise PlanFileError("the zip file is not a fuseplan plan file", fix=fix)
            if manifest.get("version") != VERSION:
                raise cudnnGraphNotSupportedError(
                    f"plan file version {manifest.get('version')!r} is not {VERSION}", fix=fix
                )
            files = {name: z.read(name) for name in manifest["files"]}
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, zlib.error, NotImplementedError) as e:
        if isinstance(e, FuseplanError):
            raise
        raise PlanFileError(f"the plan file is damaged: {e}", fix=fix) from e
    for name, data_ in files.items():
        if sha256(data_).hexdigest() != manifest["files"][name]:
            raise PlanFileError(f"the plan file is damaged: the checksum of {name} does not match", fix=fix)
    return manifest, files


def load(data: bytes, device: Device, *, enforce_precompiled: bool = False) -> BuiltPlan:
    """The plan of a file, ready to run; nothing is compiled.

    Raises:
        PlanFileError: the file is damaged
        cudnnGraphNotSupportedError: it was made for another device, or needs an engine that is not here
    """
    manifest, files = read_manifest(data)
    _check_device(manifest["device"], device)
    try:
        graph = graph_from_json(manifest["graph"])
        slots = tuple(_slot_from_json(s, device) for s in manifest["slots"])
        launches = tuple(_launch_from_json(x, files, device, enforce_precompiled) for x in manifest["launches"])
        program = Program(
            slots, launches, int(manifest["workspace_bytes"]), device.kind, device.index,
            int(manifest["workspace_alignment"]),
        )  # fmt: skip
        plan = manifest["plan"]
        return BuiltPlan(plan["name"], plan["engine"], plan["engine_id"], plan["knobs"], graph, device, program)
    except (KeyError, TypeError, ValueError) as e:
        if isinstance(e, FuseplanError):
            raise
        raise PlanFileError(f"the plan file's manifest is damaged: {type(e).__name__} {e}", fix="write it again") from e


def _check_device(made_for: dict[str, Any], device: Device) -> None:
    fix = "build and serialize the graph on this device"
    if made_for["kind"] != device.kind:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['kind']}, this handle is {device}", fix=fix)
    if device.kind == "cuda" and made_for["arch"] != device.arch:
        raise cudnnGraphNotSupportedError(f"the plan was made for {made_for['arch']}, not {device.arch}", fix=fix)
    if device.kind == "cpu":
        missing = sorted(set(made_for["features"]) - set(device.features))
        if missing:
            raise cudnnGraphNotSupportedError(f"the plan needs CPU features {missing}, which are not here", fix=fix)


def _slot_from_json(s: dict[str, Any], device: Device) -> Slot:
    value = None if s["value"] is None else bytes.fromhex(s["value"])
    return Slot(
        int(s["uid"]), str(s["name"]), dtype_of(s["dtype"]), int(s["span_bytes"]), str(s["place"]), device.index,
        bool(s["is_output"]), value, int(s["alignment"]),
    )  # fmt: skip


def _launch_from_json(x: dict[str, Any], files: dict[str, bytes], device: Device, precompiled: bool) -> Launch:
    kind = LaunchKind[x["kind"]]
    patches = tuple(Patch(PatchKind[k], *map(int, rest)) for k, *rest in x["patches"])
    if kind is LaunchKind.PYTHON:
        if precompiled and x["engine"] != GENERAL:
            raise cudnnGraphNotSupportedError(f"engine {x['engine']!r} would have to build a part of the plan again")
        return replace(_python_launch(x["engine"], graph_from_json(x["graph"]), x["operands"], device), patches=patches)
    artifact = None
    if "artifact" in x:
        a = x["artifact"]
        artifact = Artifact(a["kind"], a["key"], a["arch"], files[f"artifacts/{a['key']}.{a['kind']}"])
    return Launch(
        kind, bytes.fromhex(x["template"]), patches, artifact, x["symbol"], tuple(x["param_offsets"]),
        tuple(x["grid"]), tuple(x["block"]), x["shared_bytes"], x["memset"][0], x["memset"][1], None, x["label"],
    )  # fmt: skip


def _python_launch(engine: str, graph: Graph, operands: list[int], device: Device) -> Launch:
    region = whole_region(graph)
    by_uid = {o.uid: o for o in region.operands}
    ordered = replace(region, operands=tuple(by_uid[uid] for uid in operands))
    try:
        made = engine_named(engine)
    except KeyError as e:
        raise cudnnGraphNotSupportedError(f"the plan needs engine {engine!r}, which is not installed here") from e
    (launch,) = made.build(ordered, device, ()).launches
    return launch
