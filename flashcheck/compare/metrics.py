"""The metrics of a case, from the outputs of subject and reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from flashcheck.compare.ulp import NAN_DISTANCE, apart, bits, differing, distance, same_bits
from flashcheck.formats import FP32
from flashcheck.measures import QuantizationMetrics, SplittingCounts, SplittingMetrics


@dataclass(frozen=True)
class QuantizationOutputs:
    """What one side makes of a tensor: flat codes, float16 scales, and flat float32 values."""

    codes: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor


def quantization_metrics(
    x: torch.Tensor,
    *,
    subject: QuantizationOutputs,
    reference: QuantizationOutputs,
    reference_of_subject: torch.Tensor,
    group_size: int,
    unexplained: int,
) -> QuantizationMetrics:
    """Compare two round trips of one tensor.

    Args:
        x: the input as float32, flat.
        reference_of_subject: the reference's values of the subject's own codes and scales.
        unexplained: how many mismatches have no cause.
    """
    apart = subject.codes.to(torch.int16).sub_(reference.codes.to(torch.int16)).abs_()
    scales_equal = same_bits(subject.scales, reference.scales)
    values_equal = same_bits(subject.values, reference_of_subject)
    finite_subject = subject.values.isfinite()
    finite_reference = reference.values.isfinite()
    both = finite_subject & finite_reference
    comparable = finite_subject & reference_of_subject.isfinite()
    ulps = distance(subject.values, reference_of_subject)[comparable]
    nmse_subject, nmse_reference = _nmse(x, subject.values, reference.values, both)
    finite, nonzero = _group_any(x, group_size)
    scales = reference.scales
    return QuantizationMetrics(
        int_agree=fraction(apart == 0),
        int_mismatches=count(apart != 0),
        int_within_1=fraction(apart <= 1),
        int_beyond_1=count(apart > 1),
        groups=scales.numel(),
        scale_agree=fraction(scales_equal),
        scale_mismatches=count(~scales_equal),
        dequant_bit_agree=fraction(values_equal),
        dequant_mismatches=count(~values_equal),
        dequant_max_ulp=int(ulps.max()) if ulps.numel() else None,
        nmse_subject=nmse_subject,
        nmse_reference=nmse_reference,
        nmse_ratio=_ratio(nmse_subject, nmse_reference),
        nonfinite_subject=count(~finite_subject),
        nonfinite_reference=count(~finite_reference),
        nonfinite_disagree=count(finite_subject != finite_reference),
        scale_overflow_groups=count(scales.isinf() & finite),
        scale_underflow_groups=count((scales == 0) & nonzero),
        unexplained=unexplained,
    )


@dataclass(frozen=True)
class SplittingOutputs:
    """What one side makes of float32 values: correction codes, and the values given back."""

    rho: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class RelativeError:
    """A sum of relative errors and how many values it is over; sums of parts add up."""

    subject: float = 0.0
    reference: float = 0.0
    n_subject: int = 0
    n_reference: int = 0

    def __add__(self, other: RelativeError) -> RelativeError:
        return RelativeError(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )


@dataclass(frozen=True)
class MagnitudeErrors:
    """Relative errors summed by the float32 exponent field of the input; parts add up.

    Attributes:
        subject: float64 of shape (256,), sums of ``|y-x|/|x|`` where both sides' ``y`` is finite,
            and ``x`` too and not 0; ``reference`` likewise.
        n: int64 of shape (256,), how many values each is over.
    """

    subject: torch.Tensor
    reference: torch.Tensor
    n: torch.Tensor

    def __add__(self, other: MagnitudeErrors) -> MagnitudeErrors:
        return MagnitudeErrors(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )

    def means(self) -> list[tuple[int, int, float, float]]:
        """Of each exponent that has values: it, their number, and both sides' mean."""
        rows = zip(self.n.tolist(), self.subject.tolist(), self.reference.tolist(), strict=True)
        return [(exponent, n, s / n, r / n) for exponent, (n, s, r) in enumerate(rows) if n]


def magnitude_errors(
    x: torch.Tensor, *, subject: torch.Tensor, reference: torch.Tensor
) -> MagnitudeErrors:
    """How far both sides' values are from the float32 inputs, by magnitude; all of one shape."""
    where = (x != 0) & x.isfinite() & subject.isfinite() & reference.isfinite()
    true = x[where]
    exponents = bits(true).bitwise_right_shift(FP32.mantissa_bits).bitwise_and(FP32.exponent_mask)

    def sums(values: torch.Tensor | None) -> torch.Tensor:
        weights = None if values is None else _relative(true, values[where])
        return torch.bincount(exponents, weights, minlength=FP32.exponent_mask + 1)

    return MagnitudeErrors(sums(subject), sums(reference), sums(None))


def histogram(subject: torch.Tensor, reference: torch.Tensor) -> dict[str, int]:
    """How many outputs are how far apart, of those that differ: codes, or ULP.

    Returns:
        By the power of two that a distance reaches: 4 counts 4 to 7. Zeros of different sign are 0
        apart; ``nan`` counts where one side alone is NaN.
    """
    differ = differing(subject, reference)
    distances = apart(subject[differ], reference[differ])
    # Of a whole number below 2^53 the exponent of its float64 is how many binary digits it has.
    digits = torch.frexp(distances.double()).exponent
    counts = torch.bincount(digits).tolist()
    nan = NAN_DISTANCE.bit_length()
    labels = {0: "0", nan: "nan"}
    return {
        labels.get(digit, str(1 << max(digit - 1, 0))): number
        for digit, number in enumerate(counts)
        if number
    }


def splitting_counts(
    x: torch.Tensor, *, subject: SplittingOutputs, reference: SplittingOutputs
) -> list[SplittingCounts]:
    """Counts of each row of ``x``, float32 of shape (strata, samples), as all tensors here."""
    finite_subject = subject.values.isfinite()
    finite_reference = reference.values.isfinite()
    rows = {
        "rho_mismatches": subject.rho != reference.rho,
        "recon_mismatches": ~same_bits(subject.values, reference.values),
        "subject_exact": same_bits(subject.values, x),
        "reference_exact": same_bits(reference.values, x),
        "nonfinite_subject": ~finite_subject,
        "nonfinite_reference": ~finite_reference,
        "nonfinite_disagree": finite_subject != finite_reference,
    }
    sums = {name: where.sum(dim=1).tolist() for name, where in rows.items()}
    return [
        SplittingCounts(n=x.shape[1], **{name: values[row] for name, values in sums.items()})
        for row in range(x.shape[0])
    ]


def relative_error(
    x: torch.Tensor, *, subject: torch.Tensor, reference: torch.Tensor
) -> RelativeError:
    """Sums of ``|y-x|/|x|`` in float64, where ``x`` is finite and not 0 and ``y`` is finite."""
    subject_sum, n_subject = _relative_sum(x, subject)
    reference_sum, n_reference = _relative_sum(x, reference)
    return RelativeError(subject_sum, reference_sum, n_subject, n_reference)


def splitting_metrics(
    strata: Sequence[SplittingCounts], error: RelativeError, *, unexplained: int
) -> SplittingMetrics:
    """The totals over all strata; ``unexplained`` is how many mismatches have no cause."""

    def total(name: str) -> int:
        return sum(getattr(stratum, name) for stratum in strata)

    n = total("n")

    def share(part: int) -> float | None:
        return part / n if n else None

    return SplittingMetrics(
        rho_agree_frac=share(n - total("rho_mismatches")),
        rho_mismatches=total("rho_mismatches"),
        recon_agree_frac=share(n - total("recon_mismatches")),
        recon_mismatches=total("recon_mismatches"),
        subject_exact_frac=share(total("subject_exact")),
        subject_exact=total("subject_exact"),
        reference_exact_frac=share(total("reference_exact")),
        reference_exact=total("reference_exact"),
        subject_mean_rel_err=error.subject / error.n_subject if error.n_subject else None,
        reference_mean_rel_err=error.reference / error.n_reference if error.n_reference else None,
        nonfinite_subject=total("nonfinite_subject"),
        nonfinite_reference=total("nonfinite_reference"),
        nonfinite_disagree=total("nonfinite_disagree"),
        unexplained=unexplained,
    )


def count(where: torch.Tensor) -> int:
    """How many are true."""
    return int(where.count_nonzero())


def fraction(where: torch.Tensor) -> float | None:
    """The share that is true; none of nothing."""
    return count(where) / where.numel() if where.numel() else None


def _nmse(
    x: torch.Tensor, subject: torch.Tensor, reference: torch.Tensor, where: torch.Tensor
) -> tuple[float | None, float | None]:
    """Of both sides over the same elements; none where there is no element."""
    where = where & x.isfinite()
    true = x[where].double()
    if not true.numel():
        return None, None
    return _normalised(true, subject[where]), _normalised(true, reference[where])


def _normalised(true: torch.Tensor, values: torch.Tensor) -> float | None:
    power = float(true.square().sum())
    error = float((true - values).square_().sum())
    if power == 0:
        return 0.0 if error == 0 else None
    return error / power


def _ratio(subject: float | None, reference: float | None) -> float | None:
    if subject is None or reference is None:
        return None
    if reference == 0:
        return 1.0 if subject == 0 else None
    return subject / reference


def _relative_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[float, int]:
    where = (x != 0) & x.isfinite() & y.isfinite()
    return float(torch.where(where, _relative(x, y), 0.0).sum()), count(where)


def _relative(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    true = x.double()
    return (y.double() - true).abs_().div_(true.abs())


def _group_any(x: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each group: whether all its values are finite, and whether any is not 0."""
    missing = -x.numel() % group_size
    groups = torch.nn.functional.pad(x, (0, missing)).reshape(-1, group_size)
    return groups.isfinite().all(dim=1), (groups != 0).any(dim=1)
