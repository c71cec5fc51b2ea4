"""A plan file taken apart and put together wrongly: the edits, and a table of files that must be refused."""

# table
from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan.errors import PlanFileError
from fuseplan.plan import plan_file
from tests.malformed.bench import FALLBACK, A, Array, Mlp, Row, filled

UNSUPPORTED = cudnn.cudnnGraphNotSupportedError


class File:
    """A plan file of the `Mlp` graph, its parts, and the result that it must give."""

    def __init__(self, engine: str) -> None:
        self.m = Mlp(modes=(A,) if engine == "cpu_c" else (FALLBACK,))
        self.m.check_good()
        self.wanted = self.m.out.array.copy()
        saved = self.m.g.serialize(as_bytes=True)
        assert isinstance(saved, bytes)
        self.data = saved
        with zipfile.ZipFile(io.BytesIO(saved)) as z:
            self.parts = {name: z.read(name) for name in z.namelist()}
        self.manifest = json.loads(self.parts[plan_file.MANIFEST])

    def edited(self, change: Callable[[Any], object]) -> bytes:
        """The file with another manifest and the checksum that goes with it."""
        manifest = copy.deepcopy(self.manifest)
        made = change(manifest)
        return self.packed(json.dumps(manifest if made is None else made).encode())

    def packed(self, manifest: bytes, without: str = "", **more: bytes) -> bytes:
        parts = {**self.parts, plan_file.MANIFEST: manifest, f"{plan_file.MANIFEST}.sha256": digest(manifest), **more}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
            for name, body in parts.items():
                if not without or without not in name:
                    z.writestr(name, body)
        return out.getvalue()

    def run(self, g: cudnn.pygraph) -> Array:
        m, y = self.m, filled(4, 3)
        g.execute(m.pack(y=y), m.work.array)
        return y

    def load(self, data: bytes) -> cudnn.pygraph | None:
        """The loaded graph, or None if it was refused by one of the two errors of damaged files and is empty."""
        g = cudnn.pygraph(name="shelf", device="cpu")
        try:
            g.deserialize(data)
        except (PlanFileError, UNSUPPORTED):
            assert (
                g._draft.tensors == [] and g._draft.nodes == [] and g._plans.ranked is None and not g._draft.is_frozen
            )
            return None
        return g

    def check(self, data: bytes) -> None:
        """Loading is refused, or gives a plan that works as the original one."""
        g = self.load(data)
        if g is not None:
            np.testing.assert_array_equal(self.run(g), self.wanted)


def digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def lying_size(f: File) -> bytes:
    """The directory says that the manifest unpacks to almost 4 GiB."""
    data = bytearray(f.data)
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (0xFFFFFF00).to_bytes(4, "little")
    return bytes(data)


def bomb(f: File) -> bytes:
    return f.packed(f.parts[plan_file.MANIFEST], **{"artifacts/zeros.so": bytes(64 << 20)})


def part_twice(f: File) -> bytes:
    out = io.BytesIO(f.data)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(out, "a") as z:
        z.writestr(plan_file.MANIFEST, b"{}")
    return out.getvalue()


def put(*path: Any) -> Callable[[File], bytes]:
    """The file with one leaf of its manifest replaced: keys, then the value."""

    def make(f: File) -> bytes:
        def change(manifest: Any) -> None:
            at = manifest
            for key in path[:-2]:
                at = at[key]
            at[path[-2]] = path[-1]

        return f.edited(change)

    return make


def drop(*path: Any) -> Callable[[File], bytes]:
    """The file without one entry of its manifest."""

    def make(f: File) -> bytes:
        def change(manifest: Any) -> None:
            at = manifest
            for key in path[:-1]:
                at = at[key]
            del at[path[-1]]

        return f.edited(change)

    return make


def other_artifact(f: File) -> bytes:
    """An artifact that is no shared object, with the right checksum."""

    def change(manifest: Any) -> None:
        manifest["files"] = dict.fromkeys(manifest["files"], digest(b"no ELF").decode())

    data = f.edited(change)
    g = copy.copy(f)
    g.parts = {name: b"no ELF" if name.startswith("artifacts/") else body for name, body in f.parts.items()}
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        return g.packed(z.read(plan_file.MANIFEST))


def swapped(f: File) -> bytes:
    """Two artifacts under each other's origin, each with the right checksum."""

    def change(manifest: Any) -> None:
        first, second = manifest["artifacts"][:2]
        first["origin"], second["origin"] = second["origin"], first["origin"]

    return f.edited(change)


def bad(
    id: str, make: Callable[[Any], object], name: str = "plan file", advice: str = "serialize", engine: str = "cpu_c"
) -> Row:
    return Row(f"{engine}-{id}", make, ValueError, PlanFileError, name, advice)


def foreign(id: str, make: Callable[[Any], object], name: str, advice: str, engine: str = "cpu_c") -> Row:
    return Row(f"{engine}-{id}", make, UNSUPPORTED, UNSUPPORTED, name, advice)


# table: make(file) -> bytes
FILES = [
    bad("nothing", lambda f: b"", "not a fuseplan plan file"),
    bad("text", lambda f: b"nonsense" * 99, "not a fuseplan plan file"),
    bad("magic", lambda f: b"PK\x05\x06" + f.data[4:], "not a fuseplan plan file"),
    bad("magic-only", lambda f: b"PK\x03\x04", "plan file is damaged"),
    bad("other-zip", lambda f: f.packed(b'{"format": "other"}'), "not a fuseplan plan file"),
    bad("manifest-list", lambda f: f.packed(b"[1]"), "not a fuseplan plan file"),
    bad("manifest-null", lambda f: f.packed(b"null"), "not a fuseplan plan file"),
    bad("manifest-not-json", lambda f: f.packed(b"{"), "plan file is damaged"),
    bad("manifest-not-utf8", lambda f: f.packed(b"\xff\xfe\xff"), "plan file is damaged"),
    bad("manifest-deep", lambda f: f.packed(b"[" * 200000), "plan file is damaged: RecursionError"),
    bad("manifest-missing", lambda f: f.packed(b"{}", without="manifest.json"), "plan file is damaged.*manifest.json"),
    bad("manifest-checksum", lambda f: f.packed(f.parts[plan_file.MANIFEST], **{"manifest.json.sha256": b"0" * 64}),
        "checksum of its manifest"),
    bad("artifact-missing", lambda f: f.packed(f.parts[plan_file.MANIFEST], without="artifacts/"),
        "artifacts/.*is missing"),
    bad("artifact-checksum", lambda f: f.packed(f.parts[plan_file.MANIFEST], **{
        next(n for n in f.parts if n.startswith("artifacts/")): b"x"}), "checksum of artifacts/"),
    bad("artifact-unlisted", put("files", {}), "manifest is damaged: KeyError"),
    bad("artifact-not-elf", other_artifact, "cannot be loaded"),
    bad("files-list", put("files", [1]), "plan file is damaged"),
    bad("files-digest-int", lambda f: f.edited(lambda m: m.update(files=dict.fromkeys(m["files"], 5))), "checksum of"),
    bad("bomb-declared", lying_size, "unpacks to more than"),
    bad("bomb", bomb, "unpacks to more than"),
    bad("part-twice", part_twice, "has a part twice"),
    foreign("version", put("version", 99), "version 99 is not 2", "serialize"),
    foreign("version-text", put("version", "2"), "version '2' is not 2", "serialize"),
    foreign("device-kind", put("device", "kind", "cuda"), "made for cuda, this handle is cpu", "this device"),
    foreign("device-features", put("device", "features", ["avx99"]), r"CPU features \['avx99'\]", "this device"),
    bad("device-features-text", put("device", "features", "avx99"), "manifest is damaged: TypeError"),
    bad("device-null", put("device", None), "manifest is damaged"),
    bad("device-missing", drop("device"), "manifest is damaged: KeyError 'device'"),
    bad("device-kind-list", put("device", "kind", []), "manifest is damaged"),
    bad("slots-empty", put("slots", []), r"slots is \[\], its graph gives"),
    bad("slots-null", put("slots", None), "slots is None, its graph gives"),
    bad("slot-span", put("slots", 0, "span_bytes", 4), r"slots\[0\].span_bytes is 4, its graph gives 128"),
    bad("slot-span-text", put("slots", 0, "span_bytes", "128"), r"slots\[0\].span_bytes is '128', its graph gives 128"),
    bad("slot-type", put("slots", 1, "dtype", "HALF"), r"slots\[1\].dtype is 'HALF', its graph gives 'FLOAT'"),
    bad("slot-type-unknown", put("slots", 1, "dtype", "FLOAT128"), r"slots\[1\].dtype is 'FLOAT128'"),
    bad("slot-type-list", put("slots", 1, "dtype", []), r"slots\[1\].dtype is \[\]"),
    bad("slot-place", put("slots", 1, "place", "host"), r"slots\[1\].place is 'host', its graph gives 'cpu'"),
    bad("slot-output", put("slots", 1, "is_output", True), r"slots\[1\].is_output is True"),
    bad("slot-value", put("slots", 1, "value", "zz"), r"slots\[1\].value is 'zz'"),
    bad("slot-value-odd", put("slots", 1, "value", "00"), r"slots\[1\].value is '00'"),
    bad("slot-alignment", put("slots", 1, "alignment", 3), r"slots\[1\].alignment is 3, its graph gives 1"),
    bad("slot-alignment-zero", put("slots", 1, "alignment", 0), r"slots\[1\].alignment is 0"),
    bad("slot-uid", put("slots", 1, "uid", 99), r"slots\[1\].uid is 99, its graph gives 12"),
    bad("workspace-negative", put("workspace_bytes", -1), "workspace_bytes is -1, its graph gives 256"),
    bad("workspace-float", put("workspace_bytes", 1e3), "workspace_bytes is 1000.0"),
    bad("workspace-small", put("workspace_bytes", 0), "workspace_bytes is 0, its graph gives 256", engine="cpu_c"),
    bad("workspace-alignment", put("workspace_alignment", 0), "workspace_alignment is 0"),
    bad("launches-empty", put("launches", []), r"launches is \[\], its graph gives"),
    bad("launches-dict", put("launches", {}), r"launches is \{\}"),
    bad("key", put("canonical_key", "0"), "does not have its key"),
    bad("launch-kind", put("launches", 0, "kind", "SLEEP"), r"launches\[0\].kind is 'SLEEP'"),
    bad("launch-kind-cuda", put("launches", 0, "kind", "CUDA"), r"kind is 'CUDA', its graph gives 'HOST'"),
    bad("launch-symbol", put("launches", 0, "symbol", "nowhere"), r"launches\[0\].symbol is 'nowhere'"),
    bad("launch-symbol-int", put("launches", 0, "symbol", 5), r"launches\[0\].symbol is 5"),
    bad("launch-no-artifact", drop("launches", 0, "artifact"), r"launches\[0\] has .*, its graph gives .*'artifact'"),
    bad("launch-template", put("launches", 0, "template", ""), r"launches\[0\].template is ''"),
    bad("launch-template-odd", put("launches", 0, "template", "abc"), r"launches\[0\].template is 'abc'"),
    bad("launch-grid", put("launches", 0, "grid", [0, 1, 1]), r"launches\[0\].grid\[0\] is 0, its graph gives 1"),
    bad("launch-grid-short", put("launches", 0, "grid", [1]), r"launches\[0\].grid is \[1\]"),
    bad("launch-params", put("launches", 0, "param_offsets", [1 << 40]),
        r"launches\[0\].param_offsets is \[1099511627776\]"),
    bad("patch-slot", put("launches", 0, "patches", 0, 2, 77),
        r"launches\[0\].patches\[0\]\[2\] is 77, its graph gives 0"),
    bad("patch-slot-negative", put("launches", 0, "patches", 0, 2, -2), r"patches\[0\]\[2\] is -2"),
    bad("patch-offset", put("launches", 0, "patches", 0, 1, 1 << 40), r"patches\[0\]\[1\] is 1099511627776, its"),
    bad("patch-offset-negative", put("launches", 0, "patches", 0, 1, -8), r"patches\[0\]\[1\] is -8"),
    bad("patch-addend", put("launches", 0, "patches", 0, 3, 1 << 40), r"patches\[0\]\[3\] is 1099511627776, its"),
    bad("patch-kind", put("launches", 0, "patches", 0, 0, "WISH"), r"patches\[0\]\[0\] is 'WISH'"),
    bad("patch-short", put("launches", 0, "patches", 0, []), r"patches\[0\] is \[\]"),
    bad("patch-int", put("launches", 0, "patches", 5), "patches is 5"),
    bad("memset-too-long", lambda f: f.edited(lambda m: m["launches"][0].update(kind="MEMSET", memset=[0, 1 << 40])),
        "kind is 'MEMSET', its graph gives 'HOST'"),
    bad("memset-negative", lambda f: f.edited(lambda m: m["launches"][0].update(kind="MEMSET", memset=[0, -1])),
        "kind is 'MEMSET', its graph gives 'HOST'"),
    bad("tasks-none", put("launches", 0, "tasks", 0, 0), r"tasks\[0\] is 0, its graph gives 1"),
    bad("tasks-work", put("launches", 0, "tasks", 1, -1.0), r"tasks\[1\] is -1.0"),
    bad("tasks-memory", put("launches", 0, "tasks", [4, 0.0, 1 << 40, 0, 2]), r"tasks\[0\] is 4"),
    bad("tasks-short", put("launches", 0, "tasks", []), r"tasks is \[\]"),
    bad("tasks-text", put("launches", 0, "tasks", "all"), "tasks is 'all'"),
    bad("plan-null", put("plan", None), "manifest is damaged"),
    bad("plan-name-int", put("plan", "name", 5), "manifest is damaged"),
    bad("plan-knobs-list", put("plan", "knobs", [1]), "manifest is damaged"),
    bad("graph-null", put("graph", None), "not a fuseplan graph", "graph_to_json"),
    bad("graph-version", put("graph", "version", 9), "version 9 is not 2", "write the graph"),
    bad("graph-dim", put("graph", "tensors", 0, "dim", [4, "8"]), "graph JSON is damaged", "write the graph"),
    bad("graph-dim-other", put("graph", "tensors", 0, "dim", [4, 9]), "contradicts itself: node 'up'"),
    bad("graph-stride", put("graph", "tensors", 0, "stride", [8]), "graph JSON is damaged", "write the graph"),
    bad("graph-type", put("graph", "tensors", 0, "dtype", "HALF"), "does not have its key"),
    bad("graph-value", put("graph", "tensors", 0, "value", [1]), "graph JSON is damaged", "write the graph"),
    bad("graph-uid-twice", put("graph", "tensors", 0, "uid", 12), "same uid", "write the graph"),
    foreign("graph-op", put("graph", "nodes", 0, "op", "conjure"), "'up' of the plan file is of op 'conjure'",
        "release"),
    bad("graph-port", put("graph", "nodes", 0, "inputs", {"Z": 11}), "'up' .matmul. of the plan file has parts"),
    bad("graph-port-missing", drop("graph", "nodes", 0, "inputs", "B"), "contradicts itself: node 'up'"),
    bad("graph-port-uid", put("graph", "nodes", 0, "inputs", "A", 99), "graph JSON is damaged", "write the graph"),
    bad("graph-attr", put("graph", "nodes", 0, "attrs", {"flavour": 1}), "'up' .matmul. of the plan file has parts"),
    bad("graph-order", lambda f: f.edited(lambda m: m["graph"]["nodes"].reverse()), "contradicts itself"),
    foreign("engine", put("regions", 0, "engine", "abacus"), "engine 'abacus', which is not installed", "package",
        "array"),
    bad("engine-int", put("regions", 0, "engine", 5), "manifest is damaged", engine="array"),
    bad("config", put("regions", 0, "config", {"TILE": 8}), "is none of engine 'cpu_c': it has no knob 'TILE'"),
    bad("config-list", put("regions", 0, "config", []), "manifest is damaged"),
    bad("regions-empty", put("regions", []), "no launch of the plan file writes tensor 'y'"),
    bad("regions-null", put("regions", None), "manifest is damaged: TypeError"),
    bad("regions-reversed", lambda f: f.edited(lambda m: m["regions"].reverse()), "reads tensor .* before it is there"),
    bad("regions-twice", lambda f: f.edited(lambda m: m["regions"].append(m["regions"][0])), "writes tensor .* again"),
    bad("nodes-empty", put("regions", 0, "nodes", []), r"made of nodes \[\]"),
    bad("nodes-unknown", put("regions", 0, "nodes", [99]), r"made of nodes \[99\]", engine="array"),
    bad("nodes-negative", put("regions", 0, "nodes", [-1]), r"made of nodes \[-1\]"),
    bad("nodes-twice", put("regions", 0, "nodes", [0, 0]), r"made of nodes \[0, 0\]", engine="array"),
    bad("nodes-short", put("regions", 0, "nodes", [0]), "no launch of the plan file writes tensor 'y'", engine="array"),
    bad("nodes-text", put("regions", 0, "nodes", ["0"]), "manifest is damaged: TypeError", engine="array"),
    bad("by-graph", put("regions", 0, "by_graph", 1), "manifest is damaged: TypeError", engine="array"),
    bad("artifacts-null", put("artifacts", None), "manifest is damaged: TypeError"),
    bad("artifact-kind", put("artifacts", 0, "kind", "cubin"), "manifest is damaged: KeyError"),
    foreign("artifact-origin", put("artifacts", 0, "origin", "0" * 64), "no compiled file for .* as this release",
        "release that wrote it"),
    foreign("artifacts-gone", put("artifacts", []), "no compiled file for", "build the graph here"),
    bad("artifacts-swapped", swapped, "no function|its graph gives"),
    bad("device-cores", put("device", "sm_count", "4"), "manifest is damaged: TypeError"),
]  # fmt: skip
