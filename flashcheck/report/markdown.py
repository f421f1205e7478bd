"""Reports as Markdown that fits a job's summary: what is wrong first, then what differs."""

from __future__ import annotations

from collections.abc import Sequence

from flashcheck.report.models import CaseResult, Report, Status
from flashcheck.report.plain import visible

_SHOWN = 50
_GRAVEST_FIRST = [
    Status.ERROR,
    Status.FAIL,
    Status.UNEXPECTED_PASS,
    Status.KNOWN,
    Status.UNSUPPORTED,
    Status.PASS,
]
_SPECIAL = "\\`*_[]<>|&~$@#"


def render(reports: Sequence[Report]) -> str:
    """A heading, a sentence and a table for each suite."""
    return "\n".join(line for report in reports for line in _suite(report))


def _suite(report: Report) -> list[str]:
    summary, there = report.summary, report.environment
    where = there.backend if there.device == "cpu" else f"{there.backend} ({there.device})"
    counts = [
        (summary.passed, "passed"),
        (summary.failed, "failed"),
        (summary.errors, "in error"),
        (summary.unexpected_pass, "passed unexpectedly"),
        (summary.known, "known to deviate"),
        (summary.unsupported, "unsupported"),
    ]
    words = ", ".join(f"{number:,} {what}" for number, what in counts if number)
    lines = [
        f"## {escaped(report.suite)}: {report.status.replace('_', ' ')}",
        "",
        f"{escaped(report.subject.name)} {escaped(report.subject.version)} on {escaped(where)}, "
        f"torch {escaped(there.torch)}, Triton {escaped(there.triton or 'none')}: {words}; "
        f"{summary.elements:,} elements compared in {report.duration_s:.1f} s.",
        "",
    ]
    found = report.prediction.contradictions if report.prediction else []
    lines += [line for text in found for line in (f"**Contradiction:** {escaped(text)}", "")]
    cases = sorted(report.cases, key=lambda case: _GRAVEST_FIRST.index(case.status))
    worth = [c for c in cases if c.status is not Status.PASS or _differs(c)]
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


def _differs(case: CaseResult) -> bool:
    return case.mismatches is not None and case.mismatches.total > 0


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
