"""What changed between two runs, in a terminal: the environment first, then regressions."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashcheck.report.cells import STYLES, table_of
from flashcheck.report.comparison import CaseChange, Change, Comparison, Figure, SuiteChange
from flashcheck.report.models import Status

_SHOWN = 20


def render(comparison: Comparison) -> RenderableType:
    """All of a comparison that a person reads."""
    parts: list[RenderableType] = [Text(f"{comparison.base} → {comparison.new}", style="bold")]
    if comparison.environment:
        parts += [Text(), _changes("environment", comparison.environment)]
    for suite in comparison.suites:
        parts += [Text(), *_suite(suite)]
    return Group(*parts, Text(), _conclusion(comparison))


def _changes(title: str, changes: list[Change]) -> Table:
    table = table_of((title, "left"), ("base", "left"), ("new", "left"))
    for column in table.columns[1:]:
        column.no_wrap = False
    for change in changes:
        table.add_row(Text(change.what), Text(_figure(change.base)), Text(_figure(change.new)))
    return table


def _suite(suite: SuiteChange) -> list[RenderableType]:
    text = Text(suite.suite, style="bold")
    text.append(f": {_moved(suite.base, suite.new)}", style="not bold")
    if suite.base is None or suite.new is None:
        which = "new" if suite.base is None else "base"
        text.append(f", only in the {which} run", style="not bold")
        return [text]
    words = f"; {len(suite.cases)} of {len(suite.cases) + suite.unchanged} cases changed"
    if suite.not_selected:
        words += f", {suite.not_selected} of the base not selected"
    text.append(words, style="not bold")
    parts: list[RenderableType] = [text]
    if suite.settings:
        parts += [Text(), _changes("configuration", suite.settings)]
    if suite.cases:
        parts += [Text(), _cases(suite.cases[:_SHOWN])]
        hidden = len(suite.cases) - _SHOWN
        if hidden > 0:
            parts.append(Text(f"… and {hidden} more changed; --json has them all."))
    parts += [
        Text(f"{case.case}: {case.reason}.")
        for case in suite.cases[:_SHOWN]
        if case.regression and case.reason
    ]
    return parts


def _cases(cases: list[CaseChange]) -> Table:
    table = table_of(("case", "left"), ("status", "left"), ("what moved", "left"))
    # A cause of several switches is longer than a narrow terminal.
    table.columns[-1].no_wrap = False
    for case in cases:
        moved = [f"{change.what} {_moved(change.base, change.new)}" for change in case.metrics]
        moved += [f"{c.what}: {_moved(c.base, c.new)} mismatches" for c in case.causes]
        if case.inputs_differ:
            moved.append("other inputs were fed")
        table.add_row(Text(case.case), _status(case), Text("\n".join(moved)))
    return table


def _status(case: CaseChange) -> Text:
    """In words, so that colour is not the only sign."""
    text = Text(_moved(_word(case.base), _word(case.new)))
    if case.regression:
        text.append("\nregression", style=STYLES[Status.FAIL])
    return text


def _word(status: Status | None) -> str:
    return "none" if status is None else status.value.replace("_", " ")


def _moved(base: Figure, new: Figure) -> str:
    """One figure where it stayed, both where it moved."""
    if base == new:
        return _figure(new)
    mine, theirs = _figure(base), _figure(new)
    # All digits of two figures that are the same in few.
    return f"{base!r} → {new!r}" if mine == theirs else f"{mine} → {theirs}"


def _figure(value: Figure) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.9g}" if isinstance(value, float) else value


def _conclusion(comparison: Comparison) -> Text:
    regressions = sum(case.regression for suite in comparison.suites for case in suite.cases) + sum(
        suite.regression and not any(case.regression for case in suite.cases)
        for suite in comparison.suites
    )
    changed = sum(len(suite.cases) for suite in comparison.suites)
    if comparison.regression:
        return Text(f"{regressions} regressed, {changed} changed", style=STYLES[Status.FAIL])
    words = f"none regressed, {changed} changed" if comparison.changed else "no result changed"
    return Text(words, style=STYLES[Status.PASS])
