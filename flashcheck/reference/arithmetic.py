"""The arithmetic a reference can be run with, and the exactly rounded pieces it is built of.

The paper (arXiv 2602.23349) fixes the algorithms but not every rounding. What it leaves open,
and what an optimized kernel legitimately does otherwise, is a switch of :class:`Arithmetic`;
:data:`PAPER` is the literal reading that every headline figure is measured against.

Only IEEE-754 correctly rounded operations are used (add, subtract, multiply, divide,
conversions, and a square root that is made so), and powers of two are built from their bits:
``exp2``, ``pow`` and ``ldexp`` differ between machines. A division by a constant divides by a
tensor of the same device, since torch may turn a division by a Python number, or by one number on
the CPU, into a multiplication by its reciprocal. Every function here takes tensors of any device.

What is not needed again is overwritten: new memory costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from flashcheck.formats import FP32

CHUNK = 1 << 18
"""Elements worked on at a time: few enough that the temporaries of each thread's share stay in
cache, enough that an operation takes longer than to wake the threads for it."""


class Rounding(str, Enum):
    """How a real code becomes an integer."""

    NEAREST_EVEN = "nearest_even"
    HALF_AWAY = "half_away"
    """``copysign(floor(|x| + 0.5), x)`` in float32: the addition rounds too."""
    HALF_UP = "half_up"
    """``floor(x + 0.5)`` in float32: the addition rounds too."""


class NanAbsmax(str, Enum):
    """What a group's absolute maximum makes of a NaN."""

    PROPAGATE = "propagate"
    IGNORE = "ignore"


@dataclass(frozen=True)
class Arithmetic:
    """One setting of the switches.

    Attributes:
        rounding: real code to integer code.
        fused_multiply_add: a product that is added to is not rounded first: in reconstruction,
            ``theta' + correction``; in quantization, the scaled code plus the half that rounds it.
        reciprocal_division: division by N is multiplication by the float32 nearest 1/N.
        absmax_floor: least divisor of a group; 0 guards only an exact zero.
        nan_absmax: whether a NaN reaches its group's scale.
        float32_scalars: of an optimizer step, ``beta`` is rounded to float32 before anything is
            computed from it, and ``beta^t`` and ``lr * decay`` are before they are taken from 1.
        distributed_update: of an optimizer step, ``lr`` and the decoupled decay are multiplied out:
            ``theta (1 - lr lambda) - (lr m) / d``, not ``theta - lr (m / d + lambda theta)``.
        correction_rounding: of an optimizer step, how correction codes are rounded, if not as
            ``rounding`` says.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    fused_multiply_add: bool = False
    reciprocal_division: bool = False
    absmax_floor: float = 0.0
    nan_absmax: NanAbsmax = NanAbsmax.PROPAGATE
    float32_scalars: bool = False
    distributed_update: bool = False
    correction_rounding: Rounding | None = None


PAPER = Arithmetic()


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as float32, from its bits.

    Args:
        exponent: int32, any shape, each within the normal float32 exponents -126 to 127.
    """
    field = exponent + FP32.bias
    return field.bitwise_left_shift_(FP32.mantissa_bits).view(torch.float32)


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a * b + c`` of float32 tensors, rounded once, to nearest even.

    The product of two float32 is exact in float64 (48 bits, exponents within range). The float64
    sum is turned into the sum rounded to odd: where it is inexact (the error term of the two-sum
    is not zero) and its last bit is even, it steps one ULP toward the error. Rounding that to
    float32 equals rounding the exact sum, since float64 has more than 2 bits to spare beyond
    float32's 24 (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    Infinities and NaN follow IEEE-754.
    """
    product = a.double() * b.double()
    addend = c.double()
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    to_odd = torch.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where(to_odd, (bits + step).view(torch.float64), total).float()


def square_root(x: torch.Tensor) -> torch.Tensor:
    """The correctly rounded square root of float32; NaN of a negative number.

    ``torch.sqrt`` of float32 on the CPU is not: builds with Intel's MKL return 1 ULP too little for
    about one value in 170. The root taken in float64 and rounded is, even where float64's is 1 ULP
    off: a float32's root is at least 4 float64 ULP from the middle of two float32.
    """
    return torch.sqrt(x.double()).float()


def divide_by_constant(x: torch.Tensor, n: int, arithmetic: Arithmetic) -> torch.Tensor:
    """``x / n`` of a float32 tensor: one correctly rounded division, or two roundings."""
    divisor = torch.full((), float(n), dtype=torch.float32, device=x.device)
    if arithmetic.reciprocal_division:
        return x * (1.0 / divisor)
    return x / divisor.expand_as(x)


def round_product(x: torch.Tensor, n: int, arithmetic: Arithmetic) -> torch.Tensor:
    """``x * n`` rounded to an integer, as float32.

    NaN stays NaN and infinities stay infinite, for the conversion to codes to decide.
    """
    if arithmetic.rounding is Rounding.NEAREST_EVEN:
        return (x * n).round_()
    signed = arithmetic.rounding is Rounding.HALF_UP
    magnitude = x if signed else x.abs()
    if arithmetic.fused_multiply_add:
        scale = torch.full_like(x, float(n))
        raised = fma(magnitude, scale, torch.full_like(x, 0.5))
    else:
        raised = magnitude * n + 0.5
    rounded = raised.floor_()
    return rounded if signed else torch.copysign(rounded, x)


def to_codes(rounded: torch.Tensor, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    """Integral float32 to codes: saturating at ``low`` and ``high``, NaN to 0."""
    return torch.nan_to_num(rounded, nan=0.0).clamp_(low, high).to(dtype)


def in_chunks(
    function: Callable[..., tuple[torch.Tensor, ...]],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    rows: int,
) -> None:
    """Fill ``outputs`` with ``function(*inputs)``, ``rows`` rows at a time, to stay in cache."""
    for start in range(0, inputs[0].shape[0], rows):
        part = slice(start, start + rows)
        for out, value in zip(outputs, function(*(x[part] for x in inputs)), strict=True):
            out[part] = value
