"""Every figure, cause and contract of a report can be asked for."""

from __future__ import annotations

import json

import pytest

from flashcheck.compare import attribution
from flashcheck.compare.settings import Switch
from flashcheck.config import METRICS
from flashcheck.glossary import entries, look_up
from flashcheck.measures import CONTRACTS
from tests.conftest import CHECKOUT, Cli

CAUSES = {
    *(switch.value for switch in Switch),
    attribution.UNEXPLAINED,
    attribution.ROUNDING_BOUNDARY,
    attribution.ULP_BOUND,
    attribution.PROPAGATED,
    attribution.STRIDES_IGNORED,
    attribution.OUTSIDE_DOMAIN,
}


def test_every_metric_cause_and_contract_has_an_entry_and_no_entry_is_of_nothing() -> None:
    terms = {(entry.kind, entry.term) for entry in entries()}
    metrics = {name for models in METRICS.values() for model in models for name in model.names()}
    assert terms == {
        *(("metric", name) for name in metrics),
        *(("cause", name) for name in CAUSES),
        *(("contract", name) for name in CONTRACTS),
    }
    for entry in entries():
        assert all([entry.of, entry.meaning, entry.how, entry.source]), entry
        assert entry.meaning.endswith(".")


def test_every_cause_of_the_committed_reports_can_be_looked_up() -> None:
    seen = set()
    for path in (CHECKOUT / "reports").glob("**/*.json"):
        for case in json.loads(path.read_text()).get("cases", []):
            seen |= set((case["mismatches"] or {}).get("by_cause", {}))
    assert len(seen) > 8
    for cause in seen:
        assert [entry.kind for entry in look_up(cause)] == ["cause"] * (cause.count("+") + 1)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_command_says_what_how_and_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = cli("explain", "rounding_tie+ulp_bound")
    assert ran.code == 0
    for words in ("half away from zero", "How: ", "Source: ", "2602.23349", "ulp_bound (cause"):
        assert words in ran.out
    assert all(len(line) <= int(columns) for line in ran.out.splitlines())


def test_a_term_of_several_kinds_of_case_is_explained_for_each(cli: Cli) -> None:
    out = cli("explain", "nonfinite_disagree").out
    assert out.count("nonfinite_disagree (metric of") == 4


def test_an_unknown_term_is_one_line_with_the_near_one(cli: Cli) -> None:
    ran = cli("explain", "rounding_ties")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == ("flashcheck: explain rounding_ties: unknown; did you mean 'rounding_tie'?\n")
