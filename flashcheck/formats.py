"""Number formats as records; every other fact about a format is derived from them.

The records name their torch dtype by a string, so that reading a configuration needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FloatFormat:
    """An IEEE-754 style binary format: sign, exponent, mantissa (trailing significand)."""

    name: str
    torch_name: str
    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def exponent_mask(self) -> int:
        """The all-ones exponent field, which infinities and NaN carry."""
        return (1 << self.exponent_bits) - 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number, as a power of two."""
        return 1 - self.bias

    @property
    def max_finite(self) -> float:
        return float(2 - 2.0**-self.mantissa_bits) * 2.0**self.bias

    @property
    def smallest_subnormal(self) -> float:
        return float(2.0 ** (self.min_exponent - self.mantissa_bits))


@dataclass(frozen=True)
class CodeFormat:
    """An integer format used for codes. Signed codes are symmetric: -N to N."""

    name: str
    torch_name: str
    bits: int
    signed: bool

    @property
    def max_code(self) -> int:
        """N of the paper: 127 for int8, 255 for uint8, 32767 for int16."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def min_code(self) -> int:
        return -self.max_code if self.signed else 0


_Format = TypeVar("_Format", FloatFormat, CodeFormat)

BF16 = FloatFormat("bf16", "bfloat16", exponent_bits=8, mantissa_bits=7)
FP16 = FloatFormat("fp16", "float16", exponent_bits=5, mantissa_bits=10)
FP32 = FloatFormat("fp32", "float32", exponent_bits=8, mantissa_bits=23)

INT8 = CodeFormat("int8", "int8", bits=8, signed=True)
UINT8 = CodeFormat("uint8", "uint8", bits=8, signed=False)
INT16 = CodeFormat("int16", "int16", bits=16, signed=True)

NARROW_FORMATS = {fmt.name: fmt for fmt in (BF16, FP16)}
"""What a weight may be split into."""

ECC_FORMATS = {fmt.name: fmt for fmt in (INT8, INT16)}
"""What a correction code may be stored in."""


def torch_dtype(fmt: FloatFormat | CodeFormat) -> torch.dtype:
    """The torch dtype of a format."""
    import torch

    dtype = getattr(torch, fmt.torch_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def narrow_format(dtype: torch.dtype) -> FloatFormat:
    """The format of a narrow torch dtype.

    Raises:
        ValueError: the dtype is not one a weight may be split into.
    """
    return _find(dtype, NARROW_FORMATS)


def ecc_format(dtype: torch.dtype) -> CodeFormat:
    """The format of a correction code's torch dtype.

    Raises:
        ValueError: the dtype is not one a correction code may be stored in.
    """
    return _find(dtype, ECC_FORMATS)


def quantized_format(signed: bool) -> CodeFormat:
    """Momentum is kept in int8, variance in uint8."""
    return INT8 if signed else UINT8


def _find(dtype: torch.dtype, formats: dict[str, _Format]) -> _Format:
    for fmt in formats.values():
        if torch_dtype(fmt) == dtype:
            return fmt
    known = ", ".join(fmt.torch_name for fmt in formats.values())
    raise ValueError(f"no format for {dtype}; expected one of {known}")
