"""Every float32 weight, split and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flashcheck.compare import splitting as causes
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import SplittingOutputs
from flashcheck.compare.sensitivity import fusing_matters, near_tie
from flashcheck.compare.settings import LITERAL, Setting
from flashcheck.compare.ulp import bits, same_bits
from flashcheck.config import SplitFormats
from flashcheck.formats import ECC_FORMATS, FP32, NARROW_FORMATS, torch_dtype
from flashcheck.inputs.domains import EVERY_FLOAT32, Domain, Enumeration, Slice
from flashcheck.measures import SplittingMetrics
from flashcheck.reference import splitting as reference
from flashcheck.report.models import Contract
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive.checks import (
    PROBE,
    Fed,
    largest_ulp,
    same_again,
    unexplained,
)
from flashcheck.suites.exhaustive.tally import BucketTally, Counts, Tally, counted, explained

_RECIPROCAL = [s for s in causes.RECONSTRUCT if not s.arithmetic.fused_multiply_add]
_EITHER = causes.RECONSTRUCT
_KINDS = ("theta is NaN", "theta is infinite", "theta' is infinite")


@dataclass(frozen=True)
class Listed:
    """Float32 that are to be judged, in any order, and what the subject makes of them."""

    x: torch.Tensor
    subject: SplittingOutputs

    @classmethod
    def nothing(cls, check: RoundTrip, like: torch.Tensor) -> Listed:
        """None, on the device of a tensor."""
        rho = torch.empty(0, dtype=check.ecc_dtype, device=like.device)
        return cls(like[:0], SplittingOutputs(rho, like[:0]))


@dataclass(frozen=True)
class RoundTrip:
    """``compute_ecc``, and ``reconstruct`` of its codes, of every float32 with its nearest."""

    pair: SplitFormats
    operations: OperationBounds

    methods = ("compute_ecc", "reconstruct")
    outputs = 2
    on_a_gpu = (
        "a fused kernel, and the eager reference on the GPU for what it lists: all that differs, "
        "and all that a setting could change"
    )

    @property
    def case(self) -> str:
        return f"compute_ecc/{self.pair.case}"

    @property
    def function(self) -> str:
        return self.case

    @property
    def domain(self) -> Domain:
        return EVERY_FLOAT32

    @property
    def settings(self) -> Sequence[Setting]:
        return causes.ROUND_TRIP

    @property
    def narrow_dtype(self) -> torch.dtype:
        return torch_dtype(NARROW_FORMATS[self.pair.narrow])

    @property
    def ecc_dtype(self) -> torch.dtype:
        return torch_dtype(ECC_FORMATS[self.pair.ecc])

    def check(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> Tally:
        tally, listed = self.compare(slices, enumeration, calls, digested=digested)
        return tally + self.resolve(listed)

    def compare(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> tuple[Tally, Listed]:
        """Feed and compare, and list what is to be judged: what differs, or a setting may change.

        Raises:
            SubjectError: the subject raised, or broke its protocol.
        """
        fed = Fed.of(self.domain, enumeration, slices, calls.compare_on, digested)
        (x,) = fed.inputs
        narrow = x.to(self.narrow_dtype)
        subject, contracts = _split(calls, x, narrow, self.ecc_dtype)
        again = same_again(
            _outputs(subject),
            lambda: _outputs(_split(calls, x[:PROBE], narrow[:PROBE], self.ecc_dtype)[0]),
        )
        tally = Tally(contracts=[*contracts, again])
        defined = x.isfinite() & narrow.isfinite()
        if not bool(defined.all()):
            outside = (~defined).nonzero().squeeze(1)
            if len(outside) == len(fed):
                return tally + self._undefined(fed, narrow, subject), Listed.nothing(self, x)
            tally += self._undefined(fed.at(outside), narrow[outside], _at(subject, outside))
            inside = defined.nonzero().squeeze(1)
            fed, narrow, subject = fed.at(inside), narrow[inside], _at(subject, inside)
        compared, listed = self._defined(fed, narrow, subject)
        return tally + compared, listed

    def _defined(
        self, fed: Fed, narrow: torch.Tensor, subject: SplittingOutputs
    ) -> tuple[Tally, Listed]:
        (x,) = fed.inputs
        theirs = _reference(x, narrow, self.ecc_dtype)
        rho_differ = subject.rho != theirs.rho
        values_differ = ~same_bits(subject.values, theirs.values)
        finite_subject, finite_reference = subject.values.isfinite(), theirs.values.isfinite()
        buckets = fed.tallied(
            [bits(x), theirs.rho, bits(theirs.values)],
            rho_mismatches=rho_differ,
            recon_mismatches=values_differ,
            subject_exact=same_bits(subject.values, x),
            reference_exact=same_bits(theirs.values, x),
            nonfinite_subject=~finite_subject,
            nonfinite_reference=~finite_reference,
            nonfinite_disagree=finite_subject != finite_reference,
        )
        open_ = rho_differ | values_differ | self._may_move(x, narrow, theirs)
        where = open_.nonzero().squeeze(1)
        return Tally(buckets=buckets), Listed(x[where], _at(subject, where))

    def _may_move(
        self, x: torch.Tensor, narrow: torch.Tensor, theirs: SplittingOutputs
    ) -> torch.Tensor:
        """Where some setting may give another code or value than the literal one."""
        n = ECC_FORMATS[self.pair.ecc].max_code
        moved = near_tie(reference.normalised_error(x, narrow) * n, n)
        for setting in _EITHER if bool(fusing_matters(narrow).any()) else _RECIPROCAL:
            values = reference.reconstruct_chunk(narrow, theirs.rho, setting.arithmetic)
            moved |= bits(values) != bits(theirs.values)
        return moved

    def resolve(self, listed: Listed) -> Tally:
        """Explain the mismatches among what is listed, and try every setting on all of it.

        Nothing else can differ, whatever the setting.
        """
        x, subject = listed.x, listed.subject
        narrow, index = x.to(self.narrow_dtype), index_of(x)
        tried = causes.Tried(x, narrow, self.ecc_dtype)
        theirs = SplittingOutputs(tried.rho(LITERAL), tried.values(LITERAL))
        case = causes.SplittingCase(
            x,
            narrow,
            subject,
            theirs,
            self.operations,
            # The domain has 2^24 float32 of each exponent.
            strata=index >> 24,
            tried=tried,
            order=index,
        )
        explanation = causes.explain(case)
        tally = explained(explanation)
        differ = ~same_bits(subject.values, theirs.values)
        tally.largest = {"reconstructed": largest_ulp(subject.values, theirs.values, differ)}
        tally.left = tried.mismatches(subject, self.settings)
        tally.buckets = {
            exponent: BucketTally(causes=by_output)
            for exponent, by_output in explanation.by_stratum.items()
        }
        return tally

    def _undefined(self, fed: Fed, narrow: torch.Tensor, subject: SplittingOutputs) -> Tally:
        """What the subject does where the paper defines nothing."""
        (x,) = fed.inputs
        theirs = _reference(x, narrow, self.ecc_dtype)
        alike = (subject.rho == theirs.rho) & same_bits(subject.values, theirs.values)
        kinds = dict(zip(_KINDS, (x.isnan(), x.isinf(), x.isfinite()), strict=True))
        found: dict[str, Counts] = {}
        for what, kind in kinds.items():
            counts = counted(
                n=kind,
                zero_code=kind & (subject.rho == 0),
                gives_nan=kind & subject.values.isnan(),
                gives_infinity=kind & subject.values.isinf(),
                gives_finite=kind & subject.values.isfinite(),
                as_reference=kind & alike,
            )
            if counts["n"]:
                found[what] = counts
        buckets = {
            exponent: BucketTally(undefined=bucket.n) for exponent, bucket in fed.tallied().items()
        }
        return Tally(undefined=found, buckets=buckets)

    def metrics(self, tally: Tally) -> SplittingMetrics:
        n = sum(bucket.n for bucket in tally.buckets.values())

        def count(name: str) -> int:
            return sum(bucket.counts.get(name, 0) for bucket in tally.buckets.values())

        def share(part: int) -> float | None:
            return part / n if n else None

        return SplittingMetrics(
            rho_agree_frac=share(n - count("rho_mismatches")),
            rho_mismatches=count("rho_mismatches"),
            recon_agree_frac=share(n - count("recon_mismatches")),
            recon_mismatches=count("recon_mismatches"),
            subject_exact_frac=share(count("subject_exact")),
            subject_exact=count("subject_exact"),
            reference_exact_frac=share(count("reference_exact")),
            reference_exact=count("reference_exact"),
            # Sums of floats would depend on how the domain was parted.
            subject_mean_rel_err=None,
            reference_mean_rel_err=None,
            nonfinite_subject=count("nonfinite_subject"),
            nonfinite_reference=count("nonfinite_reference"),
            nonfinite_disagree=count("nonfinite_disagree"),
            unexplained=unexplained(tally),
        )


def index_of(x: torch.Tensor) -> torch.Tensor:
    """The indices of float32 in their domain, int64: by exponent, sign and mantissa."""
    pattern = bits(x).long()
    exponent = (pattern >> FP32.mantissa_bits) & FP32.exponent_mask
    sign = (pattern >> (FP32.bits - 1)) & 1
    mantissa = pattern & ((1 << FP32.mantissa_bits) - 1)
    return exponent << 24 | sign << FP32.mantissa_bits | mantissa


def _reference(x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype) -> SplittingOutputs:
    """The reference's codes and values, on the device of the input."""
    if x.device.type == "cpu":
        rho = reference.encode(x, narrow, ecc_dtype)
        return SplittingOutputs(rho, reference.decompress(narrow, rho))
    rho = reference.correction_codes(x, narrow, ecc_dtype, LITERAL.arithmetic)
    return SplittingOutputs(rho, reference.reconstruct_chunk(narrow, rho, LITERAL.arithmetic))


def _at(outputs: SplittingOutputs, where: torch.Tensor) -> SplittingOutputs:
    return SplittingOutputs(outputs.rho[where], outputs.values[where])


def _outputs(outputs: SplittingOutputs) -> tuple[torch.Tensor, torch.Tensor]:
    return outputs.rho, outputs.values


def _split(
    calls: SubjectCalls, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype
) -> tuple[SplittingOutputs, list[Contract]]:
    return calls.split_and_back(x.to(calls.device), narrow.to(calls.device), ecc_dtype)
