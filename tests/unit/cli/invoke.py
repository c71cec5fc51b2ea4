"""A command in this process: its exit code and what it prints."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from fuseplan.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command left."""

    exit_code: int
    output: str


def invoke(*args: str) -> Done:
    """`fuseplan ARGS`."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            code = main(args)
        except SystemExit as ended:  # of the parser
            code = int(ended.code or 0)
    return Done(code, text.getvalue())
