"""All in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashcheck.describing import describe
from flashcheck.errors import SubjectError
from flashcheck.execution.base import Outcome
from flashcheck.report.models import Description
from flashcheck.subjects.base import Shim, Subject
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive.suite import Chunk, ExhaustiveSuite


@dataclass(frozen=True)
class Serial:
    """One chunk after the other.

    Attributes:
        seed: of the samples that are compared on the CPU as well.
    """

    suite: ExhaustiveSuite
    subject: Subject
    shims: Sequence[Shim]
    origin: str
    seed: int
    every_configuration: bool = False
    show_traceback: bool = False

    def describe(self, *, predicted: bool = True) -> Description:
        return describe(self.subject, self.shims, self.origin, predicted=predicted)

    def close(self) -> None:
        """Nothing is held between runs."""

    def run(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        failed = set()
        for chunk in chunks:
            if chunk.case in failed:
                continue
            outcome = self.check(chunk)
            if isinstance(outcome, SubjectError):
                failed.add(chunk.case)
            yield chunk, outcome

    def check(self, chunk: Chunk) -> Outcome:
        """Check one chunk."""
        calls = SubjectCalls(self.subject, every_configuration=self.every_configuration)
        try:
            return self.suite.check(chunk, calls, seed=self.seed)
        except SubjectError as error:
            if self.show_traceback:
                traceback.print_exception(error)
            return error
