"""Exactly rounded pieces that the kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_half_even(x):
    """A float32 of magnitude below 2^22 to the nearest integer, ties to even.

    Adding 1.5 * 2^23 leaves no fraction bits, so that the addition itself rounds, to nearest even;
    the subtraction is exact. Needs fusion off and no reassociation, which Triton never does.
    """
    return (x + 12582912.0) - 12582912.0


@triton.jit
def power_of_two(exponent):
    """2^exponent of an int32 within float32's normal exponents, from its bits."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def half_floor(x):
    """``floor(x / 2)`` of an int32: an arithmetic shift."""
    return x >> 1


@triton.jit
def or_zero(x):
    """``x``, and 0 for a NaN."""
    return tl.where(x == x, x, 0.0)
