"""A report as rich tables, readable at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashcheck.measures import (
    QuantizationMetrics,
    SplittingMetrics,
    StepMetrics,
    TrajectoryMetrics,
)
from flashcheck.report import enumerated, outcomes, outliers, stepped
from flashcheck.report.cells import STYLES, number, part, share, status_cell, table_of
from flashcheck.report.models import CaseResult, Report, Status, Stratum

_SHOWN_STRATA = 8
_MANY_CASES = 20
_NAMED_CASES = 8

_OVERFLOW = (
    "Groups overflow where float16 rounds their absmax (of a variance, its root) to infinity: "
    "their elements come back non-finite, and the NMSE is over the rest. That is the format's, "
    "whoever computes it."
)
_UNDERFLOW = (
    "Groups go to 0 where float16 rounds their absmax to 0: they come back as zeros. That is the "
    "format's too."
)


def render(report: Report) -> RenderableType:
    """All of a report that a person reads in a terminal."""
    cases = outcomes.gravest_first(report.cases)
    parts: list[RenderableType] = [_heading(report)]
    quantized = [case for case in cases if isinstance(case.metrics, QuantizationMetrics)]
    split = [case for case in cases if isinstance(case.metrics, SplittingMetrics)]
    if quantized:
        parts += [Text(), *_shortened(quantized, _quantization_table)]
    if any(case.enumeration for case in cases):
        parts += [Text(), *enumerated.tables(cases)]
    elif any(case.strata for case in split):
        for case in split:
            parts += [Text(), _sweep_table(case), Text(), *_strata(case)]
    elif split:
        parts += [Text(), *_shortened(split, _splitting_table)]
    steps = [case for case in cases if isinstance(case.metrics, StepMetrics)]
    if steps:
        parts += [Text(), *_shortened(steps, stepped.step_table)]
    trajectories = [case for case in cases if isinstance(case.metrics, TrajectoryMetrics)]
    if trajectories:
        parts += [Text(), stepped.trajectory_table(trajectories), Text(), Text(stepped.ERRORS)]
    remarks = _remarks(cases)
    parts += [*([Text()] if remarks else []), *remarks]
    parts += [Text(), *_sentences(cases), *_contradictions(report), Text(), _conclusion(report)]
    return Group(*parts)


def _heading(report: Report) -> Text:
    environment, subject = report.environment, report.subject
    text = Text()
    text.append(report.suite, style="bold")
    text.append(f": {report.config.get('description', report.kind)}\n")
    text.append(
        f"{subject.name} {subject.version} on {outcomes.where(environment)} against the reference "
        f"'{report.reference.name}'"
    )
    if report.kind == "step" and subject.steps_through:
        text.append(f"\nsteps taken through {subject.steps_through}")
    return text


def _shortened(
    cases: list[CaseResult], table: Callable[[list[CaseResult]], Table]
) -> list[RenderableType]:
    """A table, of the cases worth a row where there are many."""
    if len(cases) <= _MANY_CASES:
        return [table(cases)]
    shown = [case for case in cases if case.status is not Status.PASS or outcomes.differs(case)]
    hidden = len(cases) - len(shown)
    rest = [Text(f"… and {hidden} that pass with every bit equal.")] if hidden else []
    return [table(shown), *rest] if shown else [*rest]


def _quantization_table(cases: list[CaseResult]) -> Table:
    table = table_of(
        ("case", "left"),
        ("codes\nthat differ", "right"),
        ("scales\ndiffer", "right"),
        ("values,\nmax ULP", "right"),
        ("NMSE\nratio", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, QuantizationMetrics)
        table.add_row(
            _case_cell(case.case, metrics),
            part(metrics.int_mismatches, case.numel),
            part(metrics.scale_mismatches, metrics.groups),
            number(metrics.dequant_max_ulp, ","),
            number(metrics.nmse_ratio, ".6f"),
            status_cell(case.status),
        )
    return table


def _case_cell(name: str, metrics: QuantizationMetrics) -> Text:
    """The case's name, and what its format loses, which a reader must not take for a fault."""
    text = Text(name)
    if metrics.scale_overflow_groups:
        text.append(f"\n  {metrics.scale_overflow_groups:,} groups overflow")
        text.append(f"\n  ({metrics.nonfinite_reference:,} elements)")
    if metrics.scale_underflow_groups:
        text.append(f"\n  {metrics.scale_underflow_groups:,} groups to 0")
    return text


def _splitting_table(cases: list[CaseResult]) -> Table:
    table = table_of(
        ("case", "left"),
        ("codes\nthat differ", "right"),
        ("given back\nthat differ", "right"),
        ("exact,\nsubject", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, SplittingMetrics)
        table.add_row(
            Text(case.case),
            part(metrics.rho_mismatches, case.numel),
            part(metrics.recon_mismatches, case.numel),
            share(metrics.subject_exact, case.numel),
            status_cell(case.status),
        )
    return table


def _sweep_table(case: CaseResult) -> Table:
    metrics, n = case.metrics, case.numel
    assert isinstance(metrics, SplittingMetrics)
    table = table_of((case.case, "left"), ("subject", "right"), ("reference", "right"))
    table.add_row(
        "values given back bit for bit",
        part(metrics.subject_exact, n),
        part(metrics.reference_exact, n),
    )
    table.add_row(
        "mean relative error",
        number(metrics.subject_mean_rel_err, ".4e"),
        number(metrics.reference_mean_rel_err, ".4e"),
    )
    table.add_row("correction codes that differ", part(metrics.rho_mismatches, n), "")
    table.add_row("values given back that differ", part(metrics.recon_mismatches, n), "")
    table.add_row(
        "values given back non-finite",
        f"{metrics.nonfinite_subject:,}",
        f"{metrics.nonfinite_reference:,}",
    )
    return table


def _strata(case: CaseResult) -> list[RenderableType]:
    if not case.strata:
        return []
    parted = outliers.find(case.strata)
    if not parted.outlying:
        return [Text(f"None of the {len(case.strata)} exponents stands out.")]
    shown = sorted(parted.outlying[:_SHOWN_STRATA], key=lambda s: s.exponent)
    table = table_of(
        ("exponents that\nstand out", "left"),
        ("values", "right"),
        ("codes\nthat differ", "right"),
        ("given back\nthat differ", "right"),
        ("exact,\nsubject", "right"),
        ("exact,\nreference", "right"),
    )
    for stratum in shown:
        table.add_row(*_stratum_row(f"{stratum.exponent} (2^{stratum.exponent - 127})", [stratum]))
    hidden = parted.outlying[_SHOWN_STRATA:]
    if hidden:
        table.add_row(*_stratum_row(f"{len(hidden)} more like these", hidden))
    if parted.others:
        table.add_row(*_stratum_row(f"the other {len(parted.others)}", parted.others))
    return [table]


def _stratum_row(label: str, strata: list[Stratum]) -> list[str]:
    n = sum(stratum.n for stratum in strata)
    return [
        label,
        f"{n:,}",
        f"{sum(s.rho_mismatches for s in strata):,}",
        f"{sum(s.recon_mismatches for s in strata):,}",
        share(sum(s.subject_exact for s in strata), n),
        share(sum(s.reference_exact for s in strata), n),
    ]


def _sentences(cases: list[CaseResult]) -> list[RenderableType]:
    """What can be said of the bits, each sentence once with the cases it holds of."""
    holds: dict[str, list[str]] = {}
    for case in cases:
        if case.mismatches:
            holds.setdefault(case.mismatches.sentence, []).append(case.case)
    every = sum(len(names) for names in holds.values())
    texts: list[RenderableType] = []
    for sentence, names in holds.items():
        text = Text(sentence[:1].upper() + sentence[1:], style="bold")
        whose = f"all {every} cases" if len(names) == every > 1 else _listed(names)
        text.append(f": {whose}.", style="not bold")
        texts.append(text)
    return texts


def _contradictions(report: Report) -> list[RenderableType]:
    found = outcomes.contradictions(report)
    return [Text(f"Contradiction: {text}.", style="bold red") for text in found]


def _remarks(cases: list[CaseResult]) -> list[RenderableType]:
    """Why cases are no plain pass, each reason once with its cases, and what the row marks mean."""
    reasons: dict[tuple[Status, str], list[str]] = {}
    for case in cases:
        if case.reason:
            reasons.setdefault((case.status, case.reason), []).append(case.case)
    remarks: list[RenderableType] = []
    for (status, reason), names in reasons.items():
        text = Text(_listed(names))
        text.append(f" {status.value.replace('_', ' ')}", style=STYLES[status])
        text.append(f": {reason}.")
        remarks.append(text)
    failing = [case for case in cases if case.status is Status.FAIL]
    remarks += [text for case in failing[:_NAMED_CASES] for text in _worst(case)]
    metrics = [c.metrics for c in cases if isinstance(c.metrics, QuantizationMetrics)]
    if any(m.scale_overflow_groups for m in metrics):
        remarks.append(Text(_OVERFLOW))
    if any(m.scale_underflow_groups for m in metrics):
        remarks.append(Text(_UNDERFLOW))
    return remarks


def _worst(case: CaseResult) -> list[RenderableType]:
    """The element to look at first."""
    if case.mismatches is None or not case.mismatches.worst:
        return []
    worst = case.mismatches.worst[0]
    text = f"{case.case} worst: {worst.output}[{worst.index}] of input {worst.input}"
    text += f" is {worst.subject} ({worst.subject_bits}),"
    text += f" reference {worst.reference} ({worst.reference_bits}): {worst.cause} at the stage"
    return [Text(f"{text} '{worst.stage}'.")]


def _listed(names: list[str]) -> str:
    listed = names[:_NAMED_CASES]
    if len(names) > len(listed):
        listed.append(f"and {len(names) - len(listed)} more")
    return ", ".join(listed)


def _conclusion(report: Report) -> Text:
    summary = report.summary
    ok = report.status == "pass"
    text = Text()
    text.append(
        f"{report.suite}: {report.status.replace('_', ' ')}",
        style="bold green" if ok else "bold red",
    )
    text.append(
        f" ({outcomes.counts(summary)}; {summary.elements:,} elements compared in "
        f"{report.duration_s:.1f} s)\n"
    )
    return text
