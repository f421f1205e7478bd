"""Reports printed, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flashcheck.cli.common import a_reader_may_go, console, say
from flashcheck.errors import UnavailableError

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

    def __init__(self, *, junit: Path | None, markdown: Path | None, html: Path | None) -> None:
        self._files = {"junit": junit, "markdown": markdown, "html": html}

    def __bool__(self) -> bool:
        return any(self._files.values())

    def check(self) -> None:
        """Find out before a run that they can be written.

        Raises:
            UsageError: one cannot.
            UnavailableError: a package for it is missing.
        """
        from flashcheck.report import store

        for form, path in self._files.items():
            if path:
                _renderer(form)
                store.check_writable(path, option=f"--{form}")

    def write(self, reports: list[Report]) -> None:
        """Write those that are asked for, and say where."""
        from flashcheck.report import store

        for form, path in self._files.items():
            if path:
                store.write_text(_renderer(form)(reports), path)
                say(f"wrote {path}")


def _renderer(form: str) -> Callable[[Sequence[Report]], str]:
    if form == "junit":
        from flashcheck.report import junit

        return junit.render
    if form == "markdown":
        from flashcheck.report import markdown

        return markdown.render
    try:
        from flashcheck.report.page import rendering
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"--html: the package {error.name} is missing: pip install 'flashcheck[html]'"
        ) from None
    return rendering.render


JUNIT = typer.Option(metavar="FILE", help="Write it as JUnit XML too, a case a test.")
MARKDOWN = typer.Option(metavar="FILE", help="Write a summary in Markdown too.")
HTML = typer.Option(metavar="FILE", help="Write a page with pictures too, one file for offline.")


def print_json(reports: list[Report]) -> None:
    """An object, or a list of several."""
    texts = [report.model_dump_json(indent=2) for report in reports]
    with a_reader_may_go():
        typer.echo(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
