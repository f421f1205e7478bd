"""The command line: one file a command, nothing heavy imported before a command runs."""

from __future__ import annotations

import os
import sys

import typer

from flashcheck.cli import (
    audit,
    compare,
    doctor,
    explain,
    listing,
    merge,
    repro,
    run,
    schema,
    selftest,
    show,
    subject,
)
from flashcheck.errors import ExitCode

# torch's threads wait for each other thousands of times a second. Spinning, as they do by default,
# takes the processors from whatever else runs: beside another busy process it tripled a run's time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    name="flashcheck",
    help="Does an optimized kernel compute what the paper says? Runs it against an independent "
    "reference on the same inputs, bit by bit, and writes a report.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command(name="run")(run.run)
app.command(name="merge")(merge.merge)
app.command(name="compare")(compare.compare)
app.command(name="list")(listing.list_)
app.command(name="show")(show.show)
app.command(name="explain")(explain.explain)
app.command(name="repro")(repro.repro)
app.command(name="schema")(schema.schema)
app.command(name="doctor")(doctor.doctor)
app.command(name="audit")(audit.audit)
app.command(name="selftest")(selftest.selftest)
app.add_typer(subject.app, name="subject")


def main() -> None:
    """The entry point: every way out has its exit code."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
