"""The copy that every patch is applied to."""

from __future__ import annotations

from tests.patches.patching import copy as copy
