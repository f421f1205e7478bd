"""``flashcheck show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashcheck.cli.common import a_reader_may_go, console, exits


@exits
def show(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report that a run wrote.")],
) -> None:
    """Print the tables of a stored report."""
    from flashcheck.report import store, terminal

    stored = store.read(report)
    with a_reader_may_go():
        console().print(terminal.render(stored))
