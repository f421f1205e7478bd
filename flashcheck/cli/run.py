"""``flashcheck run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Annotated, cast

import typer

from flashcheck.cli import completing
from flashcheck.cli.common import console, exits, import_torch, one_of
from flashcheck.cli.compare import print_comparison
from flashcheck.cli.parts import Ordered, Workers, part_of
from flashcheck.cli.printing import HTML, JUNIT, MARKDOWN, Forms, print_json, print_tables
from flashcheck.errors import ExitCode, UnavailableError

if TYPE_CHECKING:
    from flashcheck.selection import Suite
    from flashcheck.subjects.backend import Requested
    from flashcheck.subjects.base import Shim, Subject
    from flashcheck.suites.base import Progress


@exits
def run(
    suites: Annotated[
        list[str],
        typer.Argument(
            metavar="SUITE",
            help="Names of suites, paths of YAML files, or 'all'.",
            autocompletion=completing.suites,
        ),
    ],
    battery: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this tensor of a battery, or gradient; repeatable.",
            autocompletion=completing.tensors,
        ),
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this spec, pair of formats, or optimizer; repeatable.",
            autocompletion=completing.specs,
        ),
    ] = None,
    subject: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The implementation under test, or path/to/file.py:CLASS.",
            autocompletion=completing.subjects,
        ),
    ] = "flashoptim",
    backend: Annotated[
        str,
        typer.Option(
            metavar="auto|cuda|interpreter",
            help="Where Triton kernels run; auto takes a GPU if there is one.",
        ),
    ] = "auto",
    exponents: Annotated[
        str | None,
        typer.Option(
            metavar="A:B[:STEP]", help="Of an enumeration, only these float32 exponent fields."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of an enumeration, only so many inputs of each case."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Of an enumeration, only this part of so many; 'merge'."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", help="Processes that check an enumeration's chunks.")
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Keep an enumeration's chunks in REPORT.journal, and go on from it."
        ),
    ] = False,
    executor: Annotated[
        str,
        typer.Option(metavar="local|ray", help="Who checks an enumeration's chunks."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a Ray cluster.  [default: one of this machine]"),
    ] = None,
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
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="REPORT",
            help="Compare with this report, or folder of them; a regression makes the exit code 1.",
        ),
    ] = None,
    junit: Annotated[Path | None, JUNIT] = None,
    markdown: Annotated[Path | None, MARKDOWN] = None,
    html: Annotated[Path | None, HTML] = None,
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

    one_of("--executor", executor, ("local", "ray"))
    workers = Workers(
        jobs=jobs, resume=resume, executor=executor, address=address, traceback=traceback
    )

    from flashcheck import catalog

    configs = catalog.find(suites)

    import_torch()

    from flashcheck import environment, runner, selection
    from flashcheck.comparing import check_common, compare, fails, reports_of
    from flashcheck.report import store
    from flashcheck.report.models import exit_code, gravest
    from flashcheck.subjects import registry
    from flashcheck.suites.exhaustive.suite import ExhaustiveSuite

    selected = selection.select(
        configs,
        battery=battery or [],
        spec=spec or [],
        part=part_of(exponents, limit, shard),
    )
    for suite in selected:
        if not isinstance(suite, ExhaustiveSuite):
            workers.refuse(suite.config.suite)
    paths = [
        store.destination(out, suite.config.suite, alone=len(selected) == 1) for suite in selected
    ]
    registry.check_name(subject)
    forms = Forms(junit=junit, markdown=markdown, html=html)
    forms.check()
    before = None if baseline is None else reports_of(baseline)
    if before is not None:
        check_common(
            before, [suite.config.suite for suite in selected], labels=(str(baseline), "this run")
        )
    for path in paths:
        store.check_writable(path)
    reports = []
    # What a subject prints is not the report.
    with redirect_stdout(sys.stderr) if json else nullcontext():
        plan = None
        command = environment.command()
        if not workers.on_a_cluster:
            loaded, shims = _loaded(subject, cast("Requested", backend), traceback=traceback)
            plan = runner.Plan(
                subject=loaded,
                shims=list(shims),
                origin=registry.origin(subject),
                every_configuration=autotune == "all",
                show_traceback=traceback,
                command=command,
            )
        for suite, path in zip(selected, paths, strict=True):
            with _progress(suite, quiet) as progress:
                if isinstance(suite, ExhaustiveSuite):
                    report = Ordered(
                        suite=suite,
                        workers=workers,
                        subject=subject,
                        backend=cast("Requested", backend),
                        every_configuration=autotune == "all",
                        plan=plan,
                        command=command,
                        path=path,
                    ).run(progress)
                else:
                    assert plan
                    report = runner.run(plan, suite, progress)
                    store.write(report, path)
            reports.append(report)
            if not quiet:
                print_tables(report, path, to_stderr=json)
    forms.write(reports)
    regressed = False
    if before is not None:
        ours = {report.suite: report for report in reports}
        wanted = {suite: report for suite, report in before.items() if suite in ours}
        compared = compare(wanted, ours, labels=(str(baseline), "this run"))
        regressed = fails(compared, "regression")
        if not quiet:
            print_comparison(compared, to_stderr=json)
    if json:
        print_json(reports)
    codes = [exit_code(reports), *([ExitCode.GATE_FAILED] if regressed else [])]
    raise SystemExit(gravest(codes))


def _loaded(name: str, backend: Requested, *, traceback: bool) -> tuple[Subject, Sequence[Shim]]:
    from flashcheck.subjects import registry

    try:
        return registry.load(name, backend)
    except UnavailableError as error:
        if traceback and error.__cause__:
            print_exception(error.__cause__)
        raise


@contextmanager
def _progress(suite: Suite, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal, nothing in a pipe."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from flashcheck.cli.rate import RateColumn

    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        RateColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=quiet or not screen.is_terminal,
    ) as bar:
        task = bar.add_task(suite.config.suite, total=suite.elements())
        yield lambda elements: bar.advance(task, elements)
