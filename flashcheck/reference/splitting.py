"""Weight splitting, from Algorithm 1 of the paper: a float32 weight becomes a narrow weight and
a correction code.

``C(theta)``: ``theta' = downcast(theta); e = theta - theta'; l = log2(ULP(theta')) - 1;
rho = Round(Clamp(e * 2^-l, -1, 1) * N)``, the power of two applied in two halves so that neither
overflows. ``C^-1``: ``theta' + (rho / N) * 2^l``.
"""

from __future__ import annotations

import torch

from flashcheck.formats import ecc_format, narrow_format
from flashcheck.reference.arithmetic import (
    CHUNK,
    PAPER,
    Arithmetic,
    divide_by_constant,
    fma,
    in_chunks,
    power_of_two,
    round_product,
    to_codes,
)


def log2_half_ulp(narrow: torch.Tensor) -> torch.Tensor:
    """``l`` of the paper: ``floor(log2(ULP(theta'))) - 1``, as int32, read from the bits.

    The ULP of a zero or subnormal is the format's smallest subnormal. The paper defines none for
    an infinity or NaN; here their exponent field is read like any other.
    """
    fmt = narrow_format(narrow.dtype)
    field = (narrow.view(torch.int16) >> fmt.mantissa_bits).bitwise_and_(fmt.exponent_mask)
    return field.clamp_(min=1).to(torch.int32).sub_(fmt.bias + fmt.mantissa_bits + 1)


def compress(
    x: torch.Tensor,
    narrow_dtype: torch.dtype,
    ecc_dtype: torch.dtype,
    arithmetic: Arithmetic = PAPER,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Algorithm 1, ``C(theta)``: split float32 weights.

    Args:
        x: float32, any shape.
        narrow_dtype: torch.bfloat16 or torch.float16.
        ecc_dtype: torch.int8 or torch.int16.

    Returns:
        The narrow weights and the correction codes, both of ``x``'s shape, on the CPU.

    The algorithm is defined where ``x`` and the narrow weight are finite. Elsewhere: a NaN gets
    code 0, a finite value that rounds to infinity the end code of the opposite sign.

    Raises:
        ValueError: ``x`` is not float32, or a dtype is not one of those named above.
    """
    if x.dtype != torch.float32:
        raise ValueError(f"x is {x.dtype}; only float32 weights are split")
    narrow_format(narrow_dtype)
    ecc_format(ecc_dtype)
    narrow = x.detach().cpu().to(narrow_dtype)
    return narrow, encode(x, narrow, ecc_dtype, arithmetic)


def encode(
    x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype, arithmetic: Arithmetic = PAPER
) -> torch.Tensor:
    """The correction codes of ``x`` for narrow weights already chosen, rounded in any way.

    An error past half an ULP of the narrow weight is clamped to the end codes.

    Args:
        x: float32, any shape; ``narrow``: bfloat16 or float16, of the same shape.

    Raises:
        ValueError: a dtype is not one of those named above, or the shapes differ.
    """
    narrow_format(narrow.dtype)
    ecc_format(ecc_dtype)
    if x.dtype != torch.float32 or narrow.shape != x.shape:
        raise ValueError(
            f"x is {x.dtype} of shape {tuple(x.shape)} and narrow of shape {tuple(narrow.shape)}; "
            "expected float32 and equal shapes"
        )
    rho = torch.empty(x.numel(), dtype=ecc_dtype)

    def chunk(part: torch.Tensor, part_narrow: torch.Tensor) -> tuple[torch.Tensor]:
        return (correction_codes(part, part_narrow, ecc_dtype, arithmetic),)

    flat = [tensor.detach().reshape(-1).cpu() for tensor in (x, narrow)]
    in_chunks(chunk, flat, [rho], CHUNK)
    return rho.reshape(x.shape)


def correction_codes(
    x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype, arithmetic: Arithmetic = PAPER
) -> torch.Tensor:
    """:func:`encode` of a whole tensor, no chunks, on its device."""
    fmt = ecc_format(ecc_dtype)
    rounded = round_product(normalised_error(x, narrow), fmt.max_code, arithmetic)
    return to_codes(rounded, ecc_dtype, fmt.min_code, fmt.max_code)


def normalised_error(x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """``Clamp(e * 2^-l, -1, 1)`` of Algorithm 1, float32: a code is the nearest fraction of it."""
    exponent = log2_half_ulp(narrow).neg_()
    half = exponent >> 1
    error = x - narrow.to(torch.float32)
    return error.mul_(power_of_two(half)).mul_(power_of_two(exponent - half)).clamp_(-1, 1)


def decompress(
    narrow: torch.Tensor, rho: torch.Tensor, arithmetic: Arithmetic = PAPER
) -> torch.Tensor:
    """Algorithm 1, ``C^-1``: the float32 weights that narrow weights and codes stand for.

    Args:
        narrow: bfloat16 or float16, any shape.
        rho: int8 or int16, of the same shape.

    Returns:
        float32 of the same shape, on the CPU. An infinite or NaN narrow weight stays so.

    Raises:
        ValueError: a dtype is not one of those named above, or the shapes differ.
    """
    narrow_format(narrow.dtype)
    ecc_format(rho.dtype)
    if narrow.shape != rho.shape:
        raise ValueError(f"narrow is {tuple(narrow.shape)} but rho is {tuple(rho.shape)}")
    flat = narrow.detach().reshape(-1).cpu()
    out = torch.empty(flat.shape, dtype=torch.float32)

    def chunk(part: torch.Tensor, part_rho: torch.Tensor) -> tuple[torch.Tensor]:
        return (reconstruct_chunk(part, part_rho, arithmetic),)

    in_chunks(chunk, [flat, rho.detach().reshape(-1).cpu()], [out], CHUNK)
    return out.reshape(narrow.shape)


def reconstruct_chunk(
    narrow: torch.Tensor, rho: torch.Tensor, arithmetic: Arithmetic = PAPER
) -> torch.Tensor:
    """:func:`decompress` of a whole tensor, no chunks."""
    fraction = divide_by_constant(rho.to(torch.float32), ecc_format(rho.dtype).max_code, arithmetic)
    exponent = log2_half_ulp(narrow)
    half = exponent >> 1
    scaled = fraction.mul_(power_of_two(half))
    rest = power_of_two(exponent - half)
    wide = narrow.to(torch.float32)
    if arithmetic.fused_multiply_add:
        return fma(scaled, rest, wide)
    return wide.add_(scaled.mul_(rest))
