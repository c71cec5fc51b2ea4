"""What a step's status is raised as, in the words of the driver or library; both dispatchers come here."""

from __future__ import annotations

from fuseplan.errors import DeviceError, MisalignedError
from fuseplan.runtime import cuda
from fuseplan.runtime.launch import StatusText


def fail(code: int, label: str) -> None:
    """Raise the driver's error of a launch."""
    raise cuda.driver().error(code, f"launch '{label}'")


def fail_host(status: int, label: str, text: StatusText | None) -> None:
    """Raise the error of a host kernel or library that gave back a status."""
    said = f": {text(status)}" if text is not None else ""
    raise DeviceError(f"launch '{label}' failed with status {status}{said}")


def fail_map(code: int, label: str, distance: int) -> None:
    """Raise what keeps a map from being made.

    Raises:
        DeviceError: the driver refused, with this code
        MisalignedError: two buffers are not a stride apart, so that the program without alignments is taken
    """
    if code:
        error = cuda.driver().error(code, f"launch '{label}'")
        raise DeviceError(f"{error.wrong} (a tensor map)", fix=error.fix)
    raise MisalignedError(f"launch '{label}': two buffers {distance} bytes apart are no axis of a tensor map")
