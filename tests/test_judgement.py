"""From figures to a verdict: gates, what is known, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from flashcheck.config import Gate, KnownDeviation
from flashcheck.errors import ExitCode
from flashcheck.measures import QuantizationMetrics
from flashcheck.report.models import CaseResult, Contract, Report, Status, exit_code, summarize
from flashcheck.suites.base import Measured, judge


def metrics(**given: float | None) -> QuantizationMetrics:
    """The figures of a perfect case, but for those given."""
    figures: dict[str, Any] = dict.fromkeys(QuantizationMetrics.names(), 0)
    figures |= dict.fromkeys(("int_agree", "int_within_1", "scale_agree", "dequant_bit_agree"), 1.0)
    figures |= {"nmse_subject": 0.25, "nmse_reference": 0.25, "nmse_ratio": 1.0}
    return QuantizationMetrics(**{**figures, **given})


def gate(metric: str, op: str, limit: float) -> Gate:
    return Gate.model_validate({"metric": metric, "op": op, "limit": limit, "reason": "r"})


GATES = [
    gate("int_agree", ">=", 0.9999),
    gate("nmse_ratio", ">=", 0.999),
    gate("nmse_ratio", "<=", 1.001),
    gate("nonfinite_disagree", "==", 0),
]


def known(*breaks: str, case: str = "a/b", reason: str = "as known") -> KnownDeviation:
    return KnownDeviation(subject="s", case=case, breaks=list(breaks), reason=reason)


def judged(
    measured: Measured, deviations: Sequence[KnownDeviation] = (), gates: Sequence[Gate] = GATES
) -> CaseResult:
    return judge(measured, gates=gates, known=deviations, duration_s=1.0)


def case(status: Status, numel: int = 5) -> CaseResult:
    return CaseResult(case="c", status=status, numel=numel, duration_s=0)


def test_a_case_that_holds_every_gate_passes() -> None:
    result = judged(Measured("a/b", numel=3, metrics=metrics()))
    assert (result.status, result.reason) == (Status.PASS, None)
    assert [g.ok for g in result.gates] == [True] * 4
    assert result.numel == 3


@pytest.mark.parametrize(
    ("figure", "value", "broken"),
    [
        ("int_agree", 0.99989, [0]),
        ("int_agree", 0.9999, []),
        ("int_agree", None, [0]),
        ("nmse_ratio", 0.9989, [1]),
        ("nmse_ratio", 1.0011, [2]),
        ("nmse_ratio", 0.999, []),
        ("nmse_ratio", 1.001, []),
        ("nmse_ratio", None, [1, 2]),
        ("nonfinite_disagree", 1, [3]),
    ],
)
def test_a_broken_gate_fails(figure: str, value: float | None, broken: list[int]) -> None:
    result = judged(Measured("a/b", numel=3, metrics=metrics(**{figure: value})))
    assert [i for i, g in enumerate(result.gates) if not g.ok] == broken
    assert result.status is (Status.FAIL if broken else Status.PASS)
    assert all(result.gates[i].value == value for i in broken)
    words = [f"must be {GATES[i].op} {GATES[i].limit:.9g}" for i in broken]
    assert not words or any(word in str(result.reason) for word in words)


def test_a_null_figure_says_that_it_has_no_value() -> None:
    result = judged(Measured("a/b", numel=3, metrics=metrics(int_agree=None)))
    assert result.reason == "int_agree has no value, must be >= 0.9999"


def test_the_reason_has_enough_digits_to_show_the_difference() -> None:
    result = judged(Measured("a/b", numel=3, metrics=metrics(int_agree=0.99989999)))
    assert result.reason == "int_agree is 0.99989999, must be >= 0.9999"


def test_every_broken_gate_is_in_the_reason() -> None:
    result = judged(Measured("a/b", metrics=metrics(int_agree=0.5, nonfinite_disagree=7)))
    assert result.reason
    assert "int_agree is 0.5" in result.reason
    assert "nonfinite_disagree is 7, must be == 0" in result.reason


def test_what_is_known_is_not_a_failure_and_gives_its_reason() -> None:
    result = judged(Measured("a/b", metrics=metrics(int_agree=0.5)), [known("int_agree")])
    assert result.status is Status.KNOWN
    assert result.reason
    assert "as known" in result.reason
    assert not result.gates[0].ok


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"int_agree": 0.5}, Status.KNOWN),
        ({"int_agree": None}, Status.KNOWN),
        ({"int_agree": 0.5, "nonfinite_disagree": 1}, Status.FAIL),
        ({"nonfinite_disagree": 1}, Status.FAIL),
        ({}, Status.UNEXPECTED_PASS),
    ],
)
def test_a_known_deviation_covers_exactly_what_it_names(
    broken: dict[str, Any], expected: Status
) -> None:
    result = judged(Measured("a/b", metrics=metrics(**broken)), [known("int_agree")])
    assert result.status is expected


def test_a_deviation_that_is_known_in_part_is_reported() -> None:
    result = judged(
        Measured("a/b", metrics=metrics(int_agree=0.5)), [known("int_agree", "nonfinite_disagree")]
    )
    assert result.status is Status.UNEXPECTED_PASS
    assert result.reason
    assert "nonfinite_disagree" in result.reason
    assert "int_agree" not in result.reason


def test_a_deviation_of_another_case_excuses_nothing() -> None:
    deviation = known("int_agree", case="a/c")
    result = judged(Measured("a/b", metrics=metrics(int_agree=0.5)), [deviation])
    assert result.status is Status.FAIL
    assert judged(Measured("a/b", metrics=metrics()), [deviation]).status is Status.PASS


def test_a_broken_contract_fails_whatever_the_figures() -> None:
    contract = Contract(name="same_bits_twice", ok=False, detail="3 codes differ")
    result = judged(Measured("a/b", metrics=metrics(), contracts=[contract]))
    assert result.status is Status.FAIL
    assert result.reason == "same_bits_twice: 3 codes differ"


@pytest.mark.parametrize("status", [Status.ERROR, Status.UNSUPPORTED])
@pytest.mark.parametrize("deviations", [[], [known("int_agree")]])
def test_a_case_that_could_not_be_measured(
    status: Status, deviations: list[KnownDeviation]
) -> None:
    result = judged(Measured("a/b", problem=(status, "why")), deviations)
    assert (result.status, result.reason, result.gates) == (status, "why", [])


# ---- The suite's verdict -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([Status.PASS, Status.PASS], "pass"),
        ([Status.PASS, Status.KNOWN], "pass"),
        ([Status.KNOWN], "pass"),
        ([Status.PASS, Status.UNSUPPORTED], "pass"),
        ([Status.PASS, Status.FAIL], "fail"),
        ([Status.PASS, Status.UNEXPECTED_PASS], "fail"),
        ([Status.PASS, Status.ERROR], "error"),
        ([Status.FAIL, Status.ERROR], "error"),
    ],
)
def test_a_suite_is_judged_by_its_gravest_case(statuses: list[Status], verdict: str) -> None:
    cases = [case(status, 0 if status is Status.UNSUPPORTED else 5) for status in statuses]
    assert summarize(cases).status == verdict


def test_the_summary_counts_each_outcome() -> None:
    cases = [case(status) for i, status in enumerate(Status) for _ in range(i + 1)]
    summary = summarize(cases)
    order = list(Status)
    counts = {
        Status.PASS: summary.passed,
        Status.FAIL: summary.failed,
        Status.KNOWN: summary.known,
        Status.UNEXPECTED_PASS: summary.unexpected_pass,
        Status.UNSUPPORTED: summary.unsupported,
        Status.ERROR: summary.errors,
    }
    assert counts == {status: order.index(status) + 1 for status in Status}
    assert summary.cases == len(cases)
    assert summary.elements == 5 * len(cases)


@pytest.mark.parametrize(
    "cases",
    [
        [],
        [case(Status.UNSUPPORTED, 0)],
        [case(Status.PASS, 0)],
        [case(Status.KNOWN, 0), case(Status.UNSUPPORTED, 0)],
    ],
)
def test_nothing_compared_is_never_a_pass(cases: list[CaseResult]) -> None:
    summary = summarize(cases)
    assert summary.status == "nothing_compared"
    assert summary.elements == 0


def report(status: str) -> Report:
    return Report.model_construct(status=status, started_at=datetime.now(timezone.utc))


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass"], ExitCode.OK),
        (["pass", "pass"], ExitCode.OK),
        (["fail"], ExitCode.GATE_FAILED),
        (["pass", "fail"], ExitCode.GATE_FAILED),
        (["nothing_compared"], ExitCode.UNAVAILABLE),
        (["pass", "nothing_compared"], ExitCode.UNAVAILABLE),
        (["error", "pass"], ExitCode.ERROR),
        (["fail", "error", "pass"], ExitCode.ERROR),
        (["nothing_compared", "error"], ExitCode.ERROR),
        ([], ExitCode.UNAVAILABLE),
    ],
)
def test_the_exit_code_of_several_suites(statuses: list[str], code: ExitCode) -> None:
    assert exit_code([report(status) for status in statuses]) == code


def test_the_exit_codes_are_those_of_the_design() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0, "GATE_FAILED": 1, "USAGE": 2, "UNAVAILABLE": 3, "ERROR": 4, "INTERRUPTED": 130,
    }  # fmt: skip
