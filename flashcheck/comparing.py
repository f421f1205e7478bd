"""What changed between two runs: another Triton, another GPU, another version of the subject."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flashcheck.errors import ReportError, UsageError
from flashcheck.report import store
from flashcheck.report.comparison import CaseChange, Change, Comparison, SuiteChange
from flashcheck.report.models import (
    EXIT_CODES,
    CaseResult,
    Report,
    Selection,
    Status,
    gravest,
)

_GRAVITY = [
    Status.PASS,
    Status.KNOWN,
    Status.UNSUPPORTED,
    Status.UNEXPECTED_PASS,
    Status.FAIL,
    Status.ERROR,
]


def reports_of(path: Path) -> dict[str, Report]:
    """By suite, the report of a file, or those of a folder.

    Raises:
        ReportError: one cannot be read, or a folder has none.
        UsageError: a folder has two of one suite.
    """
    if not path.is_dir():
        report = store.read(path)
        return {report.suite: report}
    found: dict[str, Report] = {}
    for file in sorted(path.glob("*.json")):
        if file.name == "schema.json":
            continue  # it lies beside the reports, and is none
        report = store.read(file)
        if report.suite in found:
            raise UsageError(f"{file}: {path} has two reports of suite '{report.suite}'; move one")
        found[report.suite] = report
    if not found:
        raise ReportError(f"{path}: no report in this folder; name one, or a folder that has some")
    return found


def compare(
    base: Mapping[str, Report], new: Mapping[str, Report], *, labels: tuple[str, str]
) -> Comparison:
    """What changed from one run to another.

    Args:
        base: reports by suite; ``new`` likewise.
        labels: what to call them.

    Raises:
        UsageError: they have no suite in common.
    """
    check_common(base, new, labels=labels)
    suites = [*base, *(suite for suite in new if suite not in base)]
    return Comparison(
        base=labels[0],
        new=labels[1],
        environment=_environments(base, new),
        suites=[_suite(suite, base.get(suite), new.get(suite)) for suite in suites],
    )


def check_common(base: Iterable[str], new: Iterable[str], *, labels: tuple[str, str]) -> None:
    """Refuse reports that have no suite in common, before they are made if need be.

    Raises:
        UsageError: they have none.
    """
    if not set(base) & set(new):
        raise UsageError(
            f"{labels[0]} has {', '.join(base)} and {labels[1]} has {', '.join(new)}: no suite is "
            "in both; compare reports of the same suites"
        )


def _environments(base: Mapping[str, Report], new: Mapping[str, Report]) -> list[Change]:
    """Of all suites that both have, each difference once."""
    found: dict[tuple[str, Any, Any], Change] = {}
    for suite in base:
        if suite in new:
            for change in _differences(_surroundings(base[suite]), _surroundings(new[suite])):
                found.setdefault((change.what, change.base, change.new), change)
    return list(found.values())


def _surroundings(report: Report) -> dict[str, Any]:
    """All that a report's figures may depend on but its configuration."""
    environment = report.environment.model_dump(exclude={"shims"})
    subject = report.subject
    launched = [f"{kernel} {config}" for kernel, config in sorted(subject.configurations.items())]
    return {
        **environment,
        "shims": ", ".join(shim.name for shim in report.environment.shims) or None,
        "subject": f"{subject.name} {subject.version}",
        "subject source": subject.source_sha256 and subject.source_sha256[:12],
        "launch configurations": "; ".join(launched) or None,
        "steps through": subject.steps_through,
        "flashcheck": report.flashcheck_version,
    }


def _differences(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Where two mappings differ, in the order of their keys."""
    names = [*base, *(name for name in new if name not in base)]
    return [
        Change(what=name, base=base.get(name), new=new.get(name))
        for name in names
        if base.get(name) != new.get(name)
    ]


def _suite(suite: str, base: Report | None, new: Report | None) -> SuiteChange:
    if base is None or new is None:
        return SuiteChange(
            suite=suite,
            base=base.status if base else None,
            new=new.status if new else None,
            # A suite that was there and is not says nothing any more.
            regression=new is None,
            settings=[],
            cases=[],
            unchanged=0,
            not_selected=0,
        )
    settings = _settings(base, new)
    mine, theirs = ({case.case: case for case in report.cases} for report in (base, new))
    narrowed = base.selection != new.selection
    names = [*mine, *(name for name in theirs if name not in mine)]
    gone = [name for name in names if name not in theirs] if narrowed else []
    changes = [_case(mine.get(name), theirs.get(name)) for name in names if name not in gone]
    changed = [change for change in changes if change]
    was = EXIT_CODES[base.status]
    return SuiteChange(
        suite=suite,
        base=base.status,
        new=new.status,
        regression=any(change.regression for change in changed)
        or gravest([EXIT_CODES[new.status], was]) is not was,
        settings=settings,
        cases=sorted(changed, key=lambda change: not change.regression),
        unchanged=len(changes) - len(changed),
        not_selected=len(gone),
    )


def _settings(base: Report, new: Report) -> list[Change]:
    """The keys of the configuration that differ, and the selection."""
    mine, theirs = base.config, new.config
    found = [
        Change(what=key, base=_figure(mine.get(key)), new=_figure(theirs.get(key)))
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]
    if base.selection != new.selection:
        found.append(
            Change(what="selection", base=_selected(base.selection), new=_selected(new.selection))
        )
    return found


def _figure(value: Any) -> Any:
    """A value of a configuration; of a list or mapping it is said only that it differs."""
    return value if value is None or isinstance(value, str | int | float) else "…"


def _selected(selection: Selection) -> str:
    given = selection.model_dump(mode="json", exclude_defaults=True)
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "all"


def _case(base: CaseResult | None, new: CaseResult | None) -> CaseChange | None:
    """A case that changed; none that did not."""
    known = base or new
    assert known
    metrics = _differences(_metrics(base), _metrics(new)) if base and new else []
    causes = _counts(_causes(base), _causes(new)) if base and new else []
    statuses = (base.status if base else None, new.status if new else None)
    fed = base and new and base.input_sha256 != new.input_sha256
    if statuses[0] == statuses[1] and not metrics and not causes and not fed:
        return None
    return CaseChange(
        case=known.case,
        base=statuses[0],
        new=statuses[1],
        regression=_worse(*statuses),
        inputs_differ=bool(fed),
        metrics=metrics,
        causes=causes,
        reason=new.reason if new else None,
    )


def _worse(base: Status | None, new: Status | None) -> bool:
    """Whether a status is graver than before; a new case is held against a pass."""
    if new is None:
        return True
    return _GRAVITY.index(new) > _GRAVITY.index(base or Status.PASS)


def _metrics(case: CaseResult) -> dict[str, Any]:
    return case.metrics.model_dump() if case.metrics else {}


def _causes(case: CaseResult) -> dict[str, int]:
    return case.mismatches.by_cause if case.mismatches else {}


def _counts(base: Mapping[str, int], new: Mapping[str, int]) -> list[Change]:
    """Causes that occur in other numbers; one that does not occur has none."""
    causes = sorted(base.keys() | new.keys())
    every = dict.fromkeys(causes, 0)
    return _differences({**every, **base}, {**every, **new})


def fails(comparison: Comparison, fail_on: str) -> bool:
    """Whether a comparison is to fail: on a ``regression``, or on ``any`` change of results."""
    return comparison.regression or (fail_on == "any" and comparison.changed)
