"""The pictures of a report, as Plotly figures; each shows data that the report has as they are."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from flashcheck.report import outcomes
from flashcheck.report.enumeration import Range, Threshold
from flashcheck.report.models import CaseResult, Report
from flashcheck.report.plain import visible

COLOURS = ("#3b7dd8", "#d97706", "#2f9e6e", "#b0479c", "#8a63d2", "#a58a00", "#1f9bb4", "#c2453d")
"""Told apart on white and on black; lines are told apart by their dashes too, bars by patterns."""

_DASHES = ("solid", "dash", "dot", "dashdot")
_PATTERNS = ("", "/", "x", ".", "\\", "+", "|", "-")
_MOST = 12
_MOST_ROWS = 40

_EXPONENT = "float32 exponent field (field - 127 is the power of two)"


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows.

    Attributes:
        data: where in the report's JSON its numbers are.
        broad: whether it needs all of a page's width.
    """

    title: str
    caption: str
    data: str
    figure: go.Figure
    broad: bool = False


def pictures(report: Report) -> Iterator[Picture]:
    """All that a report has the data for."""
    for case in report.cases:
        yield from _shares(case)
    yield from _errors(report)
    yield from _causes(report)
    yield from _distances(report)
    for case in report.cases:
        yield from _thresholds(case)
    for case in report.cases:
        yield from _trajectory(case)


def _figure(traces: Sequence[go.Scatter | go.Bar | go.Heatmap], x: str, y: str) -> go.Figure:
    """Without colours of its own but the data's: the page gives it those of its theme."""
    figure = go.Figure(traces)
    figure.update_layout(
        template=go.layout.Template(),
        colorway=COLOURS,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        xaxis={"title": {"text": x}, "automargin": True},
        yaxis={"title": {"text": y}, "automargin": True},
        hovermode="closest",
    )
    return figure


def _line(name: str, x: Sequence[float], y: Sequence[float | None], dash: int) -> go.Scatter:
    return go.Scatter(
        name=_text(name), x=x, y=y, mode="lines", line={"dash": _DASHES[dash % len(_DASHES)]}
    )


def _text(words: str) -> str:
    """A report's words as Plotly is to show them: it would read tags."""
    return html.escape(visible(words))


# ---- By exponent ---------------------------------------------------------------------------


def _shares(case: CaseResult) -> Iterator[Picture]:
    """What is exact, and what agrees, of each float32 exponent of a sweep or a domain."""
    where = "strata" if case.strata else "enumeration.buckets"
    counts: list[tuple[int, int, dict[str, int]]] = [
        (stratum.exponent, stratum.n, stratum.model_dump(exclude={"exponent", "n"}))
        for stratum in case.strata
    ]
    if case.enumeration:
        counts = [(b.exponent, b.n, b.counts) for b in case.enumeration.buckets]
    counts = [each for each in counts if each[1]]
    shown = {
        "exact, subject": ("subject_exact", False),
        "exact, reference": ("reference_exact", False),
        "correction codes agree": ("rho_mismatches", True),
        "given back, agree": ("recon_mismatches", True),
        "values agree": ("value_mismatches", True),
        "codes agree": ("code_mismatches", True),
    }
    exponents = [exponent for exponent, _, _ in counts]
    lines: list[go.Scatter] = []
    for name, (count, rest) in shown.items():
        if counts and all(count in has for _, _, has in counts):
            shares = [((n - has[count]) if rest else has[count]) / n for _, n, has in counts]
            lines.append(_line(name, exponents, shares, len(lines)))
    if lines:
        figure = _figure(lines, _EXPONENT, "share of the exponent's inputs")
        figure.update_yaxes(tickformat=",.4~%")
        yield Picture(
            f"{case.case}: exact and equal, by exponent",
            "Exact is what comes back with the bits that went in; agreeing is what has the bits "
            "of the reference.",
            f"cases[].{where}",
            figure,
        )


def _errors(report: Report) -> Iterator[Picture]:
    """How far values come back from themselves, over their magnitude."""
    cases, rest = _most([case for case in report.cases if case.errors])
    lines = []
    for number, case in enumerate(cases):
        for side, dash in (("subject", "solid"), ("reference", "dot")):
            lines.append(
                go.Scatter(
                    name=_text(case.case),
                    legendgroup=_text(case.case),
                    showlegend=side == "subject",
                    x=[at.exponent for at in case.errors],
                    y=[getattr(at, side) or None for at in case.errors],
                    mode="lines+markers",
                    marker={"size": 4},
                    line={"dash": dash, "color": COLOURS[number % len(COLOURS)]},
                )
            )
    if lines:
        figure = _figure(lines, _EXPONENT, "mean of |y-x|/|x|")
        figure.update_yaxes(type="log", dtick=1, exponentformat="power")
        figure.update_layout(height=520)
        yield Picture(
            "Error over magnitude",
            "The mean relative error of a round trip, subject solid and reference dotted; where "
            f"it is 0 there is no point.{rest}",
            "cases[].errors",
            figure,
            broad=True,
        )


def _most(cases: Sequence[CaseResult], most: int = _MOST) -> tuple[list[CaseResult], str]:
    """As many cases as a picture can hold, those that differ most, and a word on the others."""
    ranked = sorted(cases, key=lambda case: -(case.mismatches.total if case.mismatches else 0))
    hidden = len(cases) - most
    return ranked[:most], f" {hidden} more cases are in the report only." if hidden > 0 else ""


# ---- Of what differs -----------------------------------------------------------------------


def _causes(report: Report) -> Iterator[Picture]:
    """Why outputs differ, by case."""
    cases, rest = _most([case for case in report.cases if outcomes.differs(case)], _MOST_ROWS)
    found = [(case.case, case.mismatches) for case in cases if case.mismatches]
    if not found:
        return
    names = sorted({cause for _, mismatches in found for cause in mismatches.by_cause})
    labels = [f"{_halved(name)} ({mismatches.total:,})" for name, mismatches in found]
    bars = [
        go.Bar(
            name=_text(cause),
            y=labels,
            x=[mismatches.by_cause.get(cause, 0) for _, mismatches in found],
            orientation="h",
            marker={"pattern": {"shape": _PATTERNS[number % len(_PATTERNS)]}},
            customdata=[mismatches.by_cause.get(cause, 0) for _, mismatches in found],
            hovertemplate="%{customdata:,} of %{y}<br>%{fullData.name}<extra></extra>",
        )
        for number, cause in enumerate(names)
    ]
    figure = _figure(bars, "percent", "")
    figure.update_layout(
        barmode="stack",
        barnorm="percent",
        height=220 + 36 * len(found),
        yaxis={"autorange": "reversed", "tickfont": {"size": 10}},
    )
    yield Picture(
        "Causes, by case",
        "What the mismatches of each case are put down to, in percent of them; their number is "
        f"beside each case.{rest}",
        "cases[].mismatches.by_cause",
        figure,
    )


def _halved(name: str) -> str:
    """A case's name over two lines where it has many parts."""
    parts = name.split("/")
    half = -(-len(parts) // 2)
    ends = ["/".join(parts[:half]), "/".join(parts[half:])]
    return _text("/".join(ends)) if len(parts) < 4 else "/<br>".join(map(_text, ends))


def _distances(report: Report) -> Iterator[Picture]:
    """A histogram of how far apart outputs are that differ."""
    differing = [case for case in report.cases if case.mismatches and case.mismatches.distances]
    cases, rest = _most(differing)
    rows = [
        (f"{case.case}, {output}", counts)
        for case in cases
        if case.mismatches
        for output, counts in case.mismatches.distances.items()
    ]
    if not rows:
        return
    reached = {label for _, counts in rows for label in counts}
    bins = sorted(reached, key=_place)
    bars = [
        go.Bar(
            name=_text(name),
            x=bins,
            y=[counts.get(label) for label in bins],
            marker={"pattern": {"shape": _PATTERNS[number % len(_PATTERNS)]}},
        )
        for number, (name, counts) in enumerate(rows)
    ]
    figure = _figure(bars, "codes, or ULP, apart: from this to below its double", "mismatches")
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    yield Picture(
        "Distances",
        "How far subject and reference are apart where they differ: codes of codes, ULP of "
        f"values; 0 is a zero of the other sign, nan a NaN on one side alone.{rest}",
        "cases[].mismatches.distances",
        figure,
    )


def _place(label: str) -> tuple[int, int]:
    """Numbers in their order, then what is none."""
    return (0, int(label)) if label.isdecimal() and label.isascii() else (1, 0)


# ---- Of an enumeration, and of training ----------------------------------------------------


def _thresholds(case: CaseResult) -> Iterator[Picture]:
    """Where each code begins."""
    if not case.enumeration or not case.enumeration.thresholds:
        return
    thresholds = case.enumeration.thresholds
    codes = [threshold.code for threshold in thresholds]
    lines = [
        _line(side, codes, [_low(threshold, side) for threshold in thresholds], dash)
        for dash, side in enumerate(("subject", "reference"))
    ]
    later = go.Scatter(
        name="the subject's beginning, float32 numbers later",
        x=codes,
        y=[_later(threshold) for threshold in thresholds],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 5},
        yaxis="y2",
        text=[_bits(threshold) for threshold in thresholds],
        hovertemplate="code %{x}<br>%{text}<extra></extra>",
    )
    figure = _figure([*lines, later], "code", "least input")
    figure.update_layout(
        height=520,
        yaxis={"domain": [0.45, 1]},
        yaxis2={"domain": [0, 0.35], "title": {"text": "later by"}, "automargin": True},
    )
    yield Picture(
        f"{case.case}: where codes begin",
        "The least share of its group's absmax that gets each code, and by how many float32 "
        "numbers the subject begins later than the reference.",
        "cases[].enumeration.thresholds",
        figure,
        broad=True,
    )


def _low(threshold: Threshold, side: str) -> float | None:
    found = threshold.subject if side == "subject" else threshold.reference
    return found.low if found else None


def _later(threshold: Threshold) -> int | None:
    mine, theirs = threshold.subject, threshold.reference
    return _ordinal(mine) - _ordinal(theirs) if mine and theirs else None


def _ordinal(found: Range) -> int:
    """The place of where a code begins among the float32 numbers; both zeros are 0."""
    bits = int(found.low_bits, 16)
    magnitude = bits & 0x7FFFFFFF
    return magnitude if bits == magnitude else -magnitude


def _bits(threshold: Threshold) -> str:
    mine, theirs = threshold.subject, threshold.reference
    return (
        f"subject {mine.low_bits if mine else 'never'}, "
        f"reference {theirs.low_bits if theirs else 'never'}"
    )


def _trajectory(case: CaseResult) -> Iterator[Picture]:
    """How far training has come from exact training."""
    if not case.trajectory:
        return
    steps = [point.step for point in case.trajectory]
    sides = ("subject", "reference", "naive")
    lines = [
        _line(
            "all bf16" if side == "naive" else side,
            steps,
            [getattr(point, f"error_{side}") or None for point in case.trajectory],
            dash,
        ).update(mode="lines+markers")
        for dash, side in enumerate(sides)
    ]
    figure = _figure(lines, "step", "distance from float64")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    yield Picture(
        case.case,
        "Distance from the same optimizer in float64, relative to the way that the weights have "
        "gone; 'all bf16' keeps parameters and moments in bfloat16 alone.",
        "cases[].trajectory",
        figure,
    )
