"""A fused Adam step on a compressed state: read, advance and store, in one pass.

Parameters, and moments that are not quantized, come as their bits where they are narrow, int16, and
as float32 otherwise. Groups are rows of 32, so that a program has all that a scale needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashcheck.kernels.quantization import dequantized, quantized
from flashcheck.kernels.splitting import correction_codes, narrowed, reconstructed, widened


@triton.jit
def _read(pointer, index, mask, MANTISSA: tl.constexpr):
    """Stored numbers as float32."""
    if MANTISSA == 23:
        x = tl.load(pointer + index, mask=mask, other=0.0)
    else:
        x = widened(tl.load(pointer + index, mask=mask, other=0), MANTISSA)
    return x


@triton.jit
def _write(pointer, index, mask, x, MANTISSA: tl.constexpr):
    if MANTISSA == 23:
        tl.store(pointer + index, x, mask=mask)
    else:
        tl.store(pointer + index, narrowed(x, MANTISSA), mask=mask)


@triton.jit
def _read_moment(
    pointer,
    scales_ptr,
    index,
    group,
    mask,
    n_groups,
    QUANTIZED: tl.constexpr,
    LARGEST: tl.constexpr,
    SQRT: tl.constexpr,
    MANTISSA: tl.constexpr,
):
    if QUANTIZED:
        code = tl.load(pointer + index, mask=mask, other=0).to(tl.float32)
        scale = tl.load(scales_ptr + group, mask=group < n_groups, other=0.0).to(tl.float32)
        rows = tl.broadcast_to(scale[:, None], code.shape)
        x = dequantized(code, rows, LARGEST, SQRT, not SQRT)
    else:
        x = _read(pointer, index, mask, MANTISSA)
    return x


@triton.jit
def _write_moment(
    pointer,
    scales_ptr,
    index,
    group,
    mask,
    n_groups,
    x,
    QUANTIZED: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    SQRT: tl.constexpr,
    MANTISSA: tl.constexpr,
):
    if QUANTIZED:
        # What lies beyond the tensor must not decide a group's maximum.
        codes, absmax = quantized(tl.where(mask, x, 0.0), LARGEST, SMALLEST, SQRT, not SQRT)
        tl.store(pointer + index, codes.to(pointer.dtype.element_ty), mask=mask)
        tl.store(scales_ptr + group, absmax.to(tl.float16), mask=group < n_groups)
    else:
        _write(pointer, index, mask, x, MANTISSA)


@triton.jit
def adam_kernel(
    param_ptr,
    ecc_ptr,
    momentum_ptr,
    momentum_scales_ptr,
    variance_ptr,
    variance_scales_ptr,
    grad_ptr,
    n_elements,
    n_groups,
    lr,
    decay,
    eps,
    beta1,
    rest1,
    bias1,
    beta2,
    rest2,
    bias2,
    CORRECTED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    COUPLED: tl.constexpr,
    DECOUPLED: tl.constexpr,
    FULLY: tl.constexpr,
    LARGEST_ECC: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """``GROUPS`` groups a program; the constants are those of ``flashcheck.optimizers``.

    Args:
        CORRECTED: whether parameters have correction codes; ``QUANTIZED``: whether moments have
            codes.
        COUPLED: whether decay is added to the gradient; ``DECOUPLED``: whether it acts on the
            weight, and ``FULLY``: whether by ``decay`` alone, without the learning rate.
    """
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    index = group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
    mask = index < n_elements
    g = _read(grad_ptr, index, mask, MANTISSA)
    if CORRECTED:
        bits = tl.load(param_ptr + index, mask=mask, other=0)
        code = tl.load(ecc_ptr + index, mask=mask, other=0).to(tl.float32)
        theta = reconstructed(bits, code, LARGEST_ECC, MANTISSA, EXPONENT_MASK, BIAS)
    else:
        theta = _read(param_ptr, index, mask, MANTISSA)
    m = _read_moment(
        momentum_ptr,
        momentum_scales_ptr,
        index,
        group,
        mask,
        n_groups,
        QUANTIZED,
        127.0,
        False,
        MANTISSA,
    )
    v = _read_moment(
        variance_ptr,
        variance_scales_ptr,
        index,
        group,
        mask,
        n_groups,
        QUANTIZED,
        255.0,
        True,
        MANTISSA,
    )

    if COUPLED:
        g = theta * decay + g
    m = m * beta1 + g * rest1
    v = v * beta2 + (g * g) * rest2
    ones = tl.full(m.shape, 1.0, tl.float32)
    corrected = tl.math.div_rn(m, ones * bias1)
    denominator = tl.math.sqrt_rn(tl.math.div_rn(v, ones * bias2)) + eps
    direction = tl.math.div_rn(corrected, denominator)
    if FULLY:
        theta = theta - (direction * lr + theta * decay)
    else:
        if DECOUPLED:
            direction = theta * decay + direction
        theta = theta - direction * lr

    _write(param_ptr, index, mask, theta, MANTISSA)
    if CORRECTED:
        bits = narrowed(theta, MANTISSA)
        codes = correction_codes(theta, bits, LARGEST_ECC, MANTISSA, EXPONENT_MASK, BIAS)
        tl.store(ecc_ptr + index, codes.to(ecc_ptr.dtype.element_ty), mask=mask)
    _write_moment(
        momentum_ptr,
        momentum_scales_ptr,
        index,
        group,
        mask,
        n_groups,
        m,
        QUANTIZED,
        127.0,
        -127.0,
        False,
        MANTISSA,
    )
    _write_moment(
        variance_ptr,
        variance_scales_ptr,
        index,
        group,
        mask,
        n_groups,
        v,
        QUANTIZED,
        255.0,
        0.0,
        True,
        MANTISSA,
    )
