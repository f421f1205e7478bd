"""A worker of another process: it is told by text, and answers by text."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from flashcheck import config as configuration
from flashcheck.config import ExhaustiveConfig
from flashcheck.errors import FlashcheckError, SubjectError, UnavailableError, WorkerError
from flashcheck.execution.base import Outcome
from flashcheck.execution.serial import Serial
from flashcheck.report.models import Description, Selection
from flashcheck.subjects import registry
from flashcheck.subjects.backend import Requested
from flashcheck.suites.exhaustive.suite import Chunk, ExhaustiveSuite
from flashcheck.suites.exhaustive.tally import Tally


class Order(BaseModel):
    """What a run is about.

    Attributes:
        subject: as ``--subject`` names it; the path of a file is absolute.
        origin: what the report calls a file; none for what is built in or a plugin.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]
    selection: Selection
    subject: str
    origin: str | None
    backend: Requested
    every_configuration: bool
    seed: int


class _Answer(BaseModel):
    """Of a chunk; one of the first three is given.

    Attributes:
        subject_error: what the subject did instead.
        failure: what went wrong beside it, and ``exit_code`` what follows from that.
    """

    tally: Tally | None = None
    subject_error: str | None = None
    failure: str | None = None
    exit_code: int = 0
    identity: str = ""


@functools.lru_cache(maxsize=1)
def _made(order: str) -> tuple[Serial, str]:
    """The subject, loaded once a process, and what tells whether another worker's is the same."""
    told = Order.model_validate_json(order)
    config = configuration.parse(told.config)
    assert isinstance(config, ExhaustiveConfig)
    subject, shims = registry.load(told.subject, told.backend)
    worker = Serial(
        suite=ExhaustiveSuite(config, told.selection),
        subject=subject,
        shims=shims,
        origin=told.origin or registry.origin(told.subject),
        seed=told.seed,
        every_configuration=told.every_configuration,
    )
    return worker, identity(worker.describe(predicted=False))


def identity(description: Description) -> str:
    """Of a subject where it runs: results of two workers belong together if theirs is one.

    The names of the machines' processors and systems may differ: no figure depends on them.
    """
    environment = description.environment.model_copy(update={"cpu": "", "platform": ""})
    text = environment.model_dump_json() + description.subject.model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()


def describe(order: str) -> str:
    """The worker's description, as JSON.

    Raises:
        UnavailableError: it cannot run the subject.
    """
    worker, _ = _made(order)
    return worker.describe().model_dump_json()


def check(order: str, chunk: str) -> str:
    """A chunk's outcome, as JSON."""
    try:
        worker, known = _made(order)
        outcome = worker.check(CHUNK.validate_json(chunk))
    except FlashcheckError as error:
        return _Answer(failure=str(error), exit_code=error.exit_code).model_dump_json()
    if isinstance(outcome, SubjectError):
        return _Answer(subject_error=str(outcome), identity=known).model_dump_json()
    return _Answer(tally=outcome, identity=known).model_dump_json()


CHUNK = TypeAdapter(Chunk)


def outcome_of(answer: str, expected: str) -> Outcome:
    """What a worker answered.

    Args:
        expected: the identity of the worker that described itself.

    Raises:
        WorkerError: it could not check the chunk.
        UnavailableError: it runs another subject, or runs it elsewhere.
    """
    given = _Answer.model_validate_json(answer)
    if given.failure is not None:
        raise WorkerError(given.failure, given.exit_code)
    if given.identity != expected:
        raise UnavailableError(
            "a worker runs another subject or environment than the first one, and their results "
            "do not belong together; install the same on every machine"
        )
    if given.tally is None:
        return SubjectError(given.subject_error or "no message")
    return given.tally
