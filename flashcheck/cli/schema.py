"""``flashcheck schema``."""

from __future__ import annotations

import json

import typer

from flashcheck.cli.common import a_reader_may_go, exits


@exits
def schema() -> None:
    """Print the JSON Schema of a report."""
    from flashcheck.report.models import Report

    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(mode="serialization"),
    }
    with a_reader_may_go():
        typer.echo(json.dumps(document, indent=2))
