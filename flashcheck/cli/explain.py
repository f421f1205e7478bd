"""``flashcheck explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from flashcheck.cli import completing
from flashcheck.cli.common import a_reader_may_go, console, exits


@exits
def explain(
    term: Annotated[
        str,
        typer.Argument(
            metavar="METRIC_OR_CAUSE",
            help="A name from a report; causes joined by + are explained one by one.",
            autocompletion=completing.terms,
        ),
    ],
) -> None:
    """Say what a figure or a cause means, how it is come by, and where the paper has it."""
    from rich.text import Text

    from flashcheck.glossary import look_up

    found = look_up(term)
    with a_reader_may_go():
        for i, entry in enumerate(found):
            text = Text("\n" if i else "")
            text.append(entry.term, style="bold")
            text.append(f" ({entry.kind} of {entry.of})\n{entry.meaning}\n")
            text.append(f"How: {entry.how}{'' if entry.how.endswith('.') else '.'}\n")
            text.append(f"Source: {entry.source}.")
            console().print(text)
