"""``flashcheck show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashcheck.cli.common import a_reader_may_go, console, exits
from flashcheck.cli.printing import HTML, JUNIT, MARKDOWN, Forms


@exits
def show(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report that a run wrote.")],
    junit: Annotated[Path | None, JUNIT] = None,
    markdown: Annotated[Path | None, MARKDOWN] = None,
    html: Annotated[Path | None, HTML] = None,
) -> None:
    """Print the tables of a stored report, or write it in another form."""
    from flashcheck.report import store, terminal

    stored = store.read(report)
    forms = Forms(junit=junit, markdown=markdown, html=html)
    if forms:
        forms.check()
        forms.write([stored])
        return
    with a_reader_may_go():
        console().print(terminal.render(stored))
