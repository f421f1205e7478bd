"""Algorithm 1: a float32 weight as a narrow weight and a correction code, and back.

Narrow weights come as their 16 bits, so that no conversion of the compiler's is relied on for bf16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashcheck.kernels.rounding import half_floor, or_zero, power_of_two, round_half_even


@triton.jit
def widened(bits, MANTISSA: tl.constexpr):
    """The float32 of a narrow weight's bits, int16."""
    if MANTISSA == 7:
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def log2_half_ulp(bits, MANTISSA: tl.constexpr, EXPONENT_MASK: tl.constexpr, BIAS: tl.constexpr):
    """``l`` of the paper; a zero or subnormal has the exponent field of the smallest normal."""
    field = (bits.to(tl.int32) >> MANTISSA) & EXPONENT_MASK
    return tl.maximum(field, 1) - (BIAS + MANTISSA + 1)


@triton.jit
def narrowed(x, MANTISSA: tl.constexpr):
    """The nearest narrow weight's bits, int16, ties to even."""
    if MANTISSA == 7:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.int16)
    return x.to(tl.float16).to(tl.int16, bitcast=True)


@triton.jit
def correction_codes(
    x,
    bits,
    LARGEST: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """The correction codes, int32, of float32 and their narrow weights' bits."""
    ulp = log2_half_ulp(bits, MANTISSA, EXPONENT_MASK, BIAS)
    half = half_floor(-ulp)
    error = x - widened(bits, MANTISSA)
    normalised = (error * power_of_two(half)) * power_of_two(-ulp - half)
    clamped = tl.minimum(tl.maximum(or_zero(normalised), -1.0), 1.0)
    return round_half_even(clamped * LARGEST).to(tl.int32)


@triton.jit
def reconstructed(
    bits,
    code,
    LARGEST: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """The float32 of narrow weights' bits and correction codes, given as float32."""
    ulp = log2_half_ulp(bits, MANTISSA, EXPONENT_MASK, BIAS)
    half = half_floor(ulp)
    fraction = tl.math.div_rn(code, tl.full(code.shape, LARGEST, tl.float32))
    correction = (fraction * power_of_two(half)) * power_of_two(ulp - half)
    return widened(bits, MANTISSA) + correction


@triton.jit
def compute_ecc_kernel(
    x_ptr,
    narrow_ptr,
    codes_ptr,
    n_elements,
    LARGEST: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` elements a program."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    x = tl.load(x_ptr + index, mask=mask, other=0.0)
    bits = tl.load(narrow_ptr + index, mask=mask, other=0)
    codes = correction_codes(x, bits, LARGEST, MANTISSA, EXPONENT_MASK, BIAS)
    tl.store(codes_ptr + index, codes.to(codes_ptr.dtype.element_ty), mask=mask)


@triton.jit
def reconstruct_kernel(
    narrow_ptr,
    codes_ptr,
    values_ptr,
    n_elements,
    LARGEST: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` elements a program."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    bits = tl.load(narrow_ptr + index, mask=mask, other=0)
    code = tl.load(codes_ptr + index, mask=mask, other=0).to(tl.float32)
    value = reconstructed(bits, code, LARGEST, MANTISSA, EXPONENT_MASK, BIAS)
    tl.store(values_ptr + index, value, mask=mask)
