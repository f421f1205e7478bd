"""How far a correct kernel's figures may lie from the exact ones, derived from its operations.

A kernel that computes a formula in float32 need not give the literal bits: a GPU's fast division
and square root are not correctly rounded. What is then provable is a bound. With ``u = 2^-24``,
a correctly rounded operation has a relative error of at most ``u``, and one within ``k`` ULP of at
most ``2 k u`` (an ULP of ``y`` is at most ``2 u |y|``). First-order terms add up along the path:

========== ============================== ==================================================
path       stage                          adds to the relative error, in u
========== ============================== ==================================================
momentum   normalised ``x / s``           ``d / (1+|m'|)``: companding damps it by as much
           companded ``2m' / (1+|m'|)``   ``1`` for the sum, ``d`` for the division
           before rounding ``N m''``      ``1``
variance   normalised ``sqrt(v) / s``     ``2 r`` for both roots, ``d`` for the division
           before rounding ``N v'``       ``1``
dequantize ``m'' = q / N``                ``d``, times ``2 / (2-|m''|)`` through expansion
           expanded ``m'' / (2-|m''|)``   ``1`` for the difference, ``d`` for the division
           scaled ``m' s``                ``1``; a square then doubles all and adds ``1``
rebuilt    ``(rho / N) 2^l``              ``d``, of the correction alone; where that is subnormal
                                          its product rounds too, by at most 2^-150
           ``theta' + e``                 half an ULP of the sum; none below 2^-125, where both
                                          are multiples of 2^-149 and their sum is exact
========== ============================== ==================================================

Correction codes have no bound: before rounding, all of their path is exact but one product, and
what may be done otherwise there is a switch.

``d = 2 division_ulp`` and ``r = 2 square_root_ulp`` come from the suite's YAML. A rounding by
``floor(x + 0.5)`` adds half an ULP of the sum. Terms of second order, and float64's own errors in
the exact value, are far below :data:`SLACK`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flashcheck.config import StepTolerances, Tolerances

U = 2.0**-24
SLACK = 1.0 + 2.0**-16
"""Covers products of two or more of the relative errors above, each below 2^-19."""

_MIN_EXPONENT = -126
_MANTISSA_BITS = 23
_SMALLEST_SUBNORMAL = 2.0**-149
_SMALLEST_NORMAL = 2.0**-126
_EXACT_SUMS = 2.0**-125
_HALF_INFINITY = 0x7C00


@dataclass(frozen=True)
class OperationBounds:
    """How far an operation of the subject may be from the exact result, in float32 ULP."""

    division_ulp: float
    square_root_ulp: float
    power_ulp: float = 0.5

    @classmethod
    def of(cls, tolerances: Tolerances) -> OperationBounds:
        """As a suite's file gives them."""
        made = cls(tolerances.division.ulp, tolerances.square_root.ulp)
        if isinstance(tolerances, StepTolerances):
            made = replace(made, power_ulp=tolerances.power.ulp)
        return made

    @property
    def division(self) -> float:
        """Relative error in units of u; never below a correct rounding."""
        return max(1.0, 2 * self.division_ulp)

    @property
    def square_root(self) -> float:
        return max(1.0, 2 * self.square_root_ulp)


@dataclass(frozen=True)
class Decision:
    """Exact real numbers that become codes, float64, and how far a subject's may be from them."""

    exact: torch.Tensor
    error: torch.Tensor

    def allows(self, code: torch.Tensor) -> torch.Tensor:
        """Where rounding some number within the bound gives this code."""
        # A code k comes of [k - 1/2, k + 1/2], either end included: ties may go either way.
        return self._within(code, self.error + 0.5)

    def allows_value(self, value: torch.Tensor) -> torch.Tensor:
        """Where this value is within the bound itself; an exact 0 is +0."""
        positive = ~torch.signbit(value)
        return self._within(value, self.error) & ((self.exact != 0) | positive)

    def _within(self, value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Nothing is proven of an exact number that is not finite, whose bound is not either."""
        return self.exact.isfinite() & ((self.exact - value.double()).abs() <= error)

    def boundary_distance(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """From the exact number to the middle of two codes, in float32 ULP of the number."""
        middle = (one.double() + other.double()) / 2
        return (self.exact - middle).abs() / ulp(self.exact)

    def bound_ulp(self) -> torch.Tensor:
        return self.error / ulp(self.exact)


def ulp(x: torch.Tensor) -> torch.Tensor:
    """The distance of float32 numbers around float64 ``x``, as float64."""
    _, exponent = torch.frexp(x.abs())
    exponent = torch.where(x == 0, _MIN_EXPONENT, exponent - 1)
    return power_of_two(exponent.clamp(min=_MIN_EXPONENT) - _MANTISSA_BITS)


def code_decision(
    x: torch.Tensor,
    divisor: torch.Tensor,
    n: int,
    *,
    sqrt: bool,
    softsign: bool,
    operations: OperationBounds,
) -> Decision:
    """Of quantization: ``x`` float32, and its group's exact divisor, float64.

    The formula is evaluated in float64, whose own error is negligible here.
    """
    top = x.double()
    relative = torch.full_like(top, operations.division)
    if sqrt:
        top = top.sqrt()
        relative += 2 * operations.square_root
    value = top / torch.where(divisor == 0, 1.0, divisor)
    if softsign:
        denominator = 1 + value.abs()
        value = 2 * value / denominator
        relative = relative / denominator + 1 + operations.division
    return _decision(value * n, relative + 1)


def dequantized(
    codes: torch.Tensor,
    scales: torch.Tensor,
    n: int,
    *,
    sqrt: bool,
    softsign: bool,
    operations: OperationBounds,
) -> Decision:
    """The exact values of codes and their groups' scales, and their error bound."""
    value = codes.double() / n
    relative = torch.full_like(value, operations.division)
    if softsign:
        denominator = 2 - value.abs()
        relative = relative * 2 / denominator + 1 + operations.division
        value = value / denominator
    value = value * scales.double()
    relative = relative + 1
    if sqrt:
        value, relative = value * value, 2 * relative + 1
    return Decision(value, _absolute(value, relative))


def reconstructed(
    narrow: torch.Tensor,
    rho: torch.Tensor,
    log2_half_ulp: torch.Tensor,
    n: int,
    operations: OperationBounds,
) -> Decision:
    """The exact values of narrow weights and correction codes, and their error bound."""
    correction = rho.double() / n * power_of_two(log2_half_ulp)
    exact = narrow.double() + correction
    error = _absolute(correction, torch.full_like(correction, operations.division))
    subnormal = (correction.abs() < _SMALLEST_NORMAL).double()
    product = subnormal * (_SMALLEST_SUBNORMAL / 2)
    total = torch.where(exact.abs() < _EXACT_SUMS, 0.0, ulp(exact) / 2)
    return Decision(exact, torch.where(correction == 0, 0.0, error + product) + total)


def scale_decision(divisor: torch.Tensor, operations: OperationBounds) -> Decision:
    """Exact square roots, float64, that are stored as float16 scales, and their error bound.

    Only a square root is bounded: the maximum that a scale is otherwise is exact.
    """
    return Decision(divisor, _absolute(divisor, torch.full_like(divisor, operations.square_root)))


def rounds_to_half(decision: Decision, scales: torch.Tensor) -> torch.Tensor:
    """Where some number within the bound rounds to this float16, which is not negative."""
    low, high = (_half(scales.view(torch.int16).int() + step) for step in (-1, 1))
    value = _half(scales.view(torch.int16).int())
    least, most = (low + value) / 2, (value + high) / 2
    reaches = (decision.exact + decision.error >= least) & (decision.exact - decision.error <= most)
    positive = (scales.view(torch.int16) >= 0) & ~scales.isnan()
    return reaches & positive & decision.exact.isfinite()


def half_boundary_distance(
    decision: Decision, one: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """From the exact number to the middle of two float16, in float32 ULP of the number."""
    middle = (_half(one.view(torch.int16).int()) + _half(other.view(torch.int16).int())) / 2
    return (decision.exact - middle).abs() / ulp(decision.exact)


def _half(bits: torch.Tensor) -> torch.Tensor:
    """float16 bits as float64, infinity as the power of two that it stands in for in rounding."""
    values = bits.clamp(0, _HALF_INFINITY).to(torch.int16).view(torch.float16).double()
    values = torch.where(bits == _HALF_INFINITY, 65536.0, values)
    return torch.where(bits > _HALF_INFINITY, float("inf"), values)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as float64, from its bits; exponents of float32's range and its subnormals."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _decision(value: torch.Tensor, relative: torch.Tensor) -> Decision:
    """A number that is then rounded to a code, by ``floor(x + 0.5)`` at worst."""
    return Decision(value, _absolute(value, relative) + ulp(value.abs() + 0.5) / 2)


def _absolute(value: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
    """A relative error of a number as an absolute one: no number here is subnormal but 0."""
    return relative * (U * SLACK) * value.abs()
