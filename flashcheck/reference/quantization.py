"""Group-wise 8-bit quantization of optimizer states, from Algorithms 2 and 3 of the paper.

Momentum (signed, softsign): ``s = max|m|; m' = m/s; m'' = 2m'/(1+|m'|); q = Round(127 m'')``.
Variance (unsigned, square root): ``v' = sqrt(v); s = max v'; q = Round(255 v'/s)``.
The scale ``s`` of each group is stored as float16; the division uses it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashcheck.formats import quantized_format, torch_dtype
from flashcheck.reference.arithmetic import (
    CHUNK,
    PAPER,
    Arithmetic,
    NanAbsmax,
    divide_by_constant,
    in_chunks,
    round_product,
    square_root,
    to_codes,
)


@dataclass(frozen=True)
class QuantizeStages:
    """What each step of the quantization of some groups gives, in order.

    ``absmax`` and ``scales`` have shape (groups,); the others (groups, group_size).
    """

    absmax: torch.Tensor
    normalised: torch.Tensor
    companded: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor


def quantize_stages(
    groups: torch.Tensor,
    *,
    signed: bool,
    sqrt: bool,
    softsign: bool,
    arithmetic: Arithmetic = PAPER,
) -> QuantizeStages:
    """Quantize whole groups, keeping every step.

    Args:
        groups: float32, shape (groups, group_size).
    """
    values = square_root(groups) if sqrt else groups
    magnitudes = values.abs()
    if arithmetic.nan_absmax is NanAbsmax.IGNORE:
        magnitudes = torch.nan_to_num(magnitudes, nan=0.0, posinf=float("inf"))
    absmax = magnitudes.amax(dim=1)
    if arithmetic.absmax_floor:
        absmax = absmax.clamp(min=arithmetic.absmax_floor)
    normalised = values / torch.where(absmax == 0, 1.0, absmax)[:, None]
    companded = 2 * normalised / (1 + normalised.abs()) if softsign else normalised
    fmt = quantized_format(signed)
    rounded = round_product(companded, fmt.max_code, arithmetic)
    codes = to_codes(rounded, torch_dtype(fmt), fmt.min_code, fmt.max_code)
    return QuantizeStages(absmax, normalised, companded, codes, absmax.to(torch.float16))


def quantize(
    x: torch.Tensor,
    signed: bool = True,
    sqrt: bool = False,
    softsign: bool = True,
    group_size: int = 32,
    arithmetic: Arithmetic = PAPER,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Algorithm 2 (momentum) or 3 (variance): values to 8-bit codes and float16 scales.

    Args:
        x: any shape, any floating dtype; read in row-major order, converted to float32.
        signed: int8 codes -127 to 127; otherwise uint8 codes 0 to 255.
        sqrt: take the square root first (variance).
        softsign: compand by ``2m'/(1+|m'|)`` (momentum).
        group_size: elements that share a scale; the last group may be shorter.

    Returns:
        Flat codes, one an element, and float16 scales, one a group.

    Non-finite values: a NaN makes its group's scale and codes NaN and 0, an infinity makes the
    scale infinite and the codes 0. A negative value under ``sqrt`` is a NaN. An absolute maximum
    that rounds past 65504 is stored as infinity, one that rounds below 2^-24 as 0.

    Raises:
        ValueError: ``group_size`` is not positive, or ``x`` is not of a floating dtype.
    """
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; it must be positive")
    if not x.dtype.is_floating_point:
        raise ValueError(f"x is {x.dtype}; it must be of a floating dtype")
    flat = x.detach().reshape(-1).to(device="cpu", dtype=torch.float32)
    groups = as_groups(flat, group_size)
    codes = torch.empty(groups.shape, dtype=torch_dtype(quantized_format(signed)))
    scales = torch.empty(groups.shape[0], dtype=torch.float16)

    def chunk(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stages = quantize_stages(
            part, signed=signed, sqrt=sqrt, softsign=softsign, arithmetic=arithmetic
        )
        return stages.codes, stages.scales

    in_chunks(chunk, [groups], [codes, scales], _rows(group_size))
    return codes.reshape(-1)[: flat.numel()], scales


def dequantize_groups(
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    signed: bool,
    sqrt: bool,
    softsign: bool,
    arithmetic: Arithmetic = PAPER,
) -> torch.Tensor:
    """Dequantize whole groups: codes of shape (groups, group_size), scales of shape (groups,)."""
    fmt = quantized_format(signed)
    values = divide_by_constant(codes.to(torch.float32), fmt.max_code, arithmetic)
    if softsign:
        values = values / (2 - values.abs())
    values = values * scales.to(torch.float32)[:, None]
    return values * values if sqrt else values


def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    signed: bool = True,
    sqrt: bool = False,
    softsign: bool = True,
    group_size: int = 32,
    arithmetic: Arithmetic = PAPER,
) -> torch.Tensor:
    """The inverse of :func:`quantize`: ``m'' = q/127; m' = m''/(2-|m''|); m = m' s``.

    Args:
        codes: int8 or uint8, any shape, read in row-major order.
        scales: float16, one a group.

    Returns:
        Flat float32. An infinite scale gives infinities, and NaN where the code is 0.

    Raises:
        ValueError: the number of scales is not the number of groups.
    """
    flat = codes.detach().reshape(-1).cpu()
    groups = as_groups(flat, group_size)
    if scales.numel() != groups.shape[0]:
        raise ValueError(
            f"{scales.numel()} scales for {groups.shape[0]} groups of {group_size}; "
            "there must be one a group"
        )
    values = torch.empty(groups.shape, dtype=torch.float32)

    def chunk(part: torch.Tensor, part_scales: torch.Tensor) -> tuple[torch.Tensor]:
        return (
            dequantize_groups(
                part,
                part_scales,
                signed=signed,
                sqrt=sqrt,
                softsign=softsign,
                arithmetic=arithmetic,
            ),
        )

    flat_scales = scales.detach().reshape(-1).cpu()
    in_chunks(chunk, [groups, flat_scales], [values], _rows(group_size))
    return values.reshape(-1)[: flat.numel()]


def nmse(x: torch.Tensor, y: torch.Tensor) -> float:
    """Normalised mean squared error, ``sum((x - y)^2) / sum(x^2)``, in float64.

    0 where both are all zero, infinite where only ``x`` is. A non-finite element makes it
    non-finite: select the finite ones first.

    Args:
        x: the true values, any floating dtype.
        y: their approximation, of the same number of elements.

    Raises:
        ValueError: the numbers of elements differ.
    """
    if x.numel() != y.numel():
        raise ValueError(f"x has {x.numel()} elements and y has {y.numel()}")
    true = x.reshape(-1).double()
    error = float((true - y.reshape(-1).double()).square_().sum())
    power = float(true.square().sum())
    if power == 0:
        return 0.0 if error == 0 else float("inf")
    return error / power


def as_groups(flat: torch.Tensor, group_size: int) -> torch.Tensor:
    """Shape (groups, group_size), the last group filled up with zeros, which change no maximum."""
    missing = -flat.numel() % group_size
    padded = torch.nn.functional.pad(flat, (0, missing)) if missing else flat
    return padded.reshape(-1, group_size)


def _rows(group_size: int) -> int:
    return max(1, CHUNK // group_size)
