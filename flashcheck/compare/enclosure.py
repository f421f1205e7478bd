"""Exact numbers with how far a float32 computation of them may be away: a running error analysis.

Each operation of a computation that is not known in its order or its roundings, only in how exact
each operation is, adds to what its operands may already be off by. With ``u = 2^-24``, an operation
within ``k`` ULP is off by at most ``2 k u`` of its result, and by ``k`` times 2^-149 where that is
subnormal; a fused operation is off by less. All is evaluated in float64, whose own error
:data:`SLACK` covers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashcheck.compare.bounds import SLACK, OperationBounds, U

_CORRECT = 1.0
_SMALLEST_NORMAL = 2.0**-126
_HALF_SMALLEST = 2.0**-150


@dataclass(frozen=True)
class Enclosure:
    """Of each element the exact number and the largest distance from it, float64."""

    exact: torch.Tensor
    error: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> Enclosure:
        """Numbers that are what they are."""
        exact = values.double()
        return cls(exact, torch.zeros_like(exact))

    def __add__(self, other: Enclosure) -> Enclosure:
        # Floats that are subnormal or zero add up exactly: no least error.
        return _rounded(self.exact + other.exact, self.error + other.error, _CORRECT, least=0.0)

    def __sub__(self, other: Enclosure) -> Enclosure:
        return self + Enclosure(-other.exact, other.error)

    def __mul__(self, other: Enclosure) -> Enclosure:
        error = (
            self.exact.abs() * other.error
            + other.exact.abs() * self.error
            + self.error * other.error
        )
        return _rounded(self.exact * other.exact, error, _CORRECT)

    def by(self, factor: float) -> Enclosure:
        """Times a number that float32 has."""
        return _rounded(self.exact * factor, self.error * abs(factor), _CORRECT)

    def over(self, other: Enclosure, operations: OperationBounds) -> Enclosure:
        """Divided; nothing is known of what is divided by something that may be 0."""
        quotient = self.exact / other.exact
        least = other.exact.abs() - other.error
        error = (self.error + quotient.abs() * other.error) / least
        nothing = (self.exact == 0) & (self.error == 0)
        error = torch.where(nothing, 0.0, error)
        error = torch.where(least > 0, error, torch.inf)
        return _rounded(quotient, error, operations.division)

    def root(self, operations: OperationBounds) -> Enclosure:
        """The square root of numbers that are not negative."""
        root = self.exact.clamp(min=0).sqrt()
        low = (self.exact - self.error).clamp(min=0)
        if operations.square_root > _CORRECT:
            # An approximate root takes a subnormal number for 0.
            low = torch.where(low < _SMALLEST_NORMAL, 0.0, low)
        high = (self.exact + self.error).clamp(min=0).sqrt()
        error = torch.maximum(root - low.sqrt(), high - root)
        return _rounded(root, error, operations.square_root)

    def magnitude(self) -> Enclosure:
        return Enclosure(self.exact.abs(), self.error)

    @property
    def low(self) -> torch.Tensor:
        return self.exact - self.error

    @property
    def high(self) -> torch.Tensor:
        return self.exact + self.error

    def reaches(self, subject: torch.Tensor) -> torch.Tensor:
        """Where some float32 of it, rounded to the dtype of ``subject``, has its value.

        Rounding keeps the order of numbers, so that its ends say it. Nothing is said of numbers
        that are not finite.
        """
        low, high = (end.float().to(subject.dtype).double() for end in (self.low, self.high))
        value = subject.double()
        inside = (low <= value) & (value <= high)
        # An exact 0 has one sign, which no bound can excuse.
        zero = (self.exact == 0) & (self.error == 0)
        lost = zero & (torch.signbit(subject) != torch.signbit(self.exact))
        return inside & self.exact.isfinite() & self.error.isfinite() & ~lost


def _rounded(
    exact: torch.Tensor, error: torch.Tensor, relative: float, least: float = _HALF_SMALLEST
) -> Enclosure:
    """A result that is rounded, by at most so many ``u``."""
    largest = exact.abs() + error
    subnormal = ((largest < _SMALLEST_NORMAL) & (largest > 0)).double()
    return Enclosure(exact, error + largest * (relative * U * SLACK) + subnormal * relative * least)
