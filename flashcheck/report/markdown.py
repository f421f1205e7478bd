"""Reports as Markdown that fits a job's summary: what is wrong first, then what differs."""

from __future__ import annotations

from collections.abc import Sequence

from flashcheck.report import outcomes
from flashcheck.report.models import CaseResult, Report, Status
from flashcheck.report.plain import visible

_SHOWN = 50
_SPECIAL = "\\`*_[]<>|&~$@#"


def render(reports: Sequence[Report]) -> str:
    """A heading, a sentence and a table for each suite."""
    return "\n".join(line for report in reports for line in _suite(report))


def _suite(report: Report) -> list[str]:
    summary, there = report.summary, report.environment
    lines = [
        f"## {escaped(report.suite)}: {report.status.replace('_', ' ')}",
        "",
        f"{escaped(report.subject.name)} {escaped(report.subject.version)} on "
        f"{escaped(outcomes.where(there))}, torch {escaped(there.torch)}, "
        f"Triton {escaped(there.triton or 'none')}: {outcomes.counts(summary)}; "
        f"{summary.elements:,} elements compared in {report.duration_s:.1f} s.",
        "",
    ]
    found = outcomes.contradictions(report)
    lines += [line for text in found for line in (f"**Contradiction:** {escaped(text)}", "")]
    cases = outcomes.gravest_first(report.cases)
    worth = [c for c in cases if c.status is not Status.PASS or outcomes.differs(c)]
    if worth:
        lines += [
            "| case | status | outputs that differ | in a sentence |",
            "| --- | --- | ---: | --- |",
            *(_row(case) for case in worth[:_SHOWN]),
            "",
        ]
    hidden, equal = max(0, len(worth) - _SHOWN), len(cases) - len(worth)
    rest = [f"{hidden:,} more rows are in the report"] if hidden else []
    rest += [f"{equal:,} pass with every bit equal"] if equal else []
    return [*lines, *([f"{'; '.join(rest)}.", ""] if rest else [])]


def _row(case: CaseResult) -> str:
    found = case.mismatches
    count = f"{found.total:,} of {found.outputs:,}" if found else "-"
    words = case.reason or (found.sentence if found else "")
    status = case.status.value.replace("_", " ")
    if case.status in (Status.FAIL, Status.ERROR, Status.UNEXPECTED_PASS):
        status = f"**{status}**"
    return f"| {escaped(case.case)} | {status} | {count} | {escaped(words)} |"


def escaped(text: str) -> str:
    """Text that is no Markdown and no HTML, on one line."""
    plain = " ".join(visible(text).split())
    return "".join(f"&#{ord(c)};" if c in _SPECIAL else c for c in plain)
