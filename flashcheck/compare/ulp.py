"""Bit equality and distance of floating-point tensors."""

from __future__ import annotations

import torch

_INTEGER = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
}


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of a float tensor as signed integers of its width."""
    return x.contiguous().view(_INTEGER[x.dtype])


def same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one dtype are equal bit for bit, zeros by their sign.

    A NaN equals a NaN: IEEE-754 leaves its payload open.
    """
    equal = bits(x) == bits(y)
    return equal.logical_or_(x.isnan().logical_and_(y.isnan()))


def differing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where two outputs of one dtype differ: floats as :func:`same_bits` has it, codes by value."""
    return ~same_bits(x, y) if x.is_floating_point() else x != y


def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How many representable values lie between, as int64: the distance in ULP.

    Zeros of both signs are one value. Infinities count as the value after the largest finite;
    for NaN the distance means nothing, so mask it.
    """
    return (ordinal(x) - ordinal(y)).abs_()


NAN_DISTANCE = 1 << 32
"""Farther than any two numbers are."""


def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How far two outputs of one dtype are from each other, int64: codes apart, or ULP.

    Of floats :data:`NAN_DISTANCE` where either is NaN.
    """
    if not x.is_floating_point():
        return (x.long() - y.long()).abs_()
    return torch.where(x.isnan() | y.isnan(), NAN_DISTANCE, distance(x, y))


def ordinal(x: torch.Tensor) -> torch.Tensor:
    """Floats as integers, int64, in the same order; both zeros are 0."""
    integer = bits(x)
    magnitude = integer.long() & torch.iinfo(integer.dtype).max
    return torch.where(integer < 0, -magnitude, magnitude)
