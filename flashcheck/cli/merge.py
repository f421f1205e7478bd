"""``flashcheck merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashcheck.cli.common import exits, import_torch
from flashcheck.cli.printing import print_json, print_tables


@exits
def merge(
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT", help="The reports of all shards of a run.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR_OR_FILE", help="Where the report goes.  [default: reports/SUITE.json]"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no tables.")] = False,
) -> None:
    """Put the reports of a run's shards together to the report of the whole run."""
    import_torch()

    from flashcheck import environment
    from flashcheck.merging import Stored
    from flashcheck.merging import merge as merged
    from flashcheck.report import store
    from flashcheck.report.models import exit_code

    stored = [Stored(path, store.read(path)) for path in reports]
    report = merged(stored, command=environment.command())
    path = store.destination(out, report.suite, alone=True)
    store.check_writable(path)
    store.write(report, path)
    if not quiet:
        print_tables(report, path, to_stderr=json)
    if json:
        print_json([report])
    raise SystemExit(exit_code([report]))
