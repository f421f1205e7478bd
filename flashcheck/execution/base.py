"""What every executor does, whoever works for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from flashcheck.errors import SubjectError
from flashcheck.report.models import Description
from flashcheck.suites.exhaustive.suite import Chunk
from flashcheck.suites.exhaustive.tally import Tally

Outcome = Tally | SubjectError
"""Of a chunk: what checking it gave, or what the subject did instead."""


class Executor(Protocol):
    """Checks chunks of one suite on one subject."""

    def describe(self) -> Description:
        """What it runs, and where.

        Raises:
            UnavailableError: nobody can run it.
        """

    def run(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        """Check chunks, in whatever order; those of a case that failed may be left out.

        Raises:
            UnavailableError: the workers are gone.
        """

    def close(self) -> None:
        """Let the workers go."""
