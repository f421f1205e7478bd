"""The figures of a case, as models: one field a metric, with what it means.

A figure that does not exist, such as a mean over nothing, is ``None``. The names are part of the
report's schema: they are added to, never renamed. A gate may limit any field of its kind's model.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)]
Real = Annotated[float | None, Field(allow_inf_nan=False)]


INPUTS_UNCHANGED = "inputs_unchanged"
SAME_BITS_TWICE = "same_bits_twice"
EVERY_CONFIGURATION = "same_in_every_configuration"
EMPTY_INPUT = "empty_input"
CONTRACTS = (INPUTS_UNCHANGED, SAME_BITS_TWICE, EVERY_CONFIGURATION, EMPTY_INPUT)
"""What must hold of a subject's calls beside their results."""


class Measures(BaseModel):
    """Base: strict, immutable, no NaN and no infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def names(cls) -> list[str]:
        """The metrics, in the order of the report."""
        return list(cls.model_fields)

    def value(self, metric: str) -> float | None:
        """One figure by its name."""
        value = getattr(self, metric)
        return None if value is None else float(value)


class QuantizationMetrics(Measures):
    """Of one tensor quantized under one spec. Codes and scales are the subject's against the
    reference's; ``dequant_*`` has both dequantize the subject's own codes and scales, so that
    a code that differs is not counted twice; ``nmse_*`` and ``nonfinite_*`` are of each side's
    full round trip."""

    int_agree: Fraction = Field(description="share of codes that are equal")
    int_mismatches: Count = Field(description="codes that differ")
    int_within_1: Fraction = Field(description="share of codes at most 1 apart")
    int_beyond_1: Count = Field(description="codes more than 1 apart")
    groups: Count = Field(description="groups, each with one scale")
    scale_agree: Fraction = Field(description="share of float16 scales with equal bits")
    scale_mismatches: Count = Field(description="scales that differ")
    dequant_bit_agree: Fraction = Field(description="share of dequantized float32 of equal bits")
    dequant_mismatches: Count = Field(description="dequantized values that differ")
    dequant_max_ulp: Count | None = Field(
        description="largest distance of dequantized values, in float32 ULP, where both are finite"
    )
    nmse_subject: Real = Field(
        description="subject's round trip: sum((x-y)^2)/sum(x^2), where both are finite"
    )
    nmse_reference: Real = Field(description="the reference's, over the same elements")
    nmse_ratio: Real = Field(
        description="nmse_subject / nmse_reference; 1 where both are 0, none where one is"
    )
    nonfinite_subject: Count = Field(description="non-finite values after the round trip")
    nonfinite_reference: Count = Field(description="the same of the reference")
    nonfinite_disagree: Count = Field(
        description="values non-finite on one side and finite on the other"
    )
    scale_overflow_groups: Count = Field(
        description="groups of finite values whose scale the reference stores as infinity"
    )
    scale_underflow_groups: Count = Field(
        description="groups with a value that is not 0 whose scale the reference stores as 0"
    )
    unexplained: Count = Field(
        description="mismatches that no arithmetic switch reproduces and no bound proves"
    )


class SplittingCounts(Measures):
    """Counts over some float32 values that were split and put together again."""

    n: Count = Field(description="values")
    rho_mismatches: Count = Field(description="correction codes that differ")
    recon_mismatches: Count = Field(
        description="reconstructed float32 that differ in bits, each side from its own codes"
    )
    subject_exact: Count = Field(description="values the subject gives back bit for bit")
    reference_exact: Count = Field(description="values the reference gives back bit for bit")
    nonfinite_subject: Count = Field(description="non-finite values the subject gives back")
    nonfinite_reference: Count = Field(description="the same of the reference")
    nonfinite_disagree: Count = Field(
        description="values non-finite on one side and finite on the other"
    )


class SplittingMetrics(Measures):
    """Of one sweep split into one pair of formats."""

    rho_agree_frac: Fraction = Field(description="share of correction codes that are equal")
    rho_mismatches: Count = Field(description="correction codes that differ")
    recon_agree_frac: Fraction = Field(
        description="share of reconstructed float32 of equal bits, each side from its own codes"
    )
    recon_mismatches: Count = Field(description="reconstructed float32 that differ in bits")
    subject_exact_frac: Fraction = Field(
        description="share of values the subject gives back bit for bit"
    )
    subject_exact: Count = Field(description="values the subject gives back bit for bit")
    reference_exact_frac: Fraction = Field(
        description="share of values the reference gives back bit for bit"
    )
    reference_exact: Count = Field(description="values the reference gives back bit for bit")
    subject_mean_rel_err: Real = Field(
        description="mean of |y-x|/|x| of the subject, over x that is not 0 with finite y"
    )
    reference_mean_rel_err: Real = Field(description="the same of the reference")
    nonfinite_subject: Count = Field(description="non-finite values the subject gives back")
    nonfinite_reference: Count = Field(description="the same of the reference")
    nonfinite_disagree: Count = Field(
        description="values non-finite on one side and finite on the other"
    )
    unexplained: Count = Field(
        description="mismatches that no arithmetic switch reproduces and no bound proves"
    )


class ValueMetrics(Measures):
    """Of values that both sides make of the same codes: enumerated pairs, nothing drawn."""

    value_agree_frac: Fraction = Field(description="share of float32 values of equal bits")
    value_mismatches: Count = Field(description="float32 values that differ in bits")
    value_max_ulp: Count | None = Field(
        description="largest distance of two values, in float32 ULP; none where one is a NaN"
    )
    nonfinite_subject: Count = Field(description="non-finite values the subject gives")
    nonfinite_reference: Count = Field(description="the same of the reference")
    nonfinite_disagree: Count = Field(
        description="values non-finite on one side and finite on the other"
    )
    unexplained: Count = Field(
        description="mismatches that no arithmetic switch reproduces and no bound proves"
    )


class CodeMetrics(Measures):
    """Of codes and scales of groups whose absolute maximum is 1, so that an input is its share."""

    code_agree_frac: Fraction = Field(description="share of codes that are equal")
    code_mismatches: Count = Field(description="codes that differ")
    code_beyond_1: Count = Field(description="codes more than 1 apart")
    scale_mismatches: Count = Field(description="float16 scales that differ")
    thresholds_moved: Count = Field(
        description="codes that begin at another float32 than the reference's"
    )
    unexplained: Count = Field(
        description="mismatches that no arithmetic switch reproduces and no bound proves"
    )


class StepMetrics(Measures):
    """Of one optimizer step from one state; each side stores its own. Moments are codes where they
    are quantized, else values of the parameter's dtype; what a case has not is null."""

    param_agree: Fraction = Field(description="share of stored parameters of equal bits")
    param_mismatches: Count = Field(description="stored parameters that differ in bits")
    param_max_ulp: Count | None = Field(
        description="largest distance of two, in ULP of their dtype, where both are finite"
    )
    ecc_mismatches: Count | None = Field(description="correction codes that differ")
    weight_max_ulp: Count | None = Field(
        description="largest distance of the weights that parameters and correction codes stand "
        "for, in float32 ULP, where both are finite"
    )
    momentum_mismatches: Count | None = Field(description="momenta that differ, codes or values")
    variance_mismatches: Count | None = Field(description="variances that differ, likewise")
    codes_beyond_1: Count = Field(description="codes of moments more than 1 apart; 0 of none")
    scale_mismatches: Count | None = Field(description="float16 scales that differ")
    nonfinite_subject: Count = Field(description="stored parameters that are not finite")
    nonfinite_reference: Count = Field(description="the same of the reference")
    nonfinite_disagree: Count = Field(
        description="parameters non-finite on one side and finite on the other"
    )
    unexplained: Count = Field(
        description="mismatches that no arithmetic switch reproduces and no bound proves"
    )


class TrajectoryMetrics(Measures):
    """Of steps one after the other, each side from its own state, the gradients the same. Errors
    are distances from plain ``torch.optim`` in float64 (for Lion, which it has not, from the
    formulas in float64), relative to the way that it has gone, in the Euclidean norm:
    ``|theta - theta_64| / |theta_64 - theta_0|``."""

    steps: Count
    first_difference: Count | None = Field(
        description="the first step after which any stored bits differ; null if none does"
    )
    param_max_ulp: Count | None = Field(
        description="largest distance of stored parameters at the end, in ULP of their dtype"
    )
    param_differ: Count = Field(description="stored parameters that differ at the end")
    codes_differ: Count = Field(description="codes of moments and corrections that differ there")
    error_subject: Real = Field(description="of the subject's weights at the end")
    error_reference: Real = Field(description="of the reference's")
    error_naive: Real = Field(
        description="of the same optimizer with parameters and moments all in bfloat16"
    )
    error_ratio: Real = Field(
        description="error_subject / error_reference; 1 where both are 0, none where one is"
    )


Metrics = (
    QuantizationMetrics
    | SplittingMetrics
    | ValueMetrics
    | CodeMetrics
    | StepMetrics
    | TrajectoryMetrics
)
