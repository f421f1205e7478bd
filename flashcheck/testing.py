"""For the tests of a package that has kernels: run a suite on them, and fail if they fail.

::

    from flashcheck.testing import check

    def test_my_kernels() -> None:
        check(Mine, suite="quant")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashcheck import catalog, runner, selection
from flashcheck.errors import ExitCode
from flashcheck.report import outcomes
from flashcheck.report.models import EXIT_CODES, CaseResult, Report, Status
from flashcheck.subjects import registry
from flashcheck.subjects.backend import Requested

_MOST = 10
"""How many cases an error names."""

_WRONG = (Status.FAIL, Status.ERROR, Status.UNEXPECTED_PASS)


def check(
    subject: Any,
    suite: str = "quant",
    *,
    battery: Sequence[str] = (),
    spec: Sequence[str] = (),
    backend: Requested = "auto",
) -> Report:
    """Run a suite on a subject in this process.

    Args:
        subject: a class or factory, an object that has some of a subject's methods, or what
            ``flashcheck run --subject`` takes.
        suite: the name of a suite, or the path of a YAML file.
        battery: only these tensors of it; all if empty.
        spec: only these specs of it; all if empty.
        backend: where Triton kernels run. A process keeps to one: that of the first call.

    Returns:
        The report, of a run in which every case passed, or deviates as the suite's file knows.

    Raises:
        AssertionError: a case did not, or nothing was compared; it names the gravest cases first.
        UsageError: there is no such suite, subject, tensor or spec.
        ConfigError: the suite's file is wrong.
        UnavailableError: the subject or the backend cannot run here.
        NothingComparedError: the selection leaves nothing.
    """
    (selected,) = selection.select(catalog.find([suite]), battery=battery, spec=spec)
    if isinstance(subject, str):
        (loaded, shims), origin = registry.load(subject, backend), registry.origin(subject)
    else:
        (loaded, shims), origin = registry.adopt(subject, backend), "test"
    plan = runner.Plan(subject=loaded, shims=list(shims), origin=origin)
    report = runner.run(plan, selected, lambda _: None)
    if EXIT_CODES[report.status] is not ExitCode.OK:
        raise AssertionError(_words(report))
    return report


def _words(report: Report) -> str:
    """What is wrong, as a test's output shows it."""
    subject, summary = report.subject, report.summary
    lines = [
        f"{subject.name} {subject.version} on {outcomes.where(report.environment)}: suite "
        f"'{report.suite}' {report.status.replace('_', ' ')}: {outcomes.counts(summary) or 'none'}"
    ]
    wrong = [case for case in outcomes.gravest_first(report.cases) if case.status in _WRONG]
    lines += [_case(case) for case in wrong[:_MOST]]
    if len(wrong) > _MOST:
        lines.append(f"  and {len(wrong) - _MOST} more")
    lines += [f"  {words}" for words in outcomes.contradictions(report)]
    if not wrong:
        unsupported = [case for case in report.cases if case.status is Status.UNSUPPORTED]
        lines += [_case(case) for case in unsupported[:_MOST]]
    return "\n".join(lines)


def _case(case: CaseResult) -> str:
    words = f"  {case.case}: {case.status.value.replace('_', ' ')}"
    if case.reason:
        words += f": {case.reason}"
    return f"{words} ({case.mismatches.sentence})" if case.mismatches else words
