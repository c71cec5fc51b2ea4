"""The API's module `ops` (`cudnn.ops`); its functions are not there yet.

The package `fuseplan.ops`, which defines what each operation means, is an internal one of the same name:
docs/design/0008-facade-by-composition.md.
"""

from __future__ import annotations

from typing import Any

import fuseplan.ops  # noqa: F401 - loaded before this module is bound to its name in `fuseplan`
from fuseplan.api.pending import missing


def __getattr__(name: str) -> Any:
    """Raises NotYetAvailableError for a function of the API, AttributeError for another name."""
    raise missing("fuseplan.ops", name)
