"""Suites of kind ``splitting``: a sweep of float32 values split into each pair of formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flashcheck.compare.metrics import (
    RelativeError,
    SplittingOutputs,
    relative_error,
    splitting_counts,
    splitting_metrics,
)
from flashcheck.config import SplitFormats, SplittingConfig
from flashcheck.errors import SubjectError
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, torch_dtype
from flashcheck.inputs import sweeps
from flashcheck.reference import splitting as reference
from flashcheck.report.models import Selection, Status, Stratum
from flashcheck.subjects.base import Subject, supports
from flashcheck.suites.base import InputDigest, Measured, Progress
from flashcheck.suites.calls import SubjectCalls


@dataclass
class _Totals:
    strata: list[Stratum] = field(default_factory=list)
    error: RelativeError = field(default_factory=RelativeError)


@dataclass(frozen=True)
class SplittingSuite:
    """One configured suite of this kind."""

    config: SplittingConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds."""
        sweep = self.config.sweep
        return sweep.samples * len(sweep.exponents.fields()) * len(self.config.formats)

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure each pair of formats over the whole sweep."""
        missing = supports(subject, "compute_ecc", "reconstruct")
        for pair in self.config.formats:
            measured = Measured(case=pair.case)
            if missing:
                reason = f"the subject has no {' and no '.join(missing)}"
                measured.problem = (Status.UNSUPPORTED, reason)
            else:
                try:
                    self._measure(measured, pair, calls, progress)
                except SubjectError as error:
                    measured.problem = (Status.ERROR, str(error))
            yield measured

    def _measure(
        self, measured: Measured, pair: SplitFormats, calls: SubjectCalls, progress: Progress
    ) -> None:
        totals, digest = _Totals(), InputDigest()
        drawn = sweeps.draw(
            self.config.sweep, seed=self.config.seed, drawn_after=self.config.drawn_after
        )
        for strata in drawn:
            digest.add(strata.values)
            self._measure_strata(totals, strata, pair, calls)
            progress(strata.values.numel())
        measured.strata = totals.strata
        measured.metrics = splitting_metrics(totals.strata, totals.error)
        measured.numel = sum(stratum.n for stratum in totals.strata)
        measured.input_sha256 = digest.hexdigest()

    def _measure_strata(
        self, totals: _Totals, strata: sweeps.Strata, pair: SplitFormats, calls: SubjectCalls
    ) -> None:
        narrow_dtype = torch_dtype(NARROW_FORMATS[pair.narrow])
        ecc_dtype = torch_dtype(ECC_FORMATS[pair.ecc])
        x = strata.values
        narrow, rho = reference.compress(x, narrow_dtype, ecc_dtype)
        flat_x, flat_narrow = x.reshape(-1), narrow.reshape(-1)
        subject_rho = calls.compute_ecc(flat_x, flat_narrow, ecc_dtype)
        subject_values = calls.reconstruct(flat_narrow, subject_rho)
        subject = SplittingOutputs(subject_rho.reshape(x.shape), subject_values.reshape(x.shape))
        theirs = SplittingOutputs(rho, reference.decompress(narrow, rho))
        counts = splitting_counts(x, subject=subject, reference=theirs)
        totals.strata += [
            Stratum(exponent=exponent, **row.model_dump())
            for exponent, row in zip(strata.exponents, counts, strict=True)
        ]
        totals.error += relative_error(x, subject=subject.values, reference=theirs.values)
