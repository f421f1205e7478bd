"""``flashcheck compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashcheck.cli.common import a_reader_may_go, console, exits, one_of
from flashcheck.errors import ExitCode

if TYPE_CHECKING:
    from flashcheck.report.comparison import Comparison

FAIL_ON = ("regression", "any")


@exits
def compare(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="A report, or a folder of them: how it was.")
    ],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="A report, or a folder of them: how it is.")
    ],
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="regression|any",
            help="What makes the exit code 1: a worse case, or any change.",
        ),
    ] = "regression",
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead.")] = False,
) -> None:
    """Say what changed between two runs: statuses, metrics, causes, and the environment."""
    one_of("--fail-on", fail_on, FAIL_ON)

    from flashcheck.comparing import compare as compared
    from flashcheck.comparing import fails, reports_of

    comparison = compared(reports_of(base), reports_of(new), labels=(str(base), str(new)))
    if json:
        with a_reader_may_go():
            typer.echo(comparison.model_dump_json(indent=2))
    else:
        print_comparison(comparison, to_stderr=False)
    raise SystemExit(ExitCode.GATE_FAILED if fails(comparison, fail_on) else ExitCode.OK)


def print_comparison(comparison: Comparison, *, to_stderr: bool) -> None:
    """What a person reads."""
    from flashcheck.report import compared

    with a_reader_may_go():
        console(stderr=to_stderr).print(compared.render(comparison))
