"""The figures of a case, against results worked out by hand."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashcheck.compare.metrics import (
    QuantizationOutputs,
    RelativeError,
    SplittingOutputs,
    histogram,
    magnitude_errors,
    quantization_metrics,
    relative_error,
    splitting_counts,
    splitting_metrics,
)
from flashcheck.compare.ulp import bits, distance, same_bits
from flashcheck.measures import QuantizationMetrics, SplittingCounts

INF, NAN = math.inf, math.nan
EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=200)


def f32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def f16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float16)


def int8(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int8)


def up(value: float, steps: int) -> float:
    """The float32 that lies ``steps`` above."""
    # NumPy warns of the step from the largest value to infinity.
    with np.errstate(over="ignore"):
        for _ in range(steps):
            value = float(np.nextafter(np.float32(value), np.float32(INF)))
    return value


# ---- Bits and ULP --------------------------------------------------------------------------


def test_same_bits() -> None:
    x = f32(0.0, 0.0, 1.0, 1.0, INF, INF, NAN, NAN, NAN)
    y = f32(0.0, -0.0, 1.0, up(1.0, 1), INF, -INF, NAN, -NAN, 1.0)
    assert same_bits(x, y).tolist() == [True, False, True, False, True, False, True, True, False]


def test_a_nan_equals_a_nan_of_another_payload() -> None:
    x = torch.tensor([0x7FC00000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    y = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert same_bits(x, y).all()


@pytest.mark.parametrize(
    ("x", "y", "ulp"),
    [
        (1.0, 1.0, 0),
        (0.0, -0.0, 0),
        (1.0, 1.0 + 2.0**-23, 1),
        (1.0, 1.0 - 2.0**-24, 1),
        (2.0, 2.0 - 2.0**-23, 1),
        (2.0**-149, -(2.0**-149), 2),
        (0.0, 2.0**-149, 1),
        (0.0, 2.0**-126, 2**23),
        (1.0, 2.0, 2**23),
        (-1.0, -4.0, 2**24),
        (float(np.finfo(np.float32).max), INF, 1),
        (INF, INF, 0),
        (INF, -INF, 2 * 0x7F800000),
    ],
)
def test_distance(x: float, y: float, ulp: int) -> None:
    assert distance(f32(x), f32(y)).tolist() == [ulp]
    assert distance(f32(y), f32(x)).tolist() == [ulp]


@EXACT
@given(
    st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127),
    st.integers(min_value=0, max_value=9),
)
def test_distance_counts_steps_of_nextafter(value: float, steps: int) -> None:
    above = up(value, steps)
    assert distance(f32(value), f32(above)).tolist() == [steps]
    assert distance(f32(-value), f32(-above)).tolist() == [steps]


def rank(pattern: int, width: int) -> int:
    """The place of a float among all of its format, by its sign and magnitude."""
    sign, magnitude = pattern >> (width - 1), pattern & ((1 << (width - 1)) - 1)
    return -magnitude if sign else magnitude


@EXACT
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_distance_is_the_difference_of_ranks(x: int, y: int) -> None:
    pair = torch.from_numpy(np.array([x, y], dtype=np.uint32).view(np.float32))
    assert distance(pair[:1], pair[1:]).tolist() == [abs(rank(x, 32) - rank(y, 32))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distance_of_neighbours_in_16_bits_is_1(dtype: torch.dtype) -> None:
    positive = torch.arange(0x7C00 if dtype == torch.float16 else 0x7F80, dtype=torch.int16)
    values = positive.view(dtype)
    assert (distance(values[1:], values[:-1]) == 1).all()
    assert (distance(-values[1:], -values[:-1]) == 1).all()
    assert (distance(values, -values) == 2 * positive.long()).all()


def test_bits_reads_any_layout() -> None:
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    expected = [[struct.unpack("<i", struct.pack("<f", v))[0] for v in row] for row in x.tolist()]
    assert bits(x).tolist() == expected


# ---- Quantization --------------------------------------------------------------------------


def quantized(
    x: torch.Tensor,
    subject: QuantizationOutputs,
    reference: QuantizationOutputs,
    of_subject: torch.Tensor | None = None,
    group_size: int = 4,
) -> QuantizationMetrics:
    return quantization_metrics(
        x,
        subject=subject,
        reference=reference,
        reference_of_subject=subject.values if of_subject is None else of_subject,
        group_size=group_size,
        unexplained=0,
    )


def test_codes_scales_and_values_are_counted() -> None:
    x = f32(1, 2, 3, 4, 5, 6)
    subject = QuantizationOutputs(
        int8(-128, 127, 5, -3, 0, 1), f16(1.0, 2.0), f32(1, 2, 3, 4, 5, 6)
    )
    reference = QuantizationOutputs(
        int8(127, 127, 4, -5, 0, 2), f16(1.0, 2.0 + 2**-9), f32(1, 2, 3, 4, 5, 6)
    )
    of_subject = f32(1, up(2, 3), 3, 4, 5, up(6, 1))
    metrics = quantized(x, subject, reference, of_subject)
    # Apart by 255, 0, 1, 2, 0, 1: the difference of codes must not wrap in 8 bits.
    assert metrics.int_mismatches == 4
    assert metrics.int_agree == pytest.approx(2 / 6)
    assert metrics.int_within_1 == pytest.approx(4 / 6)
    assert metrics.int_beyond_1 == 2
    assert (metrics.groups, metrics.scale_mismatches, metrics.scale_agree) == (2, 1, 0.5)
    assert metrics.dequant_mismatches == 2
    assert metrics.dequant_bit_agree == pytest.approx(4 / 6)
    assert metrics.dequant_max_ulp == 3


def test_unsigned_codes_do_not_wrap() -> None:
    codes = torch.tensor([0, 255], dtype=torch.uint8)
    x = f32(0, 1)
    subject = QuantizationOutputs(codes, f16(1.0), x)
    metrics = quantized(x, subject, QuantizationOutputs(codes.flip(0), f16(1.0), x))
    assert (metrics.int_mismatches, metrics.int_within_1) == (2, 0.0)


def test_signed_zeros_of_scales_and_values_differ() -> None:
    x = f32(0, 0, 0, 0)
    codes = int8(0, 0, 0, 0)
    subject = QuantizationOutputs(codes, f16(-0.0), f32(0, 0, 0, -0.0))
    reference = QuantizationOutputs(codes, f16(0.0), f32(0, 0, 0, 0))
    metrics = quantized(x, subject, reference, reference.values)
    assert metrics.scale_mismatches == 1
    assert (metrics.dequant_mismatches, metrics.dequant_max_ulp) == (1, 0)


def test_nmse_is_of_each_side_and_their_ratio() -> None:
    x = f32(1, 2)
    codes = int8(0, 0)
    subject = QuantizationOutputs(codes, f16(1), f32(1, 1))
    reference = QuantizationOutputs(codes, f16(1), f32(1, 1.5))
    metrics = quantized(x, subject, reference)
    assert metrics.nmse_subject == pytest.approx(1 / 5)
    assert metrics.nmse_reference == pytest.approx(0.25 / 5)
    assert metrics.nmse_ratio == pytest.approx(4)


def test_nmse_is_over_elements_finite_on_both_sides() -> None:
    x = f32(1, 2, 3, 4)
    codes = int8(0, 0, 0, 0)
    subject = QuantizationOutputs(codes, f16(INF), f32(INF, 1, 3, NAN))
    reference = QuantizationOutputs(codes, f16(INF), f32(INF, 1.5, -INF, 4))
    metrics = quantized(x, subject, reference)
    assert metrics.nmse_subject == pytest.approx(1 / 4)
    assert metrics.nmse_reference == pytest.approx(0.25 / 4)
    assert metrics.nonfinite_subject == 2
    assert metrics.nonfinite_reference == 2
    assert metrics.nonfinite_disagree == 2


def test_nmse_does_not_overflow_or_lose_small_numbers() -> None:
    codes = int8(0, 0)
    for scale in (1e38, 1e-38):
        x = f32(scale, 2 * scale)
        subject = QuantizationOutputs(codes, f16(1), f32(scale, scale))
        metrics = quantized(x, subject, subject)
        assert metrics.nmse_subject == pytest.approx(1 / 5, rel=1e-6)
        assert metrics.nmse_ratio == 1


def test_nmse_where_everything_is_lost_is_1() -> None:
    x = f32(1e-20, -2e-20)
    lost = QuantizationOutputs(int8(0, 0), f16(0), f32(0, 0))
    metrics = quantized(x, lost, lost)
    assert (metrics.nmse_subject, metrics.nmse_reference, metrics.nmse_ratio) == (1, 1, 1)


def test_the_ratio_of_two_perfect_sides_is_1_and_else_there_is_none() -> None:
    x = f32(1, 2)
    codes = int8(0, 0)
    exact = QuantizationOutputs(codes, f16(1), x)
    assert quantized(x, exact, exact).nmse_ratio == 1
    worse = QuantizationOutputs(codes, f16(1), f32(1, 1))
    metrics = quantized(x, worse, exact)
    assert metrics.nmse_reference == 0
    assert metrics.nmse_ratio is None


def test_where_nothing_is_finite_there_is_no_figure() -> None:
    x = f32(1, 2)
    lost = QuantizationOutputs(int8(0, 0), f16(NAN), f32(NAN, INF))
    metrics = quantized(x, lost, lost)
    assert metrics.nmse_subject is None
    assert metrics.nmse_reference is None
    assert metrics.nmse_ratio is None
    assert metrics.dequant_max_ulp is None
    assert metrics.dequant_bit_agree == 1
    assert metrics.nonfinite_disagree == 0


def test_of_nothing_there_is_no_share() -> None:
    empty = QuantizationOutputs(int8(), f16(), f32())
    metrics = quantized(f32(), empty, empty)
    assert metrics.int_agree is None
    assert metrics.int_within_1 is None
    assert metrics.scale_agree is None
    assert metrics.dequant_bit_agree is None
    assert metrics.int_mismatches == metrics.groups == 0


def test_groups_that_the_format_loses() -> None:
    # Overflow, underflow, an all-zero group, and one with an infinity of its own; the last short.
    x = f32(7e4, 1, 1e-9, 0, 0, 0, INF, 1, 1e-9)
    scales = f16(INF, 0, 0, INF, 0)
    codes = torch.zeros(9, dtype=torch.int8)
    side = QuantizationOutputs(codes, scales, torch.zeros(9))
    metrics = quantized(x, side, side, group_size=2)
    assert metrics.groups == 5
    assert metrics.scale_overflow_groups == 1
    assert metrics.scale_underflow_groups == 2


def test_the_format_loses_what_the_reference_says() -> None:
    x = f32(7e4, 1)
    side = QuantizationOutputs(int8(0, 0), f16(65504), f32(0, 0))
    reference = QuantizationOutputs(int8(0, 0), f16(INF), f32(0, 0))
    assert quantized(x, side, reference).scale_overflow_groups == 1
    assert quantized(x, reference, side).scale_overflow_groups == 0


# ---- Splitting -----------------------------------------------------------------------------


def test_splitting_counts_each_row() -> None:
    x = torch.stack([f32(1, 2, 3, 4), f32(0.0, NAN, 5, INF)])
    subject = SplittingOutputs(
        torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int8),
        torch.stack([f32(1, 2, up(3, 1), INF), f32(-0.0, NAN, 5, INF)]),
    )
    reference = SplittingOutputs(
        torch.tensor([[1, 2, 0, 0], [5, 6, 7, 0]], dtype=torch.int8),
        torch.stack([f32(1, up(2, 1), 3, 4), f32(0.0, NAN, 5, NAN)]),
    )
    first, second = splitting_counts(x, subject=subject, reference=reference)
    assert first == SplittingCounts(
        n=4, rho_mismatches=2, recon_mismatches=3, subject_exact=2, reference_exact=3,
        nonfinite_subject=1, nonfinite_reference=0, nonfinite_disagree=1,
    )  # fmt: skip
    assert second == SplittingCounts(
        n=4, rho_mismatches=1, recon_mismatches=2, subject_exact=3, reference_exact=3,
        nonfinite_subject=2, nonfinite_reference=2, nonfinite_disagree=0,
    )  # fmt: skip


def test_relative_error_leaves_out_what_has_none() -> None:
    x = f32(2, -4, 0, INF, NAN, 8)
    error = relative_error(x, subject=f32(3, -3, 1, 1, 1, INF), reference=f32(2, -4, 0, 1, 1, 7))
    assert error == RelativeError(subject=0.5 + 0.25, reference=0.125, n_subject=2, n_reference=3)


def test_relative_error_is_exact_for_tiny_errors() -> None:
    x = f32(1.0)
    error = relative_error(x, subject=f32(up(1.0, 1)), reference=x)
    assert (error.subject, error.reference) == (2.0**-23, 0.0)


def test_relative_errors_of_parts_add_up() -> None:
    total = RelativeError(1.0, 2.0, 3, 4) + RelativeError(10.0, 20.0, 30, 40)
    assert total == RelativeError(11.0, 22.0, 33, 44)


def test_errors_by_magnitude_are_means_of_each_exponent() -> None:
    x = f32(1.0, -1.5, 2.0, 0.0, INF, NAN, 4.0, 4.0)
    mine = f32(1.5, -1.5, 1.0, 1.0, 1.0, 1.0, INF, 5.0)
    theirs = f32(1.0, -3.0, 2.0, 1.0, 1.0, 1.0, 4.0, 4.0)
    errors = magnitude_errors(x, subject=mine, reference=theirs)
    assert errors.means() == [(127, 2, 0.25, 0.5), (128, 1, 0.5, 0.0), (129, 1, 0.25, 0.0)]
    assert (errors + errors).means() == [
        (exponent, 2 * n, *means) for exponent, n, *means in errors.means()
    ]


def test_subnormals_have_exponent_0() -> None:
    x = f32(2.0**-149, -(2.0**-130))
    errors = magnitude_errors(x, subject=f32(0.0, 0.0), reference=x)
    assert errors.means() == [(0, 2, 1.0, 0.0)]


def test_distances_are_counted_by_powers_of_two() -> None:
    codes = histogram(int8(0, 1, 2, 3, 4, 5, -128, 9), int8(0, 0, 0, 0, 0, 0, 127, 2))
    assert codes == {"1": 1, "2": 2, "4": 3, "128": 1}
    floats = histogram(
        f32(1.0, up(1.0, 1), up(1.0, 8), 0.0, NAN, NAN, -INF),
        f32(1.0, 1.0, 1.0, -0.0, NAN, 1.0, INF),
    )
    assert floats == {"0": 1, "1": 1, "8": 1, str(2**31): 1, "nan": 1}
    assert histogram(f32(1.0), f32(1.0)) == {}
    assert histogram(f32(), f32()) == {}


def counts(n: int, **given: int) -> SplittingCounts:
    names = dict.fromkeys(SplittingCounts.names(), 0)
    return SplittingCounts(**{**names, "n": n, **given})


def test_the_totals_of_a_sweep() -> None:
    strata = [
        counts(10, rho_mismatches=1, recon_mismatches=2, subject_exact=9, reference_exact=8),
        counts(30, rho_mismatches=3, recon_mismatches=2, subject_exact=30, reference_exact=20,
               nonfinite_subject=4, nonfinite_reference=5, nonfinite_disagree=1),
    ]  # fmt: skip
    error = RelativeError(subject=6.0, reference=1.0, n_subject=3, n_reference=4)
    metrics = splitting_metrics(strata, error, unexplained=2)
    assert (metrics.rho_agree_frac, metrics.rho_mismatches) == (0.9, 4)
    assert (metrics.recon_agree_frac, metrics.recon_mismatches) == (0.9, 4)
    assert (metrics.subject_exact_frac, metrics.subject_exact) == (39 / 40, 39)
    assert (metrics.reference_exact_frac, metrics.reference_exact) == (0.7, 28)
    assert (metrics.subject_mean_rel_err, metrics.reference_mean_rel_err) == (2.0, 0.25)
    assert metrics.nonfinite_subject == 4
    assert metrics.nonfinite_reference == 5
    assert metrics.nonfinite_disagree == 1


def test_the_totals_of_nothing_are_no_figures() -> None:
    metrics = splitting_metrics([], RelativeError(), unexplained=0)
    assert metrics.rho_agree_frac is None
    assert metrics.recon_agree_frac is None
    assert metrics.subject_exact_frac is None
    assert metrics.reference_exact_frac is None
    assert metrics.subject_mean_rel_err is None
    assert metrics.reference_mean_rel_err is None
    assert metrics.rho_mismatches == 0


def test_sides_cannot_be_swapped_by_position() -> None:
    x = torch.zeros(1, 1)
    side = SplittingOutputs(torch.zeros(1, 1, dtype=torch.int8), x)
    with pytest.raises(TypeError):
        splitting_counts(x, side, side)  # type: ignore[misc]
    with pytest.raises(TypeError):
        relative_error(x, x, x)  # type: ignore[misc]
