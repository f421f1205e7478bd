"""Suites of kind ``splitting``: a sweep of float32 values split into each pair of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flashcheck.compare import splitting as causes
from flashcheck.compare.attribution import Explanation, best, candidates, summed
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import (
    MagnitudeErrors,
    RelativeError,
    SplittingOutputs,
    histogram,
    magnitude_errors,
    relative_error,
    splitting_counts,
    splitting_metrics,
)
from flashcheck.compare.settings import Setting
from flashcheck.config import SplitFormats, SplittingConfig
from flashcheck.errors import SubjectError
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, torch_dtype
from flashcheck.inputs import sweeps
from flashcheck.measures import SplittingCounts
from flashcheck.reference import splitting as reference
from flashcheck.report.models import Contract, Selection, Stratum
from flashcheck.subjects.base import Subject, missing_methods
from flashcheck.suites import explaining
from flashcheck.suites.base import InputDigest, Measured, Progress, failed, unsupported
from flashcheck.suites.calls import SubjectCalls, merged, same_twice

METHODS = ("compute_ecc", "reconstruct")


@dataclass(frozen=True)
class Chunk:
    """Some of the values that a case feeds.

    Attributes:
        values: float32 on the CPU, shape (strata, samples).
        exponents: the exponent field of each stratum; none where the values are not a sweep's.
        lay_out: flat values on any device, in the form the subject is given them.
    """

    values: torch.Tensor
    exponents: list[int] | None
    lay_out: Callable[[torch.Tensor], torch.Tensor] = lambda flat: flat


@dataclass(frozen=True)
class SplittingSuite:
    """One configured suite of this kind."""

    config: SplittingConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds, each twice."""
        sweep = self.config.sweep
        return 2 * sweep.samples * len(sweep.exponents.fields()) * len(self._pairs())

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure each pair of formats over the whole sweep."""

        def chunks() -> Iterator[Chunk]:
            for strata in sweeps.draw(
                self.config.sweep, seed=self.config.seed, drawn_after=self.config.drawn_after
            ):
                yield Chunk(strata.values, strata.exponents)
                progress(strata.values.numel())

        for pair in self._pairs():
            operations = OperationBounds.of(self.config.tolerances)
            yield measure(pair.case, pair, chunks, operations, subject, calls)

    def _pairs(self) -> list[SplitFormats]:
        return [pair for pair in self.config.formats if self.selection.takes_spec(pair.case)]


def measure(
    name: str,
    pair: SplitFormats,
    chunks: Callable[[], Iterator[Chunk]],
    operations: OperationBounds,
    subject: Subject,
    calls: SubjectCalls,
) -> Measured:
    """Split and rebuild values on both sides, compare, and explain what differs.

    The chunks are made twice: the second time tells whether the subject gives the same bits
    again, and how many outputs differ under each setting of the arithmetic that the first found.
    """
    measured = Measured(case=name)
    missing = missing_methods(subject, *METHODS)
    if missing:
        return unsupported(measured, missing)
    run = _Run(pair, operations, calls)
    try:
        for chunk in chunks():
            run.first(chunk)
        run.finish_first()
        for chunk in chunks():
            run.second(chunk)
    except SubjectError as error:
        return failed(measured, error)
    run.record(measured)
    return measured


class _Run:
    """The state of one case between its chunks."""

    def __init__(
        self, pair: SplitFormats, operations: OperationBounds, calls: SubjectCalls
    ) -> None:
        self._narrow_dtype = torch_dtype(NARROW_FORMATS[pair.narrow])
        self._ecc_dtype = torch_dtype(ECC_FORMATS[pair.ecc])
        self._toward_zero = pair.rounding == "toward_zero"
        self._operations = operations
        self._calls = calls
        self._counts: list[SplittingCounts] = []
        self._strata: list[Stratum] = []
        self._error = RelativeError()
        self._errors: MagnitudeErrors | None = None
        self._distances: dict[str, dict[str, int]] = {}
        self._explanation = Explanation()
        self._contracts: list[Contract] = []
        self._input = InputDigest()
        self._digests: list[str] = []
        self._seen = 0
        self._again = 0
        self._changed = 0
        self._left: dict[Setting, int] = {}

    def first(self, chunk: Chunk) -> None:
        """Run, compare and explain."""
        x = chunk.values
        self._input.add(x)
        case, contracts = self._case(chunk, self._seen)
        self._contracts += contracts
        self._digests.append(_digest(case.subject))
        rows = {
            "subject": SplittingOutputs(
                case.subject.rho.reshape(x.shape), case.subject.values.reshape(x.shape)
            ),
            "reference": SplittingOutputs(
                case.reference.rho.reshape(x.shape), case.reference.values.reshape(x.shape)
            ),
        }
        counts = splitting_counts(x, **rows)
        self._counts += counts
        if chunk.exponents is not None:
            self._strata += [
                Stratum(exponent=exponent, **row.model_dump())
                for exponent, row in zip(chunk.exponents, counts, strict=True)
            ]
        values = {name: row.values for name, row in rows.items()}
        self._error += relative_error(x, **values)
        errors = magnitude_errors(x, **values)
        self._errors = errors if self._errors is None else self._errors + errors
        subject, theirs = case.subject, case.reference
        distances = {
            "rho": histogram(subject.rho, theirs.rho),
            "reconstructed": histogram(subject.values, theirs.values),
        }
        self._distances = summed(self._distances, distances)
        self._explanation += causes.explain(case)
        self._seen += x.numel()

    def finish_first(self) -> None:
        """Know which settings the second run tries."""
        self._left = dict.fromkeys(candidates(self._explanation), 0)

    def second(self, chunk: Chunk) -> None:
        """Run again, and count what differs under each setting."""
        flat, narrow, subject, contracts = self._split(chunk)
        self._contracts += contracts
        self._changed += _digest(subject) != self._digests[self._again]
        self._again += 1
        tried = causes.mismatches_under(flat, narrow, subject, list(self._left))
        for setting, differing in zip(self._left, tried, strict=True):
            self._left[setting] += differing

    def record(self, measured: Measured) -> None:
        """Sum up."""
        n = self._seen
        measured.numel = n
        measured.input_sha256 = self._input.hexdigest()
        measured.strata = self._strata
        measured.errors = explaining.error_records(self._errors) if self._errors else []
        measured.contracts = [
            *merged(self._contracts),
            same_twice(f"{self._changed} of {self._again} chunks" if self._changed else None),
        ]
        measured.metrics = splitting_metrics(
            self._counts, self._error, unexplained=explaining.unexplained(self._explanation)
        )
        measured.mismatches = explaining.record(
            self._explanation,
            best(self._explanation.total(), self._left),
            outputs=2 * n,
            distances=self._distances,
        )

    def _case(self, chunk: Chunk, offset: int) -> tuple[causes.SplittingCase, list[Contract]]:
        flat, narrow, subject, contracts = self._split(chunk)
        rho = reference.encode(flat, narrow, self._ecc_dtype)
        theirs = SplittingOutputs(rho, reference.decompress(narrow, rho))
        case = causes.SplittingCase(flat, narrow, subject, theirs, self._operations, offset)
        return case, contracts

    def _split(
        self, chunk: Chunk
    ) -> tuple[torch.Tensor, torch.Tensor, SplittingOutputs, list[Contract]]:
        """The chunk's values, their narrow weights, and what the subject makes of both."""
        flat = chunk.values.reshape(-1)
        narrow = flat.to(self._narrow_dtype)
        if self._toward_zero:
            narrow = toward_zero(flat, narrow)
        subject, contracts = self._calls.split_and_back(
            chunk.lay_out(self._calls.to_device(flat)),
            chunk.lay_out(self._calls.to_device(narrow)),
            self._ecc_dtype,
        )
        return flat, narrow, subject, contracts


def toward_zero(x: torch.Tensor, nearest: torch.Tensor) -> torch.Tensor:
    """The narrow weights of ``x`` rounded toward zero, from those rounded to nearest."""
    past = (nearest.abs().to(torch.float32) > x.abs()).to(torch.int16)
    return (nearest.view(torch.int16) - past).view(nearest.dtype)


def _digest(outputs: SplittingOutputs) -> str:
    return InputDigest(outputs.rho, outputs.values).hexdigest()
