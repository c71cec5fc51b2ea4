"""The command line: one application, one file per command."""

from __future__ import annotations

import typer

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
app.command()(tour)
# Everything after the program's name belongs to the program, options included.
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command()(explain)
app.command()(doctor)

if __name__ == "__main__":
    app()
