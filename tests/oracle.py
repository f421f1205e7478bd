"""A second oracle of Algorithms 1 to 3 (arXiv 2602.23349), in exact rational arithmetic.

Every operation is done on fractions, one element at a time, and its exact result is then rounded
once to the format the algorithm keeps it in. Nothing is taken from ``flashcheck.reference``: the
two oracles share their source, the paper, and the records of ``flashcheck.formats`` only. torch
is here to read and write the bits of tensors, and computes nothing. Slow by design; the tensor
reference is compared with it bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from fractions import Fraction
from functools import cache
from typing import NamedTuple, Protocol

import torch

from flashcheck.formats import FP16, FP32, CodeFormat, FloatFormat, quantized_format, torch_dtype


class Switches(Protocol):
    """What of ``flashcheck.reference.arithmetic.Arithmetic`` is read, the enums by their words."""

    @property
    def rounding(self) -> str: ...
    @property
    def fused_multiply_add(self) -> bool: ...
    @property
    def reciprocal_division(self) -> bool: ...
    @property
    def absmax_floor(self) -> float: ...
    @property
    def nan_absmax(self) -> str: ...


# ---- Floating-point data -------------------------------------------------------------------


class Kind(Enum):
    FINITE = "finite"
    INFINITE = "infinite"
    NAN = "nan"


class Number(NamedTuple):
    """A floating-point datum. A zero is finite, of magnitude 0, and has a sign like any other."""

    kind: Kind
    negative: bool
    magnitude: Fraction

    @property
    def finite(self) -> bool:
        return self.kind is Kind.FINITE

    @property
    def exact(self) -> Fraction:
        """The value of a finite number."""
        assert self.finite
        return -self.magnitude if self.negative else self.magnitude

    def signed(self, negative: bool) -> Number:
        """The same magnitude with another sign; a NaN has none."""
        return self if self.kind is Kind.NAN else self._replace(negative=negative)


def finite(exact: Fraction | int) -> Number:
    """A number that needs no rounding."""
    return Number(Kind.FINITE, exact < 0, abs(Fraction(exact)))


NAN = Number(Kind.NAN, False, Fraction(0))
INFINITY = Number(Kind.INFINITE, False, Fraction(0))
ONE, TWO, HALF = finite(1), finite(2), finite(Fraction(1, 2))


@cache
def power(k: int) -> Fraction:
    """2^k."""
    return Fraction(1 << k) if k >= 0 else Fraction(1, 1 << -k)


@cache
def greatest(fmt: FloatFormat) -> Fraction:
    """The greatest finite number of a format."""
    return (2 - power(-fmt.mantissa_bits)) * power(fmt.bias)


def floor_log2(x: Fraction) -> int:
    """The k with 2^k <= x < 2^(k+1), of a positive x."""
    over, under = x.numerator, x.denominator
    k = over.bit_length() - under.bit_length()
    # x is over 2^(k-1) and under 2^(k+1).
    reached = over >= under << k if k >= 0 else over << -k >= under
    return k if reached else k - 1


def ulp(magnitude: Fraction, fmt: FloatFormat) -> Fraction:
    """Distance between the numbers of a format at a magnitude, had it no greatest exponent.

    At zero and below the smallest normal number it is the smallest subnormal.
    """
    least = fmt.min_exponent
    exponent = max(floor_log2(magnitude), least) if magnitude else least
    return power(exponent - fmt.mantissa_bits)


def round_exact(exact: Fraction, fmt: FloatFormat, negative_zero: bool = False) -> Number:
    """The number of a format nearest an exact value: to even, past the greatest to infinity.

    A value that rounds to zero keeps its sign; ``negative_zero`` is the sign of an exact zero.
    """
    magnitude = abs(exact)
    negative = magnitude != exact or (negative_zero and not exact)
    spacing = ulp(magnitude, fmt)
    # Python rounds a Fraction to the nearest integer, ties to even.
    rounded = round(magnitude / spacing) * spacing
    if rounded > greatest(fmt):
        return INFINITY.signed(negative)
    return Number(Kind.FINITE, negative, rounded)


def decode(bits: int, fmt: FloatFormat) -> Number:
    """The datum a bit pattern stands for."""
    negative = bool(bits >> (fmt.bits - 1))
    field = (bits >> fmt.mantissa_bits) & fmt.exponent_mask
    significand = bits & ((1 << fmt.mantissa_bits) - 1)
    if field == fmt.exponent_mask:
        return NAN if significand else INFINITY.signed(negative)
    if field > 0:
        significand += 1 << fmt.mantissa_bits
    exponent = max(field, 1) - fmt.bias - fmt.mantissa_bits
    return Number(Kind.FINITE, negative, significand * power(exponent))


def encode(x: Number, fmt: FloatFormat) -> int:
    """The bit pattern of a datum the format holds exactly; every NaN is the one quiet NaN."""
    sign = x.negative << (fmt.bits - 1)
    if x.kind is Kind.NAN:
        return quiet_nan(fmt)
    if x.kind is Kind.INFINITE:
        return sign | fmt.exponent_mask << fmt.mantissa_bits
    spacing = ulp(x.magnitude, fmt)
    significand = x.magnitude / spacing
    if significand.denominator != 1 or x.magnitude > greatest(fmt):
        raise ValueError(f"{fmt.name} has no {x.exact}")
    if significand < 1 << fmt.mantissa_bits:
        return sign | int(significand)
    field = floor_log2(x.magnitude) + fmt.bias
    return sign | field << fmt.mantissa_bits | int(significand) - (1 << fmt.mantissa_bits)


def quiet_nan(fmt: FloatFormat) -> int:
    return fmt.exponent_mask << fmt.mantissa_bits | 1 << (fmt.mantissa_bits - 1)


# ---- Float32 operations of IEEE-754: exact, then rounded once ------------------------------


def convert(x: Number, fmt: FloatFormat) -> Number:
    return round_exact(x.exact, fmt, x.negative) if x.finite else x


def absolute(x: Number) -> Number:
    return x.signed(False)


def negate(x: Number) -> Number:
    return x.signed(not x.negative)


def add(a: Number, b: Number) -> Number:
    if Kind.NAN in (a.kind, b.kind):
        return NAN
    if not a.finite:
        return a if b.finite or a.negative == b.negative else NAN
    if not b.finite:
        return b
    # An exact zero is positive, but for the sum of two negative zeros.
    return round_exact(a.exact + b.exact, FP32, a.negative and b.negative)


def subtract(a: Number, b: Number) -> Number:
    return add(a, negate(b))


def multiply(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if Kind.NAN in (a.kind, b.kind):
        return NAN
    if not (a.finite and b.finite):
        zero = any(x.finite and x.magnitude == 0 for x in (a, b))
        return NAN if zero else INFINITY.signed(negative)
    return round_exact(a.exact * b.exact, FP32, negative)


def divide(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if Kind.NAN in (a.kind, b.kind) or not (a.finite or b.finite):
        return NAN
    if not a.finite:
        return INFINITY.signed(negative)
    if not b.finite:
        return finite(0).signed(negative)
    if b.magnitude == 0:
        return INFINITY.signed(negative) if a.magnitude else NAN
    return round_exact(a.exact / b.exact, FP32, negative)


def square_root(x: Number) -> Number:
    """Of a float32. An irrational root is told apart from its neighbours by one bit.

    Scaled by 2^256 a float32 is an integer, and ``isqrt`` gives at least 53 bits of its root. A
    root between n and n+1 rounds as n + 1/2 does, as both n and n+1 are that much finer than
    anything a float32 rounds at.
    """
    if x.kind is Kind.NAN or (x.finite and x.magnitude == 0):
        return x
    if x.negative:
        return NAN
    if not x.finite:
        return x
    square = x.magnitude * power(256)
    assert square.denominator == 1
    root = Fraction(math.isqrt(square.numerator))
    if root * root != square:
        root += Fraction(1, 2)
    return round_exact(root * power(-128), FP32)


def fused_multiply_add(a: Number, b: Number, c: Number) -> Number:
    """``a * b + c`` rounded once."""
    if not (a.finite and b.finite):
        # An infinity or a NaN: the product decides, and rounds nothing.
        return add(multiply(a, b), c)
    if not c.finite:
        return c
    negative_product = a.negative != b.negative
    return round_exact(a.exact * b.exact + c.exact, FP32, negative_product and c.negative)


# ---- What the switches decide --------------------------------------------------------------


def divide_by_constant(x: Number, n: int, switches: Switches) -> Number:
    """``x / n``, or ``x`` times the float32 nearest ``1 / n``."""
    if switches.reciprocal_division:
        return multiply(x, divide(ONE, finite(n)))
    return divide(x, finite(n))


def round_product(x: Number, n: int, switches: Switches) -> Number:
    """``x * n`` in float32, made an integer, which keeps the sign of ``x`` if it is zero."""
    if switches.rounding == "nearest_even":
        return _integral(multiply(x, finite(n)), round)
    if switches.rounding == "half_up":
        return _integral(_product_and_half(x, n, switches), math.floor)
    if switches.rounding == "half_away":
        raised = _product_and_half(absolute(x), n, switches)
        return _integral(raised, math.floor).signed(x.negative)
    raise ValueError(f"no rounding {switches.rounding}")


def _product_and_half(x: Number, n: int, switches: Switches) -> Number:
    if switches.fused_multiply_add:
        return fused_multiply_add(x, finite(n), HALF)
    return add(multiply(x, finite(n)), HALF)


def _integral(x: Number, how: Callable[[Fraction], int]) -> Number:
    if not x.finite:
        return x
    return Number(Kind.FINITE, x.negative, Fraction(abs(how(x.exact))))


def to_code(x: Number, fmt: CodeFormat) -> int:
    """An integral number as a code: saturating, NaN as 0."""
    if x.kind is Kind.NAN:
        return 0
    if not x.finite:
        return fmt.min_code if x.negative else fmt.max_code
    return min(max(int(x.exact), fmt.min_code), fmt.max_code)


# ---- Algorithm 1: weight splitting ---------------------------------------------------------


def log2_ulp(narrow: Number, fmt: FloatFormat) -> int:
    """``log2(ULP(theta'))``. The paper gives infinities and NaN none; the exponent field after
    the greatest is taken to be one more exponent."""
    magnitude = narrow.magnitude if narrow.finite else power(fmt.bias + 1)
    return floor_log2(ulp(magnitude, fmt))


def clamp(x: Number) -> Number:
    """To [-1, 1]; a NaN stays."""
    if x.kind is Kind.NAN or (x.finite and x.magnitude <= 1):
        return x
    return ONE.signed(x.negative)


def compress(
    theta: Number, narrow_fmt: FloatFormat, ecc_fmt: CodeFormat, switches: Switches
) -> tuple[Number, int]:
    """``C(theta)``: the narrow weight and its correction code."""
    narrow = convert(theta, narrow_fmt)
    return narrow, correction_code(theta, narrow, narrow_fmt, ecc_fmt, switches)


def correction_code(
    theta: Number, narrow: Number, narrow_fmt: FloatFormat, ecc_fmt: CodeFormat, switches: Switches
) -> int:
    """The code of a weight for a narrow one, whatever rounding gave that."""
    e = subtract(theta, narrow)
    l = log2_ulp(narrow, narrow_fmt) - 1  # noqa: E741 - the paper's letter
    h = -l // 2
    e_norm = multiply(multiply(e, finite(power(h))), finite(power(-l - h)))
    return to_code(round_product(clamp(e_norm), ecc_fmt.max_code, switches), ecc_fmt)


def decompress(
    narrow: Number, rho: int, narrow_fmt: FloatFormat, ecc_fmt: CodeFormat, switches: Switches
) -> Number:
    """``C^-1``: the float32 weight."""
    l = log2_ulp(narrow, narrow_fmt) - 1  # noqa: E741 - the paper's letter
    h = l // 2
    fraction = divide_by_constant(finite(rho), ecc_fmt.max_code, switches)
    half_scaled = multiply(fraction, finite(power(h)))
    rest = finite(power(l - h))
    if switches.fused_multiply_add:
        return fused_multiply_add(half_scaled, rest, narrow)
    return add(narrow, multiply(half_scaled, rest))


# ---- Algorithms 2 and 3: group quantization ------------------------------------------------


class Group(NamedTuple):
    """Every step of one group's quantization."""

    absmax: Number
    normalised: list[Number]
    companded: list[Number]
    codes: list[int]
    scale: Number


def quantize_group(
    group: Sequence[Number], *, signed: bool, sqrt: bool, softsign: bool, switches: Switches
) -> Group:
    """One group: ``sqrt`` first for the variance, ``softsign`` last for the momentum."""
    values = [square_root(x) for x in group] if sqrt else list(group)
    absmax = _absmax(values, switches)
    zero = absmax.finite and absmax.magnitude == 0
    normalised = [divide(x, ONE if zero else absmax) for x in values]
    companded = [_softsign(x) for x in normalised] if softsign else normalised
    fmt = quantized_format(signed)
    codes = [to_code(round_product(x, fmt.max_code, switches), fmt) for x in companded]
    return Group(absmax, normalised, companded, codes, convert(absmax, FP16))


def _absmax(values: Sequence[Number], switches: Switches) -> Number:
    known = [x for x in values if x.kind is not Kind.NAN]
    if len(known) < len(values) and switches.nan_absmax == "propagate":
        return NAN
    if not all(x.finite for x in known):
        return INFINITY
    floor = round_exact(Fraction(switches.absmax_floor), FP32)
    return finite(max([floor.exact, *(x.magnitude for x in known)]))


def _softsign(x: Number) -> Number:
    """``2m' / (1 + |m'|)``."""
    return divide(multiply(TWO, x), add(ONE, absolute(x)))


def dequantize(
    code: int, scale: Number, *, signed: bool, sqrt: bool, softsign: bool, switches: Switches
) -> Number:
    """One element: ``m'' = q / N; m' = m'' / (2 - |m''|); m = m' s``, squared for the variance."""
    m = divide_by_constant(finite(code), quantized_format(signed).max_code, switches)
    if softsign:
        m = divide(m, subtract(TWO, absolute(m)))
    m = multiply(m, scale)
    return multiply(m, m) if sqrt else m


# ---- Bit patterns, and tensors of them -----------------------------------------------------


def landmarks(fmt: FloatFormat) -> list[int]:
    """Patterns of both signs: zeros, the least and greatest subnormals, the powers of two with
    both neighbours, the greatest numbers, infinities, quiet and signalling NaN."""
    step = 1 << fmt.mantissa_bits
    infinity = fmt.exponent_mask * step
    marks = {0, 3, infinity - 2, infinity + 1, quiet_nan(fmt), quiet_nan(fmt) + 1}
    powers = [1 << k for k in range(fmt.mantissa_bits)] + list(range(step, infinity + 1, step))
    marks.update(bits + d for bits in powers for d in (-1, 0, 1))
    sign = 1 << (fmt.bits - 1)
    return [bits | s for bits in sorted(marks) for s in (0, sign)]


def tensor_of(bits: Sequence[int], fmt: FloatFormat) -> torch.Tensor:
    """A tensor with these bit patterns."""
    return torch.tensor(bits, dtype=torch.int64).to(_integer(fmt)).view(torch_dtype(fmt))


def bits_of(tensor: torch.Tensor, fmt: FloatFormat) -> list[int]:
    """The bit patterns of a tensor, flat, every NaN as the one quiet NaN."""
    assert tensor.dtype == torch_dtype(fmt)
    mask, infinity = (1 << fmt.bits) - 1, fmt.exponent_mask << fmt.mantissa_bits
    patterns = [bits & mask for bits in tensor.reshape(-1).view(_integer(fmt)).tolist()]
    return [quiet_nan(fmt) if bits & mask >> 1 > infinity else bits for bits in patterns]


def _integer(fmt: FloatFormat) -> torch.dtype:
    return {16: torch.int16, 32: torch.int32, 64: torch.int64}[fmt.bits]


def differences(
    got: Sequence[int], expected: Sequence[int], inputs: Sequence[object], most: int = 5
) -> list[str]:
    """The first elements that differ, for a test to assert that there are none."""
    assert len(got) == len(expected) == len(inputs) > 0
    return list(_differences(got, expected, inputs))[:most]


def _differences(
    got: Sequence[int], expected: Sequence[int], inputs: Sequence[object]
) -> Iterator[str]:
    for g, e, x in zip(got, expected, inputs, strict=True):
        if g != e:
            shown = hex(x) if isinstance(x, int) else x
            yield f"of {shown}: got {g} ({g:#x}), expected {e} ({e:#x})"
