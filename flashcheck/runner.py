"""Runs a suite on a subject and judges it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from enum import Enum

from flashcheck import __version__, environment
from flashcheck.config import QuantizationConfig, SplittingConfig, SuiteConfig, digest
from flashcheck.errors import NothingComparedError, UsageError, did_you_mean
from flashcheck.reference.arithmetic import PAPER
from flashcheck.report.models import (
    SCHEMA_VERSION,
    CaseResult,
    ReferenceRecord,
    Report,
    Selection,
    SubjectRecord,
    summarize,
)
from flashcheck.subjects.base import Autotuned, Shim, Subject
from flashcheck.suites.base import Progress, judge
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.quantization import QuantizationSuite
from flashcheck.suites.splitting import SplittingSuite

Suite = QuantizationSuite | SplittingSuite


@dataclass(frozen=True)
class Plan:
    """What one invocation runs: some suites on one subject."""

    subject: Subject
    shims: list[Shim] = field(default_factory=list)
    every_configuration: bool = False
    command: list[str] = field(default_factory=list)


def make_suite(config: SuiteConfig, selection: Selection) -> Suite:
    """The suite a configuration defines, as far as it is selected."""
    if isinstance(config, QuantizationConfig):
        return QuantizationSuite(config, selection)
    return SplittingSuite(config, selection)


def select(
    configs: Sequence[SuiteConfig], *, battery: Sequence[str], spec: Sequence[str]
) -> list[Suite]:
    """The selected part of each suite; a suite that has no part in the selection is left out.

    Raises:
        UsageError: no suite here has a tensor or spec of that name.
        NothingComparedError: no suite is left.
    """
    known_battery = [
        t.name for c in configs if isinstance(c, QuantizationConfig) for t in c.battery
    ]
    known_specs = [name for config in configs for name in _spec_names(config)]
    _check_known("--battery", battery, known_battery)
    _check_known("--spec", spec, known_specs)
    suites = []
    for config in configs:
        if battery and not isinstance(config, QuantizationConfig):
            continue
        mine = Selection(
            battery=[name for name in battery if name in known_battery],
            spec=[name for name in spec if name in _spec_names(config)],
        )
        if spec and not mine.spec:
            continue
        suites.append(make_suite(config, mine))
    if not suites:
        raise NothingComparedError("the selection leaves nothing to compare; widen it")
    return suites


def _spec_names(config: SuiteConfig) -> list[str]:
    if isinstance(config, SplittingConfig):
        return config.case_names()
    return [spec.name for spec in config.specs]


def _check_known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown here; {did_you_mean(name, set(known))}")


def run(plan: Plan, suite: Suite, progress: Progress) -> Report:
    """Run one suite; a case in which the subject fails is an error, and the rest still runs."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    cases = list(_cases(plan, suite, progress))
    summary = summarize(cases)
    config, subject = suite.config, plan.subject
    return Report(
        schema_version=SCHEMA_VERSION,
        flashcheck_version=__version__,
        suite=config.suite,
        kind=config.kind,
        status=summary.status,
        started_at=started.replace(microsecond=0),
        duration_s=round(time.perf_counter() - clock, 4),
        command=plan.command,
        selection=suite.selection,
        environment=environment.collect(subject, plan.shims),
        subject=SubjectRecord(
            name=subject.name,
            version=subject.version,
            source_sha256=getattr(subject, "source_sha256", None),
            configurations=subject.pinned() if isinstance(subject, Autotuned) else {},
        ),
        reference=ReferenceRecord(name="paper", arithmetic=_arithmetic()),
        config=config.model_dump(mode="json"),
        config_sha256=digest(config),
        cases=cases,
        summary=summary,
    )


def _cases(plan: Plan, suite: Suite, progress: Progress) -> Iterator[CaseResult]:
    known = [d for d in suite.config.known_deviations if d.subject == plan.subject.name]
    calls = SubjectCalls(plan.subject, every_configuration=plan.every_configuration)
    clock = time.perf_counter()
    for measured in suite.run(plan.subject, calls, progress):
        now = time.perf_counter()
        yield judge(measured, gates=suite.config.gates, known=known, duration_s=now - clock)
        clock = now


def _arithmetic() -> dict[str, str | bool | float]:
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(PAPER).items()
    }


ProgressFactory = Callable[[Suite], Progress]
