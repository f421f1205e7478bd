"""Enumerated cases as rich tables: which domain, how much of it, and what differs."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from flashcheck.measures import CodeMetrics, SplittingMetrics, ValueMetrics
from flashcheck.report.cells import number, part, share, status_cell, table_of
from flashcheck.report.enumeration import Enumeration, Undefined
from flashcheck.report.models import CaseResult


def tables(cases: list[CaseResult]) -> list[RenderableType]:
    """What is covered, one table for each kind of figures, and what lies outside the domains."""
    covered = [_covered(cases)]
    round_trips = [case for case in cases if isinstance(case.metrics, SplittingMetrics)]
    values = [case for case in cases if isinstance(case.metrics, ValueMetrics)]
    codes = [case for case in cases if isinstance(case.metrics, CodeMetrics)]
    found: list[RenderableType] = [*covered]
    found += [Text(), _round_trips(round_trips)] if round_trips else []
    found += [Text(), _values(values)] if values else []
    found += [Text(), _codes(codes)] if codes else []
    outside = [text for case in cases for text in _outside(case)]
    return [*found, *([Text(), *outside] if outside else [])]


def _covered(cases: list[CaseResult]) -> RenderableType:
    table = table_of(("case", "left"), ("inputs fed", "right"), ("of the domain", "right"))
    for case in cases:
        record = case.enumeration
        if record is None:
            table.add_row(Text(case.case), "-", "-")
            continue
        table.add_row(Text(case.case), f"{record.covered:,}", _extent(record))
    return table


def _extent(record: Enumeration) -> str:
    return "all" if record.whole else f"{share(record.covered, record.size)} of {record.size:,}"


def _round_trips(cases: list[CaseResult]) -> RenderableType:
    table = table_of(
        ("split and put together", "left"),
        ("codes\nthat differ", "right"),
        ("given back\nthat differ", "right"),
        ("exact,\nsubject", "right"),
        ("exact,\nreference", "right"),
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
            share(metrics.reference_exact, case.numel),
            status_cell(case.status),
        )
    return table


def _values(cases: list[CaseResult]) -> RenderableType:
    table = table_of(
        ("values of given codes", "left"),
        ("values\nthat differ", "right"),
        ("largest\nULP", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, ValueMetrics)
        table.add_row(
            Text(case.case),
            part(metrics.value_mismatches, case.numel),
            number(metrics.value_max_ulp, ","),
            status_cell(case.status),
        )
    return table


def _codes(cases: list[CaseResult]) -> RenderableType:
    table = table_of(
        ("codes of every value", "left"),
        ("codes\nthat differ", "right"),
        ("by more\nthan 1", "right"),
        ("scales\ndiffer", "right"),
        ("codes that begin\nelsewhere", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, CodeMetrics)
        thresholds = len(case.enumeration.thresholds) if case.enumeration else 0
        table.add_row(
            Text(case.case),
            part(metrics.code_mismatches, case.numel),
            f"{metrics.code_beyond_1:,}",
            f"{metrics.scale_mismatches:,}",
            f"{metrics.thresholds_moved:,} of {thresholds:,}",
            status_cell(case.status),
        )
    return table


def _outside(case: CaseResult) -> list[RenderableType]:
    """Inputs that no algorithm of the paper defines anything for."""
    if case.enumeration is None or not case.enumeration.undefined:
        return []
    words = "; ".join(_undefined(each) for each in case.enumeration.undefined)
    return [Text(f"{case.case} outside the domain: {words}.")]


def _undefined(each: Undefined) -> str:
    given = {
        "NaN": each.gives_nan,
        "an infinity": each.gives_infinity,
        "a finite value": each.gives_finite,
    }
    back = ", ".join(f"{count:,} back as {what}" for what, count in given.items() if count)
    return f"{each.what} {each.n:,} times, {back}"
