"""`fuseplan tour`: eight short programs that run, check and time what the package does."""

from __future__ import annotations

from fuseplan.cli.tour.command import tour

__all__ = ["tour"]
