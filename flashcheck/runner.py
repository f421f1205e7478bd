"""Runs a suite on a subject and judges it."""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

from flashcheck import parts
from flashcheck.describing import Clock, describe, known_here, report_of
from flashcheck.execution.serial import Serial
from flashcheck.report.models import CaseResult, Report, SubjectRecord
from flashcheck.selection import Suite
from flashcheck.subjects.base import Shim, Subject
from flashcheck.suites.base import Progress, judge
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite


@dataclass(frozen=True)
class Plan:
    """What one invocation runs: some suites on one subject."""

    subject: Subject
    shims: list[Shim] = field(default_factory=list)
    origin: str = "built-in"
    every_configuration: bool = False
    show_traceback: bool = False
    command: list[str] = field(default_factory=list)


def run(plan: Plan, suite: Suite, progress: Progress) -> Report:
    """Run one suite in this process; a case in which the subject fails is an error."""
    if isinstance(suite, ExhaustiveSuite):
        return parts.run(serial(plan, suite), suite, progress, command=plan.command)
    clock = Clock()
    cases = list(run_cases(plan, suite, progress))
    description = describe(plan.subject, plan.shims, plan.origin)
    return report_of(suite, description, cases, clock, command=plan.command)


def serial(plan: Plan, suite: ExhaustiveSuite) -> Serial:
    """This process, as what checks the chunks of a suite."""
    return Serial(
        suite=suite,
        subject=plan.subject,
        shims=plan.shims,
        origin=plan.origin,
        seed=secrets.randbits(31),
        every_configuration=plan.every_configuration,
        show_traceback=plan.show_traceback,
    )


def run_cases(plan: Plan, suite: Suite, progress: Progress) -> Iterator[CaseResult]:
    """Measure and judge a suite's cases, one by one."""
    if isinstance(suite, ExhaustiveSuite):
        yield from run(plan, suite, progress).cases
        return
    record = SubjectRecord(
        name=plan.subject.name,
        version=plan.subject.version,
        source_sha256=None,
        origin=plan.origin,
    )
    known = known_here(suite, record, plan.subject.backend)
    calls = SubjectCalls(plan.subject, every_configuration=plan.every_configuration)
    clock = time.perf_counter()
    for measured in suite.run(plan.subject, calls, progress):
        now = time.perf_counter()
        if measured.error and plan.show_traceback:
            traceback.print_exception(measured.error)
        yield judge(measured, gates=suite.config.gates, known=known, duration_s=now - clock)
        clock = now
