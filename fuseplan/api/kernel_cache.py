"""Objects that graphs may share: the kernel cache, and a device's facts for planning without it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fuseplan.errors import ArgumentError, GraphStateError, PlanFileError
from fuseplan.runtime import forks
from fuseplan.runtime.device import Device, cpu_device, device_of

_CACHE_FORMAT = "fuseplan-kernel-cache"
_DEVICE_FORMAT = "fuseplan-device"


class kernel_cache:  # noqa: N801 - the API's own name
    """Remembers which structures of dynamic-shape graphs were planned; may be shared between graphs and threads.

    A structure is a graph without its dims and strides. Compiled kernels themselves are kept on disk.
    """

    def __init__(self) -> None:
        self._structures: dict[str, None] = {}
        self._revision = 0
        self._is_used = False
        self._lock = forks.Lock()

    def note(self, structure: str) -> None:
        """Enter the structure of a graph that has been built."""
        with self._lock:
            self._is_used = True
            if structure not in self._structures:
                self._structures[structure] = None
                self._revision += 1

    def revision(self) -> int:
        """A number that changes when an entry is added."""
        return self._revision

    def size(self) -> int:
        """Number of entries."""
        return len(self._structures)

    def serialize(self) -> str:
        """The cache as JSON."""
        return json.dumps({"format": _CACHE_FORMAT, "version": 1, "structures": list(self._structures)})

    def deserialize(self, serialized: str) -> None:
        """Fill a fresh cache, which no graph has used, from what `serialize` gave. Raises PlanFileError."""
        with self._lock:
            if self._is_used or self._structures:
                raise GraphStateError(
                    "the kernel cache is in use", fix="deserialise into a fresh create_kernel_cache()"
                )
            data = read_json(serialized, _CACHE_FORMAT, "a kernel cache")
            found = data.get("structures")
            if not isinstance(found, list) or not all(isinstance(s, str) for s in found):
                raise PlanFileError("the kernel cache's list of structures is damaged", fix="serialise it again")
            self._structures = dict.fromkeys(found)
            self._revision = len(self._structures)


class device_properties:  # noqa: N801 - the API's own name
    """Facts about a device, for planning where the device is not."""

    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        self.device = device

    def serialize(self) -> str:
        """The facts as JSON; `create_device_properties` reads them back."""
        return json.dumps({"format": _DEVICE_FORMAT, "version": 1, **dataclasses.asdict(self.device)})


def create_kernel_cache() -> kernel_cache:
    """A fresh kernel cache; giving it to a graph turns dynamic shapes on."""
    return kernel_cache()


def create_device_properties(device_id: int | str = 0) -> device_properties:
    """Facts about a CUDA device (by ordinal; -1 is the CPU), or what `device_properties.serialize` gave."""
    if isinstance(device_id, str):
        data = read_json(device_id, _DEVICE_FORMAT, "device properties")
        names = {f.name for f in dataclasses.fields(Device)}
        facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        if facts.get("kind") not in ("cpu", "cuda"):
            raise PlanFileError("the device properties have no kind of device", fix="serialise them again")
        return device_properties(Device(**facts))
    if isinstance(device_id, bool) or not isinstance(device_id, int):
        raise ArgumentError(f"device_id must be an int or a serialised str, not {device_id!r}", fix="pass an ordinal")
    return device_properties(cpu_device() if device_id == -1 else device_of(f"cuda:{device_id}"))


def read_json(text: str, kind: str, what: str, fix: str = "pass what serialize() returned") -> dict[str, Any]:
    """The data of a JSON text in version 1 of one of the formats. Raises PlanFileError."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanFileError(f"the text is not JSON, so not {what}: {error}", fix=fix) from error
    if not isinstance(data, dict) or data.get("format") != kind or data.get("version") != 1:
        raise PlanFileError(f"the text is not {what} in format version 1", fix=fix)
    return data
