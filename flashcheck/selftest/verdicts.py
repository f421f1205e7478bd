"""Runs the suites on every specimen and compares the verdict with what it has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashcheck.report.models import Status
from flashcheck.runner import Plan, run_cases
from flashcheck.selection import Suite
from flashcheck.selftest.registry import Specimen


@dataclass(frozen=True)
class Verdict:
    """What the suites said of a specimen.

    Attributes:
        caught_by: the first case that did not pass, as ``suite case``, and its reason; none if
            every case passed.
        cases: how many were run, which is all of them where none caught it.
    """

    specimen: Specimen
    caught_by: tuple[str, str] | None
    cases: int

    @property
    def right(self) -> bool:
        """A faulty one is caught; a correct one passes, and by at least one case."""
        return self.specimen.faulty == (self.caught_by is not None) and self.cases > 0


def verdicts(
    specimens: Sequence[Specimen], suites: Sequence[Suite], steps: Sequence[Suite] = ()
) -> Iterator[Verdict]:
    """Judge each specimen, until the first case that does not pass.

    Args:
        suites: for those of single functions; ``steps``: for optimizer steps.
    """
    for specimen in specimens:
        yield _judge(specimen, steps if specimen.steps else suites)


def _judge(specimen: Specimen, suites: Sequence[Suite]) -> Verdict:
    plan, cases = Plan(subject=specimen.make()), 0
    for suite in suites:
        for case in run_cases(plan, suite, lambda _: None):
            cases += 1
            if case.status is not Status.PASS:
                where = f"{suite.config.suite} {case.case}"
                return Verdict(specimen, (where, case.reason or case.status.value), cases)
    return Verdict(specimen, None, cases)
