"""The command line: one application, one file per command."""

from __future__ import annotations

from typing import Annotated

import typer

from fuseplan.api.version import __version__
from fuseplan.cli.doctor import doctor
from fuseplan.cli.explain import explain
from fuseplan.cli.run import run
from fuseplan.cli.tour import tour

app = typer.Typer(
    name="fuseplan",
    help="Graphs of fused deep-learning kernels: tour, run programs, explain plans, check the set-up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a program under `fuseplan run` shows its own traceback
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fuseplan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                          help="Show the version and exit.")] = False,
) -> None:  # fmt: skip
    """Options of the command itself."""


app.command()(tour)
# Everything after the program's name belongs to the program, options included.
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command()(explain)
app.command()(doctor)

if __name__ == "__main__":
    app()
