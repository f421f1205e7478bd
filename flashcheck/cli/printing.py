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


class Forms:
    """The other forms of a run's reports, each in one file."""

    def __init__(self, junit: Path | None, markdown: Path | None) -> None:
        self._files = {"junit": junit, "markdown": markdown}

    def check(self) -> None:
        """Find out before a run that they can be written.

        Raises:
            UsageError: one cannot.
        """
        from flashcheck.report import store

        for form, path in self._files.items():
            if path:
                store.check_writable(path, option=f"--{form}")

    def write(self, reports: list[Report]) -> None:
        """Write those that are asked for, and say where."""
        from flashcheck.report import junit, markdown, store

        for form, render in (("junit", junit.render), ("markdown", markdown.render)):
            path = self._files[form]
            if path:
                store.write_text(render(reports), path)
                say(f"wrote {path}")


JUNIT = typer.Option(metavar="FILE", help="Write it as JUnit XML too, a case a test.")
MARKDOWN = typer.Option(metavar="FILE", help="Write a summary in Markdown too.")


def print_json(reports: list[Report]) -> None:
    """An object, or a list of several."""
    texts = [report.model_dump_json(indent=2) for report in reports]
    with a_reader_may_go():
        typer.echo(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
