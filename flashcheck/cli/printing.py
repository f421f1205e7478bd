"""Reports printed, as tables and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flashcheck.cli.common import a_reader_may_go, console, say

if TYPE_CHECKING:
    from flashcheck.report.models import Report


def print_tables(report: Report, path: Path, *, to_stderr: bool) -> None:
    """What a person reads, and where the report was written."""
    from flashcheck.report import terminal

    with a_reader_may_go():
        console(stderr=to_stderr).print(terminal.render(report))
    say(f"wrote {path}")


def print_json(reports: list[Report]) -> None:
    """An object, or a list of several."""
    texts = [report.model_dump_json(indent=2) for report in reports]
    with a_reader_may_go():
        typer.echo(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
