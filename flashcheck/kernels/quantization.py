"""Algorithms 2 and 3: group-wise 8-bit quantization, and its inverse."""

from __future__ import annotations

import triton
import triton.language as tl

from flashcheck.kernels.rounding import or_zero, round_half_even


@triton.jit
def quantized(
    x, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, SQRT: tl.constexpr, SOFTSIGN: tl.constexpr
):
    """The codes, int32, of groups in rows, and the absolute maximum of each."""
    if SQRT:
        x = tl.math.sqrt_rn(x)
    # The maximum of magnitudes as integers: in their order a NaN is the largest, and stays.
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    absmax = tl.max(magnitude, axis=1).to(tl.float32, bitcast=True)
    divisor = tl.where(absmax == 0.0, 1.0, absmax)
    value = tl.math.div_rn(x, tl.broadcast_to(divisor[:, None], x.shape))
    if SOFTSIGN:
        value = tl.math.div_rn(2.0 * value, 1.0 + tl.abs(value))
    rounded = or_zero(round_half_even(value * LARGEST))
    rounded = tl.minimum(tl.maximum(rounded, SMALLEST), LARGEST)
    return rounded.to(tl.int32), absmax


@triton.jit
def dequantized(code, scale, LARGEST: tl.constexpr, SQRT: tl.constexpr, SOFTSIGN: tl.constexpr):
    """The float32 of codes and their scales, both given as float32 of one shape."""
    value = tl.math.div_rn(code, tl.full(code.shape, LARGEST, tl.float32))
    if SOFTSIGN:
        value = tl.math.div_rn(value, 2.0 - tl.abs(value))
    value = value * scale
    if SQRT:
        value = value * value
    return value


@triton.jit
def quantize_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    n_elements,
    n_groups,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    SQRT: tl.constexpr,
    SOFTSIGN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """``GROUPS`` groups a program; a group fills a row of ``PADDED_GROUP``, a power of two."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    column = tl.arange(0, PADDED_GROUP)
    index = group[:, None] * GROUP_SIZE + column[None, :]
    mask = (index < n_elements) & (column[None, :] < GROUP_SIZE)
    x = tl.load(x_ptr + index, mask=mask, other=0.0).to(tl.float32)
    codes, absmax = quantized(x, LARGEST, SMALLEST, SQRT, SOFTSIGN)
    tl.store(codes_ptr + index, codes.to(codes_ptr.dtype.element_ty), mask=mask)
    tl.store(scales_ptr + group, absmax.to(tl.float16), mask=group < n_groups)


@triton.jit
def dequantize_kernel(
    codes_ptr,
    scales_ptr,
    values_ptr,
    n_elements,
    LARGEST: tl.constexpr,
    SQRT: tl.constexpr,
    SOFTSIGN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` elements a program."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    code = tl.load(codes_ptr + index, mask=mask, other=0).to(tl.float32)
    scale = tl.load(scales_ptr + index // GROUP_SIZE, mask=mask, other=0.0).to(tl.float32)
    value = dequantized(code, scale, LARGEST, SQRT, SOFTSIGN)
    tl.store(values_ptr + index, value, mask=mask)
