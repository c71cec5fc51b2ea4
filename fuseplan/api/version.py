"""Versions: this package's, and the feature level that programs compare."""

from __future__ import annotations

from fuseplan.errors import DeviceError

__version__ = "0.1.0"

#: major * 10000 + minor * 100 + patch; see docs/design/0002-feature-level.md for the choice
FEATURE_LEVEL = 91900


def backend_version() -> int:
    """The feature level as one number, which programs compare to decide what to ask for.

    The features of that release are what fuseplan's own engines take on; it does not say which libcudnn is there.
    """
    return FEATURE_LEVEL


def backend_version_string() -> str:
    """The feature level as ``"major.minor.patch"``."""
    major, rest = divmod(FEATURE_LEVEL, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def get_last_error_string() -> str:
    """The native library's last message. Raises DeviceError, as none is loaded: errors here carry their own text."""
    raise DeviceError(
        "no native library is loaded, so there is no last error of one", fix="read the text of the exception instead"
    )


def sdpa_capabilities() -> frozenset[str]:
    """What attention can do beyond the plain form; empty: programs take their general path."""
    return frozenset()
