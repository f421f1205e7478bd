"""What changed between two runs: found in reports, shown, and turned into an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashcheck.comparing import compare, fails, reports_of
from flashcheck.report.comparison import CaseChange, Change, Comparison
from flashcheck.report.models import Report, Status
from flashcheck.report.store import read
from tests.conftest import CHECKOUT, Cli, strict_json

CPU = CHECKOUT / "reports" / "interpreter-flashoptim-0.1.4"
GPU = CHECKOUT / "reports" / "nvidia-h200-flashoptim-0.1.4"
Edit = Callable[[dict[str, Any]], None]


def edited(edit: Edit) -> Report:
    """The committed quantization report with something else in it."""
    data = json.loads((CPU / "quant.json").read_text())
    edit(data)
    return Report.model_validate(data)


def nothing(_: dict[str, Any]) -> None: ...


def against(edit: Edit) -> Comparison:
    base = edited(nothing)
    return compare({"quant": base}, {"quant": edited(edit)}, labels=("a", "b"))


def only_case(comparison: Comparison) -> CaseChange:
    (suite,) = comparison.suites
    (case,) = suite.cases
    assert suite.unchanged == 13
    return case


def set_case(index: int, **changes: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data["cases"][index].update(changes)

    return edit


# ---- What is found -------------------------------------------------------------------------


def test_a_report_is_like_itself_whenever_it_was_written_and_however_long_it_took() -> None:
    def later(data: dict[str, Any]) -> None:
        data |= {"started_at": "2027-01-01T00:00:00Z", "duration_s": 99.0, "command": ["other"]}
        data["cases"][0]["duration_s"] = 98.0

    made = against(later)
    assert not made.changed
    assert not made.regression
    assert made.environment == []
    assert made.suites[0].unchanged == 14


@pytest.mark.parametrize(
    ("base", "new", "worse"),
    [
        ("pass", "known", True),
        ("pass", "fail", True),
        ("pass", "error", True),
        ("pass", "unsupported", True),
        ("known", "unexpected_pass", True),
        ("fail", "error", True),
        ("fail", "pass", False),
        ("known", "pass", False),
        ("error", "fail", False),
    ],
)
def test_a_graver_status_is_a_regression(base: str, new: str, worse: bool) -> None:
    before, after = edited(set_case(0, status=base)), edited(set_case(0, status=new))
    case = only_case(compare({"quant": before}, {"quant": after}, labels=("a", "b")))
    assert (case.base, case.new, case.regression) == (Status(base), Status(new), worse)


def test_a_metric_that_moved_has_both_values_and_is_no_regression() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["cases"][2]["metrics"]["int_mismatches"] += 7

    made = against(edit)
    case = only_case(made)
    (metric,) = case.metrics
    assert (metric.what, float(metric.new or 0) - float(metric.base or 0)) == ("int_mismatches", 7)
    assert made.changed
    assert not made.regression
    assert fails(made, "any")
    assert not fails(made, "regression")


def test_causes_that_appear_or_go_are_counted_from_none() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["cases"][0]["mismatches"]["by_cause"] = {"ulp_bound": 4}

    case = only_case(against(edit))
    assert case.causes == [
        Change(what="rounding_tie", base=1, new=0),
        Change(what="ulp_bound", base=0, new=4),
    ]


def test_other_inputs_are_said() -> None:
    case = only_case(against(set_case(3, input_sha256="0" * 64)))
    assert case.inputs_differ
    assert not case.metrics


def test_a_case_that_is_gone_is_a_regression_and_one_that_fails_anew_too() -> None:
    def shorter(data: dict[str, Any]) -> None:
        del data["cases"][0]

    assert only_case(against(shorter)).regression
    short, whole = edited(shorter), edited(nothing)
    grown = compare({"quant": short}, {"quant": whole}, labels=("a", "b")).suites[0].cases[0]
    assert (grown.base, grown.new, grown.regression) == (None, Status.PASS, False)
    failing = edited(set_case(0, status="fail"))
    grown = compare({"quant": short}, {"quant": failing}, labels=("a", "b")).suites[0].cases[0]
    assert grown.regression


def test_cases_that_were_not_selected_are_no_regression() -> None:
    def selected(data: dict[str, Any]) -> None:
        data["cases"] = data["cases"][:2]
        data["selection"]["battery"] = ["normal"]

    (suite,) = against(selected).suites
    assert (suite.not_selected, suite.cases, suite.regression) == (12, [], False)
    assert suite.settings == [Change(what="selection", base="all", new="battery ['normal']")]


def test_the_environment_and_the_configuration_are_compared() -> None:
    def other(data: dict[str, Any]) -> None:
        data["environment"]["triton"] = "9.9.9"
        data["environment"]["shims"] = []
        data["subject"]["version"] = "0.2.0"
        data["config"]["seed"] = 8
        data["config"]["gates"] = []

    made = against(other)
    there = {change.what: (change.base, change.new) for change in made.environment}
    assert there["triton"] == ("3.9.0", "9.9.9")
    assert there["subject"] == ("flashoptim 0.1.4", "flashoptim 0.2.0")
    assert there["shims"][1] is None
    assert made.suites[0].settings == [
        Change(what="gates", base="…", new="…"),
        Change(what="seed", base=7, new=8),
    ]
    # An environment alone changes no result.
    assert made.suites[0].cases == []


def test_a_suite_of_one_run_only_is_said_and_its_loss_is_a_regression() -> None:
    quant, ecc = read(CPU / "quant.json"), read(CPU / "ecc.json")
    lost = compare({"quant": quant, "ecc": ecc}, {"quant": quant}, labels=("a", "b"))
    assert lost.regression
    won = compare({"quant": quant}, {"quant": quant, "ecc": ecc}, labels=("a", "b"))
    assert not won.regression
    assert won.changed


def test_folders_are_compared_suite_by_suite() -> None:
    made = compare(reports_of(CPU), reports_of(GPU), labels=("interpreter", "H200"))
    by_name = {suite.suite: suite for suite in made.suites}
    assert {"quant", "ecc", "int16", "edge"} <= by_name.keys()
    assert not by_name["quant"].regression
    assert len(by_name["quant"].cases) == 10
    assert {"backend", "device", "triton"} <= {change.what for change in made.environment}


# ---- The command ---------------------------------------------------------------------------


@pytest.fixture
def changed_file(tmp_path: Path) -> Callable[[Edit], str]:
    def write(edit: Edit) -> str:
        path = tmp_path / "new.json"
        path.write_text(edited(edit).model_dump_json())
        return str(path)

    return write


@pytest.mark.parametrize(
    ("edit", "fail_on", "code", "words"),
    [
        (nothing, "any", 0, "no result changed"),
        (
            set_case(0, numel=3, status="fail", reason="why it fails"),
            "regression",
            1,
            "why it fails",
        ),
        (set_case(0, input_sha256="0" * 64), "regression", 0, "none regressed, 1 changed"),
        (set_case(0, input_sha256="0" * 64), "any", 1, "other inputs were fed"),
    ],
)
@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_exit_code_follows_fail_on(
    cli: Cli,
    changed_file: Callable[[Edit], str],
    monkeypatch: pytest.MonkeyPatch,
    edit: Edit,
    fail_on: str,
    code: int,
    words: str,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = cli("compare", str(CPU / "quant.json"), changed_file(edit), "--fail-on", fail_on)
    assert ran.code == code
    assert words in ran.out
    assert all(len(line) <= int(columns) for line in ran.out.splitlines())


def test_json_is_the_whole_comparison(cli: Cli, changed_file: Callable[[Edit], str]) -> None:
    new = changed_file(set_case(0, status="fail"))
    ran = cli("compare", str(CPU / "quant.json"), new, "--json")
    assert ran.code == 1
    made = Comparison.model_validate(ran.json())
    assert made.suites[0].cases[0].regression


def test_hostile_text_stays_text(cli: Cli, changed_file: Callable[[Edit], str]) -> None:
    bad = "\x1b[31m[bold]<b>"
    ran = cli(
        "compare", str(CPU / "quant.json"), changed_file(set_case(0, status="fail", reason=bad))
    )
    assert "\x1b[31m" not in ran.out
    assert "[bold]<b>" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json", str(CPU)], "nowhere.json: no such file"),
        ([str(CPU), "."], "no report in this folder"),
        ([str(CPU / "quant.json"), str(CPU / "ecc.json")], "no suite is in both"),
        ([str(CPU), str(CPU), "--fail-on", "all"], "--fail-on all: unknown"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("compare", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


def test_two_reports_of_one_suite_in_a_folder_are_refused(cli: Cli, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text((CPU / "ecc.json").read_text())
    ran = cli("compare", str(tmp_path), str(CPU))
    assert ran.code == 2
    assert "two reports of suite 'ecc'" in ran.err


# ---- --baseline ----------------------------------------------------------------------------


def test_a_run_is_held_against_its_baseline(cli: Cli, quant: Path, tmp_path: Path) -> None:
    subject = f"{CHECKOUT}/tests/fakes.py:ReferenceSubject"
    before = tmp_path / "before.json"
    first = cli("run", str(quant), "--subject", subject, "--out", str(before))
    assert first.code == 0
    now = ["run", str(quant), "--subject", subject, "--out", str(tmp_path / "now.json")]
    same = cli(*now, "--baseline", str(before))
    assert same.code == 0
    assert "no result changed" in same.out
    better = json.loads(before.read_text())
    # As if one more case had been checked before.
    better["cases"].append({**better["cases"][0], "case": "gone/momentum"})
    before.write_text(json.dumps(better))
    worse = cli(*now, "--baseline", str(before))
    assert worse.code == 1
    assert "1 regressed" in worse.out
    part = cli(*now, "--battery", "plain", "--baseline", str(before), "--quiet")
    assert (part.code, part.out) == (0, "")


def test_a_baseline_that_cannot_be_read_stops_a_run_before_it_starts(
    cli: Cli, quant: Path, tmp_path: Path
) -> None:
    out = tmp_path / "now.json"
    ran = cli("run", str(quant), "--out", str(out), "--baseline", str(tmp_path / "none.json"))
    assert ran.code == 2
    assert not out.exists()


# ---- What a review found --------------------------------------------------------------------


def test_a_report_that_is_graver_as_a_whole_is_a_regression(
    cli: Cli, changed_file: Callable[[Edit], str]
) -> None:
    """Though none of its cases is: a contradiction of the compiler's word, or nothing left."""
    for status in ("nothing_compared", "fail", "error"):
        new = changed_file(lambda data, status=status: data.update(status=status))
        ran = cli("compare", str(CPU / "quant.json"), new)
        assert ran.code == 1
        assert f"pass → {status}" in ran.out
        assert "1 regressed" in ran.out
        assert cli("compare", new, str(CPU / "quant.json")).code == 0


def test_half_a_character_can_be_written_again(cli: Cli, tmp_path: Path) -> None:
    data = json.loads((CPU / "quant.json").read_text())
    data["cases"][0]["case"] = "\ud800 half"
    (tmp_path / "half.json").write_text(json.dumps(data))
    ran = cli("compare", str(CPU / "quant.json"), "half.json", "--json")
    assert ran.code == 1, ran.err
    assert "? half" in [case["case"] for case in strict_json(ran.out)["suites"][0]["cases"]]


def test_a_long_cause_is_folded_and_not_cut(
    cli: Cli, changed_file: Callable[[Edit], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = "fused_multiply_add+reciprocal_division+float32_scalars+distributed_update"

    def longer(data: dict[str, Any]) -> None:
        data["cases"][0]["mismatches"]["by_cause"][cause] = 1234

    monkeypatch.setenv("COLUMNS", "80")
    ran = cli("compare", str(CPU / "quant.json"), changed_file(longer))
    assert "1,234" in ran.out
    assert "".join(cause.split()) in "".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_baseline_without_the_suite_is_refused_before_the_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("flashcheck.runner.run", run)
    ran = cli("run", "edge", "--baseline", str(CPU / "quant.json"), "--out", "out.json")
    assert ran.code == 2
    assert "and this run has edge: no suite is in both" in ran.err
