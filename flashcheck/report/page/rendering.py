"""The page: a template filled with reports, its style, and its scripts, which nothing else joins.

What comes from a report is escaped, and scripts are allowed by their digests only: a text that
were taken for a script all the same would not run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from flashcheck.report import outcomes
from flashcheck.report.models import Report
from flashcheck.report.page import figures, rows
from flashcheck.report.plain import visible


@dataclass(frozen=True)
class _Script:
    text: Markup
    digest: str

    @classmethod
    def of(cls, text: str) -> _Script:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return cls(Markup(text), digest)  # noqa: S704 - the package's own file


def render(reports: Sequence[Report]) -> str:
    """One page of some reports, one section each."""
    environment = Environment(
        loader=PackageLoader("flashcheck.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_text,
        trim_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["words"] = lambda status: status.replace("_", " ")
    own = files("flashcheck.report.page")
    return environment.get_template("page.html.j2").render(
        suites=[_suite(report) for report in reports],
        style=Markup(own.joinpath("page.css").read_text("utf-8")),  # noqa: S704 - likewise
        scripts=[
            _Script.of(get_plotlyjs()),
            _Script.of(own.joinpath("page.js").read_text("utf-8")),
        ],
    )


def _text(value: object) -> object:
    """Control characters spelled out of what is not the page's own."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """A name that a line may break after a slash of."""
    return Markup("/<wbr>").join(visible(name).split("/"))


def _suite(report: Report) -> dict[str, object]:
    return {
        "name": report.suite,
        "status": report.status,
        "description": report.config.get("description", report.kind),
        "what": rows.what(report),
        "tiles": rows.tiles(report),
        "contradictions": outcomes.contradictions(report),
        "pictures": [_picture(picture) for picture in figures.pictures(report)],
        "outcomes": [
            status.value
            for status in outcomes.GRAVEST_FIRST
            if any(case.status is status for case in report.cases)
        ],
        "cases": rows.cases(report),
        "environment": rows.environment(report),
        "meanings": rows.meanings(report),
    }


def _picture(picture: figures.Picture) -> dict[str, object]:
    # In a script a browser looks for its end only; without '<' there is none, nor a comment.
    data = picture.figure.to_json().replace("<", "\\u003c")
    return {
        "title": picture.title,
        "caption": picture.caption,
        "data": picture.data,
        "broad": picture.broad,
        "json": Markup(data),  # noqa: S704 - no HTML is left in it
    }
