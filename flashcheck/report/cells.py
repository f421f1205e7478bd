"""Cells of a terminal's tables: counts with shares, and a status that needs no colour."""

from __future__ import annotations

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from flashcheck.report.models import Status

STYLES = {
    Status.PASS: "green",
    Status.KNOWN: "yellow",
    Status.UNSUPPORTED: "yellow",
    Status.FAIL: "bold red",
    Status.UNEXPECTED_PASS: "bold red",
    Status.ERROR: "bold red",
}


def table_of(*columns: tuple[str, JustifyMethod]) -> Table:
    """A table without lines but under its headers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for header, justify in columns:
        # Where it is too narrow a count wraps before its share; nothing else is broken or cut.
        table.add_column(
            header,
            justify=justify,
            no_wrap="differ" not in header and header != "status",
            overflow="fold",
        )
    return table


def status_cell(status: Status) -> Text:
    """A status in words and colour."""
    return Text(status.value.replace("_", " "), style=STYLES[status])


def part(part: int, whole: int) -> str:
    """A count, with its share where it is neither none nor nothing."""
    return f"{part:,}" if not part else f"{part:,} ({share(part, whole)})"


def share(part: int, whole: int) -> str:
    """A percentage of three digits that says 0 or 100 only where that is exact."""
    if not whole:
        return "-"
    if part in (0, whole):
        return "100%" if part else "0%"
    percent = 100 * part / whole
    if percent > 99:
        # Digits of what is missing, so that 99.9999% does not become 100%.
        missing = 100 * (whole - part) / whole
        decimals = max(1, 1 - _magnitude(missing))
        return f"{percent:.{decimals}f}%"
    return f"{percent:.2g}%" if percent < 1 else f"{percent:.3g}%"


def _magnitude(x: float) -> int:
    return int(f"{x:e}".split("e")[1])


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)
