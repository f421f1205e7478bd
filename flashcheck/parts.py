"""Exhaustive suites: checked in chunks by an executor, and put together from their sums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from flashcheck import __version__
from flashcheck.config import digest
from flashcheck.describing import Clock, known_here, report_of
from flashcheck.errors import SubjectError
from flashcheck.execution.base import Executor, Outcome
from flashcheck.execution.journal import Journal
from flashcheck.report.models import CaseResult, Description, Report
from flashcheck.suites.base import Progress, judge
from flashcheck.suites.exhaustive.suite import Chunk, ExhaustiveSuite
from flashcheck.suites.exhaustive.tally import Tally


def run(
    executor: Executor,
    suite: ExhaustiveSuite,
    progress: Progress,
    *,
    command: list[str],
    journal: Callable[[Description], Journal] | None = None,
) -> Report:
    """Run a suite in chunks, whoever checks them, and whatever was checked before.

    Args:
        journal: opens what keeps the chunks that are done; its file stays until it is removed.

    Raises:
        UsageError, UnavailableError: the journal is of something else, or cannot be written.
        UnavailableError: the workers are gone.
        CheckerError: a comparison on a GPU is not that of the CPU.
    """
    clock = Clock()
    description = executor.describe()
    chunks = suite.chunks(description.environment.backend, description.methods)
    kept = journal(description) if journal else None
    found: dict[str, Tally] = {}
    failed: dict[str, SubjectError] = {}
    try:
        for chunk, outcome in _outcomes(executor, chunks, kept):
            if isinstance(outcome, SubjectError):
                outcome.chunk = chunk.number
                failed[chunk.case] = first_of([failed.get(chunk.case, outcome), outcome])
            else:
                found[chunk.case] = found.get(chunk.case, Tally()) + outcome
            progress(chunk.elements())
    finally:
        if kept:
            kept.close()
    cases = finished(suite, description, {**found, **failed})
    return report_of(suite, description, cases, clock, command=command)


def first_of(errors: Sequence[SubjectError]) -> SubjectError:
    """Of several the one of the first chunk, whichever came in first."""
    return min(errors, key=lambda error: -1 if error.chunk is None else error.chunk)


def journal_key(
    suite: ExhaustiveSuite, description: Description, *, every_configuration: bool
) -> dict[str, str]:
    """All that a chunk's tally depends on; the names are for messages."""
    environment, subject = description.environment, description.subject
    return {
        "suite": suite.config.suite,
        "configuration": digest(suite.config),
        "part": suite.selection.model_dump_json(),
        "subject": f"{subject.name} {subject.version} ({subject.origin})",
        "source of the subject": str(subject.source_sha256),
        "launch configuration": str(sorted(subject.configurations.items())),
        "--autotune": "all" if every_configuration else "pinned",
        "flashcheck": __version__,
        "source of flashcheck and its reference": _own_source(),
        "backend": environment.backend,
        "device": environment.device,
        "compute capability": str(environment.compute_capability),
        "driver": str(environment.driver),
        "Python": environment.python,
        "NumPy": environment.numpy,
        "torch": environment.torch,
        "Triton": str(environment.triton),
        "shims": ", ".join(shim.name for shim in environment.shims),
        "fusion": str(environment.fp_fusion),
    }


def _own_source() -> str:
    """sha256 of every Python file of the package."""
    package = Path(__file__).parent
    digest_ = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest_.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest_.hexdigest()


def _outcomes(
    executor: Executor, chunks: Sequence[Chunk], journal: Journal | None
) -> Iterator[tuple[Chunk, Outcome]]:
    """What was done before, then what is done now, which is kept."""
    done = journal.done if journal else {}
    for chunk in chunks:
        if chunk.number in done:
            yield chunk, done[chunk.number]
    for chunk, outcome in executor.run([c for c in chunks if c.number not in done]):
        if journal and isinstance(outcome, Tally):
            journal.add(chunk.number, outcome)
        yield chunk, outcome


def finished(
    suite: ExhaustiveSuite,
    description: Description,
    outcomes: Mapping[str, Tally | SubjectError],
) -> list[CaseResult]:
    """The cases of a suite, judged, from the sums of their chunks."""
    known = known_here(suite, description.subject, description.environment.backend)
    return [
        judge(
            suite.finish(case, description.methods, outcomes.get(case, Tally())),
            gates=suite.config.gates,
            known=known,
            duration_s=0.0,
        )
        for case in suite.checks
    ]
