"""``flashcheck repro``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flashcheck.cli.common import exits, say

_REQUEST: dict[str, Literal["auto", "cuda", "interpreter"]] = {
    "cuda": "cuda",
    "interpreter": "interpreter",
    "native": "auto",
}


@exits
def repro(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report that a run wrote.")],
    case: Annotated[str, typer.Argument(metavar="CASE", help="One of its cases.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to.  [default: repro/SUITE-CASE]"),
    ] = None,
) -> None:
    """Write the smallest input that shows a case's worst mismatch, with a script to run it.

    The script calls the subject alone and prints its answers beside the reference's; it needs no
    flashcheck. It exits 1 where they differ.
    """
    from flashcheck import repro as maker
    from flashcheck.errors import UnavailableError
    from flashcheck.report import store
    from flashcheck.subjects import registry

    stored = store.read(report)
    origin = stored.subject.origin
    name = origin if ".py" in origin else stored.subject.name
    subject = None
    try:
        subject, _ = registry.load(name, _REQUEST[stored.environment.backend])
    except UnavailableError as error:
        say(f"flashcheck: not tried here: {error}")
    preamble = maker.preamble_of(subject, stored)
    made = maker.reproduce(stored, case, subject)
    folder = out or Path("repro") / f"{stored.suite}-{case.replace('/', '-')}"
    maker.write(made, stored, case, preamble, folder)
    elements = made.arrays["x"].size
    seen = {True: "it differs here", False: "it does not differ here", None: "not tried here"}
    say(f"wrote {folder}: {elements:,} elements, {seen[made.verified]}")
    say(f"run it: python {folder / maker.SCRIPT}")
