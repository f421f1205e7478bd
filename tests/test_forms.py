"""Reports in the forms that other systems read: JUnit XML, and Markdown for a job's summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt

from flashcheck.report import junit, markdown
from flashcheck.report.models import Report, Status
from flashcheck.report.store import read
from tests.conftest import CHECKOUT, Cli

CPU = CHECKOUT / "reports" / "interpreter-flashoptim-0.1.4"
REPORTS = sorted((CHECKOUT / "reports").glob("*/**/*.json"))
HOSTILE = "<script>alert(1)</script> ]]> \x1b[31m\x00 | `x` [a](javascript:b) **c** \ud800 & \nnext"


def edited(edit: Callable[[dict[str, Any]], None]) -> Report:
    data = json.loads((CPU / "quant.json").read_text())
    edit(data)
    return Report.model_validate(data)


def parsed(*reports: Report) -> JUnitXml:
    return JUnitXml.fromstring(junit.render(reports).encode())


def every_status(data: dict[str, Any]) -> None:
    statuses = ["pass", "known", "unsupported", "unexpected_pass", "fail", "error"]
    for case, status in zip(data["cases"], statuses, strict=False):
        case |= {"status": status, "reason": None if status == "pass" else f"why {status}"}
    data["summary"] |= {
        "passed": 9,
        "known": 1,
        "unsupported": 1,
        "unexpected_pass": 1,
        "failed": 1,
        "errors": 1,
    }


# ---- JUnit ---------------------------------------------------------------------------------


def test_a_case_is_a_test_and_its_status_an_outcome() -> None:
    report = edited(every_status)
    (suite,) = parsed(report)
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == (
        "quant",
        14,
        2,
        1,
        2,
    )
    outcomes = {case.name: case.result for case in suite}
    assert list(outcomes) == [case.case for case in report.cases]
    kinds = [None, Skipped, Skipped, Failure, Failure, Error]
    for case, kind in zip(report.cases, kinds, strict=False):
        results = outcomes[case.case]
        assert [type(result) for result in results] == ([kind] if kind else [])
        if kind:
            assert results[0].message == case.reason
    assert {property_.name for property_ in suite.properties()} >= {"subject", "backend", "torch"}


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_committed_report_is_read_by_a_junit_parser(path: Path) -> None:
    report = read(path)
    (suite,) = parsed(report)
    assert suite.tests == len(list(suite)) == report.summary.cases
    assert suite.skipped == report.summary.known + report.summary.unsupported
    assert sum(case.time for case in suite) == pytest.approx(
        sum(case.duration_s for case in report.cases), abs=0.001 * report.summary.cases
    )


@pytest.fixture(scope="module")
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_committed_report_is_valid_by_the_schema_of_junit(
    path: Path, schema: xmlschema.XMLSchema
) -> None:
    schema.validate(junit.render([read(path)]))


def test_what_fails_is_valid_by_the_schema_of_junit(schema: xmlschema.XMLSchema) -> None:
    kinds = [status.value for status in Status]

    def each(data: dict[str, Any]) -> None:
        for case, status in zip(data["cases"], kinds, strict=False):
            case |= {"status": status, "reason": HOSTILE}
        data["status"] = "nothing_compared"

    made = edited(each)
    assert {case.status for case in made.cases} == set(Status)
    schema.validate(junit.render([made, read(CPU / "edge.json")]))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('tests="14"', 'tests="many"'),
        ('classname="flashcheck.quant" ', ""),
        ('failures="', 'failed="'),
        ('time="', 'time="-'),
    ],
)
def test_the_schema_of_junit_refuses(right: str, wrong: str, schema: xmlschema.XMLSchema) -> None:
    text = junit.render([read(CPU / "quant.json")])
    assert schema.is_valid(text)
    assert right in text
    assert not schema.is_valid(text.replace(right, wrong, 1))


def test_several_reports_are_several_suites_whose_sums_agree() -> None:
    made = parsed(read(CPU / "quant.json"), read(CPU / "edge.json"))
    assert [suite.name for suite in made] == ["quant", "edge"]
    assert made.tests == sum(suite.tests for suite in made) == 14 + 168


@pytest.mark.parametrize("status", ["error", "nothing_compared"])
def test_a_report_that_is_wrong_as_a_whole_has_a_test_that_says_so(status: str) -> None:
    def wrong(data: dict[str, Any]) -> None:
        data["status"] = status

    (suite,) = parsed(edited(wrong))
    assert (suite.tests, suite.errors) == (15, 1)
    *_, last = suite
    assert isinstance(last.result[0], Error)


def test_hostile_text_is_text_in_xml() -> None:
    def hostile(data: dict[str, Any]) -> None:
        data["cases"][0] |= {"status": "fail", "reason": HOSTILE}

    (suite,) = parsed(edited(hostile))
    message = next(iter(suite)).result[0].message
    assert message.startswith("<script>alert(1)</script> ]]> \\x1b[31m\\x00")


# ---- Markdown ------------------------------------------------------------------------------


def html(*reports: Report) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown.render(reports))


def test_what_is_wrong_comes_first() -> None:
    text = markdown.render([edited(every_status)])
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    words = [row.split(" | ")[1].strip("*") for row in rows]
    assert words[:6] == ["error", "fail", "unexpected pass", "known", "unsupported", "pass"]
    assert "why error" in rows[0]


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_committed_report_is_a_summary_that_fits(path: Path) -> None:
    report = read(path)
    text = markdown.render([report])
    # What GitHub takes of a job, with room for others.
    assert len(text.encode()) < 1 << 18
    made = html(report)
    assert f"<h2>{report.suite}: {report.status}</h2>" in made
    differing = [
        c for c in report.cases if c.status != "pass" or (c.mismatches and c.mismatches.total)
    ]
    assert made.count("<tr>") == (min(len(differing), 50) + 1 if differing else 0)


def test_hostile_text_is_text_in_markdown() -> None:
    def hostile(data: dict[str, Any]) -> None:
        data["cases"][0] |= {"status": "fail", "reason": HOSTILE}

    report = edited(hostile)
    made = html(report)
    assert "<script" not in made
    assert "<a " not in made
    assert "\x1b" not in made
    assert "<strong>c</strong>" not in made
    assert "&lt;script&gt;" in made
    # It breaks out of no cell.
    assert made.count("<tr>") == html(edited(lambda _: None)).count("<tr>")


# ---- The commands --------------------------------------------------------------------------


def test_a_run_and_a_stored_report_are_written_in_both_forms(
    cli: Cli, quant: Path, tmp_path: Path
) -> None:
    subject = f"{CHECKOUT}/tests/fakes.py:ReferenceSubject"
    report, first = tmp_path / "r.json", [tmp_path / "a.xml", tmp_path / "a.md"]
    ran = cli(
        "run",
        str(quant),
        "--subject",
        subject,
        "--out",
        str(report),
        "--quiet",
        "--junit",
        str(first[0]),
        "--markdown",
        str(first[1]),
    )
    assert ran.code == 0
    second = [tmp_path / "b.xml", tmp_path / "b.md"]
    shown = cli("show", str(report), "--junit", str(second[0]), "--markdown", str(second[1]))
    assert (shown.code, shown.out) == (0, "")
    assert [path.read_text() for path in first] == [path.read_text() for path in second]
    assert JUnitXml.fromfile(str(first[0])).tests == 4


def test_a_form_that_cannot_be_written_stops_a_run_before_it_starts(
    cli: Cli, quant: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    ran = cli("run", str(quant), "--out", str(out), "--junit", str(tmp_path))
    assert ran.code == 2
    assert ran.err.startswith(f"flashcheck: --junit {tmp_path}: cannot be written")
    assert not out.exists()
