"""A report as the page's template takes it: words and tables, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashcheck.report import outcomes
from flashcheck.report.cells import part
from flashcheck.report.enumeration import Enumeration
from flashcheck.report.models import CaseResult, Mismatches, Report


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class CaseRow:
    """A case: what its row says, and the tables under it."""

    name: str
    status: str
    differ: str
    reason: str
    sentence: str
    tables: list[Grid]


@dataclass(frozen=True)
class Tile:
    """A number to look at first."""

    name: str
    value: str


def tiles(report: Report) -> list[Tile]:
    """The outcomes that occur, and how much was compared in what time."""
    summary = report.summary
    numbers = [
        ("in error", summary.errors),
        ("failed", summary.failed),
        ("passed unexpectedly", summary.unexpected_pass),
        ("known to deviate", summary.known),
        ("unsupported", summary.unsupported),
        ("passed", summary.passed),
    ]
    found = [Tile(name, f"{number:,}") for name, number in numbers if number]
    found.append(Tile("elements compared", f"{summary.elements:,}"))
    return [*found, Tile("seconds", f"{report.duration_s:,.1f}")]


def what(report: Report) -> str:
    """What ran where, and against what."""
    subject = report.subject
    where = outcomes.where(report.environment)
    text = f"{subject.name} {subject.version} on {where} against the reference "
    text += f"'{report.reference.name}'"
    if report.kind == "step" and subject.steps_through:
        text += f"; steps taken through {subject.steps_through}"
    return f"{text}."


def environment(report: Report) -> list[tuple[str, str]]:
    """All that a result may depend on, by name."""
    there, subject = report.environment, report.subject
    rows: list[tuple[str, object]] = [
        ("started", report.started_at.isoformat(" ", "seconds")),
        ("command", " ".join(report.command)),
        ("flashcheck", report.flashcheck_version),
        ("subject", f"{subject.name} {subject.version}, {subject.origin}"),
        ("subject's source, sha256", subject.source_sha256),
        *((f"launch of {name}", pinned) for name, pinned in subject.configurations.items()),
        ("configuration, sha256", report.config_sha256),
        ("part", report.selection.model_dump_json(exclude_defaults=True)),
        *((name, getattr(there, name)) for name in type(there).model_fields if name != "shims"),
        *((f"repair of the interpreter: {each.name}", each.repairs) for each in there.shims),
    ]
    if report.prediction:
        rows += [
            (f"compiled {each.kernel}", f"{report.prediction.target}: {each.words}")
            for each in report.prediction.kernels
        ]
    return [(name, str(value)) for name, value in rows if value not in (None, "{}")]


def meanings(report: Report) -> list[tuple[str, str]]:
    """Of each metric that a case has, what it is."""
    kinds = {type(case.metrics): None for case in report.cases if case.metrics}
    found = {
        name: field.description or "" for kind in kinds for name, field in kind.model_fields.items()
    }
    return list(found.items())


def cases(report: Report) -> Iterable[CaseRow]:
    """Every case, the gravest first."""
    return [_row(case) for case in outcomes.gravest_first(report.cases)]


def _row(case: CaseResult) -> CaseRow:
    found = case.mismatches
    return CaseRow(
        name=case.case,
        status=case.status.value,
        differ=f"{part(found.total, found.outputs)} of {found.outputs:,}" if found else "-",
        reason=case.reason or "",
        sentence=found.sentence if found else "",
        tables=list(_tables(case)),
    )


def _tables(case: CaseResult) -> Iterable[Grid]:
    if case.enumeration:
        yield _domain(case.enumeration)
    if case.metrics:
        values = case.metrics.model_dump()
        yield Grid(
            ["figure", "value"],
            [[name, "none" if v is None else f"{v:.9g}"] for name, v in values.items()],
        )
    if case.mismatches and case.mismatches.total:
        yield from _mismatches(case.mismatches)
    broken = [[each.name, each.detail] for each in case.contracts if not each.ok]
    if broken:
        yield Grid(["contract broken", "how"], broken)
    limits = [
        [f"{gate.metric} {gate.op} {gate.limit:.9g}", "holds" if gate.ok else "does not hold"]
        for gate in case.gates
    ]
    if limits:
        yield Grid(["gate", "outcome"], limits)
    if case.notes:
        yield Grid(["note"], [[note] for note in case.notes])


def _domain(enumeration: Enumeration) -> Grid:
    fed = "all" if enumeration.whole else f"{enumeration.covered:,}"
    rows = [
        ("domain", f"{fed} of {enumeration.size:,} {enumeration.domain}"),
        ("checked by", enumeration.checker.words),
        ("digests", enumeration.checker.digests),
        ("fresh sample", enumeration.checker.sample),
    ]
    return Grid(["enumeration", ""], [[name, value] for name, value in rows if value])


def _mismatches(found: Mismatches) -> Iterable[Grid]:
    yield Grid(
        ["output", "cause", "mismatches"],
        [
            [output, cause, f"{number:,}"]
            for output, causes in found.by_output.items()
            for cause, number in causes.items()
        ],
    )
    if found.worst:
        yield Grid(
            ["worst", "input", "subject", "reference", "apart", "cause", "stage"],
            [
                [
                    f"{each.output}[{each.index:,}]",
                    f"{each.input} ({each.input_bits})",
                    f"{each.subject} ({each.subject_bits})",
                    f"{each.reference} ({each.reference_bits})",
                    f"{each.distance:,}",
                    each.cause,
                    each.stage,
                ]
                for each in found.worst
            ],
        )
