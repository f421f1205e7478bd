"""Optimizer steps in a terminal: single ones, and how far two sides part in many."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from flashcheck.measures import StepMetrics, TrajectoryMetrics
from flashcheck.report.cells import number, part, status_cell, table_of
from flashcheck.report.models import CaseResult


def step_table(cases: list[CaseResult]) -> Table:
    """Of single steps, what is stored otherwise; weights are parameters with their corrections."""
    table = table_of(
        ("step", "left"),
        ("params\nthat differ", "right"),
        ("ecc codes\nthat differ", "right"),
        ("moments\nthat differ", "right"),
        ("weights,\nmax ULP", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, StepMetrics)
        moments = [metrics.momentum_mismatches, metrics.variance_mismatches]
        there = [count for count in moments if count is not None]
        table.add_row(
            _name(case.case),
            "-" if metrics.param_agree is None else part(metrics.param_mismatches, case.numel),
            _part(metrics.ecc_mismatches, case.numel),
            _part(sum(there) if there else None, len(there) * case.numel),
            number(metrics.weight_max_ulp, ","),
            status_cell(case.status),
        )
    return table


def trajectory_table(cases: list[CaseResult]) -> Table:
    """Of many steps, where the sides part, and how far from exact training each comes out."""
    table = table_of(
        ("trajectory", "left"),
        ("differ\nfrom step", "right"),
        ("params that\ndiffer at last", "right"),
        ("error,\nsubject", "right"),
        ("error,\nreference", "right"),
        ("error,\nall bf16", "right"),
        ("status", "left"),
    )
    for case in cases:
        metrics = case.metrics
        assert isinstance(metrics, TrajectoryMetrics)
        size = case.numel // metrics.steps if metrics.steps else 0
        table.add_row(
            _name(case.case.removeprefix("trajectory/")),
            number(metrics.first_difference, ","),
            part(metrics.param_differ, size),
            number(metrics.error_subject, ".3e"),
            number(metrics.error_reference, ".3e"),
            number(metrics.error_naive, ".3e"),
            status_cell(case.status),
        )
    return table


ERRORS = (
    "Errors are distances from the same optimizer in float64 after the last step, relative to the "
    "way that the weights have gone; 'all bf16' keeps parameters and moments in bfloat16 alone."
)


def _name(case: str) -> Text:
    """Over two lines: what the optimizer and its weights are, and what it is fed."""
    parts = case.split("/")
    return Text("/".join(parts[:2]) + "/\n  " + "/".join(parts[2:]))


def _part(count: int | None, whole: int) -> str:
    return "-" if count is None else part(count, whole)
