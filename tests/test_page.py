"""The page of a report, in a real browser: whole, offline, readable, and obeying no report."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from flashcheck.report import page
from flashcheck.report.models import Report
from flashcheck.report.page import figures, rendering
from flashcheck.report.store import read
from tests.conftest import CHECKOUT, Cli

CPU = CHECKOUT / "reports" / "interpreter-flashoptim-0.1.4"
GPU = CHECKOUT / "reports" / "nvidia-h200-flashoptim-0.1.4"
REPORTS = sorted((CHECKOUT / "reports").glob("*/**/*.json"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE, DESKTOP = {"width": 375, "height": 812}, {"width": 1280, "height": 900}
HOSTILE = (
    "</script><script>window.obeyed=1</script><img src=x onerror='window.obeyed=1'>\x1b[31m\x00"
)


def report_of(path: Path, edit: Callable[[dict[str, Any]], None] = lambda _: None) -> Report:
    data = json.loads(path.read_text())
    edit(data)
    return Report.model_validate(data)


# ---- In a browser --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        # Where CI runs a missing browser must not pass for a page that was looked at.
        assert not os.environ.get("CI"), f"none of {', '.join(BROWSERS)} is installed"
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


class Shown:
    """A page as a browser shows it, and what went wrong."""

    def __init__(
        self, browser: Browser, text: str, folder: Path, *, scheme: str = "light", **size: int
    ) -> None:
        path = folder / "page.html"
        path.write_text(text, encoding="utf-8")
        self.page: Page = browser.new_page(
            viewport={**DESKTOP, **size},  # type: ignore[typeddict-item]
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(path.as_uri())
        self.own = path.as_uri()

    def draw_all(self) -> int:
        """Scroll to every picture until it is drawn; how many there are."""
        plots = self.page.locator(".plot")
        for number in range(plots.count()):
            plots.nth(number).scroll_into_view_if_needed()
            plots.nth(number).locator(".main-svg").first.wait_for()
        return plots.count()

    def rows(self) -> list[str]:
        """The cases that are seen."""
        return self.page.locator(".cases > tbody > tr:visible > td.name").all_inner_texts()

    def scale(self, variable: str) -> float:
        """How light a colour of the page is."""
        colour = self.page.evaluate(f"getComputedStyle(document.body).{variable}")
        return sum(float(each) for each in re.findall(r"[\d.]+", colour)[:3]) / 765


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_committed_report_is_a_page_without_errors_that_fetches_nothing(
    path: Path, browser: Browser, tmp_path: Path
) -> None:
    report = read(path)
    shown = Shown(browser, rendering.render([report]), tmp_path)
    assert shown.draw_all() == len(list(figures.pictures(report)))
    assert len(shown.rows()) == report.summary.cases
    assert shown.errors == []
    assert [url for url in shown.fetched if not url.startswith(("data:", "blob:"))] == [shown.own]
    shown.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_is_readable(
    size: dict[str, int], scheme: str, browser: Browser, tmp_path: Path
) -> None:
    text = rendering.render([read(CPU / "step.json"), read(GPU / "exhaustive.json")])
    shown = Shown(browser, text, tmp_path, scheme=scheme, **size)
    shown.draw_all()
    # Nothing is wider than the window, and what is written stands out from what it is written on.
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    ink, paper = shown.scale("color"), shown.scale("backgroundColor")
    assert (ink > 0.8 and paper < 0.2) if scheme == "dark" else (ink < 0.2 and paper > 0.8)
    plotted = shown.page.locator(".plot .xtick text").first.evaluate("e => e.style.fill")
    assert plotted == shown.page.evaluate("getComputedStyle(document.body).color")
    assert shown.errors == []
    shown.page.close()


def test_pictures_follow_a_theme_that_changes(browser: Browser, tmp_path: Path) -> None:
    shown = Shown(browser, rendering.render([read(CPU / "ecc.json")]), tmp_path)
    shown.draw_all()
    ticks = shown.page.locator(".plot .xtick text").first
    before = ticks.evaluate("e => e.style.fill")
    shown.page.emulate_media(color_scheme="dark")
    expect(ticks).not_to_have_css("fill", before)
    assert ticks.evaluate("e => e.style.fill") == shown.page.evaluate(
        "getComputedStyle(document.body).color"
    )
    shown.page.close()


def test_cases_are_found_by_words_and_by_outcome(browser: Browser, tmp_path: Path) -> None:
    report = read(CPU / "quant.json")
    shown = Shown(browser, rendering.render([report]), tmp_path)
    search, outcome = shown.page.get_by_role("searchbox"), shown.page.get_by_role("combobox")
    search.fill("HALF_AWAY nothing")
    assert shown.rows() == []
    search.fill("tail Momentum")
    assert shown.rows() == ["heavy_tail/momentum"]
    assert shown.page.locator("output").inner_text() == f"1 of {report.summary.cases} cases"
    search.fill("")
    outcome.select_option("known")
    known = [case.case for case in report.cases if case.status.value == "known"]
    assert known
    assert shown.rows() == known
    shown.page.close()


def test_figures_of_a_case_open(browser: Browser, tmp_path: Path) -> None:
    report = read(CPU / "quant.json")
    shown = Shown(browser, rendering.render([report]), tmp_path)
    row = shown.page.locator("tr", has_text="normal/variance").first
    assert not row.locator("details table").first.is_visible()
    row.locator("summary").click()
    case = next(case for case in report.cases if case.case == "normal/variance")
    assert case.mismatches
    text = row.inner_text()
    assert f"{case.mismatches.worst[0].subject_bits}" in text
    assert "int_mismatches" in text
    shown.page.close()


def everywhere(data: dict[str, Any]) -> None:
    data["suite"] = data["command"][0] = HOSTILE
    data["config"]["description"] = HOSTILE
    for name in ("name", "version", "origin", "steps_through"):
        data["subject"][name] = HOSTILE
    data["subject"]["configurations"] = {HOSTILE: HOSTILE}
    for name in ("platform", "cpu", "device", "driver"):
        data["environment"][name] = HOSTILE
    data["environment"]["shims"] = [{"name": HOSTILE, "repairs": HOSTILE, "checked": HOSTILE}]
    for case in data["cases"]:
        case["case"] += HOSTILE
        case |= {"status": "fail", "reason": HOSTILE, "notes": [HOSTILE]}
        case["contracts"] = [{"name": HOSTILE, "ok": False, "detail": HOSTILE}]
        found = case["mismatches"]
        found["sentence"] = HOSTILE
        for name in ("by_cause", "by_output"):
            found[name] = {f"{key}{HOSTILE}": value for key, value in found[name].items()}
        found["distances"] = {HOSTILE: {"1": 1}}
        found["total"] = max(1, found["total"])
        for offender in found["worst"]:
            offender |= {"input": HOSTILE, "cause": HOSTILE, "stage": HOSTILE}


def test_hostile_text_is_shown_and_never_obeyed(browser: Browser, tmp_path: Path) -> None:
    report = report_of(CPU / "quant.json", everywhere)
    shown = Shown(browser, rendering.render([report]), tmp_path)
    assert shown.draw_all() == len(list(figures.pictures(report))) > 0
    shown.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    shown.page.wait_for_timeout(200)
    assert shown.page.evaluate("window.obeyed") is None
    assert shown.page.locator("img").count() == 0
    assert shown.errors == []
    assert "<script>window.obeyed=1</script>" in shown.page.locator("h2").inner_text()
    assert "\\x1b[31m\\x00" in shown.page.locator("h2").inner_text()
    # The legend and the axes of the pictures as well.
    plotted = " ".join(shown.page.locator(".plot text").all_text_contents())
    assert "<img src=x" in plotted
    shown.page.close()


def test_a_script_that_got_in_would_not_run(browser: Browser, tmp_path: Path) -> None:
    text = rendering.render([read(CPU / "ecc.json")])
    injected = text.replace(
        "<main>", "<main><script>window.obeyed=1</script><img src=x onerror='1'>"
    )
    shown = Shown(browser, injected, tmp_path)
    assert shown.page.evaluate("window.obeyed") is None
    assert any("Content Security Policy" in error for error in shown.errors)
    shown.page.close()


# ---- As text -------------------------------------------------------------------------------


def test_scripts_are_allowed_by_their_digests() -> None:
    text = rendering.render([read(CPU / "ecc.json")])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy[1]))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    made = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert len(scripts) == 2
    assert made == allowed
    assert "default-src 'none'" in policy[1]
    assert "http" not in policy[1]


def test_what_a_picture_shows_is_in_the_report() -> None:
    report = read(GPU / "exhaustive.json")
    pictures = {picture.title: picture for picture in figures.pictures(report)}
    case = next(case for case in report.cases if case.case == "compute_ecc/bf16+int16")
    assert case.enumeration
    lines = {
        line.name: line
        for line in pictures[f"{case.case}: exact and equal, by exponent"].figure.data
    }
    assert set(lines) == {
        "exact, subject",
        "exact, reference",
        "correction codes agree",
        "given back, agree",
    }
    for bucket, x, exact, agree in zip(
        case.enumeration.buckets,
        lines["exact, subject"].x,
        lines["exact, subject"].y,
        lines["correction codes agree"].y,
        strict=False,
    ):
        assert x == bucket.exponent
        assert exact == bucket.counts["subject_exact"] / bucket.n
        assert agree == 1 - bucket.counts["rho_mismatches"] / bucket.n


def test_the_thresholds_that_moved_are_moved_in_the_picture() -> None:
    report = read(GPU / "exhaustive.json")
    case = next(case for case in report.cases if case.case == "quantize/momentum")
    assert case.metrics
    picture = next(
        p for p in figures.pictures(report) if p.title.startswith("quantize/momentum: w")
    )
    later = picture.figure.data[2].y
    assert sum(each != 0 for each in later) == case.metrics.value("thresholds_moved")


def test_pictures_of_errors_and_distances_hold_the_report_s_numbers() -> None:
    report = read(CPU / "quant.json")
    pictures = {picture.title: picture.figure for picture in figures.pictures(report)}
    drawn = {(line.name, line.line.dash): line for line in pictures["Error over magnitude"].data}
    for case in report.cases[:6]:
        assert list(drawn[case.case, "solid"].x) == [at.exponent for at in case.errors]
        assert list(drawn[case.case, "dot"].y) == [at.reference or None for at in case.errors]
    bars = {bar.name: dict(zip(bar.x, bar.y, strict=True)) for bar in pictures["Distances"].data}
    for case in report.cases:
        assert case.mismatches
        for output, counts in case.mismatches.distances.items():
            shown = bars[f"{case.case}, {output}"]
            assert {label: n for label, n in shown.items() if n} == counts


def test_many_cases_are_cut_short_with_a_word() -> None:
    report = read(CPU / "edge.json")
    pictures = {picture.title: picture for picture in figures.pictures(report)}
    assert "more cases are in the report only" in pictures["Error over magnitude"].caption
    assert len(pictures["Error over magnitude"].figure.data) == 24


# ---- From the command line -----------------------------------------------------------------


def test_show_and_run_write_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = cli("show", str(CPU / "ecc.json"), "--html", str(path))
    assert result.code == 0
    assert path.read_text().startswith("<!doctype html>")
    assert f"wrote {path}" in result.err


def test_without_its_packages_the_mend_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    for module in ("rendering", "figures"):
        monkeypatch.delitem(sys.modules, f"flashcheck.report.page.{module}")
        monkeypatch.delattr(page, module)
    result = cli("show", str(CPU / "ecc.json"), "--html", str(tmp_path / "page.html"))
    assert result.code == 3
    assert "pip install 'flashcheck[html]'" in result.err
    assert not list(tmp_path.iterdir())
