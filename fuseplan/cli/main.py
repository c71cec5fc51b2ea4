"""The command line: one file per command, on the standard library (docs/design/0010-command-line.md)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fuseplan.api.version import __version__
from fuseplan.cli import doctor, explain, run
from fuseplan.cli.tour import command as tour

COMMANDS = (
    ("tour", tour.tour, tour.add_arguments),
    ("run", run.run, run.add_arguments),
    ("explain", explain.explain, explain.add_arguments),
    ("doctor", doctor.doctor, None),
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; what it gives has the command's function as `call`."""
    parser = argparse.ArgumentParser(
        "fuseplan",
        description="Graphs of fused deep-learning kernels: tour, run programs, explain plans, check the set-up.",
    )
    parser.add_argument("--version", action="version", version=f"fuseplan {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, call, add_arguments in COMMANDS:
        doc = (call.__doc__ or "").strip()
        one = commands.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        one.set_defaults(call=call)
        if add_arguments is not None:
            add_arguments(one)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without one, show the help."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if "call" not in args:
        parser.print_help()
        return 2
    return int(args.call(args))


if __name__ == "__main__":
    sys.exit(main())
