"""``flashcheck show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashcheck.cli.common import console, exits


@exits
def show(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report that a run wrote.")],
) -> None:
    """Print the tables of a stored report."""
    from flashcheck.report import store, terminal

    console().print(terminal.render(store.read(report)))
