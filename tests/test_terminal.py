"""A report as a person reads it: at 80 columns, without colour, and only what stands out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flashcheck.report import outliers, store, terminal
from flashcheck.report.models import CaseResult, Report, Status, Stratum, summarize
from tests.conftest import Cli
from tests.fakes import ReferenceSubject

Use = Callable[[object], None]


def shown(report: Report, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False, **options)
    console.print(terminal.render(report))
    return out.getvalue()


@pytest.fixture
def small(cli: Cli, use_subject: Use, quant: Path, tmp_path: Path) -> Report:
    use_subject(ReferenceSubject())
    cli("run", quant, "--quiet")
    return store.read(tmp_path / "reports" / "small.json")


@pytest.fixture
def sweep(cli: Cli, use_subject: Use, split: Path, tmp_path: Path) -> Report:
    use_subject(ReferenceSubject())
    cli("run", split, "--quiet", "--spec", "bf16+int8")
    return store.read(tmp_path / "reports" / "sweep.json")


def with_cases(report: Report, *cases: CaseResult) -> Report:
    summary = summarize(list(cases))
    return report.model_copy(
        update={"cases": list(cases), "summary": summary, "status": summary.status}
    )


def altered(
    case: CaseResult, /, *, metrics: dict[str, Any] | None = None, **update: Any
) -> CaseResult:
    """A case with other figures and fields; what explained its old figures is dropped."""
    assert case.metrics is not None
    return case.model_copy(
        update={"metrics": case.metrics.model_copy(update=metrics or {}), **update}
    )


def stratum(exponent: int, n: int = 65_536, **counts: int) -> Stratum:
    given = dict.fromkeys(Stratum.model_fields, 0) | {"subject_exact": n, "reference_exact": n}
    return Stratum(**{**given, **counts, "n": n, "exponent": exponent})


# ---- Figures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        (1, 2),
        (1, 3),
        (2, 3),
        (1, 1_000),
        (5, 1_048_576),
        (1, 4_194_304),
        (7, 7),
        (99, 100),
        (995, 1_000),
        (999, 1_000),
        (1_048_575, 1_048_576),
        (4_294_967_295, 4_294_967_296),
    ],
)
def test_a_share_has_the_digits_that_matter(small: Report, part: int, whole: int) -> None:
    case = altered(small.cases[0], metrics={"int_mismatches": part}, numel=whole)
    cell = re.search(r"\(([\d.e+-]+)%\)", shown(with_cases(small, case), width=120))
    assert cell
    # To 5% of what is there and of what is missing, whichever is less.
    precision = 5 * Fraction(min(part, whole - part) or 0, whole)
    assert abs(Fraction(cell[1]) - Fraction(100 * part, whole)) <= precision
    assert len(cell[1]) <= 13


@pytest.mark.parametrize("missing", [1, 10, 1_000, 40_000])
def test_100_percent_is_said_only_where_it_is_exact(small: Report, missing: int) -> None:
    whole = 4_194_304
    case = altered(small.cases[0], metrics={"int_mismatches": whole - missing}, numel=whole)
    text = shown(with_cases(small, case), width=120)
    assert f"{whole - missing:,} (99." in text
    assert "100%" not in text
    assert "100.0" not in text


def test_a_figure_that_does_not_exist_is_a_dash(small: Report) -> None:
    case = altered(small.cases[0], metrics={"nmse_ratio": None, "dequant_max_ulp": None})
    row = next(line for line in shown(with_cases(small, case)).splitlines() if case.case in line)
    assert row.split() == ["plain/momentum", "0", "0", "-", "-", "pass"]


def test_no_count_is_cut_at_80_columns(small: Report) -> None:
    size = 1_048_576
    case = altered(
        small.cases[0],
        case="adam_v_like/momentum",
        numel=size,
        status=Status.UNEXPECTED_PASS,
        metrics={
            "int_mismatches": size - 5,
            "scale_mismatches": 32_767,
            "groups": 32_768,
            "dequant_max_ulp": 16_777_216,
            "nmse_ratio": 12345.678901,
        },
    )
    text = shown(with_cases(small, case))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for figure in ("adam_v_like/momentum", "1,048,571", "32,767", "16,777,216", "12345.678901"):
        assert figure in text


@pytest.mark.parametrize("samples", [1 << 16, 1 << 24])
def test_no_count_of_a_sweep_is_cut_at_80_columns(sweep: Report, samples: int) -> None:
    strata = [stratum(e, n=samples, rho_mismatches=samples * 3 // 4) for e in range(1, 254, 4)]
    strata[9] = stratum(37, n=samples, rho_mismatches=1, recon_mismatches=samples - 1)
    n = sum(s.n for s in strata)
    case = altered(
        sweep.cases[0],
        numel=n,
        strata=strata,
        metrics={
            "subject_exact": n - 1,
            "reference_exact": n - 1,
            "rho_mismatches": n - 1,
            "recon_mismatches": n - 1,
        },
    )
    text = shown(with_cases(sweep, case))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(f"{n - 1:,}") == 4
    assert f"{samples - 1:,}" in text
    if samples == 1 << 16:
        # The built-in sweeps are of this size; of a larger one a percentage may lose digits.
        assert "…" not in text


# ---- What is shown -------------------------------------------------------------------------


def test_the_heading_says_what_ran_where(small: Report) -> None:
    text = shown(small)
    assert text.startswith("small: two tensors of a few groups\n")
    assert "fake 1.0 on native against the reference 'paper'" in text


def test_every_case_has_its_row_and_the_gravest_comes_first(small: Report) -> None:
    first, second, third, fourth = small.cases
    report = with_cases(
        small,
        first,
        altered(second, status=Status.KNOWN, reason="a known reason"),
        altered(third, status=Status.FAIL, reason="a gate is broken"),
        altered(fourth, status=Status.UNEXPECTED_PASS, reason="it passed"),
    )
    text = shown(report)
    rows = [line.split()[0] for line in text.splitlines() if re.match(r"\w+/\w+ .*\d", line)][:4]
    assert rows == ["skewed/momentum", "skewed/variance", "plain/variance", "plain/momentum"]
    for word in ("fail", "unexpected pass", "known", "pass"):
        assert word in text
    for reason in ("a known reason", "a gate is broken", "it passed"):
        assert reason in text


def test_a_case_without_figures_is_shown_with_its_reason(small: Report) -> None:
    failed = small.cases[0].model_copy(
        update={
            "metrics": None,
            "mismatches": None,
            "status": Status.ERROR,
            "reason": "quantize raised RuntimeError: an [illegal] access",
            "numel": 0,
        }
    )
    text = " ".join(shown(with_cases(small, failed, *small.cases[1:])).split())
    assert "plain/momentum error: quantize raised RuntimeError: an [illegal] access" in text
    assert "1 in error" in text
    assert "3 passed" in text


def test_where_nothing_was_compared_it_says_so(small: Report) -> None:
    nothing = small.cases[0].model_copy(
        update={
            "metrics": None,
            "mismatches": None,
            "status": Status.UNSUPPORTED,
            "reason": "the subject has no quantize",
            "numel": 0,
        }
    )
    text = shown(with_cases(small, nothing))
    assert "small: nothing compared" in text
    assert "the subject has no quantize" in text
    assert ": pass" not in text


def test_a_report_of_no_case_is_shown(small: Report) -> None:
    assert "small: nothing compared" in shown(with_cases(small))


def test_what_the_format_loses_stands_in_the_row(small: Report) -> None:
    lost = {
        "scale_overflow_groups": 1_234,
        "scale_underflow_groups": 5_678,
        "nonfinite_subject": 39_488,
        "nonfinite_reference": 39_488,
    }
    first, second, *_ = small.cases
    text = shown(with_cases(small, first, altered(second, metrics=lost)))
    row = text[text.index(second.case) :]
    for figure in ("1,234 groups", "39,488 elements", "5,678 groups"):
        assert figure in row
        assert figure not in text[: text.index(second.case)]
    assert max(map(len, text.splitlines())) <= 80


def test_colour_is_never_the_only_sign(small: Report) -> None:
    plain = shown(small)
    coloured = shown(small, force_terminal=True, color_system="truecolor", _environ={})
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_no_color_is_obeyed(small: Report) -> None:
    text = shown(small, force_terminal=True, color_system="truecolor", _environ={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[(\d+;)*(3\d|4\d|9\d|10\d)m", text)


# ---- Sweeps --------------------------------------------------------------------------------


def of_strata(sweep: Report, strata: list[Stratum]) -> str:
    return shown(with_cases(sweep, altered(sweep.cases[0], strata=strata)))


def test_a_sweep_of_equal_buckets_is_totals_and_a_sentence(sweep: Report) -> None:
    text = of_strata(sweep, [stratum(e, rho_mismatches=50) for e in range(1, 254, 4)])
    assert "None of the 64 exponents stands out." in text
    assert len(text.splitlines()) < 25
    for total in ("values given back bit for bit", "mean relative error", "codes that differ"):
        assert total in text


def test_the_buckets_that_stand_out_are_named_and_the_others_summed(sweep: Report) -> None:
    strata = [stratum(e, rho_mismatches=50) for e in range(1, 254, 4)]
    strata[2] = stratum(9, rho_mismatches=900, subject_exact=32_768)
    strata[40] = stratum(161, rho_mismatches=50, recon_mismatches=30)
    text = of_strata(sweep, strata)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "9 (2^-118)" in rows["9"]
    assert "900" in rows["9"].split()
    assert "50%" in rows["9"].split()
    assert "161 (2^34)" in rows["161"]
    assert f"the other 62    {62 * 65_536:,}" in text
    assert f"{62 * 50:,}" in rows["the"]
    assert len(text.splitlines()) < 30


def test_many_that_stand_out_are_summed_too(sweep: Report) -> None:
    strata = [stratum(e) for e in range(0, 200)]
    strata += [stratum(e, recon_mismatches=e) for e in range(200, 230)]
    text = of_strata(sweep, strata)
    assert "more like these" in text
    assert "the other 200" in text
    shown_exponents = re.findall(r"^(2\d\d) \(2\^", text, flags=re.MULTILINE)
    assert 5 <= len(shown_exponents) <= 12
    hidden = 30 - len(shown_exponents)
    assert f"{hidden} more like these" in text
    assert shown_exponents == sorted(shown_exponents)
    # The farthest are those that are named.
    assert "229" in shown_exponents


# ---- Which stand out -----------------------------------------------------------------------


def found(strata: list[Stratum]) -> list[int]:
    return [s.exponent for s in outliers.find(strata).outlying]


def test_chance_alone_stands_out_nowhere() -> None:
    # 2^16 values at a share of 1 in 1,000: a standard deviation of 8.
    strata = [stratum(e, rho_mismatches=65 + 8 * (e % 7 - 3)) for e in range(256)]
    assert found(strata) == []


def test_one_that_is_far_off_stands_out() -> None:
    strata = [stratum(e, rho_mismatches=65) for e in range(64)]
    strata[5] = stratum(5, rho_mismatches=65 + 8 * 7)
    assert found(strata) == [5]


@pytest.mark.parametrize(
    "count",
    [
        "rho_mismatches",
        "recon_mismatches",
        "subject_exact",
        "reference_exact",
        "nonfinite_disagree",
    ],
)
def test_every_count_can_stand_out(count: str) -> None:
    strata = [stratum(e) for e in range(64)]
    strata[7] = stratum(7, **{count: 40_000})
    assert found(strata) == [7]


def test_where_all_others_are_0_a_handful_stands_out_and_the_worst_is_first() -> None:
    strata = [stratum(e) for e in range(64)]
    strata[3] = stratum(3, recon_mismatches=10)
    strata[9] = stratum(9, recon_mismatches=1_000)
    assert found(strata) == [9, 3]


def test_a_part_of_a_sweep_is_not_lost() -> None:
    strata = [stratum(e, rho_mismatches=e * e * 4) for e in range(64)]
    parted = outliers.find(strata)
    assert sorted(s.exponent for s in [*parted.outlying, *parted.others]) == list(range(64))


def test_empty_strata_and_none_at_all() -> None:
    assert outliers.find([]) == outliers.Outliers([], [])
    assert found([stratum(1, n=0)]) == []
