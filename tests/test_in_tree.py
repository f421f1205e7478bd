"""flashcheck's own Triton kernels differ from the reference in no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flashcheck import catalog, runner, selection
from flashcheck.config import SplittingConfig
from flashcheck.report.models import CaseResult, Selection, Status
from flashcheck.subjects import registry
from flashcheck.subjects.base import Subject

SUITES = ["quant", "ecc", "int16", "edge"]


@pytest.fixture(scope="module")
def subject() -> Subject:
    loaded, _ = registry.load("triton", "interpreter")
    return loaded


def cases(subject: Any, name: str) -> Iterator[CaseResult]:
    """A suite's cases, of a sweep a few values of each exponent."""
    (config,) = catalog.find([name])
    if isinstance(config, SplittingConfig):
        fewer = config.sweep.model_copy(update={"samples": 2048})
        config = config.model_copy(update={"sweep": fewer, "drawn_after": []})
    suite = selection.make_suite(config, Selection())
    yield from runner.run_cases(runner.Plan(subject=subject), suite, lambda _: None)


@pytest.mark.parametrize("suite", SUITES)
def test_no_bit_differs_and_nothing_is_a_known_deviation(suite: str, subject: Subject) -> None:
    count = 0
    for case in cases(subject, suite):
        count += 1
        assert case.status is Status.PASS, (case.case, case.reason)
        assert case.mismatches
        assert case.mismatches.total == 0, case.case
    assert count > 0


def test_a_change_of_one_kernel_is_seen(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(subject).reconstruct

    def wrong(self: Any, narrow: Any, ecc: Any) -> Any:
        values = right(self, narrow, ecc)
        values[-1:] += values[-1:].abs() * 2.0**-20
        return values

    monkeypatch.setattr(type(subject), "reconstruct", wrong)
    (case,) = cases(subject, "ecc")
    assert case.status is Status.FAIL
    assert case.mismatches
    assert case.mismatches.by_cause["unexplained"] > 0
