"""The options of ``flashcheck run`` that an enumeration takes: which part, and who checks it."""

from __future__ import annotations

import secrets
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from flashcheck.cli.common import say
from flashcheck.config import Exponents
from flashcheck.errors import UsageError

if TYPE_CHECKING:
    from flashcheck.execution.base import Executor
    from flashcheck.execution.journal import Journal
    from flashcheck.report.models import Description, Report, Shard
    from flashcheck.runner import Plan
    from flashcheck.selection import Part
    from flashcheck.subjects.backend import Requested
    from flashcheck.suites.base import Progress
    from flashcheck.suites.exhaustive.suite import ExhaustiveSuite


_MOST_DIGITS = 9


def part_of(exponents: str | None, limit: int | None, shard: str | None) -> Part:
    """The part that is asked for.

    Raises:
        UsageError: an option cannot be read, or names no part.
    """
    from flashcheck.selection import Part

    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: must be 1 or more")
    return Part(
        exponents=None if exponents is None else _exponents(exponents),
        limit=limit,
        shard=None if shard is None else _shard(shard),
    )


def _exponents(text: str) -> Exponents:
    expected = "expected A:B or A:B:STEP with 0 <= A < B <= 256, as 0:256:4"
    fields = text.split(":")
    if len(fields) not in (2, 3) or not all(_is_number(field) for field in fields):
        raise UsageError(f"--exponents {text}: cannot be read; {expected}")
    try:
        return Exponents(**dict(zip(("start", "stop", "step"), map(int, fields), strict=False)))
    except ValidationError:
        raise UsageError(f"--exponents {text}: no such exponents; {expected}") from None


def _shard(text: str) -> Shard:
    from flashcheck.report.models import Shard

    expected = "expected I/N with 1 <= I <= N, as 1/4"
    index, slash, count = text.partition("/")
    if not slash or not _is_number(index) or not _is_number(count):
        raise UsageError(f"--shard {text}: cannot be read; {expected}")
    try:
        return Shard(index=int(index), count=int(count))
    except ValidationError:
        raise UsageError(f"--shard {text}: no such shard; {expected}") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


@dataclass(frozen=True)
class Workers:
    """Who checks the chunks, as the options say.

    Raises:
        UsageError: two options do not go together.
    """

    jobs: int
    resume: bool
    executor: str
    address: str | None
    traceback: bool = False

    def __post_init__(self) -> None:
        if self.traceback and (self.jobs > 1 or self.executor == "ray"):
            raise UsageError(
                "--traceback: shows where a subject raised in this process; leave out --jobs and "
                "--executor"
            )
        if self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs}: must be 1 or more")
        if self.executor == "ray" and self.jobs > 1:
            raise UsageError("--jobs: a Ray cluster has its own workers; leave it out")
        if self.address is not None and self.executor != "ray":
            raise UsageError("--address: is of a Ray cluster; add --executor ray")

    @property
    def on_a_cluster(self) -> bool:
        return self.executor == "ray"

    def refuse(self, suite: str) -> None:
        """Of a suite that is not checked in chunks.

        Raises:
            UsageError: an option is given that needs them.
        """
        given = {
            "--jobs": self.jobs > 1,
            "--resume": self.resume,
            "--executor": self.on_a_cluster,
        }
        for option, is_given in given.items():
            if is_given:
                raise UsageError(
                    f"{option}: suite '{suite}' is run in one go; it is for suites of kind "
                    "exhaustive only"
                )


@dataclass(frozen=True)
class Ordered:
    """An enumeration that is to be run.

    Attributes:
        subject: as ``--subject`` names it.
        plan: the subject loaded here; none where it runs on a cluster.
        path: of the report.
    """

    suite: ExhaustiveSuite
    workers: Workers
    subject: str
    backend: Requested
    every_configuration: bool
    plan: Plan | None
    command: list[str]
    path: Path

    def run(self, progress: Progress) -> Report:
        """Run it, and write the report."""
        from flashcheck import parts
        from flashcheck.report import store

        executor = self._executor()
        opened: list[Journal] = []
        # Ray tells stdout of each worker that it lost, though its task is given again.
        with redirect_stdout(StringIO()) if self.workers.on_a_cluster else nullcontext():
            try:
                report = parts.run(
                    executor,
                    self.suite,
                    progress,
                    command=self.command,
                    journal=(lambda d: self._journal(d, opened)) if self.workers.resume else None,
                )
            finally:
                executor.close()
        store.write(report, self.path)
        for journal in opened:
            journal.remove()
        return report

    def _executor(self) -> Executor:
        from flashcheck import runner
        from flashcheck.execution.cluster import Cluster
        from flashcheck.execution.processes import Processes
        from flashcheck.execution.worker import Order

        file, colon, name = self.subject.rpartition(":")
        is_file = colon and file.endswith(".py")
        order = Order(
            config=self.suite.config.model_dump(mode="json"),
            selection=self.suite.selection,
            subject=f"{Path(file).absolute()}:{name}" if is_file else self.subject,
            origin=self.subject if is_file else None,
            backend=self.backend,
            every_configuration=self.every_configuration,
            seed=secrets.randbits(31),
        )
        if self.plan is None:
            return Cluster(order, self.workers.address)
        here = runner.serial(self.plan, self.suite)
        return here if self.workers.jobs == 1 else Processes(here, order, self.workers.jobs)

    def _journal(self, description: Description, opened: list[Journal]) -> Journal:
        from flashcheck import parts
        from flashcheck.execution.journal import Journal

        key = parts.journal_key(
            self.suite, description, every_configuration=self.every_configuration
        )
        journal = Journal(self.path.with_name(f"{self.path.name}.journal"), key)
        opened.append(journal)
        if journal.dropped:
            say(
                f"flashcheck: {journal.path}: its last {journal.dropped:,} bytes are not whole, as "
                "a kill leaves them; they are dropped"
            )
        if journal.done:
            say(f"flashcheck: {journal.path}: {len(journal.done):,} chunks are done already")
        return journal
