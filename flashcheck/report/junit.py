"""Reports as JUnit XML, which CI systems read: a case is a test."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from flashcheck.report import outcomes
from flashcheck.report.models import CaseResult, Report, Status
from flashcheck.report.plain import visible

_ELEMENTS = {
    Status.FAIL: "failure",
    Status.UNEXPECTED_PASS: "failure",
    Status.ERROR: "error",
    Status.KNOWN: "skipped",
    Status.UNSUPPORTED: "skipped",
}


def render(reports: Sequence[Report]) -> str:
    """One suite a report; what is known to deviate, or unsupported, is skipped with its reason."""
    suites = [_suite(report) for report in reports]
    root = ElementTree.Element("testsuites", {"name": "flashcheck", **_sums(reports)})
    for count in ("tests", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _sums(reports: Sequence[Report]) -> dict[str, str]:
    summaries = [report.summary for report in reports]
    return {
        "tests": str(sum(each.cases for each in summaries)),
        "failures": str(sum(each.failed + each.unexpected_pass for each in summaries)),
        "errors": str(sum(each.errors for each in summaries)),
        "time": f"{sum(report.duration_s for report in reports):.3f}",
    }


def _suite(report: Report) -> ElementTree.Element:
    summary = report.summary
    element = ElementTree.Element(
        "testsuite",
        {
            "name": visible(report.suite),
            **_sums([report]),
            "skipped": str(summary.known + summary.unsupported),
            "timestamp": report.started_at.strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": "localhost",
        },
    )
    properties = ElementTree.SubElement(element, "properties")
    there = report.environment
    for name, value in (
        ("subject", f"{report.subject.name} {report.subject.version}"),
        ("backend", there.backend),
        ("device", there.device),
        ("torch", there.torch),
        ("triton", there.triton or "none"),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=visible(value))
    element.extend(_case(report, case) for case in report.cases)
    if report.status in ("error", "nothing_compared") and not summary.errors:
        element.append(_of_the_whole(report))
        for count in ("tests", "errors"):
            element.set(count, str(int(element.get(count, "0")) + 1))
    return element


def _of_the_whole(report: Report) -> ElementTree.Element:
    """A test for what is wrong with a report though no case is."""
    element = ElementTree.Element("testcase", classname=_class(report), name="the whole", time="0")
    words = "; ".join(outcomes.contradictions(report)) or report.status.replace("_", " ")
    ElementTree.SubElement(element, "error", message=visible(words), type=report.status)
    return element


def _case(report: Report, case: CaseResult) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase",
        classname=_class(report),
        name=visible(case.case),
        time=f"{case.duration_s:.3f}",
    )
    kind = _ELEMENTS.get(case.status)
    if kind:
        words = visible(case.reason or case.status.value)
        outcome = ElementTree.SubElement(element, kind, message=words)
        if kind != "skipped":
            outcome.set("type", case.status.value)
        if case.mismatches:
            outcome.text = visible(case.mismatches.sentence)
    return element


def _class(report: Report) -> str:
    return f"flashcheck.{visible(report.suite)}"
