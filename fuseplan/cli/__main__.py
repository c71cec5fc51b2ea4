"""`python -m fuseplan.cli` is the command `fuseplan`."""

from __future__ import annotations

from fuseplan.cli.main import app

app(prog_name="fuseplan")
