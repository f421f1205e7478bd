"""Reports of the shards of one run, put together to the report of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashcheck import config as configuration
from flashcheck.config import ExhaustiveConfig, KnownDeviation
from flashcheck.describing import Clock, known_here, report_of
from flashcheck.errors import ReportError, SubjectError, UsageError, shortened
from flashcheck.parts import finished, first_of
from flashcheck.report.models import (
    CaseResult,
    Description,
    Environment,
    Report,
    Shard,
    Status,
)
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite, tally_of
from flashcheck.suites.exhaustive.tally import Tally, total

_NAMED = 5

_MOST = 80
"""How much of a value a message has: a list of thousands of cases has its start."""

_MAY_DIFFER = ("cpu", "platform")
"""Of an environment: names of machines that no figure depends on."""


@dataclass(frozen=True)
class Stored:
    """A report and where it is from."""

    path: Path
    report: Report


def merge(stored: Sequence[Stored], *, command: list[str]) -> Report:
    """The report of the whole run.

    Args:
        stored: the reports of all its shards, in any order.

    Raises:
        UsageError: one is no shard, is there twice or is missing, or they are of different runs.
        ReportError: one was changed since it was written, so that it cannot be judged again.
    """
    shards = _in_order(stored)
    first = shards[0].report
    for other in shards[1:]:
        _check_alike(shards[0], other)
    suite = ExhaustiveSuite(_config(shards), first.selection.model_copy(update={"shard": None}))
    reports = [shard.report for shard in shards]
    methods = _methods(suite, first)
    for shard in shards:
        _check_covered(shard, suite, methods)
    known = known_here(suite, first.subject, first.environment.backend)
    outcomes = {case: _outcome(reports, case, known) for case in suite.checks}
    clock = Clock(at=min(report.started_at for report in reports))
    description = Description(
        environment=_environment(reports),
        subject=first.subject,
        methods=methods,
        prediction=first.prediction,
    )
    report = report_of(
        suite, description, finished(suite, description, outcomes), clock, command=command
    )
    seconds = round(sum(report.duration_s for report in reports), 4)
    return report.model_copy(update={"duration_s": seconds})


def _in_order(stored: Sequence[Stored]) -> list[Stored]:
    """The shards by their index: every one, and each once."""
    by_index: dict[int, Stored] = {}
    count = 0
    for one in stored:
        shard = _shard(one)
        if count and shard.count != count:
            raise UsageError(
                f"{one.path}: is shard {shard.index} of {shard.count}, others are of {count}; "
                "merge the shards of one run"
            )
        count = shard.count
        if shard.index in by_index:
            raise UsageError(
                f"{one.path}: is shard {shard.index} of {count}, and so is "
                f"{by_index[shard.index].path}; give each shard once"
            )
        by_index[shard.index] = one
    missing = sorted(set(range(1, count + 1)) - by_index.keys())
    if missing:
        names = ", ".join(f"{index}/{count}" for index in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        raise UsageError(
            f"missing: shard {names}{more}; run it with --shard, and give its report too"
        )
    return [by_index[index] for index in sorted(by_index)]


def _shard(one: Stored) -> Shard:
    report = one.report
    if report.kind != "exhaustive" or report.selection.shard is None:
        raise UsageError(f"{one.path}: is no shard of a run; merge what --shard wrote")
    return report.selection.shard


def _check_alike(first: Stored, other: Stored) -> None:
    """Refuse a report of another run."""
    mine, theirs = _about(first.report), _about(other.report)
    for name, value in mine.items():
        if theirs[name] != value:
            ours, came = (shortened(x, _MOST) for x in (value, theirs[name]))
            raise UsageError(
                f"{other.path}: {name} is {came}, but {ours} in {first.path}; merge "
                "the shards of one run"
            )


def _about(report: Report) -> dict[str, Any]:
    """What has to be the same in all shards, by name."""
    environment = report.environment.model_dump(mode="json", exclude=set(_MAY_DIFFER))
    about = {
        "flashcheck_version": report.flashcheck_version,
        "suite": report.suite,
        "config_sha256": report.config_sha256,
        "reference": report.reference.model_dump(mode="json"),
        "selection": report.selection.model_dump(mode="json", exclude={"shard"}),
        "cases": [case.case for case in report.cases],
    }
    # A backend is the subject's and the environment's; what the subject is says more.
    about |= {
        f"subject.{name}": value for name, value in report.subject.model_dump(mode="json").items()
    }
    return about | {f"environment.{name}": value for name, value in environment.items()}


def _config(shards: Sequence[Stored]) -> ExhaustiveConfig:
    """The configuration of all, which nobody has changed since."""
    for shard in shards:
        try:
            config = configuration.parse(shard.report.config)
        except ReportError as error:
            raise ReportError(f"{shard.path}: {error}") from None
        if configuration.digest(config) != shard.report.config_sha256:
            raise ReportError(
                f"{shard.path}: config: is not what config_sha256 is of; it was changed since the "
                "run: write the report anew"
            )
    assert isinstance(config, ExhaustiveConfig)
    return config


def _check_covered(one: Stored, suite: ExhaustiveSuite, methods: Sequence[str]) -> None:
    """Refuse a report that does not have its shard's inputs, so that no two have the same."""
    part = ExhaustiveSuite(suite.config, one.report.selection)
    expected: dict[str, Counter[int]] = {}
    for chunk in part.chunks(one.report.environment.backend, methods):
        counts = expected.setdefault(chunk.case, Counter())
        for some in chunk.slices:
            counts[some.exponent] += len(some)
    for case in one.report.cases:
        if case.enumeration is None:
            continue
        found = {b.exponent: b.n + b.undefined for b in case.enumeration.buckets}
        if found != dict(expected.get(case.case, {})):
            shard = _shard(one)
            raise ReportError(
                f"{one.path}: {case.case}: has not the inputs of shard {shard.index} of "
                f"{shard.count}; run that shard again"
            )


def _environment(reports: Sequence[Report]) -> Environment:
    """That of all; where machines differ by name, all names."""
    names = {
        field: " | ".join(sorted({getattr(report.environment, field) for report in reports}))
        for field in _MAY_DIFFER
    }
    return reports[0].environment.model_copy(update=names)


def _methods(suite: ExhaustiveSuite, report: Report) -> list[str]:
    """Those that the subject must have had: what no case was unsupported for want of."""
    lacking = {case.case for case in report.cases if _is_unsupported(case)}
    return sorted(
        method
        for case, check in suite.checks.items()
        if case not in lacking
        for method in check.methods
    )


def _is_unsupported(case: CaseResult) -> bool:
    """For want of a method; a case with nothing in a shard has an enumeration all the same."""
    return case.status is Status.UNSUPPORTED and case.enumeration is None


def _outcome(
    reports: Sequence[Report], name: str, known: Sequence[KnownDeviation]
) -> Tally | SubjectError:
    cases = [case for report in reports for case in report.cases if case.case == name]
    reasons = "; ".join(deviation.reason for deviation in known if deviation.holds_of(name))
    errors = []
    for case in cases:
        if case.status is Status.ERROR or (case.enumeration is None and not _is_unsupported(case)):
            # What is known of it is said again when the whole is judged.
            error = SubjectError((case.reason or "no message").removesuffix(f" (known: {reasons})"))
            error.chunk = case.failed_chunk
            errors.append(error)
    return first_of(errors) if errors else total(tally_of(case) for case in cases)
