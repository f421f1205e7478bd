"""``flashcheck run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Annotated, cast

import typer

from flashcheck.cli.common import a_reader_may_go, console, exits, import_torch, one_of, say
from flashcheck.errors import UnavailableError

if TYPE_CHECKING:
    from flashcheck.report.models import Report
    from flashcheck.runner import Suite
    from flashcheck.subjects.backend import Requested
    from flashcheck.suites.base import Progress


@exits
def run(
    suites: Annotated[
        list[str],
        typer.Argument(metavar="SUITE", help="Names of suites, paths of YAML files, or 'all'."),
    ],
    battery: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this tensor of a battery; repeatable."),
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this spec, or pair of formats of a sweep; repeatable."
        ),
    ] = None,
    subject: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The implementation under test, or path/to/file.py:CLASS."
        ),
    ] = "flashoptim",
    backend: Annotated[
        str,
        typer.Option(
            metavar="auto|cuda|interpreter",
            help="Where Triton kernels run; auto takes a GPU if there is one.",
        ),
    ] = "auto",
    autotune: Annotated[
        str,
        typer.Option(
            metavar="pinned|all", help="Launch configurations: one, or compare the bits of all."
        ),
    ] = "pinned",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR_OR_FILE", help="Where reports go.  [default: reports/SUITE.json]"
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the report too: an object, or a list for several."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in its code a subject raised.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no tables and no progress.")
    ] = False,
) -> None:
    """Run suites on a subject, compare with the reference, and write a report each."""
    one_of("--backend", backend, ("auto", "cuda", "interpreter"))
    one_of("--autotune", autotune, ("pinned", "all"))

    from flashcheck import catalog

    configs = catalog.find(suites)

    import_torch()

    from flashcheck import environment, runner
    from flashcheck.report import store
    from flashcheck.report.models import exit_code
    from flashcheck.subjects import registry

    selected = runner.select(configs, battery=battery or [], spec=spec or [])
    paths = [
        store.destination(out, suite.config.suite, alone=len(selected) == 1) for suite in selected
    ]
    registry.check_name(subject)
    for path in paths:
        store.check_writable(path)
    reports = []
    # What a subject prints is not the report.
    with redirect_stdout(sys.stderr) if json else nullcontext():
        try:
            loaded, shims = registry.load(subject, cast("Requested", backend))
        except UnavailableError as error:
            if traceback and error.__cause__:
                print_exception(error.__cause__)
            raise
        plan = runner.Plan(
            subject=loaded,
            shims=list(shims),
            origin=registry.origin(subject),
            every_configuration=autotune == "all",
            show_traceback=traceback,
            command=environment.command(),
        )
        for suite, path in zip(selected, paths, strict=True):
            with _progress(suite, quiet) as progress:
                report = runner.run(plan, suite, progress)
            store.write(report, path)
            reports.append(report)
            if not quiet:
                _print_tables(report, path, to_stderr=json)
    if json:
        _print_json(reports)
    raise SystemExit(exit_code(reports))


@contextmanager
def _progress(suite: Suite, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal, nothing in a pipe."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=quiet or not screen.is_terminal,
    ) as bar:
        task = bar.add_task(suite.config.suite, total=suite.elements())
        yield lambda elements: bar.advance(task, elements)


def _print_tables(report: Report, path: Path, *, to_stderr: bool) -> None:
    from flashcheck.report import terminal

    with a_reader_may_go():
        console(stderr=to_stderr).print(terminal.render(report))
    say(f"wrote {path}")


def _print_json(reports: list[Report]) -> None:
    texts = [report.model_dump_json(indent=2) for report in reports]
    with a_reader_may_go():
        typer.echo(texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
