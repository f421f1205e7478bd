"""What every form of a report says in the same words: outcomes, their order, and where it ran."""

from __future__ import annotations

from collections.abc import Iterable

from flashcheck.report.models import CaseResult, Environment, Report, Status, Summary

GRAVEST_FIRST = [
    Status.ERROR,
    Status.FAIL,
    Status.UNEXPECTED_PASS,
    Status.KNOWN,
    Status.UNSUPPORTED,
    Status.PASS,
]


def gravest_first(cases: Iterable[CaseResult]) -> list[CaseResult]:
    """What is wrong before what is well; else in the report's order."""
    return sorted(cases, key=lambda case: GRAVEST_FIRST.index(case.status))


def counts(summary: Summary) -> str:
    """How many cases had which outcome, those that occur."""
    numbers = [
        (summary.passed, "passed"),
        (summary.failed, "failed"),
        (summary.errors, "in error"),
        (summary.unexpected_pass, "passed unexpectedly"),
        (summary.known, "known to deviate"),
        (summary.unsupported, "unsupported"),
    ]
    return ", ".join(f"{number:,} {what}" for number, what in numbers if number)


def where(environment: Environment) -> str:
    """The backend, and the GPU where there was one."""
    if environment.device == "cpu":
        return environment.backend
    return f"{environment.backend} ({environment.device})"


def differs(case: CaseResult) -> bool:
    """Whether an output has other bits than the reference's."""
    return case.mismatches is not None and case.mismatches.total > 0


def contradictions(report: Report) -> list[str]:
    """What the compiler's word says against an attribution."""
    return report.prediction.contradictions if report.prediction else []
